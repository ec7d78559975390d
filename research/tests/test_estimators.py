"""The paper's moving average and statistics of positives, by the worked numbers of the reference."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from logn_research.estimators import MovingAverage, PositiveMoments

import logn
from logn.base.arrays import softmax
from logn.statistics.head import Head

# The toy data of the reference: momentum 0.1, two batches of two rows, start 0 and 1.
X = np.array([[2.0, 0.5, -1.0, 3.0], [0.0, 1.5, -2.0, 4.0], [1.0, -0.5, 0.5, 2.0], [-1.0, 0.0, -3.0, 5.0]])
T = np.array([1.0, 0.8, 0.2, 1.5])
LOGITS = np.array([[3.0, 1.0, 0.0], [0.0, 2.0, 5.0], [1.0, 4.0, 0.0]], np.float32)


def average_of(*batches, head=None, **options):
    average = MovingAverage(head or batches[0].shape[1], **options)
    for batch in batches:
        average.update(batch)
    return average


def test_moving_average_as_in_the_official_head():
    head = Head(X.shape[1], population="regions", background=-1, activation="softmax")
    moments = average_of(X[:2], X[2:], momentum=0.1, sample_rows=9, head=head).moments()
    np.testing.assert_allclose(moments.mean, [0.09, 0.065, -0.26, 0.665], atol=1e-12)
    np.testing.assert_allclose(moments.variance, [1.19, 0.8675, 1.4675, 1.305], atol=1e-12)
    assert moments.head == replace(head, population="regions, moving average")
    np.testing.assert_array_equal(np.sort(moments.sample, axis=0), np.sort(X.astype(np.float16), axis=0))
    np.testing.assert_allclose(moments.mean_probability, softmax(X).mean(axis=0))
    logits = logn.logit_normalization(moments, eps=0.0)(T)
    np.testing.assert_allclose(logits, [0.595854, 0.509987, 0.165098, 1.5], atol=1e-6)
    np.testing.assert_allclose(softmax(logits), [0.198509, 0.182175, 0.129034, 0.490282], atol=1e-6)


def test_moving_average_equals_batch_norm():
    layer = torch.nn.BatchNorm1d(4, momentum=0.1, affine=False)
    for batch in (X[:2], X[2:]):
        layer(torch.tensor(batch, dtype=torch.float32))
    moments = average_of(X[:2], X[2:], momentum=0.1).moments()
    np.testing.assert_allclose(moments.mean, layer.running_mean, atol=1e-6)
    np.testing.assert_allclose(moments.variance, layer.running_var, atol=1e-6)


def test_the_official_average_keeps_its_start():
    assert pytest.approx(0.288696, abs=1e-6) == (1 - 5e-5) ** 24847
    batches = [np.array([[2.0], [4.0]])] * 3
    assert average_of(*batches, momentum=0.5).moments().mean[0] == pytest.approx(3.0 * (1 - 0.5**3))
    corrected = average_of(*batches, momentum=0.5, bias_correction=True).moments()
    assert (corrected.mean[0], corrected.variance[0]) == (pytest.approx(3.0), pytest.approx(2.0))


def test_a_bias_correction_removes_any_start_and_single_rows_are_left_out():
    options = {"momentum": 0.1, "initial_mean": 7.0, "initial_variance": 3.0, "bias_correction": True}
    average = average_of(X[:2], X[:1], X[2:], **options)
    assert average.skipped_batches == 1
    moments = average.moments()
    # The older batch weighs 0.9 of the newer one.
    np.testing.assert_allclose(moments.mean, (0.9 * X[:2].mean(axis=0) + X[2:].mean(axis=0)) / 1.9, atol=1e-12)
    variances = X[:2].var(axis=0, ddof=1), X[2:].var(axis=0, ddof=1)
    np.testing.assert_allclose(moments.variance, (0.9 * variances[0] + variances[1]) / 1.9, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 2.0])
def test_a_momentum_out_of_range_is_refused(momentum):
    with pytest.raises(logn.InputError, match="Expected `momentum` to be above 0 and at most 1"):
        MovingAverage(4, momentum=momentum)


@pytest.mark.parametrize(
    ("require_correct", "mean", "count"),
    [(False, [2.5, 2.0, 0.5, 5.0], [2, 2, 1, 1]), (True, [3.0, 2.5, 0.0, 5.0], [1, 1, 0, 1])],
)
def test_positives_in_both_readings(require_correct, mean, count):
    rows = np.vstack([X, [[3.0, 0.0, 0.0, 1.0], [0.5, 2.5, 0.0, 1.0]]])
    positives = PositiveMoments(4, require_correct=require_correct)
    positives.update(rows, torch.tensor([0, 1, 2, 3, 0, 1]))
    moments = positives.moments()
    np.testing.assert_allclose(moments.mean, mean)
    assert moments.count.tolist() == count
    if not require_correct:
        np.testing.assert_allclose(moments.variance[:2], [0.5, 0.5])
        assert np.isnan(moments.variance[2])
        # A class with one sample has no variance: its standard deviation falls back to 1.
        affine = logn.logit_normalization(moments, background=-1)
        assert affine.scale[2] == 1.0
        assert affine.settings["margin_value"] == 0.5  # it is no dead class: of the means 2.5, 2.0 and 0.5 it sets this


@pytest.mark.parametrize("correct", [False, True])
def test_a_batch_without_a_sample_that_counts_changes_nothing(correct):
    positives = PositiveMoments(3, require_correct=correct)
    positives.update(LOGITS[:0], np.empty(0, np.int64))
    positives.update(LOGITS, [0, 1, 1])
    before = positives.moments()
    positives.update(LOGITS[:1], [2 if correct else -1])  # the highest logit is that of class 0
    after = positives.moments()
    assert before.count.tolist() == after.count.tolist() == [1, 1 if correct else 2, 0]
    np.testing.assert_array_equal(after.mean, before.mean)


@given(
    rows=hnp.arrays(np.float64, (6, 3), elements=st.floats(-50, 50)),
    labels=st.lists(st.integers(-1, 2), min_size=6, max_size=6),
)
def test_merged_positives_are_those_of_the_whole(rows, labels):
    whole, *parts = (PositiveMoments(3, sample_rows=4) for _ in range(3))
    whole.update(rows, labels)
    parts[0].update(rows[:2], labels[:2])
    parts[1].update(rows[2:], labels[2:])
    one, other = whole.moments(), parts[0].merge(parts[1]).moments()
    np.testing.assert_array_equal(one.count, other.count)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-9)
    np.testing.assert_allclose(one.m2, other.m2, atol=1e-6)
    np.testing.assert_allclose(one.mean_probability, other.mean_probability, atol=1e-12)
    assert len(one.sample) == len(other.sample) == 4


@pytest.mark.parametrize("labels", [[0, 1], [0.0, 1.0, 2.0], [0, 1, 3], [0, 1, -2]])
def test_wrong_labels_are_refused(labels):
    with pytest.raises(logn.InputError, match="Expected `labels` to be"):
        PositiveMoments(3).update(LOGITS, labels)
