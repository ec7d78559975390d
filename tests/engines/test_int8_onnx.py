"""Maps in int8 files that onnxruntime wrote of real models: behind the dequantised logits, or refused."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from logn.deploy.onnx_fold import fold_onnx
from logn.errors import InputError

pytest.importorskip("openvino", reason="`make test-engines` has the engines")
EXAMPLE = Path(__file__).parents[2] / "examples" / "engines.py"


def test_the_map_goes_behind_the_logits_of_an_int8_file(pair, tmp_path):
    import onnxruntime

    export = runpy.run_path(str(EXAMPLE))["to_onnxruntime"]
    run = export(pair.network, pair.images, tmp_path / "int8.onnx", "int8", pair.calibration)
    if pair.kind == "yolo":  # its scores are rounded on a scale that ends at the highest one that was seen
        with pytest.raises(InputError, match=r"room for the corrected scores, .* would be clipped: fold the model bef"):
            fold_onnx(tmp_path / "int8.onnx", pair.affine, tmp_path / "out.onnx", insert=True)
        return
    report = fold_onnx(tmp_path / "int8.onnx", pair.affine, tmp_path / "out.onnx", insert=True)
    assert report.way == "nodes"
    before = run(pair.images)
    after = onnxruntime.InferenceSession(str(tmp_path / "out.onnx")).run(None, {"images": pair.images.numpy()})
    expected = pair.affine(before[0].astype(np.float64))
    np.testing.assert_allclose(after[0], expected, rtol=0, atol=1e-4 * max(1.0, np.abs(expected).max()))
    for old, new in zip(before[1:], after[1:], strict=True):
        np.testing.assert_array_equal(old, new)  # the boxes
