"""Prior2Posterior against worked numbers, and against its formulas written out once more with sums and loops."""

import math

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import logn

# Probabilities 0.9/0.1, 0.75/0.25 and 0.6/0.4: the mean is 0.75 and 0.25.
TWO_CLASSES = np.log([[9.0, 1.0], [6.0, 2.0], [3.0, 2.0]])


def moments_of(rows, **metadata):
    moments = logn.ClassMoments(
        rows.shape[1], mean_probability=True, sample_rows=500, metadata=logn.StatisticsMetadata(**metadata)
    )
    moments.update(rows)
    return moments


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [math.log(0.5 / 0.75), math.log(0.5 / 0.25)]),
        ({"strength": 0.5}, [-0.2027326, 0.3465736]),
        ({"target": [1, 9]}, [math.log(0.1 / 0.75), math.log(0.9 / 0.25)]),
        ({"target": [3, 1]}, [0.0, 0.0]),
        ({"margin": 2.0}, [1.5945349, 2.6931472]),
    ],
)
def test_a_softmax_of_two_classes(options, expected):
    affine = logn.prior2posterior(moments_of(TWO_CLASSES, activation="softmax"), **options)
    np.testing.assert_allclose(affine.shift, expected, atol=1e-7)
    np.testing.assert_array_equal(affine.scale, 1.0)


def test_sigmoids_have_odds():
    # Scores 0.5 and 0.9, and 0.1 and 0.1: the means are 0.7 and 0.1, and 0.4 for both keeps their sum.
    rows = np.log([[1.0, 1 / 9], [9.0, 1 / 9 + 1e-9]])
    affine = logn.prior2posterior(moments_of(rows, activation="sigmoid"), margin=0.0, active=[True, True])
    expected = [math.log(4 / 6) - math.log(7 / 3), math.log(4 / 6) - math.log(1 / 9)]
    np.testing.assert_allclose(affine.shift, expected, atol=1e-6)


def detector_rows(background):
    rng = np.random.default_rng(5)
    rows = rng.normal([-1.0, -3.0, 1.5, -5.0], [2.0, 1.0, 1.0, 0.5], (400, 4))
    rows = rows.astype(np.float16).astype(np.float64)  # as the sample keeps them
    return rows if background == 2 else rows[:, [2, 0, 1, 3]]


def written_out(rows, place, strength, std_power, eps=1e-5):
    """Probabilities, prior and margin by loops over rows and bisection; the last has no more in common with ours."""
    classes = [column for column in range(rows.shape[1]) if column != place]
    mean = {c: sum(row[c] for row in rows) / len(rows) for c in classes}
    variance = {c: sum((row[c] - mean[c]) ** 2 for row in rows) / (len(rows) - 1) for c in classes}
    power = {c: (variance[c] + eps) ** (std_power / 2) for c in classes}
    average = sum(power.values()) / len(classes)
    scale = {c: (average / power[c]) ** strength for c in classes}  # a part of the scaling, and then of its prior

    def probabilities(row, shift):
        moved = {c: mean[c] + (row[c] - mean[c]) * scale[c] + shift[c] for c in classes}
        total = math.exp(row[place]) + sum(math.exp(value) for value in moved.values())
        return {c: math.exp(value) / total for c, value in moved.items()}

    nothing = dict.fromkeys(classes, 0.0)
    scaled = [probabilities(row, nothing) for row in rows]
    prior = {c: sum(one[c] for one in scaled) / len(rows) for c in classes}
    shift = {c: strength * math.log(sum(prior.values()) / len(classes) / prior[c]) for c in classes}

    def mass(margin):
        return sum(sum(probabilities(row, {c: shift[c] + margin for c in classes}).values()) for row in rows)

    before = sum(1 - math.exp(row[place]) / sum(math.exp(value) for value in row) for row in rows)
    low, high = -50.0, 50.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if mass(middle) < before else (low, middle)
    return [scale[c] for c in classes], [mean[c] * (1 - scale[c]) + shift[c] + low for c in classes]


@pytest.mark.parametrize("std_power", [0.0, 0.5])
@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_a_detector_written_out(std_power, strength):
    rows = detector_rows(background=0)
    moments = moments_of(rows, background=0)
    affine = logn.prior2posterior(moments, strength=strength, std_power=std_power)
    scale, shift = written_out(rows, 0, strength, std_power)
    np.testing.assert_allclose(affine.scale, [1.0, *scale], rtol=1e-9)
    np.testing.assert_allclose(affine.shift, [0.0, *shift], atol=1e-6)
    lower = logn.prior2posterior(moments, strength=strength, std_power=std_power, extra_margin=-2.0)
    np.testing.assert_allclose(lower.shift, affine.shift - [0.0, 2.0, 2.0, 2.0], atol=1e-12)


def test_where_cross_entropy_has_converged_it_is_logit_adjustment_without_counts():
    images, digits = load_digits(return_X_y=True)
    counts = np.geomspace(120, 3, 10).round().astype(int)
    train = np.concatenate([np.flatnonzero(digits == digit)[:count] for digit, count in enumerate(counts)])
    model = LogisticRegression(max_iter=5000, tol=1e-8).fit(images[train] / 16, digits[train])
    moments = moments_of(model.decision_function(images[train] / 16), activation="softmax")
    np.testing.assert_allclose(moments.mean_probability, counts / counts.sum(), rtol=1e-4)
    # A softmax ignores what all classes have in common: with a uniform target, the logarithm of their number.
    adjusted = logn.logit_adjustment(counts).shift - np.log(10)
    np.testing.assert_allclose(logn.prior2posterior(moments).shift, adjusted, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"target": [1, 1, 2]}, [math.log(0.25 / 0.9), math.log(0.25 / 0.09), math.log(0.5 / 0.01)]),
        ({"target": [90, 9, 1]}, [0.0, 0.0, 0.0]),
        ({"target": [1, 1, 2], "tau": 0.0}, [math.log(0.25), math.log(0.25), math.log(0.5)]),
        ({"strength": 0.5}, [-0.5 * math.log(0.9), -0.5 * math.log(0.09), -0.5 * math.log(0.01)]),
    ],
)
def test_logit_adjustment_towards_a_target(options, expected):
    np.testing.assert_allclose(logn.logit_adjustment([90, 9, 1], **options).shift, expected, atol=1e-12)
