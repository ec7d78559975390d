"""Prior2Posterior against worked numbers, and against its formulas written out once more with sums and loops."""

import math

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from tests.conftest import moments_of

import logn

# Probabilities 0.9/0.1, 0.75/0.25 and 0.6/0.4: the mean is 0.75 and 0.25.
TWO_CLASSES = np.log([[9.0, 1.0], [6.0, 2.0], [3.0, 2.0]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [-math.log(0.75), -math.log(0.25)]),
        ({"strength": 0.5}, [-0.5 * math.log(0.75), -0.5 * math.log(0.25)]),
        ({"target": [1, 9]}, [math.log(0.1 / 0.5 / 0.75), math.log(0.9 / 0.5 / 0.25)]),
        ({"target": [3, 1]}, [math.log(2), math.log(2)]),
        ({"margin": 2.0}, [2 - math.log(0.75), 2 - math.log(0.25)]),
    ],
)
def test_a_softmax_of_two_classes(options, expected):
    affine = logn.prior2posterior(moments_of(TWO_CLASSES, activation="softmax"), **options)
    np.testing.assert_allclose(affine.shift, expected, atol=1e-7)
    np.testing.assert_array_equal(affine.scale, 1.0)


def prior_by_loops(rows, activation):
    total = [0.0] * rows.shape[1]
    for row in rows:
        for column, value in enumerate(row):
            if activation == "sigmoid":
                total[column] += 1 / (1 + math.exp(-value))
            else:
                total[column] += math.exp(value) / sum(math.exp(other) for other in row)
    return [value / len(rows) for value in total]


@pytest.mark.parametrize("strength", [1.0, 0.5])
@pytest.mark.parametrize("background", [0, -1])
def test_a_detector_written_out(strength, background):
    rows = np.random.default_rng(5).normal([1.5, -1.0, -3.0, -5.0], [1.0, 2.0, 1.0, 0.5], (400, 4))
    rows = rows if background == 0 else rows[:, [1, 2, 3, 0]]
    prior = prior_by_loops(rows, "softmax")
    classes = [1, 2, 3] if background == 0 else [0, 1, 2]
    lowest = min(prior[c] for c in classes)
    shift = [math.log(lowest) - strength * math.log(prior[c]) if c in classes else 0.0 for c in range(4)]
    affine = logn.prior2posterior(moments_of(rows, background=background), strength=strength)
    np.testing.assert_allclose(affine.shift, shift, atol=1e-9)
    np.testing.assert_array_equal(affine.scale, 1.0)
    same = logn.logit_normalization(
        moments_of(rows, background=background), statistic="prior", strength=strength, use_std=False
    )
    assert affine == same


def test_sigmoids_have_a_prior_of_their_own_each():
    rows = np.random.default_rng(5).normal([-1.0, -3.0], [2.0, 1.0], (300, 2))
    affine = logn.prior2posterior(moments_of(rows, activation="sigmoid"))
    np.testing.assert_allclose(affine.shift, -np.log(prior_by_loops(rows, "sigmoid")), atol=1e-9)


def test_where_cross_entropy_has_converged_it_is_logit_adjustment_without_counts():
    images, digits = load_digits(return_X_y=True)
    counts = np.geomspace(120, 3, 10).round().astype(int)
    train = np.concatenate([np.flatnonzero(digits == digit)[:count] for digit, count in enumerate(counts)])
    model = LogisticRegression(max_iter=5000, tol=1e-8).fit(images[train] / 16, digits[train])
    moments = moments_of(model.decision_function(images[train] / 16), activation="softmax")
    np.testing.assert_allclose(moments.mean_probability, counts / counts.sum(), rtol=1e-4)
    np.testing.assert_allclose(
        logn.prior2posterior(moments).shift, logn.methods.logit_adjustment(counts).shift, atol=1e-3
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"target": [1, 1, 2]}, [math.log(0.25 / 0.9), math.log(0.25 / 0.09), math.log(0.5 / 0.01)]),
        ({"target": [90, 9, 1]}, [0.0, 0.0, 0.0]),
        ({"target": [1, 1, 2], "tau": 0.0}, [math.log(0.25), math.log(0.25), math.log(0.5)]),
        ({"tau": 0.5}, [-0.5 * math.log(0.9), -0.5 * math.log(0.09), -0.5 * math.log(0.01)]),
    ],
)
def test_logit_adjustment_towards_a_target(options, expected):
    np.testing.assert_allclose(logn.methods.logit_adjustment([90, 9, 1], **options).shift, expected, atol=1e-12)
