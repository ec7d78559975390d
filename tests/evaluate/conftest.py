"""A made, long-tailed detection problem: a store of predictions, its annotations, statistics and counts."""

import contextlib
import io
import json
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from logn.data.class_counts import ClassCounts
from logn.matching.matching import match_detections
from logn.matching.truth import load_ground_truth, read_results
from logn.measure.detection.metrics import EvaluationProtocol, rows_within_limits
from logn.measure.detection.tide import error_types
from logn.models.proposals import Proposals
from logn.predictions.store import PredictionStore, PredictionWriter, StoreHeader
from logn.statistics.moments import ClassMoments, StatisticsMetadata

COUNTS = np.array([900, 400, 200, 90, 60, 30, 12, 8, 4, 2])
GROUPS = "fffccccrrr"
NAMES = tuple(f"thing {number}" for number in range(len(COUNTS)))
SIDE, PROPOSALS = 200, 30


@dataclass(frozen=True)
class MadeSplit:
    """Where everything lies, and the parts that tests use most."""

    folder: Path
    moments: ClassMoments
    counts: ClassCounts

    @property
    def store(self):
        return PredictionStore(self.folder / "store")

    @property
    def annotations(self):
        return self.folder / "annotations.json"


def made_image(rng, activation):
    """Boxes, labels, and proposals whose logits lean to frequent classes; the background, if any, is last."""
    classes = len(COUNTS)
    number = rng.integers(2, 6)
    corner = rng.uniform(0, 140, (number, 2))
    boxes = np.hstack([corner, corner + rng.uniform(15, 60, (number, 2))]).round(1)
    labels = rng.integers(0, classes, number)
    source = rng.integers(0, number, PROPOSALS)
    proposals = (boxes[source] + rng.normal(0, 4, (PROPOSALS, 4))).clip(0, SIDE)
    proposals = np.sort(proposals.reshape(-1, 2, 2), axis=1).reshape(-1, 4) + np.array([0, 0, 1, 1])
    logits = rng.normal(-3, 1, (PROPOSALS, classes + (activation == "softmax")))
    logits[:, :classes] += 0.6 * np.log(COUNTS / COUNTS.mean())
    logits[np.arange(PROPOSALS), labels[source]] += rng.normal(3, 1.5, PROPOSALS)
    if activation == "softmax":
        logits[:, -1] += 3
    return boxes, labels, Proposals(proposals.astype(np.float32), logits.astype(np.float32), SIDE, SIDE)


def make_split(folder, *, activation="softmax", images=40, seed=0, dtype="float32"):
    rng = np.random.default_rng(seed)
    columns = len(COUNTS) + (activation == "softmax")
    background = -1 if activation == "softmax" else None
    header = StoreHeader(
        num_columns=columns,
        background=background,
        activation=activation,
        dtype=dtype,
        class_names=NAMES,
        category_ids=tuple(range(1, len(COUNTS) + 1)),
    )
    moments = ClassMoments(columns, metadata=StatisticsMetadata(background=background, activation=activation))
    listed, annotations = [], []
    with PredictionWriter(folder / "store", header) as writer:
        for image in range(1, images + 1):
            boxes, labels, proposals = made_image(rng, activation)
            writer.append(image, proposals)
            moments.update(proposals.logits)
            absent = np.setdiff1d(rng.choice(len(COUNTS), 4, replace=False), labels)
            entry = {"id": image, "width": SIDE, "height": SIDE, "neg_category_ids": (absent + 1).tolist()}
            listed.append(entry | {"not_exhaustive_category_ids": [int(labels[0]) + 1] if image % 5 == 0 else []})
            for (left, top, right, bottom), label in zip(boxes.tolist(), labels.tolist(), strict=True):
                annotation = {"id": len(annotations) + 1, "image_id": image, "category_id": label + 1}
                annotation |= {"bbox": [left, top, right - left, bottom - top], "iscrowd": 0}
                annotation["area"] = (right - left) * (bottom - top)
                annotation["segmentation"] = [[left, top, right, top, right, bottom, left, bottom]]
                annotations.append(annotation)
    categories = [{"id": number + 1, "name": name, "frequency": GROUPS[number]} for number, name in enumerate(NAMES)]
    content = {"images": listed, "annotations": annotations, "categories": categories}
    (folder / "annotations.json").write_text(json.dumps(content))
    moments.save(folder / "statistics.safetensors")
    return MadeSplit(folder, moments, ClassCounts(COUNTS, names=NAMES, num_images=2000))


@pytest.fixture(scope="session")
def softmax_split(tmp_path_factory):
    return make_split(tmp_path_factory.mktemp("softmax"))


@pytest.fixture(scope="session")
def sigmoid_split(tmp_path_factory):
    return make_split(tmp_path_factory.mktemp("sigmoid"), activation="sigmoid", seed=1)


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


def assert_errors_equal_tidecv(annotations, results, style):
    tidecv = pytest.importorskip("tidecv")
    truth = load_ground_truth(annotations, style=style)
    detections = read_results(results, truth)
    protocol = EvaluationProtocol(style=style, max_detections=100)
    detections = detections.take(rows_within_limits(detections, protocol))
    own = error_types(detections, truth, match_detections(detections, truth))
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
