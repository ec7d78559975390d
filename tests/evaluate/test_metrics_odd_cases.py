"""Odd cases against the reference packages: equal scores, crowds, empty images, unverified classes, equal boxes."""

import contextlib
import io
import json
import logging

import numpy as np
import pytest

from logn.evaluate.detection.ground_truth import load_ground_truth, read_results
from logn.evaluate.detection.matching import MatchedDetections, match_detections
from logn.evaluate.detection.metrics import (
    EvaluationProtocol,
    calibration_error,
    evaluate_detections,
    rows_within_limits,
)
from logn.evaluate.detection.tide import error_types
from logn.labels.masks import encode_segmentation

SIDE = 200


def outline(x, y, w, h):
    return [[x, y, x + w, y, x + w, y + h, x, y + h]]


def bbox_of(corners):
    x1, y1, x2, y2 = corners.tolist()
    return x1, y1, x2 - x1, y2 - y1


def made_boxes(rng, number, whole):
    boxes = np.hstack([rng.uniform(0, 120, (number, 2)), rng.uniform(8, 60, (number, 2))])
    if number > 1 and rng.random() < 0.3:
        boxes[1] = boxes[0]
    return boxes.round(0 if whole else 2)


def made_results(rng, image, boxes, labels, categories, digits, whole):
    """Detections near the boxes, some exactly on them, of the right class or another; `digits` make equal scores."""
    results = []
    for _ in range(int(rng.integers(0, 25))):
        near = len(boxes) and rng.random() < 0.75
        chosen = int(rng.integers(len(boxes))) if near else 0
        noise = rng.normal(0, 4, 4) if rng.random() < 0.8 else 0.0
        box = boxes[chosen] + noise if near else np.r_[rng.uniform(0, 120, 2), rng.uniform(5, 60, 2)]
        label = labels[chosen] if near and rng.random() < 0.75 else rng.integers(len(categories))
        entry = {"image_id": image, "category_id": int(categories[label])}
        entry["bbox"] = np.abs(box).clip(1, 130).round(0 if whole else 2).tolist()
        results.append(entry | {"score": max(round(float(rng.random()), digits), 0.01)})
    return results


def made_files(folder, seed, *, digits, crowds=False):
    rng = np.random.default_rng(seed)
    num_classes, whole = int(rng.integers(2, 8)), bool(rng.random() < 0.5)
    categories = np.sort(rng.choice(np.arange(1, 50), num_classes, replace=False))
    listed, annotations, results = [], [], []
    for image in rng.permutation(np.arange(1, 200))[: int(rng.integers(4, 14))].tolist():
        number = int(rng.poisson(3)) if rng.random() < 0.8 else 0
        boxes = made_boxes(rng, number, whole)
        labels = rng.integers(0, num_classes - 1, number)  # the last class has no box at all
        absent = np.setdiff1d(rng.choice(num_classes, int(rng.integers(0, num_classes + 1)), replace=False), labels)
        unsure = rng.choice(num_classes, int(rng.integers(0, num_classes + 1)), replace=False)
        entry = {"id": image, "width": SIDE, "height": SIDE, "coco_url": "a.jpg", "file_name": "a.jpg"}
        entry |= {"neg_category_ids": categories[absent].tolist()}
        listed.append(entry | {"not_exhaustive_category_ids": categories[unsure].tolist()})
        for label, (x, y, w, h) in zip(labels.tolist(), boxes.tolist(), strict=True):
            annotation = {"id": len(annotations) + 1, "image_id": image, "category_id": int(categories[label])}
            annotation |= {"bbox": [x, y, w, h], "area": w * h, "iscrowd": int(crowds and rng.random() < 0.25)}
            annotations.append(annotation | {"segmentation": outline(x, y, w, h)})
        results += made_results(rng, image, boxes, labels, categories, digits, whole)
    rng.shuffle(results)
    known = [
        {"id": int(number), "name": f"c{number}", "synset": "c", "frequency": "rcf"[place % 3]}
        for place, number in enumerate(categories)
    ]
    content = {"images": listed, "annotations": annotations, "categories": known, "info": {}, "licenses": []}
    paths = folder / f"annotations-{seed}.json", folder / f"results-{seed}.json"
    for path, written in zip(paths, (content, results), strict=True):
        path.write_text(json.dumps(written))
    return paths


