"""Metrics: worked examples, plain loops, and odd cases against the reference packages.

Equal scores, crowds, empty images, unverified classes, equal boxes.
"""

import contextlib
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.measure.detection.conftest import assert_errors_equal_tidecv, errors_of, lvis_values, made_outcomes

from logn.data.masks import encode_segmentation
from logn.matching.ground_truth import load_ground_truth
from logn.matching.match import greedy_matches, joined_pairs, match_detections
from logn.matching.results import read_results
from logn.measure.detection.metrics import (
    EvaluationProtocol,
    average_precision_per_class,
    average_precision_pool,
    calibration_error,
    evaluate_detections,
)
from logn.predictions.detections import Detections

SIDE = 200
# (image, category, x y w h); images 1 and 2 stand at positions 0 and 1, category c at position c - 1.
FEDERATED_BOXES = [(1, 1, [0, 0, 10, 10]), (1, 2, [20, 20, 10, 10]), (2, 2, [0, 0, 10, 10]), (2, 3, [30, 30, 10, 10])]
FEDERATED_DETECTIONS = [
    (1, 1, [0, 0, 10, 10], 0.9),
    (1, 3, [5, 5, 10, 10], 0.8),
    (1, 2, [20, 20, 10, 8.2], 0.7),
    (1, 4, [5, 5, 10, 10], 0.99),
    (2, 1, [50, 50, 10, 10], 0.95),
    (2, 2, [40, 40, 10, 10], 0.85),
    (2, 2, [0, 0, 10, 10], 0.5),
    (2, 3, [30, 30, 10, 10], 0.4),
]


