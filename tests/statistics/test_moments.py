"""ClassMoments: exactness, merging, precision, and what it refuses."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import logn
from logn.statistics.moments import StatisticsMetadata

FINITE = st.floats(-1e4, 1e4, width=32)
ROWS = hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=20), elements=FINITE)


def moments_of(*batches, **options):
    result = logn.ClassMoments(batches[0].shape[-1], **options)
    for batch in batches:
        result.update(batch)
    return result


def assert_same(first, second, scale=1.0):
    np.testing.assert_array_equal(first.count, second.count)
    np.testing.assert_allclose(first.mean, second.mean, rtol=1e-12, atol=1e-12 * scale)
    np.testing.assert_allclose(first.m2, second.m2, rtol=1e-9, atol=1e-9 * scale**2)


@given(rows=ROWS, data=st.data())
def test_any_split_and_any_merge_order_give_the_one_shot_result(rows, data):
    scale = 1.0 + float(np.abs(rows).max())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    parts = [moments_of(part) for part in np.split(rows, cuts)]
    order = data.draw(st.permutations(parts))
    merged = logn.ClassMoments(rows.shape[1])
    for part in order:
        merged.merge(part)
    assert_same(merged, moments_of(rows), scale)
    np.testing.assert_allclose(merged.mean, rows.mean(axis=0), rtol=1e-12, atol=1e-12 * scale)
    if len(rows) > 1:
        np.testing.assert_allclose(merged.variance, rows.var(axis=0, ddof=1), rtol=1e-9, atol=1e-9 * scale**2)


@given(rows=ROWS)
def test_permuting_the_classes_permutes_the_moments(rows):
    order = np.random.default_rng(0).permutation(rows.shape[1])
    straight, permuted = moments_of(rows), moments_of(rows[:, order])
    np.testing.assert_allclose(permuted.mean, straight.mean[order], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(permuted.m2, straight.m2[order], rtol=1e-9, atol=1e-6)


@given(rows=ROWS)
@settings(max_examples=30)
def test_update_leaves_its_input_alone(rows):
    before = rows.copy()
    moments_of(rows, sample_rows=3)
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize(("mean", "std"), [(-12.0, 0.05), (-5.0, 2.0), (1000.0, 1.0)])
def test_float32_logits_lose_nothing_to_cancellation(mean, std):
    rows = np.random.default_rng(0).normal(mean, std, size=(20_000, 7)).astype(np.float32)
    moments = moments_of(*np.array_split(rows, 9))
    exact = rows.astype(np.float64)
    np.testing.assert_allclose(moments.mean, exact.mean(axis=0), rtol=1e-7)
    np.testing.assert_allclose(moments.variance, exact.var(axis=0, ddof=1), rtol=1e-6)


def test_a_first_batch_far_from_the_rest_costs_no_digits():
    rng = np.random.default_rng(0)
    outlier = (1e4 + rng.normal(size=(5, 3))).astype(np.float32)
    bulk = rng.normal(size=(100_000, 3)).astype(np.float32)
    first = moments_of(outlier)
    lonely = logn.ClassMoments(3)
    lonely.update(outlier)
    lonely.update(bulk)
    exact = np.vstack([outlier, bulk]).astype(np.float64)
    np.testing.assert_allclose(lonely.variance, exact.var(axis=0, ddof=1), rtol=1e-6)
    np.testing.assert_allclose(first.mean, outlier.astype(np.float64).mean(axis=0), rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_precisions_of_numpy(dtype):
    rows = np.random.default_rng(1).normal(size=(50, 4, 3)).astype(dtype)
    exact = rows.reshape(-1, 3).astype(np.float64)
    moments = moments_of(rows)
    np.testing.assert_allclose(moments.mean, exact.mean(axis=0), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(moments.variance, exact.var(axis=0, ddof=1), rtol=1e-6)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_precisions_of_torch(name):
    torch = pytest.importorskip("torch")
    tensor = torch.randn(40, 5, 3, generator=torch.Generator().manual_seed(0)).to(getattr(torch, name))
    with torch.inference_mode():
        moments = moments_of(tensor)
    exact = tensor.double().reshape(-1, 3).numpy()
    np.testing.assert_allclose(moments.mean, exact.mean(axis=0), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(moments.variance, exact.var(axis=0, ddof=1), rtol=1e-6)


def test_a_tensor_that_needs_a_gradient():
    torch = pytest.importorskip("torch")
    moments = moments_of(torch.ones(4, 2, requires_grad=True))
    assert moments.mean.tolist() == [1.0, 1.0]


def test_transposed_rows_need_not_be_contiguous():
    rows = np.random.default_rng(2).normal(size=(3, 20_000)).astype(np.float32)
    for batch in (rows, rows[:, :50]):
        exact = batch.mean(axis=1, dtype=np.float64)
        np.testing.assert_allclose(moments_of(batch.T).mean, exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_value_that_is_not_finite_is_refused_by_the_name_of_its_class(value, dtype):
    moments = moments_of(np.ones((3, 3), dtype))
    bad = np.ones((4, 3), dtype)
    bad[2, 1] = value
    with pytest.raises(logn.InputError, match=r"finite, but got (nan|inf|-inf) for class 1"):
        moments.update(bad)
    # The refused batch left no trace.
    assert moments.count.tolist() == [3.0] * 3
    moments.update(np.ones((1, 3), dtype))
    assert moments.count.tolist() == [4.0] * 3


@given(rows=ROWS, data=st.data())
def test_skipped_values_are_counted_and_the_rest_is_exact(rows, data):
    mask = data.draw(hnp.arrays(np.bool_, rows.shape))
    holed = np.where(mask, np.nan, rows)
    moments = moments_of(holed, nonfinite="skip")
    np.testing.assert_array_equal(moments.skipped, mask.sum(axis=0))
    for column in range(rows.shape[1]):
        kept = rows[~mask[:, column], column]
        assert moments.count[column] == len(kept)
        if len(kept):
            np.testing.assert_allclose(moments.mean[column], kept.mean(), rtol=1e-9, atol=1e-6)
        if len(kept) > 1:
            np.testing.assert_allclose(moments.variance[column], kept.var(ddof=1), rtol=1e-8, atol=1e-5)


def test_huge_but_finite_logits_are_no_error():
    rows = np.array([[3e38, 0.0], [-3e38, 1.0]], dtype=np.float32)
    assert moments_of(rows).variance[0] == pytest.approx(2 * float(np.float32(3e38)) ** 2, rel=1e-6)


def test_empty_batches_change_nothing():
    moments = moments_of(np.ones((2, 3)))
    moments.update(np.empty((0, 3)))
    assert moments.count.tolist() == [2.0] * 3
    assert np.isnan(logn.ClassMoments(2).variance).all()


@pytest.mark.parametrize("logits", [np.ones((2, 4)), np.ones(4), np.float64(3.0), np.ones((3, 3), int)])
def test_wrong_shapes_and_types_are_refused(logits):
    with pytest.raises(logn.InputError, match="Expected `logits` to"):
        logn.ClassMoments(3).update(logits)


@pytest.mark.parametrize(
    "arguments", [{"num_columns": 0}, {"num_columns": 2.5}, {"num_columns": 3, "nonfinite": "drop"}]
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(logn.InputError, match="Expected `"):
        logn.ClassMoments(**arguments)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("class_names", ("a", "c")),
        ("background", 0),
        ("activation", "sigmoid"),
        ("layer", "head"),
        ("population", "queries"),
        ("fingerprint", "f00"),
    ],
)
def test_statistics_of_different_things_do_not_merge(field, value):
    base = StatisticsMetadata(class_names=("a", "b"), population="anchors")
    mine = moments_of(np.ones((2, 2)), metadata=base)
    theirs = moments_of(np.ones((2, 2)), metadata=base.with_changes(**{field: value}))
    with pytest.raises(logn.InputError, match=f"`{field}`"):
        mine.merge(theirs)
    assert mine.count.tolist() == [2.0, 2.0]


def test_another_class_count_does_not_merge():
    with pytest.raises(logn.InputError, match="to have 2 columns, but got 3"):
        logn.ClassMoments(2).merge(logn.ClassMoments(3))


def test_class_names_must_fit():
    with pytest.raises(logn.InputError, match="one name per column"):
        logn.ClassMoments(3, metadata=StatisticsMetadata(class_names=("a",)))


@pytest.mark.parametrize("other", [None, np.zeros((4, 3))])
def test_only_moments_are_merged(other):
    with pytest.raises(logn.InputError, match="Expected `other` to be ClassMoments, but got"):
        logn.ClassMoments(3).merge(other)


@given(rows=ROWS, data=st.data())
def test_merging_all_at_once_gives_the_one_shot_result_and_leaves_the_parts(rows, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=12)))
    parts = []
    for piece in np.split(rows, cuts):
        part = logn.ClassMoments(rows.shape[1], sample_rows=3, mean_probability=True)
        part.update(piece)
        parts.append(part)
    before = [part.to_bytes() for part in parts]
    total = logn.ClassMoments.merge_all(iter(parts))
    one_by_one = logn.ClassMoments.from_bytes(before[0])
    for part in parts[1:]:
        one_by_one.merge(part)
    assert [part.to_bytes() for part in parts] == before
    np.testing.assert_array_equal(total.count, len(rows))
    np.testing.assert_array_equal(total.sample, one_by_one.sample)
    spread = np.abs(rows).max(initial=1.0)
    np.testing.assert_allclose(total.mean, one_by_one.mean, rtol=1e-12, atol=1e-12 * spread)
    np.testing.assert_allclose(total.m2, one_by_one.m2, rtol=1e-9, atol=1e-12 * spread**2)
    np.testing.assert_allclose(total.mean_probability, one_by_one.mean_probability, rtol=1e-12)
    total.update(rows)  # nothing that merging leaves behind keeps it from going on
    np.testing.assert_array_equal(total.count, 2 * len(rows))


def test_merging_all_says_what_does_not_merge():
    with pytest.raises(logn.InputError, match="`parts` to be at least one ClassMoments, but got none"):
        logn.ClassMoments.merge_all([])
    with pytest.raises(logn.InputError, match="`parts` to be ClassMoments, but number 1 is ndarray"):
        logn.ClassMoments.merge_all([logn.ClassMoments(2), np.zeros(2)])
    with pytest.raises(logn.InputError, match="to have 2 columns, but got 3"):
        logn.ClassMoments.merge_all([logn.ClassMoments(2), logn.ClassMoments(3)])
    names = [StatisticsMetadata(class_names=names) for names in (("cat", "dog"), ("cat", "cow"))]
    with pytest.raises(logn.InputError, match="of one `class_names` to merge"):
        logn.ClassMoments.merge_all([logn.ClassMoments(2, metadata=metadata) for metadata in names])


def test_a_thousand_parts_round_no_worse_than_one():
    """In a row the mean would drift by a rounding for each part; the tree adds ten levels."""
    values = np.random.default_rng(0).normal(size=(1024, 1, 1)) + 1e6
    parts = [logn.ClassMoments(1) for _ in values]
    for part, rows in zip(parts, values, strict=True):
        part.update(rows)
    total = logn.ClassMoments.merge_all(parts)
    exact = math.fsum(values.ravel()) / len(values)
    assert abs(total.mean[0] - exact) <= 10 * np.spacing(exact)
    np.testing.assert_allclose(total.variance, values.ravel().var(ddof=1), rtol=1e-8)
