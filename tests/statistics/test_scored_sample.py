"""The sample of rows with high scores: unbiased with its weights, deterministic, and the same in any order of parts."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import logn
from logn.base.arrays import sigmoid, softmax
from logn.methods.sampled_scores import class_scores
from logn.statistics.head import Head
from logn.statistics.row_sample import scored_rows

CLASSES = 6
SIGMOID = Head(CLASSES, activation="sigmoid")
HEADS = {
    "sigmoid": SIGMOID,
    "objectness": replace(SIGMOID, objectness=True),
    "softmax detector": Head(CLASSES + 1, background=-1),
    "unknown": Head(CLASSES),
}


def dense_rows(seed, rows=40_000, *, background=False):
    """Logits of a dense detector: one row in a hundred scores high, classes are long-tailed."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(-7.0, 1.0, (rows, CLASSES + background))
    hits = generator.random(rows) < 0.01
    label = generator.choice(CLASSES, rows, p=0.5 ** np.arange(1, CLASSES + 1) / (1 - 0.5**CLASSES))
    logits[hits, label[hits]] += generator.normal(7.0, 1.5, hits.sum())
    if background:
        logits[:, -1] = 0.0
    return logits.astype(np.float32), generator.normal(1.0, 1.0, rows).astype(np.float32)


def collected(head, seeds=(0,), sample_rows=1000, batch=4000):
    moments = logn.ClassMoments(HEADS[head], sample_rows=sample_rows)
    for seed in seeds:
        logits, objectness = dense_rows(seed, background=moments.head.background is not None)
        for start in range(0, len(logits), batch):
            part = slice(start, start + batch)
            moments.update(logits[part], objectness[part] if moments.head.objectness else None)
    return moments


def all_scores(head, seeds=(0,)):
    has_background, parts = HEADS[head].background is not None, []
    for seed in seeds:
        logits, objectness = dense_rows(seed, background=has_background)
        factor = sigmoid(objectness.astype(np.float64))[:, None] if HEADS[head].objectness else 1.0
        values = logits.astype(np.float64)
        parts.append(softmax(values)[:, :-1] if has_background else sigmoid(values) * factor)
    return np.concatenate(parts)


@pytest.mark.parametrize("head", HEADS)
def test_numbers_above_a_threshold_are_those_of_all_rows(head):
    activation = "softmax" if head == "softmax detector" else "sigmoid"
    errors = []
    for seed in range(8):
        moments = collected(head, (seed,))
        scores, stands_for = class_scores(moments, None, activation), moments.scored_sample()[2]
        assert len(scores) == scored_rows(CLASSES, 1000) == 2000
        for threshold in (0.05, 0.25):
            number = int((all_scores(head, (seed,)) > threshold).sum())
            assert number >= 100
            errors.append((stands_for[:, None] * (scores > threshold)).sum() / number - 1)
        assert stands_for.sum() == pytest.approx(40_000, rel=0.1)  # rows without a score are there, too
    assert abs(np.mean(errors)) < 0.01
    assert np.abs(errors).max() < 0.06


@pytest.mark.parametrize("head", ["sigmoid", "objectness"])
@pytest.mark.parametrize("threshold", [0.05, 0.25, 0.5])
def test_the_common_shift_of_a_dense_head_keeps_the_number(head, threshold):
    moments = collected(head, range(4), sample_rows=4096)
    affine = logn.methods.fit("recommended:force=true", moments, threshold=threshold)
    logits, objectness = map(np.concatenate, zip(*(dense_rows(seed) for seed in range(4)), strict=True))
    factor = sigmoid(objectness.astype(np.float64))[:, None] if head == "objectness" else 1.0
    before, after = (factor * sigmoid(rows) for rows in (logits.astype(np.float64), affine(logits.astype(np.float64))))
    assert (after > threshold).sum() == pytest.approx((before > threshold).sum(), rel=0.03)


@given(sizes=st.lists(st.integers(1, 300), min_size=2, max_size=5), data=st.data())
def test_parts_merge_to_the_same_sample_in_any_order(sizes, data):
    parts = []
    for seed, size in enumerate(sizes):
        part = logn.ClassMoments(HEADS["objectness"], sample_rows=20)
        part.update(*dense_rows(seed, size))
        parts.append(part)
    whole = logn.ClassMoments.merge_all(parts)
    other = logn.ClassMoments.merge_all(data.draw(st.permutations(parts)))
    for one, two in zip(whole.scored_sample(), other.scored_sample(), strict=True):
        np.testing.assert_array_equal(one, two)
    read = logn.ClassMoments.from_bytes(whole.to_bytes())
    for one, two in zip(whole.scored_sample(), read.scored_sample(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_part_that_knows_the_limit_gives_the_same_sample():
    moments = collected("sigmoid")
    limited, free = moments.new_part(), logn.ClassMoments(SIGMOID, sample_rows=1000)
    logits, _ = dense_rows(9)
    limited.update(logits)
    free.update(logits)
    merged = [logn.ClassMoments.merge_all([moments, part]).scored_sample() for part in (limited, free)]
    for one, two in zip(*merged, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_classifier_has_the_unbiased_sample_alone():
    moments = logn.ClassMoments(Head(3, activation="softmax"), sample_rows=10)
    moments.update(np.random.default_rng(0).normal(size=(100, 3)))
    assert not {name for name in moments.to_arrays() if name.startswith("scored")}
    np.testing.assert_array_equal(moments.scored_sample()[0], moments.sample.astype(np.float64))
    assert moments.scored_sample()[2].tolist() == [1.0] * 10


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scored_rows", None),
        ("scored_keys", np.ones(3)),
        ("scored_rows", np.ones((4, 2), np.float16)),
        ("scored_rows", np.zeros((10, CLASSES + 1), np.float16)),
        ("scored_capacity", np.array([0])),
    ],
)
def test_a_sample_that_does_not_fit_together_is_refused(name, value):
    moments = logn.ClassMoments(SIGMOID, sample_rows=10)
    moments.update(np.random.default_rng(0).normal(size=(10, CLASSES)))
    arrays = moments.to_arrays() | {name: value}
    arrays = {key: array for key, array in arrays.items() if array is not None}
    with pytest.raises(logn.InputError, match="`scored_"):
        logn.ClassMoments.from_arrays(arrays, SIGMOID)
