"""ClassMoments: exactness, merging, precision, what it refuses; and its row sample, unbiased whatever the order."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.conftest import moments_of

import logn
from logn.statistics.head import Head

FINITE = st.floats(-1e4, 1e4, width=32)
ROWS = hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=20), elements=FINITE)


@given(rows=ROWS, data=st.data())
def test_any_split_and_any_merge_order_give_the_one_shot_result(rows, data):
    before, scale = rows.copy(), 1.0 + float(np.abs(rows).max())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=12)))
    parts = [moments_of(part, sample_rows=3) for part in np.split(rows, cuts)]
    files = [part.to_bytes() for part in parts]
    merged = logn.ClassMoments(rows.shape[1], sample_rows=3)
    for part in data.draw(st.permutations(parts)):
        assert merged.merge(part) is merged
    total, whole = logn.ClassMoments.merge_all(iter(parts)), moments_of(rows)
    assert [part.to_bytes() for part in parts] == files  # merging leaves the others alone
    np.testing.assert_array_equal(rows, before)
    for found in (merged, total):
        np.testing.assert_array_equal(found.count, len(rows))
        np.testing.assert_allclose(found.mean, rows.mean(axis=0), rtol=1e-12, atol=1e-12 * scale)
        np.testing.assert_allclose(found.m2, whole.m2, rtol=1e-9, atol=1e-9 * scale**2)
        np.testing.assert_allclose(found.mean_probability, whole.mean_probability, rtol=1e-12, atol=1e-300)
        if len(rows) > 1:
            np.testing.assert_allclose(found.variance, rows.var(axis=0, ddof=1), rtol=1e-9, atol=1e-9 * scale**2)
        found.update(rows)  # nothing that merging leaves behind keeps it from going on
        np.testing.assert_array_equal(found.count, 2 * len(rows))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_of_any_precision_and_with_gradients(name):
    torch = pytest.importorskip("torch")
    tensor = torch.randn(40, 5, 3, generator=torch.Generator().manual_seed(0)).to(getattr(torch, name))
    moments = moments_of([tensor.requires_grad_()])
    exact = tensor.detach().double().reshape(-1, 3).numpy()
    np.testing.assert_allclose(moments.mean, exact.mean(axis=0), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(moments.variance, exact.var(axis=0, ddof=1), rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_value_that_is_not_finite_is_refused_by_the_name_of_its_class(value, dtype):
    moments = moments_of(np.ones((3, 3), dtype))
    bad = np.ones((4, 3), dtype)
    bad[2, 1] = value
    with pytest.raises(logn.InputError, match=r"finite, but got (nan|inf|-inf) for class 1"):
        moments.update(bad)
    assert moments.count.tolist() == [3.0] * 3  # the refused batch left no trace


@given(rows=ROWS, data=st.data(), parts=st.integers(1, 3))
def test_skipped_values_are_counted_and_the_rest_is_exact(rows, data, parts):
    mask = data.draw(hnp.arrays(np.bool_, rows.shape))
    moments = moments_of(np.where(mask, np.nan, rows), parts, nonfinite="skip")
    np.testing.assert_array_equal(moments.skipped, mask.sum(axis=0))
    for column in range(rows.shape[1]):
        kept = rows[~mask[:, column], column]
        assert moments.count[column] == len(kept)
        if len(kept):
            np.testing.assert_allclose(moments.mean[column], kept.mean(), rtol=1e-9, atol=1e-6)
        if len(kept) > 1:
            np.testing.assert_allclose(moments.variance[column], kept.var(ddof=1), rtol=1e-8, atol=1e-5)


def test_huge_logits_are_no_error_and_empty_batches_change_nothing():
    rows = np.array([[3e38, 0.0], [-3e38, 1.0]], dtype=np.float32)
    moments = moments_of([rows, np.empty((0, 2))])
    assert moments.variance[0] == pytest.approx(2 * float(np.float32(3e38)) ** 2, rel=1e-6)
    assert moments.count.tolist() == [2.0] * 2
    assert np.isnan(logn.ClassMoments(2).variance).all()


EMPTY = logn.ClassMoments(3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: EMPTY.update(np.ones((2, 4))), "Expected `logits` to"),
        (lambda: EMPTY.update(np.ones(4)), "Expected `logits` to"),
        (lambda: EMPTY.update(np.float64(3.0)), "Expected `logits` to"),
        (lambda: EMPTY.update(np.ones((3, 3), int)), "Expected `logits` to"),
        (lambda: EMPTY.merge(logn.ClassMoments(2)), "`num_columns`"),
        (lambda: EMPTY.merge(None), "Expected `other` to be ClassMoments, but got NoneType"),
        (lambda: EMPTY.merge(np.zeros((4, 3))), "Expected `other` to be ClassMoments, but got ndarray"),
        (lambda: logn.ClassMoments(0), "Expected `num_columns` to be a whole number of at least 1"),
        (lambda: logn.ClassMoments(2.5), "Expected `num_columns`"),
        (lambda: logn.ClassMoments(True), "Expected `num_columns`"),
        (lambda: logn.ClassMoments(3, nonfinite="drop"), "Expected `nonfinite`"),
        (lambda: logn.ClassMoments(3, sample_rows=-1), "Expected `sample_rows` to be at least 0"),
        (lambda: logn.ClassMoments(Head(3, names=("a",))), "one name per column"),
        (lambda: Head(background=1), "Expected `background`"),
        (lambda: logn.ClassMoments.merge_all([]), "`parts` to be at least one ClassMoments, but got none"),
        (lambda: logn.ClassMoments.merge_all([EMPTY, np.zeros(2)]), "ClassMoments, but number 1 is ndarray"),
        (lambda: logn.ClassMoments.merge_all([EMPTY, logn.ClassMoments(2)]), "`num_columns`"),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(logn.InputError, match=words):
        call()
    assert not EMPTY.count.any()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("names", ("a", "c")),
        ("background", 0),
        ("activation", "sigmoid"),
        ("layer", "head"),
        ("population", "queries"),
        ("source", "torch:f00"),
    ],
)
def test_statistics_of_different_things_do_not_merge(field, value):
    base = {"names": ("a", "b"), "population": "anchors"}
    mine, theirs = moments_of(np.ones((2, 2)), **base), moments_of(np.ones((2, 2)), **{**base, field: value})
    for merge in (mine.merge, lambda other: logn.ClassMoments.merge_all([mine, other])):
        with pytest.raises(logn.InputError, match=f"Statistics of different `{field}` do not merge"):
            merge(theirs)
    assert mine.count.tolist() == [2.0, 2.0]


def test_unused_columns_may_be_a_list_or_an_array():
    first, second = (Head(unused=columns) for columns in ([1, 2], np.array([1, 2])))
    assert first.unused == second.unused == (1, 2)
    assert first == second


def test_a_thousand_parts_round_no_worse_than_one():
    values = np.random.default_rng(0).normal(size=(1024, 1, 1)) + 1e6
    total = logn.ClassMoments.merge_all([moments_of(rows) for rows in values])
    exact = math.fsum(values.ravel()) / len(values)
    assert abs(total.mean[0] - exact) <= 10 * np.spacing(exact)
    np.testing.assert_allclose(total.variance, values.ravel().var(ddof=1), rtol=1e-8)


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
    for first, second in ((0, 5), (5, 0)):
        with pytest.raises(logn.InputError, match="`sample_rows`"):
            sampled([rows], first).merge(sampled([rows], second))


@pytest.mark.parametrize("value", [1e6, 1e60])
def test_logits_beyond_float16_are_clipped_without_a_warning(value):
    assert moments_of(np.array([[value, -value]]), sample_rows=5).sample.tolist() == [[65504.0, -65504.0]]
