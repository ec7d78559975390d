"""The bootstrap: exact where a draw can be checked, and paired."""

import multiprocessing
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measure.detection.conftest import made_outcomes

from logn.base import processes
from logn.errors import LogNWarning
from logn.matching.bootstrap_draws import Draws
from logn.matching.ground_truth import load_ground_truth
from logn.matching.match import match_detections
from logn.measure.detection import bootstrap
from logn.measure.detection import drawn_precision as drawn
from logn.measure.detection.bootstrap import (
    DrawnMethod,
    bootstrap_metrics,
    draw_methods,
    paired_interval,
)
from logn.measure.detection.metrics import BestDetections, average_precision_per_class, evaluate_detections
from logn.predictions.detections import Detections

IMAGES, CLASSES, BOXES, FOUND = 14, 5, 4, 12
SEEDS = st.integers(0, 2**32 - 1)


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


def ranked_by_class(detections, truth):
    return match_detections(detections, truth).by_class(truth)


@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_a_weight_is_a_repeated_image(seed):
    """Once each in the first draw, which gives the metrics themselves."""
    weights = np.vstack([np.ones((1, IMAGES), np.int32), Draws(IMAGES, 2, seed=seed).counts()])
    truth, detections = made(seed)
    drawn = bootstrap_metrics(ranked_by_class(detections, truth), truth, weights, groups=truth.frequency)
    for number, weight in enumerate(weights):
        repeated_truth, repeated = made(seed, weight)
        expected = evaluate_detections(repeated, repeated_truth, groups=truth.frequency)
        for name, values in drawn.items():
            np.testing.assert_allclose(values[number], expected[name], atol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    ("module", "name"), [(drawn, "ROWS_OF_GROUP"), (drawn, "ENDS_AT_ONCE"), (bootstrap, "DRAWS_AT_ONCE")]
)
def test_how_much_is_computed_at_once_does_not_show(monkeypatch, module, name):
    truth, detections = made(1)
    matched, weights = ranked_by_class(detections, truth), Draws(IMAGES, 50).counts()
    expected = bootstrap_metrics(matched, truth, weights, groups=truth.frequency)
    monkeypatch.setattr(module, name, 2)
    found = bootstrap_metrics(matched, truth, np.ascontiguousarray(weights), groups=truth.frequency)
    for metric, values in expected.items():
        np.testing.assert_allclose(found[metric], values, atol=1e-12, err_msg=metric)


@pytest.mark.parametrize("boxes", [10, 20, 50, 100, 200])
def test_a_recall_that_is_just_as_much_as_a_point_is_judged_as_the_evaluators_do(boxes):
    """Of 0.35 boxes the floats say more, of 0.25 they do not; every number of hits up to all boxes is looked at."""
    rng = np.random.default_rng(boxes)
    correct = rng.permutation(np.repeat([True, False], boxes))[None]
    zeros, counted = np.zeros(correct.size, int), np.ones_like(correct)
    outcomes = made_outcomes(zeros, zeros + 1.0, correct, counted)
    ones = np.ones((1, 2), np.uint8)  # one image, drawn once in both draws
    ((label, mean, first),) = drawn.drawn_precision(outcomes, ones, np.full((1, 2), boxes, np.int32))
    expected = average_precision_per_class(zeros, correct[0], counted[0], np.array([boxes]))
    assert label == 0
    np.testing.assert_allclose([mean, first], np.full((2, 2), expected[0]), rtol=1e-14)
    # The case is there: hits over boxes alone, without the floats of the points, would give more.
    reached = np.floor(100 * np.cumsum(correct[0])[correct[0]] / boxes + 1e-9).astype(int)
    assert drawn.MISSED_POINTS[reached].any()


