"""The mean probability of each class: that of every row in float64, whatever the batches, the types and the files."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

import logn
from logn.logits.arrays import sigmoid, softmax
from logn.statistics.moments import StatisticsMetadata

ROWS = hnp.arrays(np.float64, st.tuples(st.integers(1, 20), st.just(4)), elements=st.floats(-900, 900))
SOFTMAX = StatisticsMetadata(activation="softmax")
SCORES = {"softmax": softmax, "sigmoid": sigmoid}


def moments_of(rows, parts=1, **options):
    result = logn.ClassMoments(rows.shape[1], mean_probability=True, **options)
    for part in np.array_split(rows, parts):
        result.update(part)
    return result


@given(rows=ROWS)
def test_the_mean_of_the_probabilities_of_all_rows(rows):
    moments = moments_of(rows)
    for kind, scores in SCORES.items():
        np.testing.assert_allclose(moments.mean_probability_of(kind), scores(rows).mean(axis=0), rtol=1e-12, atol=1e-30)


@given(rows=ROWS, other=ROWS, parts=st.integers(1, 4))
def test_any_split_gives_the_same(rows, other, parts):
    whole = moments_of(np.concatenate([rows, other]), parts)
    merged = moments_of(rows, parts).merge(moments_of(other))
    np.testing.assert_allclose(merged.mean_probability, whole.mean_probability, rtol=1e-12, atol=1e-30)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
@pytest.mark.parametrize(("spread", "far"), [(1.0, 0.0), (30.0, 0.0), (1.0, 200.0), (1.0, -200.0)])
def test_large_batches_of_every_type(dtype, spread, far):
    rows = (np.random.default_rng(0).normal(0, spread, (900, 120)) + far).astype(dtype)
    moments = moments_of(rows)
    for kind, scores in SCORES.items():
        expected = scores(rows).mean(axis=0)
        np.testing.assert_allclose(moments.mean_probability_of(kind), expected, rtol=3e-6, atol=1e-37)


def test_not_asked_for_and_nothing_seen():
    assert logn.ClassMoments(3, mean_probability=False).mean_probability is None
    moments = logn.ClassMoments(3)
    assert np.isnan(moments.mean_probability).all()
    moments.update(np.empty((0, 3)))
    moments.update(np.zeros((2, 3)))
    np.testing.assert_allclose(moments.mean_probability, 1 / 3)


def test_reading_it_gives_a_copy():
    moments = moments_of(np.zeros((2, 3)))
    moments.mean_probability[:] = 9.0
    np.testing.assert_allclose(moments.mean_probability, 1 / 3)


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ({"activation": "sigmoid"}, "sigmoid"),
        ({"activation": "sigmoid", "background": 0}, "sigmoid"),
        ({"activation": "softmax"}, "softmax"),
        ({"background": -1}, "softmax"),
        ({}, "softmax"),
    ],
)
def test_the_activation_is_the_recorded_one(metadata, kind):
    rows = np.random.default_rng(1).normal(size=(9, 3))
    moments = moments_of(rows, metadata=StatisticsMetadata(**metadata))
    np.testing.assert_allclose(moments.mean_probability, SCORES[kind](rows).mean(axis=0))
    other = "softmax" if kind == "sigmoid" else "sigmoid"
    if metadata:
        with pytest.raises(logn.InputError, match=f"Expected `activation` to be {kind}, .* but got '{other}'"):
            moments.mean_probability_of(other)
    else:
        np.testing.assert_allclose(moments.mean_probability_of(other), SCORES[other](rows).mean(axis=0))


def test_rows_that_are_not_finite_are_left_out():
    rows = np.random.default_rng(2).normal(size=(12, 3))
    broken = rows.copy()
    broken[4, 1], broken[7, 2] = np.nan, -np.inf
    moments = moments_of(broken, parts=3, nonfinite="skip", metadata=SOFTMAX)
    whole = np.isfinite(broken).all(axis=1)
    np.testing.assert_allclose(moments.mean_probability, softmax(rows[whole]).mean(axis=0))


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Softmax(-1), None])
def test_recording_learns_the_activation_after_the_first_batch(activation):
    model = nn.Sequential(nn.Identity(), *([] if activation is None else [activation])).eval()
    rows = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    with logn.record(model, logn.LogitLayer("0", num_columns=4)) as moments:
        for batch in rows:
            model(batch)
    kind = "sigmoid" if isinstance(activation, nn.Sigmoid) else "softmax"
    expected = SCORES[kind](rows.numpy()).mean(axis=(0, 1))
    np.testing.assert_allclose(moments.mean_probability, expected, rtol=1e-6)
    if activation is None:
        np.testing.assert_allclose(moments.mean_probability_of("sigmoid"), sigmoid(rows).mean(axis=(0, 1)), rtol=1e-6)


def test_recording_can_do_without():
    model = nn.Sequential(nn.Linear(2, 3)).eval()
    with logn.record(model, logn.LogitLayer("0"), mean_probability=False) as moments:
        model(torch.rand(4, 2))
    assert moments.mean_probability is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_goes_its_own_way(copied):
    rows = np.random.default_rng(3).normal(size=(8, 3))
    first = moments_of(rows[:4])
    second = copied(first)
    second.update(rows[4:])
    np.testing.assert_allclose(first.mean_probability, softmax(rows[:4]).mean(axis=0))
    np.testing.assert_allclose(second.mean_probability, softmax(rows).mean(axis=0))


def test_files_keep_it_to_the_last_bit(tmp_path):
    moments = moments_of(np.random.default_rng(4).normal(size=(8, 3)))
    moments.save(tmp_path / "x.safetensors")
    loaded = logn.ClassMoments.load(tmp_path / "x.safetensors")
    for kind in SCORES:
        np.testing.assert_array_equal(loaded.mean_probability_of(kind), moments.mean_probability_of(kind))
    more = np.random.default_rng(5).normal(size=(3, 3))
    for each in (loaded, moments):
        each.update(more)
    np.testing.assert_array_equal(loaded.mean_probability, moments.mean_probability)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"probability_rows": None}, "`probability_rows` should be one whole number"),
        ({"probability_rows": np.array([1.5])}, "`probability_rows` should be one whole number"),
        ({"probability_rows": np.array([np.nan])}, "`probability_rows` should be one whole number"),
        ({"probability_rows": np.array([8.0, 8.0])}, "`probability_rows` should be one whole number"),
        ({"softmax_sum": np.ones(2)}, "`softmax_sum` should be one float64 per class"),
        ({"softmax_sum": np.ones(3, np.float32)}, "`softmax_sum` should be one float64 per class"),
        ({"softmax_sum": np.array([1.0, np.nan, 1.0])}, "`softmax_sum` should be between 0 and the 8 rows"),
        ({"softmax_sum": np.array([1.0, 9.0, 1.0])}, "`softmax_sum` should be between 0 and the 8 rows"),
        ({"softmax_sum": None}, "no sum of probabilities"),
    ],
)
def test_arrays_that_are_not_valid(changes, words):
    arrays = moments_of(np.random.default_rng(4).normal(size=(8, 3)), metadata=SOFTMAX).to_arrays() | changes
    with pytest.raises(logn.InputError, match=words):
        logn.ClassMoments.from_arrays({name: value for name, value in arrays.items() if value is not None})


def test_what_one_side_lacks_is_lost_with_a_word():
    rows = np.random.default_rng(6).normal(size=(8, 3))
    plain = logn.ClassMoments(3, mean_probability=False)
    plain.update(rows)
    for first, second in ((moments_of(rows), plain), (copy.copy(plain), moments_of(rows))):
        with pytest.warns(logn.LogNWarning, match="holds no mean probability"):
            first.merge(second)
        assert first.mean_probability is None


def test_those_who_saw_nothing_take_nothing_away():
    rows = np.random.default_rng(7).normal(size=(8, 3))
    expected = softmax(rows).mean(axis=0)
    for empty in (logn.ClassMoments(3, mean_probability=False), logn.ClassMoments(3)):
        np.testing.assert_allclose(moments_of(rows).merge(empty).mean_probability, expected)
        np.testing.assert_allclose(copy.copy(empty).merge(moments_of(rows)).mean_probability, expected)


def test_sums_of_nothing_do_not_outlive_rows_that_nobody_summed():
    plain = logn.ClassMoments(3, mean_probability=False)
    plain.update(np.zeros((2, 3)))
    assert logn.ClassMoments(3, mean_probability=True).merge(plain).mean_probability is None
    assert plain.merge(logn.ClassMoments(3, mean_probability=True)).mean_probability is None
