"""The row sample: the same whatever the order of its parts, and unbiased."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import moments_of

import logn


def sampled(parts, capacity):
    result = None
    for part in parts:
        moments = moments_of(part, sample_rows=capacity)
        result = moments if result is None else result.merge(moments)
    return result


@given(
    seed=st.integers(0, 1000), rows=st.integers(1, 60), capacity=st.integers(1, 20), cuts=st.lists(st.integers(0, 60))
)
def test_the_order_of_the_parts_does_not_matter(seed, rows, capacity, cuts):
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(rows, 5)).astype(np.float32)
    pieces = np.split(data, sorted(min(cut, rows) for cut in cuts))
    whole = sampled(pieces, capacity).sample
    for _ in range(3):
        rng.shuffle(pieces)
        np.testing.assert_array_equal(sampled(pieces, capacity).sample, whole)
    assert len(whole) == min(rows, capacity)
    assert len(np.unique(whole, axis=0)) == len(whole)
    halves = data.astype(np.float16)
    assert all((row == halves).all(axis=1).any() for row in whole)


@pytest.mark.parametrize("parts", [1, 40])
@pytest.mark.parametrize("together", [False, True], ids=["one update per part", "one object"])
def test_each_of_many_equal_rows_is_as_likely_as_any_other_row(parts, together):
    # Half of the rows are padding, at the same positions of every part: of 200 sampled rows, about 100 are padding.
    copies = []
    for seed in range(200):
        data = np.random.default_rng(seed).uniform(1, 2, size=(2000, 6)).astype(np.float32)
        data[1::2] = 0.0
        moments = moments_of(data, parts, sample_rows=200) if together else sampled(np.split(data, parts), 200)
        copies.append((moments.sample == 0).all(axis=1).sum())
    # The hypergeometric standard deviation is 6.7, that of the average of 200 is 0.5.
    assert abs(np.mean(copies) - 100) < 2
    assert 5 < np.std(copies) < 9


@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("offset", [100.0, 1.0, -100.0])
def test_the_sample_is_unbiased(column, offset):
    # Two hundred samples of 50 out of 500: the share of rows from the first tenth must average one tenth, wherever
    # these rows differ from the others, and by however much.
    shares = []
    for seed in range(200):
        data = np.random.default_rng(seed).uniform(size=(500, 4))
        data[:50, column] += offset
        sample = sampled([data], 50).sample[:, column]
        shares.append(((sample > 1) if offset > 0 else (sample < 0)).mean())
    # The standard error of the average is 0.003.
    assert abs(np.mean(shares) - 0.1) < 0.012


@given(seed=st.integers(0, 200), capacity=st.integers(1, 20), parts=st.integers(1, 60))
def test_rows_that_are_not_finite_take_no_place(seed, capacity, parts):
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(60, 5))
    bad = rng.random(60) < 0.5
    mixed = np.where(bad[:, None] & (np.arange(5) == 2), np.nan, data)
    moments = moments_of(mixed, parts, nonfinite="skip", sample_rows=capacity)
    assert np.isfinite(moments.sample).all()
    assert len(np.unique(moments.sample, axis=0)) == min(capacity, (~bad).sum())


def test_no_sample_of_a_part_is_taken_for_one_of_the_whole():
    rows = np.random.default_rng(0).normal(size=(20, 2))
    plain, empty = moments_of(rows), logn.ClassMoments(2, sample_rows=5)
    # Rows that nobody sampled, merged into a sample of nothing or the other way round: no sample is left.
    assert logn.ClassMoments(2, sample_rows=5).merge(plain).sample_rows == 0
    plain.merge(empty).update(rows)
    assert (plain.sample_rows, len(plain.sample)) == (0, 0)
    sampled_rows = sampled([rows], 5)
    assert len(empty.merge(sampled_rows).sample) == 5
    with pytest.raises(logn.InputError, match="row sample"):
        logn.ClassMoments(2, sample_rows=5).merge(plain).merge(sampled_rows)
    with pytest.raises(logn.InputError, match="row sample"):
        sampled_rows.merge(plain)


@pytest.mark.parametrize("value", [1e6, 1e60])
def test_logits_beyond_float16_are_clipped_without_a_warning(value):
    assert moments_of(np.array([[value, -value]]), sample_rows=5).sample.tolist() == [[65504.0, -65504.0]]
