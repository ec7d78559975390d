"""Statistics of positives only: which samples count, and batches in which none does."""

import numpy as np
import pytest

from logn.statistics.positives import PositiveMoments

LOGITS = np.array([[3.0, 1.0, 0.0], [0.0, 2.0, 5.0], [1.0, 4.0, 0.0]], np.float32)


@pytest.mark.parametrize("correct", [False, True])
def test_a_batch_without_a_sample_that_counts_changes_nothing(correct):
    positives = PositiveMoments(3, require_correct=correct)
    positives.update(LOGITS[:0], np.empty(0, np.int64))
    positives.update(LOGITS, [0, 1, 1])
    before = positives.moments()
    positives.update(LOGITS[:0], np.empty(0, np.int64))
    if correct:
        positives.update(LOGITS[:1], [2])  # the highest logit is that of class 0
    after = positives.moments()
    np.testing.assert_array_equal(after.count, before.count)
    np.testing.assert_array_equal(after.mean, before.mean)


def test_only_recognised_samples_count_where_that_is_asked_for():
    everything, recognised = PositiveMoments(3), PositiveMoments(3, require_correct=True)
    for form in (everything, recognised):
        form.update(LOGITS, [0, 1, 1])
    np.testing.assert_array_equal(everything.moments().count, [1, 2, 0])
    np.testing.assert_array_equal(recognised.moments().count, [1, 1, 0])
    assert everything.moments().mean[1] == 3.0
    assert recognised.moments().mean[1] == 4.0


def test_the_variance_within_batches_is_over_those_with_two_samples_of_the_class():
    positives = PositiveMoments(2)
    for values in ([1.0, 3.0], [10.0], [0.0, 2.0, 4.0]):
        positives.update(np.array([[value, 0.0] for value in values]), [0] * len(values))
    moments = positives.moments()
    assert moments.within_batch_variance[0] == pytest.approx((2.0 + 4.0) / 2)
    assert moments.variance[0] == pytest.approx(np.var([1.0, 3.0, 10.0, 0.0, 2.0, 4.0], ddof=1))


def test_merged_parts_have_the_samples_and_probabilities_of_all():
    whole, first, second = (PositiveMoments(3, sample_rows=10, mean_probability=True) for _ in range(3))
    whole.update(LOGITS, [0, 1, -1])
    first.update(LOGITS[:1], [0])
    second.update(LOGITS[1:], [1, -1])
    one, other = whole.moments(), first.merge(second).moments()
    np.testing.assert_array_equal(other.count, one.count)
    assert sorted(other.sample.tolist()) == sorted(one.sample.tolist())
    assert len(other.sample) == 3
    np.testing.assert_allclose(other.mean_probability, one.mean_probability)