@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_outcomes_of_any_kind_are_their_definition(seed):
    """Hits that are lost and found again over the thresholds, and what counts at some of them only."""
    rng = np.random.default_rng(seed)
    size, classes, images, thresholds = int(rng.integers(1, 200)), 4, 6, 3
    labels = np.sort(rng.integers(0, classes, size))
    correct = rng.random((thresholds, size)) < rng.random()
    correct[2] = np.where(rng.random() < 0.5, correct[1], correct[2])
    counted = rng.random((thresholds, size)) < rng.choice([0.5, 1.0])
    image = rng.integers(0, images, size)
    outcomes = made_outcomes(labels, np.ones(size), correct, counted, images=image)
    weights = rng.multinomial(images, np.full(images, 1 / images), 5)
    boxes = np.stack([np.bincount(labels, draw[image], classes) for draw in weights], axis=1)
    found = {label: values for label, *values in drawn.drawn_precision(outcomes, weights.T, boxes.astype(np.int32))}
    for place, draw in enumerate(weights):
        repeats = draw[image]
        expected = [
            average_precision_per_class(
                np.repeat(labels, repeats), *np.repeat([right & seen, seen], repeats, axis=1), boxes[:, place]
            )
            for right, seen in zip(correct, counted, strict=True)
        ]
        for label in np.flatnonzero(boxes[:, place]):
            mean, first = found[label] if label in found else np.zeros((2, len(weights)))
            np.testing.assert_allclose(mean[place], np.mean(expected, axis=0)[label], atol=1e-12)
            np.testing.assert_allclose(first[place], expected[0][label], atol=1e-12)


@pytest.fixture(scope="module")
def drawn_method():
    truth, detections = made(2)
    return truth, DrawnMethod(ranked_by_class(detections, truth))


def test_two_processes_give_what_one_gives(drawn_method):
    truth, method = drawn_method
    together, alone = (
        draw_methods([method, method], truth, truth.frequency, 20, seed=3, processes=number) for number in (2, 1)
    )
    assert not multiprocessing.active_children()
    for ours, wanted in zip(together, alone, strict=True):
        assert ours.keys() >= {"AP", "AP50", "APr"}
        np.testing.assert_equal(ours, wanted)


class EndsItsReader(BestDetections):
    """Nothing here, and the end of the process that it is sent to."""

    def __reduce__(self):
        return os._exit, (1,)


def test_after_a_killed_process_all_is_drawn(drawn_method):
    truth, method = drawn_method
    method = replace(method, best=EndsItsReader(method.boxes.take(slice(0, 0)), {}))
    with pytest.warns(LogNWarning, match="One of the 2 bootstrap processes was killed"):
        (found,) = draw_methods([method], truth, None, 5, seed=0, processes=2)
    assert found.keys() >= {"AP"}


def test_processes_are_started_where_there_is_enough_to_do(drawn_method, monkeypatch):
    (truth, method), started = drawn_method, []
    monkeypatch.setattr(processes, "started_processes", lambda stack, number, prepare: started.append(number))
    monkeypatch.setattr(bootstrap, "available_processors", lambda: 3)
    draw_methods([method, method], truth, None, 5, seed=0)
    assert not started
    monkeypatch.setattr(bootstrap, "_ENOUGH", 1)
    draw_methods([method, method], truth, None, 5, seed=0)
    draw_methods([method], truth, None, 5, seed=0)  # there is nothing to share
    assert started == [2]


def test_a_method_that_finds_nothing_has_no_precision():
    truth, detections = made(0)
    nothing, missed = (ranked_by_class(detections.take(slice(0, end)), truth) for end in (0, None))
    for matched in (nothing, replace(missed, right=np.zeros_like(missed.right))):
        assert (bootstrap_metrics(matched, truth, Draws(IMAGES, 3).counts())["AP"] == 0).all()


def test_draws_are_the_same_for_one_seed_and_cover_all_images():
    weights = Draws(50, 200, seed=3).counts()
    assert (weights == Draws(50, 200, seed=3).counts()).all()
    assert (weights != Draws(50, 200, seed=4).counts()).any()
    assert (weights.sum(axis=1) == 50).all()
    assert abs(weights.mean(axis=0) - 1).max() < 0.4


def test_a_method_differs_from_itself_by_nothing_and_a_class_that_no_draw_has_gives_no_interval(drawn_method):
    truth, method = drawn_method
    drawn = bootstrap_metrics(method.boxes, truth, Draws(IMAGES, 40).counts(), groups=truth.frequency)
    assert drawn["AP"].std() > 0
    for values in drawn.values():
        interval = paired_interval(values, values, 0.0)
        assert (interval.low, interval.high, interval.is_clear) == (0.0, 0.0, False)
    assert np.isnan(paired_interval(np.full(3, np.nan), np.full(3, np.nan), float("nan")).low)
