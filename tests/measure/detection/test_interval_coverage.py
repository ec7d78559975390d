"""Intervals at an equal number of detections hold the truth as often as they say, on samples of a made population."""

import numpy as np
import pytest
from tests.measure.detection.conftest import made_outcomes

from logn.base.arrays import sigmoid
from logn.matching.bootstrap_draws import Draws
from logn.matching.ground_truth import GroundTruth
from logn.measure.detection.bootstrap import bootstrap_metrics, paired_interval
from logn.measure.detection.metrics import BestDetections, count_name, counts_per_image, recall_at_count

CLASSES, IMAGES, AT = 10, 150, 0.25
# Objects per image, from 1.5 of the most frequent class to 15 in all images of a sample; thrice as many false alarms.
RATES = np.geomspace(1.5, 15 / IMAGES, CLASSES)
BIAS = np.linspace(1.5, -2.5, CLASSES)
GROUPS = np.repeat(["f", "c", "r"], [3, 3, 4])
NAMES = [count_name(*name) for name in (("recall", AT), ("precision", AT), ("F1", AT), ("found", AT))]
NAMES.append(count_name("false-alarms", AT, "r"))
POPULATION, SAMPLES, DRAWS = 20_000, 400, 250


def some(rates, mean, of_image, busy, rng):
    """Image, class and logit of a random number of detections; those of an image have something in common."""
    number = rng.poisson(rates * busy[:, None])
    image, label = np.repeat(np.indices(number.shape).reshape(2, -1), number.ravel(), axis=1)
    return image, label, rng.normal(mean, 1.5, len(image)) + of_image[image]


def made(images, rng):
    """Boxes of so many images, and the rankings of a biased model and of the same without its bias."""
    common, busy = rng.normal(0, 0.7, images), rng.gamma(1.5, 1 / 1.5, images)
    image, label, logits = some(RATES, 0.0, common, busy, rng)
    others = some(3 * RATES, -3.0, 0.3 * common, busy, rng)
    truth = GroundTruth(
        *("made", "coco", np.arange(images), np.arange(CLASSES), np.arange(CLASSES)),
        *(tuple("abcdefghij"), None, image, label, np.zeros((len(image), 4)), np.ones(len(image))),
        *(np.zeros(len(image), bool), None, None),
    )
    where, which, logit = (np.concatenate(pair) for pair in zip((image, label, logits), others, strict=True))
    right = np.arange(len(where)) < len(image)
    biased = sigmoid(logit + BIAS[which])
    counted, objects = np.ones((1, len(where)), bool), np.bincount(label, minlength=CLASSES)
    before, after = (
        made_outcomes(which, scores, right[None], counted, images=where, num_objects=objects)
        for scores in (biased, sigmoid(logit))
    )
    wanted = counts_per_image(before, [AT], images)
    ranked = []
    for outcomes in (before, after):
        best = BestDetections.of(outcomes, wanted, truth)
        ranked.append((best, recall_at_count(best, outcomes.score, GROUPS)[AT].values))
    return truth, ranked


def test_intervals_hold_the_truth_in_93_to_97_of_100_samples():
    rng = np.random.default_rng(4)
    _, ((_, before), (_, after)) = made(POPULATION, rng)
    # Numbers grow with the images, shares do not.
    share = {name: IMAGES / POPULATION if "f" in name.partition("@")[0] and "F1" not in name else 1 for name in NAMES}
    real = {name: share[name] * (after[name] - before[name]) for name in NAMES}
    held = dict.fromkeys(NAMES, 0)
    nothing = made_outcomes(np.zeros(0, int), np.zeros(0), *np.zeros((2, 1, 0), bool))
    for sample in range(SAMPLES):
        truth, ranked = made(IMAGES, rng)
        weights = Draws(IMAGES, DRAWS, seed=sample).counts()
        first, last = (bootstrap_metrics(nothing, truth, weights, groups=GROUPS, best=best) for best, _ in ranked)
        for name in NAMES:
            change = paired_interval(first[name], last[name], ranked[1][1][name] - ranked[0][1][name])
            held[name] += change.low <= real[name] <= change.high
    assert {name: number / SAMPLES for name, number in held.items()} == pytest.approx(
        dict.fromkeys(NAMES, 0.95), abs=0.02
    )