def annotations_of(boxes):
    return [
        {"id": number, "image_id": image, "category_id": category, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
        for number, (image, category, box) in enumerate(boxes, start=1)
    ]


def made_detections(entries):
    """Detections from (image, category, x y w h, score), sorted as the decoder sorts them."""
    image, category, box, score = (np.array(column) for column in zip(*entries, strict=True))
    corners = np.hstack([box[:, :2], box[:, :2] + box[:, 2:]])
    order = np.lexsort((-score, image))
    columns = image - 1, category - 1, score, corners, np.arange(len(score))
    return Detections(*(column[order] for column in columns))


@pytest.fixture
def federated():
    images = [
        {"id": 1, "neg_category_ids": [3], "not_exhaustive_category_ids": []},
        {"id": 2, "neg_category_ids": [1], "not_exhaustive_category_ids": [2]},
    ]
    categories = [{"id": number, "name": f"c{number}", "frequency": group} for number, group in enumerate("rcff", 1)]
    boxes = annotations_of(FEDERATED_BOXES)
    return load_ground_truth({"images": images, "categories": categories, "annotations": boxes})


def test_lvis_average_precision(federated):
    result = evaluate_detections(made_detections(FEDERATED_DETECTIONS), federated, groups=federated.frequency)
    expected = {"AP": 0.591914, "AP50": 0.666667, "AP75": 0.666667, "APr": 0.5, "APc": 0.775743, "APf": 0.5}
    assert {name: result[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert np.isnan(result.per_class[3])


def test_a_limit_of_two_an_image_counts_what_is_later_filtered_out(federated):
    protocol = EvaluationProtocol(max_detections=2)
    result = evaluate_detections(made_detections(FEDERATED_DETECTIONS), federated, protocol, groups=federated.frequency)
    expected = {"AP": 0.166667, "APr": 0.5, "APc": 0.0, "APf": 0.0}
    assert {name: result[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert result.protocol.describe().startswith("LVIS box AP, federated, at most 2 detections per image")


def test_average_precision_pool(federated):
    ranked = match_detections(made_detections(FEDERATED_DETECTIONS), federated).by_class(federated)
    expected = {"AP-Pool": 0.579538, "APr-Pool": 0.5, "APc-Pool": 0.775743, "APf-Pool": 0.5}
    assert average_precision_pool(ranked, groups=federated.frequency) == pytest.approx(expected, abs=1e-6)


def test_error_types_of_one_of_each():
    truth_at = [(1, 0), (1, 200), (1, 500), (2, 100), (2, 300), (2, 600)]
    found_at = [(1, 0.95, 0), (1, 0.90, 0), (1, 0.85, 100), (1, 0.80, 205), (1, 0.60, 400), (1, 0.50, 305)]
    found_at += [(1, 0.30, 500), (2, 0.9, 600)]
    boxes = annotations_of([(1, category, [x, 0, 10, 10]) for category, x in truth_at])
    content = {"images": [{"id": 1}], "categories": [{"id": 1}, {"id": 2}], "annotations": boxes}
    truth = load_ground_truth(content, style="coco")
    detections = made_detections([(1, category, [x, 0, 10, 10], score) for category, score, x in found_at])
    result = errors_of(detections, truth, np.array(["f", "r"]))
    expected = {"Cls": 17.114569, "Loc": 10.714286, "Both": 0.777935, "Dupe": 0.777935, "Bkg": 0.777935}
    expected |= {"Miss": 8.415842, "FP": 11.669024, "FN": 43.988685}
    assert 100 * result.base == pytest.approx(38.330976, abs=1e-6)
    assert {name: 100 * gain for name, gain in result.gains.items()} == pytest.approx(expected, abs=1e-6)
    assert result.counts == {"Cls": 1, "Loc": 1, "Both": 1, "Dupe": 1, "Bkg": 1, "Miss": 1}
    assert 100 * result.per_group["f"]["AP50"] == pytest.approx(42.998586, abs=1e-6)
    assert 100 * result.per_group["r"]["AP50"] == pytest.approx(33.663366, abs=1e-6)
    assert np.isnan(result.per_group["c"]["AP50"])


@pytest.mark.parametrize(("category", "x", "kind"), [(2, 0, "Cls"), (1, 5, "Loc")])
def test_an_error_at_the_first_box_is_repaired(category, x, kind):
    content = {"images": [{"id": 1}], "categories": [{"id": 1}, {"id": 2}]}
    content["annotations"] = annotations_of([(1, 1, [0, 0, 10, 10]), (1, 2, [200, 0, 10, 10])])
    truth = load_ground_truth(content, style="coco")
    detections = made_detections([(1, category, [x, 0, 10, 10], 0.9)])
    result = errors_of(detections, truth)
    assert (result.base, result.counts[kind]) == (0, 1)
    assert result.gains[kind] == pytest.approx(0.5)


def plain_greedy(iou, threshold):
    """One detection after the other, the best free box each; ties: the later box."""
    free = np.ones(iou.shape[1], bool)
    matched = np.full(iou.shape[0], -1)
    for row in range(iou.shape[0]):
        best, choice = threshold, -1
        for box in range(iou.shape[1]):
            if free[box] and iou[row, box] >= best:
                best, choice = iou[row, box], box
        if choice >= 0:
            free[choice], matched[row] = False, choice
    return matched


def plain_average_precision(correct, num_boxes):
    hits = np.cumsum(correct)
    recall, precision = hits / num_boxes, hits / np.arange(1, len(correct) + 1)
    points = [max(precision[recall >= point], default=0.0) for point in np.linspace(0, 1, 101)]
    return float(np.mean(points))


@given(
    detections=st.integers(0, 12),
    boxes=st.integers(1, 6),
    levels=st.sampled_from([3, 1000]),
    seed=st.integers(0, 10_000),
)
def test_all_at_once_equals_one_after_the_other(detections, boxes, levels, seed):
    # Few levels make many ties, on which the choice depends most.
    iou = np.random.default_rng(seed).integers(0, levels, (detections, boxes)) / levels
    row, box = np.nonzero(iou >= 0.3)
    order = np.lexsort((-box, -iou[row, box], row))
    found = greedy_matches(row[order], box[order], detections, np.zeros(boxes, bool))
    assert found.tolist() == plain_greedy(iou, 0.3).tolist()


@given(left=st.lists(st.integers(0, 4), max_size=8), right=st.lists(st.integers(0, 4), max_size=8))
def test_joined_pairs_are_all_pairs_with_equal_keys(left, right):
    rows, columns = joined_pairs(np.array(left, np.int64), np.array(right, np.int64))
    expected = [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a == b]
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == expected


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.booleans()), min_size=1, max_size=30),
    extra=st.lists(st.integers(0, 3), min_size=3, max_size=3),
)
def test_average_precision_of_all_classes_equals_each_alone(rows, extra):
    labels, scores, correct = (np.array(column) for column in zip(*rows, strict=True))
    order = np.lexsort((-scores, labels))
    labels, correct = labels[order], correct[order].astype(bool)
    boxes = np.bincount(labels[correct], minlength=3) + extra
    found = average_precision_per_class(labels, correct, np.ones(len(labels), bool), boxes)
    for label in range(3):
        if boxes[label] == 0:
            assert np.isnan(found[label])
        else:
            np.testing.assert_allclose(found[label], plain_average_precision(correct[labels == label], boxes[label]))


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
def test_lvis_metrics(tmp_path, lvis_package, limit, digits):
    for seed in range(6):
        files = made_files(tmp_path, seed, digits=digits)
        truth = load_ground_truth(files[0])
        expected = lvis_values(lvis_package, files, limit=limit)
        protocol = EvaluationProtocol(max_detections=None if limit == -1 else limit)
        ours = evaluate_detections(read_results(files[1], truth), truth, protocol, groups=truth.frequency)
        assert {name: ours[name] for name in expected} == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_without_a_limit_no_detection_of_a_crowded_image_is_dropped():
    image = {"id": 1, "neg_category_ids": [2], "not_exhaustive_category_ids": []}
    content = {"images": [image], "categories": [{"id": 1}, {"id": 2}]}
    truth = load_ground_truth({**content, "annotations": annotations_of([(1, 1, [9, 9, 30, 30])])})
    detections = made_detections([*[(1, 2, [9, 9, 30, 30], 0.9)] * 400, (1, 1, [9, 9, 30, 30], 0.1)])
    for limit, expected in ((None, 1.0), (300, 0.0)):
        protocol = EvaluationProtocol(max_detections=limit)
        assert evaluate_detections(detections, truth, protocol)["AP"] == pytest.approx(expected)


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


def test_of_two_boxes_that_overlap_as_much_the_later_is_taken():
    boxes = annotations_of([(1, 1, [0, 0, 10, 10]), (1, 1, [4, 0, 10, 10])])
    truth = load_ground_truth({"images": [{"id": 1}], "categories": [{"id": 1}], "annotations": boxes}, style="coco")
    # The first lies half-way; the second could only have the later box.
    detections = made_detections([(1, 1, [2, 0, 10, 10], 0.9), (1, 1, [4.5, 0, 10, 10], 0.8)])
    assert match_detections(detections, truth).hits.tolist() == [True, False]


# Equal scores are left out: in its repaired lists TIDE puts them in another order than in its own base.
@pytest.mark.parametrize("style", ["lvis", "coco"])
def test_error_types(tmp_path, style):
    for seed in range(12):
        assert_errors_equal_tidecv(*made_files(tmp_path, seed, digits=9, crowds=style == "coco"), style)


def test_error_types_at_exactly_the_two_overlaps(tmp_path):
    boxes = [(1, [0, 0, 10, 10]), (1, [100, 0, 10, 10]), (2, [50, 100, 10, 10])]
    listed = annotations_of([(1, category, box) for category, box in boxes])
    annotations = [entry | {"segmentation": outline(*entry["bbox"])} for entry in listed]
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
    outcomes = made_outcomes(np.array([0, 0, 1, 1]), scores, correct, counted)
    assert calibration_error(outcomes)["ECE"] == pytest.approx(0.1)
    groups = calibration_error(outcomes, groups=np.array(["r", "f"]))
    assert [groups[name] for name in ("ECEr", "ECEf")] == pytest.approx([0.1, 0.1])
    assert np.isnan(groups["ECEc"])
