"""The sums behind ClassMoments: any shape, no digits lost over many batches, and reading them changes nothing."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import moments_of

import logn
from logn.statistics.sums import FAR, SMALL_BATCH, column_sums

SEEDS = st.integers(0, 2**32 - 1)
# Distances of the mean from zero in standard deviations: none, just below and above where a pilot is used, far.
DISTANCES = st.sampled_from([0.0, 1.0, 0.98 * FAR**0.5, 1.02 * FAR**0.5, 100.0, 1e4])


def draw_rows(seed, shape, distance, spread, dtype):
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], size=shape[1])
    return (spread * (rng.standard_normal(shape) + distance * signs)).astype(dtype)


def assert_identical(first, second):
    assert first.to_bytes() == second.to_bytes()


@given(
    seed=SEEDS,
    rows=st.integers(1, 1500),
    columns=st.one_of(st.integers(1, 40), st.integers(900, 2100)),
    dtype=st.sampled_from([np.float16, np.float32, np.float64, np.dtype(">f4")]),
    layout=st.sampled_from(["plain", "transposed", "columns", "every second row"]),
    shifted=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_column_sums_of_any_shape_and_layout(seed, rows, columns, dtype, layout, shifted):
    values = draw_rows(seed, (rows, columns), 1.0, 1.0, dtype)
    if layout == "transposed":
        values = np.asfortranarray(values)
    elif layout == "columns":
        values = np.pad(values, ((0, 0), (1, 2)))[:, 1:-2]
    elif layout == "every second row":
        values = np.repeat(values, 2, axis=0)[::2]
    pilot = np.linspace(-1.0, 1.0, columns) if shifted else None
    exact = values.astype(np.float64) - (0.0 if pilot is None else pilot)
    total, squares = column_sums(values, pilot)
    # Large batches are summed in short runs of float32, unless they are float64.
    tolerance = 1e-11 if values.dtype.char == "d" or values.size <= SMALL_BATCH else 1e-5
    np.testing.assert_allclose(total, exact.sum(axis=0), rtol=tolerance, atol=tolerance * rows)
    np.testing.assert_allclose(squares, (exact**2).sum(axis=0), rtol=tolerance)


@given(seed=SEEDS, distance=DISTANCES, spread=st.sampled_from([1e-3, 1.0, 30.0]), batches=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_float32_variances_agree_with_two_passes_in_float64(seed, distance, spread, batches):
    rows = draw_rows(seed, (100_000 + seed % 5000, 5), distance, spread, np.float32)
    moments = moments_of(rows, batches)
    exact = rows.astype(np.float64)
    np.testing.assert_allclose(moments.mean, exact.mean(axis=0), rtol=1e-7, atol=1e-7 * spread)
    np.testing.assert_allclose(moments.variance, exact.var(axis=0, ddof=1), rtol=1e-6)


@given(seed=SEEDS, distance=DISTANCES, step=st.sampled_from([0.0, 1e-3, 10.0]))
@settings(max_examples=25, deadline=None)
def test_many_batches_lose_no_digits(seed, distance, step):
    # The means may drift, so that pilots come and go.
    drift = step * np.arange(320)[:, None, None]
    batches = draw_rows(seed, (len(drift) * 330, 3), distance, 1.0, np.float64).reshape(len(drift), 330, 3) + drift
    moments = moments_of([*batches])
    exact = batches.reshape(-1, 3)
    scale = 1.0 + np.abs(exact).max()
    np.testing.assert_allclose(moments.mean, exact.mean(axis=0), rtol=1e-12, atol=1e-14 * scale)
    # What float64 itself has left of a value that is so many standard deviations from zero.
    tolerance = 1e-11 + 1e-15 * distance
    np.testing.assert_allclose(moments.variance, exact.var(axis=0, ddof=1), rtol=tolerance)


@given(
    seed=SEEDS,
    kinds=st.lists(
        st.tuples(st.sampled_from([1, 2, 7, 9000]), st.sampled_from([0.0, 1e-3, 1.0, 10.0])), min_size=2, max_size=9
    ),
    distance=st.sampled_from([0.0, 5.0, 200.0]),
)
@settings(max_examples=60, deadline=None)
def test_batches_of_very_different_size_spread_and_place(seed, kinds, distance):
    # A wide batch makes the bound of the narrow ones after it, which may lie anywhere within it.
    rng = np.random.default_rng(seed)
    batches = [
        (rng.uniform(-distance, distance, 4) + spread * rng.standard_normal((rows, 4))).astype(np.float32)
        for rows, spread in kinds
    ]
    assert_as_in_float64(moments_of(batches), batches)


def assert_as_in_float64(moments, batches):
    exact = np.concatenate(batches).astype(np.float64)
    spread = exact.std(axis=0) + 1e-7 * np.abs(exact).max()
    assert (np.abs(moments.mean - exact.mean(axis=0)) <= 1e-5 * spread).all()
    np.testing.assert_allclose(moments.variance, exact.var(axis=0, ddof=1), rtol=1e-5, atol=1e-12)


def test_single_rows_do_not_vouch_for_large_narrow_batches():
    rng = np.random.default_rng(1)
    batches = [*rng.normal(0, 1000, (64, 1, 4)), *rng.normal(3000, 1, (40, 9000, 4))]
    batches = [batch.astype(np.float32) for batch in batches]
    assert_as_in_float64(moments_of(batches), batches)


def test_a_few_wide_rows_do_not_vouch_for_large_narrow_batches():
    wide = [np.full((2, 4), 57.3, np.float32) + np.float32([[-10.4], [10.4]]) for _ in range(6)]
    narrow = np.random.default_rng(1).normal(57.3, 0.01, (20, 20_000, 4)).astype(np.float32)
    assert_as_in_float64(moments_of([*wide, *narrow]), [*wide, *narrow])


@pytest.mark.parametrize("mean", [3.0, 1e6])
@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8"])
def test_the_other_byte_order_is_as_exact(mean, dtype):
    rows = np.random.default_rng(0).normal(0.0 if dtype == ">f2" else mean, 1.0, (20_000, 4)).astype(dtype)
    assert_identical(moments_of(rows), moments_of(rows.astype(rows.dtype.newbyteorder("="))))


@given(seed=SEEDS, batches=st.integers(1, 20), read_at=st.integers(0, 20))
@settings(max_examples=20, deadline=None)
def test_reading_in_between_changes_not_a_digit(seed, batches, read_at):
    rows = draw_rows(seed, (batches * 7, 3), 2.0, 1.0, np.float64).reshape(batches, 7, 3)
    quiet, curious = logn.ClassMoments(3), logn.ClassMoments(3)
    for index, batch in enumerate(rows):
        quiet.update(batch)
        curious.update(batch)
        if index == read_at:
            assert f"rows={7 * (index + 1)}" in repr(curious)
            _ = curious.count, curious.mean, curious.variance, curious.skipped
            logn.ClassMoments(3).merge(curious)
    assert_identical(quiet, curious)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("distance", [2.0, 50.0])
def test_a_copy_goes_on_by_itself(duplicate, distance):
    rows = draw_rows(0, (20_000, 40), distance, 1.0, np.float32)
    before, after = rows[:12_000], rows[12_000:]
    original = moments_of(before, 8)
    twin = duplicate(original)
    assert_identical(twin, original)
    for batch in np.split(after, 4):
        twin.update(batch)
    assert_identical(original, moments_of(before, 8))
    assert_identical(twin, moments_of([*np.split(before, 8), *np.split(after, 4)]))


@pytest.mark.parametrize("distance", [2.0, 50.0])
def test_a_refused_batch_leaves_no_trace_in_the_sums(distance):
    # Enough rows to be summed in float32; far means have a pilot.
    rows = draw_rows(3, (36_000, 3), distance, 1.0, np.float32).reshape(3, 12_000, 3)
    moments, spared = moments_of([*rows[:2]]), moments_of([*rows[:2]])
    bad = rows[2].copy()
    bad[5, 2] = np.inf
    with pytest.raises(logn.InputError, match="finite, but got inf for class 2"):
        moments.update(bad)
    assert_identical(moments, spared)
    for sums in (moments, spared):
        sums.update(rows[2])
    assert_identical(moments, spared)


def test_logits_whose_squares_no_number_can_hold_are_refused():
    moments = moments_of(np.ones((2, 2)))
    with pytest.raises(logn.InputError, match=r"at most 1e\+140, .* but got 1e\+160 for class 1"):
        moments.update(np.array([[0.0, 1e160]]))
    assert moments.count.tolist() == [2.0, 2.0]
