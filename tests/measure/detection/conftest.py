"""The reference packages `lvis` and `tidecv`, and their numbers; outcomes and errors of made detections."""

import contextlib
import io
import json
import logging

import numpy as np
import pytest

from logn.matching.ground_truth import load_ground_truth
from logn.matching.match import match_detections
from logn.matching.outcomes import Outcomes, pack
from logn.matching.results import read_results
from logn.measure.detection.metrics import EvaluationProtocol, rows_within_limits
from logn.measure.detection.tide import error_kinds, error_types


@pytest.fixture
def lvis_package(monkeypatch):
    """The package, with the alias that NumPy dropped."""
    monkeypatch.setattr(np, "float", float, raising=False)
    lvis = pytest.importorskip("lvis")
    logging.getLogger("lvis").setLevel(logging.ERROR)
    return lvis


def lvis_values(lvis, files, *, iou_type="bbox", limit=300):
    """The AP values that the package gives."""
    truth, entries = lvis.LVIS(str(files[0])), json.loads(files[1].read_text())
    if iou_type == "segm":  # else the size of a detection is that of its box
        entries = [{key: value for key, value in entry.items() if key != "bbox"} for entry in entries]
    evaluation = lvis.LVISEval(truth, lvis.LVISResults(truth, entries, max_dets=limit), iou_type)
    evaluation.run()
    values = evaluation.get_results()
    return {name: np.nan if value == -1 else value for name, value in values.items() if name.startswith("AP")}


def made_outcomes(labels, scores, right, counted, *, images=None, num_objects=None):
    """Outcomes from marks `(T, D)`."""
    number = len(labels)
    images = np.zeros(number, int) if images is None else images
    num_objects = np.zeros(int(np.max(labels, initial=0)) + 1, int) if num_objects is None else num_objects
    marks = pack(np.asarray(right) & np.asarray(counted)), pack(counted)
    return Outcomes(images, labels, scores, *marks, np.full(number, -1), num_objects, np.linspace(0.5, 0.9, len(right)))


def errors_of(detections, truth, groups=None):
    outcomes = match_detections(detections, truth)
    return error_types(outcomes, error_kinds(detections, outcomes, truth), truth, groups)


def assert_errors_equal_tidecv(annotations, results, style):
    tidecv = pytest.importorskip("tidecv")
    truth = load_ground_truth(annotations, style=style)
    detections = read_results(results, truth)
    protocol = EvaluationProtocol(style=style, max_detections=100)
    detections = detections.take(rows_within_limits(detections, protocol))
    own = errors_of(detections, truth)
    readers = {
        "lvis": (tidecv.datasets.LVIS, tidecv.datasets.LVISResult),
        "coco": (tidecv.datasets.COCO, tidecv.datasets.COCOResult),
    }[style]
    with contextlib.redirect_stdout(io.StringIO()):
        sources = [reader(str(path)) for reader, path in zip(readers, (annotations, results), strict=True)]
        run = tidecv.TIDE().evaluate(*sources, mode="bbox")
        gains = {error.short_name: gain for error, gain in run.fix_main_errors().items()}
        special = {error.short_name: gain for error, gain in run.fix_special_errors().items()}
    gains |= {"FP": special["FalsePos"], "FN": special["FalseNeg"]}
    assert 100 * own.base == pytest.approx(run.ap, abs=1e-6)
    assert {name: 100 * gain for name, gain in own.gains.items()} == pytest.approx(gains, abs=1e-6)
    assert own.counts == {error.short_name: count for error, count in run.count_errors().items()}