@pytest.mark.parametrize("limit", [300, 5, -1])
@pytest.mark.parametrize("digits", [1, 2, 9])
def test_lvis_metrics(tmp_path, monkeypatch, limit, digits):
    monkeypatch.setattr(np, "float", float, raising=False)  # an alias that NumPy dropped
    lvis = pytest.importorskip("lvis")
    logging.getLogger("lvis").setLevel(logging.ERROR)
    for seed in range(6):
        annotations, results = made_files(tmp_path, seed, digits=digits)
        truth = load_ground_truth(annotations)
        detections = read_results(results, truth)
        theirs = lvis.LVIS(str(annotations))
        found = lvis.LVISResults(theirs, json.loads(results.read_text()), max_dets=limit)
        evaluation = lvis.LVISEval(theirs, found, "bbox")
        evaluation.run()
        values = {name: value for name, value in evaluation.get_results().items() if name.startswith("AP")}
        expected = {name: np.nan if value == -1 else value for name, value in values.items()}
        protocol = EvaluationProtocol(max_detections=None if limit == -1 else limit)
        ours = evaluate_detections(detections, truth, protocol, groups=truth.frequency)
        assert {name: ours[name] for name in expected} == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_without_a_limit_no_detection_of_a_crowded_image_is_dropped(tmp_path):
    image = {"id": 1, "width": SIDE, "height": SIDE, "neg_category_ids": [2], "not_exhaustive_category_ids": []}
    listed = [{"id": number, "name": f"c{number}", "frequency": "r"} for number in (1, 2)]
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [9, 9, 30, 30], "area": 900, "iscrowd": 0}
    truth = load_ground_truth({"images": [image], "categories": listed, "annotations": [annotation]})
    wrong = [{"image_id": 1, "category_id": 2, "bbox": [9, 9, 30, 30], "score": 0.9}] * 400
    (tmp_path / "results.json").write_text(json.dumps([*wrong, {**wrong[0], "category_id": 1, "score": 0.1}]))
    detections = read_results(tmp_path / "results.json", truth)
    for limit, expected in ((None, 1.0), (300, 0.0)):
        assert evaluate_detections(detections, truth, EvaluationProtocol(max_detections=limit))["AP"] == pytest.approx(
            expected
        )


