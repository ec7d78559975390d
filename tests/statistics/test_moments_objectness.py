"""Statistics with an objectness: probabilities are those of the scores, and all else is as without it."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import logn
from logn.calibrators.recommend import class_scores
from logn.logits.arrays import sigmoid, softmax

SCORES = {"softmax": softmax, "sigmoid": sigmoid}


def rows_of(seed, rows, classes=3):
    rng = np.random.default_rng(seed)
    return rng.normal(-1, 2, (rows, classes)), rng.normal(-2, 3, rows)


def moments_of(seed, rows, parts=1, *, objectness=True, **options):
    moments = logn.ClassMoments(3, **{"sample_rows": 8, **options})
    logits, beside = rows_of(seed, rows)
    for part in np.array_split(np.arange(rows), parts):
        moments.update(logits[part], beside[part] if objectness else None)
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
    moments, plain = logn.ClassMoments(60, sample_rows=rows), logn.ClassMoments(60)
    moments.update(logits, beside)
    plain.update(logits)
    for kind, scores in SCORES.items():
        expected = (sigmoid(beside)[:, None] * scores(logits)).mean(axis=0)
        np.testing.assert_allclose(moments.mean_probability_of(kind), expected, rtol=3e-6)
    np.testing.assert_array_equal(moments.mean, plain.mean)
    np.testing.assert_array_equal(moments.variance, plain.variance)
    scores = class_scores(moments, None, "sigmoid").mean(axis=0)
    np.testing.assert_allclose(scores, moments.mean_probability_of("sigmoid"), rtol=5e-3)  # the sample is float16


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=5), sample_rows=st.sampled_from([0, 4, 50]), data=st.data()
)
def test_parts_merge_to_the_same_in_any_order(sizes, sample_rows, data):
    parts = [moments_of(seed, rows, sample_rows=sample_rows) for seed, rows in enumerate(sizes)]
    if not sum(sizes):
        return
    rows = [rows_of(seed, rows) for seed, rows in enumerate(sizes)]
    logits, beside = (np.concatenate(both) for both in zip(*rows, strict=True))
    merged = logn.ClassMoments.merge_all(parts)
    expected = (sigmoid(beside)[:, None] * sigmoid(logits)).mean(axis=0)
    np.testing.assert_allclose(merged.mean_probability_of("sigmoid"), expected, rtol=1e-10)
    assert len(merged.sample_objectness) == len(merged.sample) == min(sample_rows, sum(sizes))
    pairs = {tuple(row) for row in np.column_stack([logits, beside]).astype(np.float16).tolist()}
    assert {tuple(row) for row in np.column_stack([merged.sample, merged.sample_objectness]).tolist()} <= pairs
    one_by_one = logn.ClassMoments(3, sample_rows=sample_rows)
    for part in data.draw(st.permutations(parts)):
        one_by_one.merge(logn.ClassMoments.from_bytes(part.to_bytes()))
    equal(one_by_one, merged)


@pytest.mark.parametrize("sample_rows", [0, 4])
def test_files_copies_and_updates_afterwards(tmp_path, sample_rows):
    moments = moments_of(1, 9, sample_rows=sample_rows)
    moments.save(tmp_path / "m.safetensors")
    for other in (logn.ClassMoments.load(tmp_path / "m.safetensors"), copy.copy(moments)):
        equal(other, moments)
        logits, beside = rows_of(2, 5)
        other.update(logits, beside)
        assert other.count.tolist() == [14.0] * 3
        with pytest.raises(logn.InputError, match="with all rows or with none"):
            other.update(logits)


def test_files_without_it_have_no_trace_of_it():
    moments = moments_of(1, 9, objectness=False)
    assert moments.sample_objectness is None
    assert b"objectness" not in moments.to_bytes()


@pytest.mark.parametrize("first", [True, False])
def test_a_mix_is_refused(first):
    one, other, nothing = moments_of(1, 5, objectness=first), moments_of(2, 5, objectness=not first), moments_of(3, 0)
    before = one.to_bytes()
    for call in (
        lambda: one.merge(other),
        lambda: one.update(*rows_of(0, 4)[: 1 + (not first)]),
        lambda: logn.ClassMoments.merge_all([nothing, one, other]),
    ):
        with pytest.raises(logn.InputError, match="Expected `objectness` with all rows or with none, but got it with"):
            call()
    assert one.to_bytes() == before


@pytest.mark.parametrize("objectness", [True, False])
def test_what_saw_nothing_agrees_with_both(objectness):
    moments = moments_of(1, 5, objectness=objectness)
    merged = logn.ClassMoments(3, sample_rows=8).merge(moments)
    assert (merged.sample_objectness is not None) == objectness
    np.testing.assert_array_equal(merged.sample, moments.sample)
    assert moments.merge(logn.ClassMoments(3, sample_rows=8)).count.tolist() == [5.0] * 3


@pytest.mark.parametrize(
    ("objectness", "sentence"),
    [
        (np.zeros(3), "Expected `objectness` to be one logit for each of 4 rows, but got 3."),
        (np.array([0, 0, np.nan, 0]), "Expected `objectness` to be finite, but that of row 2 is nan."),
    ],
)
def test_wrong_ones_are_refused(objectness, sentence):
    moments = logn.ClassMoments(3)
    with pytest.raises(logn.InputError, match=sentence):
        moments.update(np.zeros((4, 3)), objectness)
    assert not moments.count.any()


def test_rows_without_a_finite_objectness_have_no_score():
    moments = logn.ClassMoments(3, nonfinite="skip", sample_rows=9)
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
    moments = logn.ClassMoments(3, sample_rows=8)
    moments.update(torch.tensor(logits).reshape(3, 4, 3), torch.tensor(beside).reshape(3, 4))
    np.testing.assert_array_equal(moments.sample_objectness, moments_of(0, 12).sample_objectness)
    np.testing.assert_allclose(moments.mean_probability, moments_of(0, 12).mean_probability)


@pytest.mark.parametrize(
    "wrong", [np.zeros(3, np.float16), np.zeros(4, np.float32), np.full(4, np.inf, np.float16)], ids=str
)
def test_wrong_arrays_are_refused(wrong):
    with pytest.raises(logn.InputError, match="`sample_objectness` should be one finite float16 per sampled row"):
        logn.ClassMoments.from_arrays(moments_of(0, 4).to_arrays() | {"sample_objectness": wrong})
