"""Fold, export, prove: in every engine the output of the corrected model is the map of the uncorrected one's."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("openvino", reason="`make test-engines` has the engines")
ROOT = Path(__file__).parents[2]
# Relative to the largest logit, as `logn fold` proves it; weights of float16 have 11 bits.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "int8-weights": 1e-2}


def classes_and_boxes(kind, outputs):
    """Class logits as (rows, columns), and what is no class; a YOLO gives boxes and scores side by side."""
    if kind == "classifier":
        return outputs[0].astype(np.float64), None
    if kind == "ssdlite":
        logits, boxes = sorted(outputs, key=lambda array: -array.shape[-1])
        assert (logits.shape[-1], boxes.shape[-1]) == (6, 4)
        return logits.reshape(-1, 6).astype(np.float64), boxes
    return outputs[0][0, 4:].T.astype(np.float64), outputs[0][0, :4]


def mapped(kind, values, affine):
    """The map of logits, or of the logits behind a YOLO's scores."""
    if kind != "yolo":
        return affine(values)
    scores = values.clip(1e-12, 1 - 1e-7)  # in float32 a sigmoid is 1 from about 17 on
    return 1 / (1 + np.exp(-affine(np.log(scores / (1 - scores)))))


def run_both(engine, pair, folder, precision):
    found = []
    for name, network in (("plain", pair.network), ("corrected", pair.corrected)):
        run = engine.export(network, pair.images, folder / f"{name}{engine.suffix}", precision, pair.calibration)
        found.append(classes_and_boxes(pair.kind, run(pair.images)))
    return found


def own_values(pair, network):
    with torch.inference_mode():
        own = network(pair.images)
    return classes_and_boxes(pair.kind, [part.numpy() for part in (own if isinstance(own, tuple | list) else (own,))])[
        0
    ]


@pytest.mark.parametrize("precision", TOLERANCE)
def test_the_corrected_output_is_the_map_of_the_output(engine, pair, tmp_path, precision):
    """Weights of int8 have a scale for each channel, which takes the map's: the whole numbers stay what they were."""
    if precision == "int8-weights" and engine.name == "onnxruntime" and pair.kind != "classifier":
        pytest.skip("onnxruntime rounds the weights of linear layers alone, and this model has none")
    (before, boxes), (after, same_boxes) = run_both(engine, pair, tmp_path, precision)
    expected = mapped(pair.kind, before, pair.affine)
    assert before.std() > 0.1
    largest = max(1.0, np.abs(expected).max())
    assert np.abs(after - expected).max() <= TOLERANCE[precision] * largest
    assert np.abs(after - before).max() > 0.1 * largest  # so that no map at all would be noticed
    own = own_values(pair, pair.corrected)
    if precision == "float32":
        assert np.abs(after - own).max() <= 1e-3 * largest
    else:  # the weights were rounded indeed
        assert np.abs(after - own).max() > 1e-4
    if boxes is not None:
        np.testing.assert_allclose(same_boxes, boxes, rtol=1e-3, atol=1e-3)


def test_the_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "engines.py"), run_name="__main__")
    printed = capsys.readouterr().out
    differences = dict(re.findall(r"^(\w+): largest difference .*: (\S+)$", printed, flags=re.M))
    assert {*differences} == {"OpenVINO", "LiteRT", "onnxruntime"}
    assert max(map(float, differences.values())) < 1e-4
