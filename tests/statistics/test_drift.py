"""Drift between the statistics of training and of a deployment."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import logn
from logn.statistics.drift import drift


def moments_of(rows, **metadata):
    moments = logn.ClassMoments(np.shape(rows)[1], mean_probability=True, metadata=logn.StatisticsMetadata(**metadata))
    moments.update(np.asarray(rows, float))
    return moments


def test_worked_numbers():
    # Means 1 and 4, variances 1 and 9: pooled variance 5, difference 3 / sqrt(5); the error by hand with n = 3, 3.
    found = drift(moments_of([[0.0], [1.0], [2.0]]), moments_of([[1.0], [4.0], [7.0]]))
    assert found.difference[0] == pytest.approx(3 / np.sqrt(5))
    by_hand = (1 / 3 + 9 / 3) / 5 + (9 / 5) / 8 * ((1 / 5) ** 2 / 2 + (9 / 5) ** 2 / 2)
    assert found.error[0] == pytest.approx(np.sqrt(by_hand))
    assert found.log_std_ratio[0] == pytest.approx(np.log(3))
    assert found.log_std_error[0] == pytest.approx(np.sqrt(0.25 + 0.25))


def test_the_errors_are_what_repeated_draws_show():
    rng = np.random.default_rng(0)
    draws = [
        drift(moments_of(rng.normal(size=(200, 1))), moments_of(rng.normal(1.0, 2.0, size=(300, 1))))
        for _ in range(400)
    ]
    assert np.std([found.difference[0] for found in draws]) == pytest.approx(draws[0].error[0], rel=0.15)
    assert np.std([found.log_std_ratio[0] for found in draws]) == pytest.approx(draws[0].log_std_error[0], rel=0.15)


def test_without_drift_few_are_called_drifted():
    rng = np.random.default_rng(1)
    alarms = [
        drift(moments_of(rng.normal(size=(100, 50))), moments_of(rng.normal(size=(100, 50)))).drifted.any()
        for _ in range(200)
    ]
    assert np.mean(alarms) < 0.12  # 0.05 by construction; three standard errors of 200 draws are 0.05


@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 10), offset=st.floats(-5, 5))
def test_units_do_not_matter_and_the_way_back_is_the_negative(seed, scale, offset):
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=(30, 3)), rng.normal(0.5, 2.0, size=(40, 3))
    there, back = drift(moments_of(first), moments_of(second)), drift(moments_of(second), moments_of(first))
    moved = drift(moments_of(first * scale + offset), moments_of(second * scale + offset))
    np.testing.assert_allclose(moved.difference, there.difference, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(back.difference, -there.difference, rtol=1e-9)
    np.testing.assert_allclose(back.error, there.error, rtol=1e-9)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (moments_of(np.eye(4)), "to be of 3 columns, as those of training, but got 4"),
        (moments_of(np.eye(3), population="anchors"), "of one `population`"),
        (moments_of(np.eye(3), class_names=("a", "b", "d")), "of one `class_names`"),
        (logn.ClassMoments(3), "the deployment to hold at least two rows, but got 0"),
    ],
)
def test_what_cannot_be_compared_is_refused(other, words):
    mine = moments_of(np.eye(3), population="proposals", class_names=("a", "b", "c"))
    with pytest.raises(logn.InputError, match=words):
        drift(mine, other)