@pytest.mark.parametrize("style", ["lvis", "coco"])
@pytest.mark.parametrize("masks", [False, True], ids=["boxes", "masks"])
@pytest.mark.parametrize(
    ("image_offset", "category_offset", "annotation_id"),
    [
        (2**53, 0, None),  # a float64 rounds every second one of these
        (2**62, 0, None),
        (-(2**62), 0, None),
        (0, 2**60, None),
        (0, 0, lambda number: 7),
        (0, 0, lambda number: number // 2),
        (0, 0, lambda number: number - 1),
        (0, 0, lambda number: -number),
    ],
)
def test_ids_do_not_matter(tmp_path, style, masks, image_offset, category_offset, annotation_id):
    paths = made_files(tmp_path, 3, digits=1)
    before = [json.loads(path.read_text()) for path in paths]
    annotations, results = json.loads(json.dumps(before))
    for image in annotations["images"]:
        image["id"] += image_offset
        for field in ("neg_category_ids", "not_exhaustive_category_ids"):
            image[field] = [number + category_offset for number in image[field]]
    for category in annotations["categories"]:
        category["id"] += category_offset
    for entry in annotations["annotations"] + results:
        entry["image_id"] += image_offset
        entry["category_id"] += category_offset
    for entry in annotations["annotations"]:
        entry["id"] = annotation_id(entry["id"]) if annotation_id else entry["id"]
    changed = tmp_path / "changed.json", tmp_path / "changed-results.json"
    for path, content in zip(changed, (annotations, results), strict=True):
        path.write_text(json.dumps(content))
    metrics = []
    for labels, found in (paths, changed):
        truth = load_ground_truth(labels, style=style, masks=masks)
        detections = read_results(found, truth)
        outlines = (
            [encode_segmentation(outline(*bbox_of(box)), SIDE, SIDE) for box in detections.boxes] if masks else None
        )
        metrics.append(
            evaluate_detections(detections, truth, EvaluationProtocol(style), masks=outlines if masks else None)
        )
    assert metrics[0]["AP"] > 0.05
    assert metrics[1].values == pytest.approx(dict(metrics[0].values), nan_ok=True, abs=0)
    assert truth.image_ids.tolist() == [image["id"] for image in annotations["images"]]


@pytest.mark.parametrize("limit", [100, 2])
@pytest.mark.parametrize("digits", [1, 9])
def test_coco_metrics_with_crowds(tmp_path, limit, digits):
    coco, cocoeval = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    for seed in range(8):
        annotations, results = made_files(tmp_path, seed, digits=digits, crowds=True)
        truth = load_ground_truth(annotations, style="coco")
        detections = read_results(results, truth)
        with contextlib.redirect_stdout(io.StringIO()):
            theirs = coco.COCO(str(annotations))
            evaluation = cocoeval.COCOeval(theirs, theirs.loadRes(json.loads(results.read_text())), "bbox")
            evaluation.params.maxDets = [1, 1, limit]
            evaluation.evaluate()
            evaluation.accumulate()
        precision = evaluation.eval["precision"][..., 2].mean(axis=(0, 1))
        precision = np.where(precision < 0, np.nan, precision)
        ours = evaluate_detections(detections, truth, EvaluationProtocol(style="coco", max_detections=limit))
        np.testing.assert_allclose(ours.per_class, precision[:, 0], atol=1e-6)
        for place, size in enumerate("sml", start=1):
            present = precision[~np.isnan(precision[:, place]), place]
            expected = present.mean() if len(present) else np.nan
            np.testing.assert_allclose(ours[f"AP{size}"], expected, atol=1e-6)


def test_of_two_boxes_that_overlap_as_much_the_later_is_taken(tmp_path):
    boxes = [[0, 0, 10, 10], [4, 0, 10, 10]]
    content = {"images": [{"id": 1, "width": SIDE, "height": SIDE}], "categories": [{"id": 1, "name": "cup"}]}
    content["annotations"] = [
        {"id": number, "image_id": 1, "category_id": 1, "bbox": box, "area": 100, "iscrowd": 0}
        for number, box in enumerate(boxes, start=1)
    ]
    # The first lies half-way; the second could only have the later box.
    found = [([2, 0, 10, 10], 0.9), ([4.5, 0, 10, 10], 0.8)]
    results = [{"image_id": 1, "category_id": 1, "bbox": box, "score": score} for box, score in found]
    (tmp_path / "results.json").write_text(json.dumps(results))
    truth = load_ground_truth(content, style="coco")
    detections = read_results(tmp_path / "results.json", truth)
    matched = match_detections(detections, truth)
    assert matched.correct[0].tolist() == [True, False]


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


# Equal scores are left out: in its repaired lists TIDE puts them in another order than in its own base.
@pytest.mark.parametrize("style", ["lvis", "coco"])
def test_error_types(tmp_path, style):
    for seed in range(12):
        assert_errors_equal_tidecv(*made_files(tmp_path, seed, digits=9, crowds=style == "coco"), style)


def test_error_types_at_exactly_the_two_overlaps(tmp_path):
    boxes = [[0, 0, 10, 10], [100, 0, 10, 10], [50, 100, 10, 10]]
    annotations = [
        {"id": number, "image_id": 1, "category_id": category, "bbox": box, "area": 100, "iscrowd": 0}
        | {"segmentation": outline(*box)}
        for number, (box, category) in enumerate(zip(boxes, (1, 1, 2), strict=True), start=1)
    ]
    found = [
        (1, [0, 0, 10, 10], 0.9),  # finds the first box
        (1, [0, 0, 10, 5], 0.8),  # overlaps the found one by exactly one half
        (1, [100, 0, 10, 1], 0.7),  # overlaps the second by exactly one tenth
        (1, [50, 100, 10, 5], 0.6),  # overlaps a box of the other class by exactly one half
        (1, [50, 100, 10, 1], 0.5),  # and by exactly one tenth
    ]
    categories = [{"id": number, "name": f"c{number}"} for number in (1, 2)]
    images = [{"id": 1, "width": SIDE, "height": SIDE, "file_name": "a.jpg"}]
    for name, content in (
        ("annotations", {"images": images, "annotations": annotations, "categories": categories}),
        ("results", [{"image_id": 1, "category_id": c, "bbox": box, "score": score} for c, box, score in found]),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert_errors_equal_tidecv(tmp_path / "annotations.json", tmp_path / "results.json", "coco")


def test_the_calibration_error_leaves_out_what_is_not_counted():
    scores, correct = np.array([0.9, 0.9, 0.9, 0.9]), np.array([[True, True, True, False]])
    counted = np.array([[True, True, True, False]])
    rows = np.arange(4)
    matched = MatchedDetections(rows, np.zeros(4, int), np.array([0, 0, 1, 1]), scores, correct, counted, rows)
    assert calibration_error(matched)["ECE"] == pytest.approx(0.1)
    groups = calibration_error(matched, groups=np.array(["r", "f"]))
    assert [groups[name] for name in ("ECEr", "ECEf")] == pytest.approx([0.1, 0.1])
    assert np.isnan(groups["ECEc"])
