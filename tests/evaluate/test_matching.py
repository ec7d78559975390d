"""Matching: the rounds that settle all images at once against the plain loop of the reference evaluators."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logn.evaluate.detection.matching import greedy_matches, joined_pairs
from logn.evaluate.detection.metrics import average_precision_per_class


def plain_greedy(iou, threshold):
    """One detection after the other, the best free box each; of equal ones the later."""
    free = np.ones(iou.shape[1], bool)
    matched = np.full(iou.shape[0], -1)
    for row in range(iou.shape[0]):
        best, choice = threshold, -1
        for box in range(iou.shape[1]):
            if free[box] and iou[row, box] >= best:
                best, choice = iou[row, box], box
        if choice >= 0:
            free[choice], matched[row] = False, choice
    return matched


def plain_average_precision(correct, num_boxes):
    hits = np.cumsum(correct)
    recall, precision = hits / num_boxes, hits / np.arange(1, len(correct) + 1)
    points = [max(precision[recall >= point], default=0.0) for point in np.linspace(0, 1, 101)]
    return float(np.mean(points))


@given(
    detections=st.integers(0, 12),
    boxes=st.integers(1, 6),
    levels=st.sampled_from([3, 1000]),
    seed=st.integers(0, 10_000),
)
def test_all_at_once_equals_one_after_the_other(detections, boxes, levels, seed):
    # Few levels make many ties, on which the choice depends most.
    iou = np.random.default_rng(seed).integers(0, levels, (detections, boxes)) / levels
    row, box = np.nonzero(iou >= 0.3)
    order = np.lexsort((-box, -iou[row, box], row))
    found = greedy_matches(row[order], box[order], detections, np.zeros(boxes, bool))
    assert found.tolist() == plain_greedy(iou, 0.3).tolist()


@given(left=st.lists(st.integers(0, 4), max_size=8), right=st.lists(st.integers(0, 4), max_size=8))
def test_joined_pairs_are_all_pairs_with_equal_keys(left, right):
    rows, columns = joined_pairs(np.array(left, np.int64), np.array(right, np.int64))
    expected = [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a == b]
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == expected


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.booleans()), min_size=1, max_size=30),
    extra=st.lists(st.integers(0, 3), min_size=3, max_size=3),
)
def test_average_precision_of_all_classes_equals_each_alone(rows, extra):
    labels, scores, correct = (np.array(column) for column in zip(*rows, strict=True))
    order = np.lexsort((-scores, labels))
    labels, correct = labels[order], correct[order].astype(bool)
    boxes = np.bincount(labels[correct], minlength=3) + extra
    found = average_precision_per_class(labels, correct, np.ones(len(labels), bool), boxes)
    for label in range(3):
        if boxes[label] == 0:
            assert np.isnan(found[label])
        else:
            np.testing.assert_allclose(found[label], plain_average_precision(correct[labels == label], boxes[label]))
