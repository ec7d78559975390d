"""float16 logits become float32 exactly, and what is not finite in them is seen."""

import numpy as np
import pytest

import logn
from logn.base.arrays import is_finite, widen

EVERY_HALF = np.arange(2**16, dtype=np.uint16).view(np.float16)


def test_every_finite_half_is_widened_exactly():
    finite = EVERY_HALF[np.isfinite(EVERY_HALF)].reshape(-1, 32)
    for rows in (finite, np.asfortranarray(finite), finite[::2, 1:-3]):
        np.testing.assert_array_equal(widen(rows, out=np.empty(rows.shape, np.float32)), rows.astype(np.float32))


def test_every_half_that_is_not_finite_is_seen():
    zeros = np.zeros(3, np.float16)
    for value in EVERY_HALF:
        zeros[1] = value
        assert is_finite(zeros) == np.isfinite(value)
    assert is_finite(np.empty((0, 3), np.float16))


@pytest.mark.parametrize("mean", [0.0, 12.0])
def test_moments_of_halves_are_those_of_the_same_numbers_in_float32(mean):
    # More values than are summed in float64 throughout; with a far mean they are shifted.
    rows = np.random.default_rng(0).normal(mean, 1.0, (900, 64)).astype(np.float16)
    halves, floats = logn.ClassMoments(64), logn.ClassMoments(64)
    for batch in np.split(rows, 3):
        halves.update(np.repeat(batch, 4, axis=0))
        floats.update(np.repeat(batch, 4, axis=0).astype(np.float32))
    np.testing.assert_array_equal(halves.mean, floats.mean)
    np.testing.assert_array_equal(halves.m2, floats.m2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mean", [0.0, 12.0])
def test_a_half_that_is_not_finite_is_refused_or_skipped(value, mean):
    rows = np.random.default_rng(0).normal(mean, 1.0, (900, 64)).astype(np.float16)
    holed = rows.copy()
    holed[700, 5] = value
    moments = logn.ClassMoments(64)
    moments.update(rows)
    with pytest.raises(logn.InputError, match=r"finite, but got (nan|inf|-inf) for class 5"):
        moments.update(holed)
    skipping = logn.ClassMoments(64, nonfinite="skip")
    skipping.update(holed)
    assert skipping.skipped[5] == 1.0
    kept = np.delete(rows[:, 5], 700).astype(np.float64)
    assert skipping.mean[5] == pytest.approx(kept.mean(), rel=1e-12)
