"""The mean probability of each class: that of every row in float64, whatever the batches, types and objectness."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.conftest import moments_of
from torch import nn

import logn
from logn.base.arrays import sigmoid, softmax
from logn.methods.sampled_scores import class_scores
from logn.statistics.head import Head

ROWS = hnp.arrays(np.float64, st.tuples(st.integers(1, 20), st.just(4)), elements=st.floats(-900, 900))
SCORES = {"softmax": softmax, "sigmoid": sigmoid}


@given(rows=ROWS, other=ROWS, parts=st.integers(1, 4))
def test_any_split_gives_the_mean_of_the_probabilities_of_all_rows(rows, other, parts):
    whole = np.concatenate([rows, other])
    for moments in (moments_of(whole, parts), moments_of(rows, parts).merge(moments_of(other))):
        for kind, scores in SCORES.items():
            expected = scores(whole).mean(axis=0)
            np.testing.assert_allclose(moments.mean_probability_of(kind), expected, rtol=1e-12, atol=1e-30)


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
    moments = moments_of(rows, **metadata)
    np.testing.assert_allclose(moments.mean_probability, SCORES[kind](rows).mean(axis=0))
    other = "softmax" if kind == "sigmoid" else "sigmoid"
    if metadata:
        with pytest.raises(logn.InputError, match=f"Expected `activation` to be {kind}, .* but got '{other}'"):
            moments.mean_probability_of(other)
    else:
        np.testing.assert_allclose(moments.mean_probability_of(other), SCORES[other](rows).mean(axis=0))


def test_rows_that_are_not_finite_are_left_out():
    rows = np.random.default_rng(2).normal(size=(12, 3))
    rows[4, 1], rows[7, 2] = np.nan, -np.inf
    moments = moments_of(rows, 3, nonfinite="skip", activation="softmax")
    np.testing.assert_allclose(moments.mean_probability, softmax(np.delete(rows, [4, 7], axis=0)).mean(axis=0))


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Softmax(-1), None])
def test_recording_learns_the_activation_after_the_first_batch(activation):
    model = nn.Sequential(nn.Identity(), *([] if activation is None else [activation])).eval()
    rows = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    layer = logn.LogitLayer("0", num_columns=4)
    with logn.record(model, layer) as moments:
        for batch in rows:
            model(batch)
    with logn.record(model, layer, mean_probability=False) as without:
        model(rows[0])
    kind = "sigmoid" if isinstance(activation, nn.Sigmoid) else "softmax"
    expected = SCORES[kind](rows.numpy()).mean(axis=(0, 1))
    np.testing.assert_allclose(moments.mean_probability, expected, rtol=1e-6)
    assert without.mean_probability is None
    if activation is None:
        np.testing.assert_allclose(moments.mean_probability_of("sigmoid"), sigmoid(rows).mean(axis=(0, 1)), rtol=1e-6)


def test_what_one_side_lacks_is_lost_with_a_warning_unless_it_saw_nothing():
    rows = np.random.default_rng(6).normal(size=(8, 3))
    plain = moments_of(rows, mean_probability=False)
    for first, second in ((moments_of(rows), plain), (copy.copy(plain), moments_of(rows))):
        with pytest.warns(logn.LogNWarning, match="has no mean probabilities"):
            first.merge(second)
        assert first.mean_probability is None
    for empty in (logn.ClassMoments(3, mean_probability=False), logn.ClassMoments(3)):
        for merged in (moments_of(rows).merge(empty), copy.copy(empty).merge(moments_of(rows))):
            np.testing.assert_allclose(merged.mean_probability, softmax(rows).mean(axis=0))
    # Sums of nothing do not outlive rows that nobody summed.
    assert logn.ClassMoments(3).merge(plain).mean_probability is None
    assert plain.merge(logn.ClassMoments(3)).mean_probability is None


# With an objectness the probabilities are those of the scores, and all else is as without it.


def rows_of(seed, rows, classes=3):
    rng = np.random.default_rng(seed)
    return rng.normal(-1, 2, (rows, classes)), rng.normal(-2, 3, rows)


def with_objectness(seed, rows, *, objectness=True, sample_rows=8):
    moments = logn.ClassMoments(Head(3, objectness=objectness), sample_rows=sample_rows)
    logits, beside = rows_of(seed, rows)
    moments.update(logits, beside if objectness else None)
    return moments


def equal(one, other):
    for name in ("count", "mean", "variance", "skipped", "sample", "sample_objectness", "sample_rows"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12, err_msg=name)
    for kind in SCORES:
        np.testing.assert_allclose(one.mean_probability_of(kind), other.mean_probability_of(kind), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("rows", [50, 5000], ids=["small", "large"])
@pytest.mark.parametrize("far", [0.0, 200.0])
def test_probabilities_are_those_of_the_scores(dtype, rows, far):
    logits, beside = rows_of(0, rows, 60)
    logits = (logits + far).astype(dtype)
    moments, plain = logn.ClassMoments(Head(60, objectness=True), sample_rows=rows), moments_of(logits)
    moments.update(logits, beside)
    for kind, scores in SCORES.items():
        expected = (sigmoid(beside)[:, None] * scores(logits)).mean(axis=0)
        np.testing.assert_allclose(moments.mean_probability_of(kind), expected, rtol=3e-6)
    np.testing.assert_array_equal(moments.mean, plain.mean)
    np.testing.assert_array_equal(moments.variance, plain.variance)
    scores = class_scores(moments, None, "sigmoid").mean(axis=0)
    np.testing.assert_allclose(scores, moments.mean_probability_of("sigmoid"), rtol=5e-3)  # the sample is float16


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any),
    sample_rows=st.sampled_from([0, 4, 50]),
    data=st.data(),
)
def test_parts_merge_to_the_same_in_any_order(sizes, sample_rows, data):
    parts = [with_objectness(seed, rows, sample_rows=sample_rows) for seed, rows in enumerate(sizes)]
    rows = [rows_of(seed, rows) for seed, rows in enumerate(sizes)]
    logits, beside = (np.concatenate(both) for both in zip(*rows, strict=True))
    merged = logn.ClassMoments.merge_all(parts)
    expected = (sigmoid(beside)[:, None] * sigmoid(logits)).mean(axis=0)
    np.testing.assert_allclose(merged.mean_probability_of("sigmoid"), expected, rtol=1e-10)
    assert len(merged.sample_objectness) == len(merged.sample) == min(sample_rows, sum(sizes))
    pairs = {tuple(row) for row in np.column_stack([logits, beside]).astype(np.float16).tolist()}
    assert {tuple(row) for row in np.column_stack([merged.sample, merged.sample_objectness]).tolist()} <= pairs
    one_by_one = logn.ClassMoments(Head(3, objectness=True), sample_rows=sample_rows)
    for part in data.draw(st.permutations(parts)):
        one_by_one.merge(logn.ClassMoments.from_bytes(part.to_bytes()))
    equal(one_by_one, merged)


@pytest.mark.parametrize("sample_rows", [0, 4])
def test_files_and_copies_keep_the_objectness(tmp_path, sample_rows):
    moments = with_objectness(1, 9, sample_rows=sample_rows)
    moments.save(tmp_path / "m.safetensors")
    for other in (logn.ClassMoments.load(tmp_path / "m.safetensors"), copy.copy(moments)):
        equal(other, moments)
        logits, beside = rows_of(2, 5)
        other.update(logits, beside)
        assert other.count.tolist() == [14.0] * 3
        with pytest.raises(logn.InputError, match="`objectness`"):
            other.update(logits)
    assert with_objectness(1, 9, objectness=False).sample_objectness is None


@pytest.mark.parametrize("first", [True, False])
def test_a_mix_is_refused(first):
    one, other = with_objectness(1, 5, objectness=first), with_objectness(2, 5, objectness=not first)
    before = one.to_bytes()
    for call in (
        lambda: one.merge(other),
        lambda: one.update(*rows_of(0, 4)[: 1 + (not first)]),
        lambda: logn.ClassMoments.merge_all([one, other]),
    ):
        with pytest.raises(logn.InputError, match="`objectness`"):
            call()
    assert one.to_bytes() == before


@pytest.mark.parametrize(
    ("objectness", "sentence"),
    [
        (np.zeros(3), "Expected `objectness` to be one logit for each of 4 rows, but got 3."),
        (np.array([0, 0, np.nan, 0]), "Expected `objectness` to be finite, but that of row 2 is nan."),
    ],
)
def test_wrong_objectness_is_refused(objectness, sentence):
    moments = logn.ClassMoments(Head(3, objectness=True))
    with pytest.raises(logn.InputError, match=sentence):
        moments.update(np.zeros((4, 3)), objectness)
    assert not moments.count.any()


def test_rows_without_a_finite_objectness_have_no_score():
    moments = logn.ClassMoments(Head(3, objectness=True), nonfinite="skip", sample_rows=9)
    logits, beside = rows_of(0, 6)
    beside[2], logits[4, 1] = np.inf, np.nan
    moments.update(logits, beside)
    kept = [0, 1, 3, 5]
    assert moments.count.tolist() == [6.0, 5.0, 6.0]
    assert len(moments.sample) == 4
    expected = (sigmoid(beside[kept])[:, None] * sigmoid(logits[kept])).mean(axis=0)
    np.testing.assert_allclose(moments.mean_probability_of("sigmoid"), expected)


def test_tensors_of_torch():
    logits, beside = rows_of(0, 12)
    moments = logn.ClassMoments(Head(3, objectness=True), sample_rows=8)
    moments.update(torch.tensor(logits).reshape(3, 4, 3), torch.tensor(beside).reshape(3, 4))
    equal(moments, with_objectness(0, 12))
