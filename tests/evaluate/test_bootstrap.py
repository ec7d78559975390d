"""The bootstrap: exact where a draw can be checked, and paired."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logn.evaluate.decode.detections import Detections
from logn.evaluate.detection import bootstrap
from logn.evaluate.detection.average_precision import RECALL_THRESHOLDS, average_precision_per_class
from logn.evaluate.detection.bootstrap import bootstrap_metrics, draw_weights, paired_interval
from logn.evaluate.detection.ground_truth import load_ground_truth
from logn.evaluate.detection.matching import match_detections
from logn.evaluate.detection.metrics import evaluate_detections

IMAGES, CLASSES, BOXES, FOUND = 14, 5, 4, 12


def made(seed, repeats=None):
    """Annotations and detections; `repeats` says how often each image is there, under new ids."""
    rng = np.random.default_rng(seed)
    images, annotations, columns = [], [], []
    repeats = np.ones(IMAGES, int) if repeats is None else repeats
    for image in range(IMAGES):
        boxes = np.hstack([rng.uniform(0, 80, (BOXES, 2)), rng.uniform(10, 60, (BOXES, 2))])
        labels = rng.integers(0, CLASSES - 1, BOXES)
        near = rng.integers(0, BOXES, FOUND)
        found = boxes[near] * rng.normal(1, 0.08, (FOUND, 4))
        found[:, 2:] += found[:, :2]
        kinds = np.where(rng.random(FOUND) < 0.7, labels[near], rng.integers(0, CLASSES, FOUND))
        scores = np.sort(rng.random(FOUND))[::-1]
        absent = np.setdiff1d(rng.integers(0, CLASSES, 2), labels)
        unsure = np.unique(labels)[:1] if image % 3 == 0 else np.empty(0, int)
        for _ in range(repeats[image]):
            entry = {"id": len(images) + 1, "neg_category_ids": (absent + 1).tolist()}
            images.append(entry | {"not_exhaustive_category_ids": (unsure + 1).tolist()})
            for box, label in zip(boxes.tolist(), labels.tolist(), strict=True):
                annotation = {"id": len(annotations) + 1, "image_id": len(images), "category_id": label + 1}
                annotations.append(annotation | {"bbox": box, "area": box[2] * box[3]})
            columns.append((np.full(FOUND, len(images) - 1), kinds, scores, found, np.arange(FOUND)))
    categories = [{"id": number + 1, "name": str(number), "frequency": "rccff"[number]} for number in range(CLASSES)]
    truth = load_ground_truth({"images": images, "annotations": annotations, "categories": categories})
    return truth, Detections(*(np.concatenate(column) for column in zip(*columns, strict=True)))


@pytest.mark.parametrize("seed", range(3))
def test_drawing_every_image_once_gives_the_metrics_themselves(seed):
    truth, detections = made(seed)
    drawn = bootstrap_metrics(
        match_detections(detections, truth), truth, np.ones((2, IMAGES), np.int32), groups=truth.frequency
    )
    expected = evaluate_detections(detections, truth, groups=truth.frequency)
    for name, values in drawn.items():
        np.testing.assert_allclose(values, expected[name], atol=1e-12, err_msg=name)


@pytest.mark.parametrize("seed", range(3))
def test_a_weight_is_a_repeated_image(seed):
    weights = draw_weights(IMAGES, 1, seed=seed)
    truth, detections = made(seed)
    drawn = bootstrap_metrics(match_detections(detections, truth), truth, weights, groups=truth.frequency)
    repeated_truth, repeated = made(seed, weights[0])
    expected = evaluate_detections(repeated, repeated_truth, groups=truth.frequency)
    for name, values in drawn.items():
        np.testing.assert_allclose(values[0], expected[name], atol=1e-9, err_msg=name)


def test_how_much_is_computed_at_once_does_not_show(monkeypatch):
    truth, detections = made(1)
    matched, weights = match_detections(detections, truth), draw_weights(IMAGES, 50)
    expected = bootstrap_metrics(matched, truth, weights, groups=truth.frequency)
    monkeypatch.setattr(bootstrap, "HITS_AT_ONCE", 2)
    found = bootstrap_metrics(matched, truth, np.ascontiguousarray(weights), groups=truth.frequency)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-12, err_msg=name)


def plain_draw(matched, truth, weights):
    """AP of one draw from its definition: each detection as often as its image was drawn, class by class."""
    repeats = weights[matched.image_index]
    boxes = np.bincount(
        truth.labels[~truth.crowd], weights=weights[truth.image_index[~truth.crowd]], minlength=truth.num_classes
    )
    values = []
    for correct, counted in zip(matched.correct, matched.counted, strict=True):
        of_draw = (np.repeat(rows, repeats) for rows in (matched.labels, correct, counted))
        values.append(average_precision_per_class(*of_draw, boxes))
    return float(np.nanmean(np.mean(values, axis=0)))


@given(seed=st.integers(0, 2**32 - 1), draw_seed=st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_every_draw_is_its_definition(seed, draw_seed):
    truth, detections = made(seed)
    matched, weights = match_detections(detections, truth), draw_weights(IMAGES, 3, seed=draw_seed)
    found = bootstrap_metrics(matched, truth, weights)["AP"]
    np.testing.assert_allclose(found, [plain_draw(matched, truth, row) for row in weights], atol=1e-12)


def test_the_recall_points_are_multiples_of_their_step():
    np.testing.assert_array_equal(RECALL_THRESHOLDS, np.arange(101) * bootstrap.RECALL_STEP)


def test_draws_are_the_same_for_one_seed_and_cover_all_images():
    weights = draw_weights(50, 200, seed=3)
    assert (weights == draw_weights(50, 200, seed=3)).all()
    assert (weights != draw_weights(50, 200, seed=4)).any()
    assert (weights.sum(axis=1) == 50).all()
    assert abs(weights.mean(axis=0) - 1).max() < 0.4


def test_the_same_method_twice_differs_by_nothing():
    truth, detections = made(0)
    weights = draw_weights(IMAGES, 40)
    matched = match_detections(detections, truth)
    once = bootstrap_metrics(matched, truth, weights, groups=truth.frequency)
    again = bootstrap_metrics(matched, truth, weights, groups=truth.frequency)
    for name in once:
        interval = paired_interval(once[name], again[name], 0.0)
        assert (interval.low, interval.high) == (0.0, 0.0)
        assert not interval.is_clear
    assert once["AP"].std() > 0


def test_a_class_that_no_draw_has_gives_no_interval():
    interval = paired_interval(np.full(3, np.nan), np.full(3, np.nan), float("nan"))
    assert np.isnan(interval.low)
