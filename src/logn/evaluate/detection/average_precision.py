"""Average precision of many classes at once, from ranked detections."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FloatVector = npt.NDArray[np.float64]

# The same floats as the reference evaluators use: at exact equality the last bit decides.
RECALL_THRESHOLDS: FloatVector = np.linspace(0.0, 1.0, 101)


def rank_within_classes(labels: npt.NDArray[Any], scores: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Give the order that sorts by class, then by descending score; equal scores keep their order.

    Example:
        >>> rank_within_classes(np.array([1, 0, 1]), np.array([0.5, 0.1, 0.9])).tolist()
        [1, 2, 0]
    """
    return np.lexsort((-scores, labels))


def average_precision_per_class(
    labels: npt.NDArray[Any],
    correct: npt.NDArray[np.bool_],
    counted: npt.NDArray[np.bool_],
    num_ground_truth: npt.NDArray[Any],
    recall_thresholds: FloatVector = RECALL_THRESHOLDS,
) -> FloatVector:
    """Interpolated average precision of each class; NaN for a class without ground truth.

    Args:
        labels: `(D,)` class of each detection, in the order of `rank_within_classes`.
        correct: `(D,)` whether a detection found a ground-truth box of its own.
        counted: `(D,)` False where a detection is neither right nor wrong.
        num_ground_truth: `(F,)` boxes of each class.
        recall_thresholds: Where the precision envelope is read.

    Example:
        >>> ranked = np.zeros(3, int), np.array([True, False, True]), np.ones(3, bool)
        >>> average_precision_per_class(*ranked, np.array([2])).round(3)
        array([0.835])
    """
    num_classes = len(num_ground_truth)
    position = np.flatnonzero(correct & counted)
    label = labels[position]
    true_positives = np.arange(1, len(position) + 1) - _start_of_class(label)
    all_counted = np.cumsum(counted) - _counted_before_class(labels, counted)
    precision = envelope_per_class(true_positives / all_counted[position], num_classes - label)
    covered = np.searchsorted(recall_thresholds, true_positives / num_ground_truth[label], side="right")
    steps = covered - np.where(true_positives == 1, 0, np.roll(covered, 1))
    areas = np.bincount(label, weights=precision * steps, minlength=num_classes) / len(recall_thresholds)
    return np.where(num_ground_truth > 0, areas, np.nan)


def envelope_per_class(precision: FloatVector, classes_left: npt.NDArray[Any]) -> FloatVector:
    """Replace each precision by the best one at the same or a later rank of its class.

    A running maximum over all classes at once: the offset grows from the last class to the first, so that
    no class sees the values of a later one. Rows are ranked detections; further axes go along.

    Example:
        >>> envelope_per_class(np.array([0.5, 0.75, 0.25]), np.array([2, 2, 1])).tolist()
        [0.75, 0.75, 0.25]
    """
    offset = (2.0 * classes_left).reshape(-1, *[1] * (precision.ndim - 1))
    lifted: FloatVector = np.maximum.accumulate((precision + offset)[::-1], axis=0)[::-1]
    lifted -= offset
    return lifted


def _start_of_class(label: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Position of the first row of each row's class; rows are sorted by class."""
    return np.searchsorted(label, label, side="left")


def _counted_before_class(labels: npt.NDArray[Any], counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    total = np.concatenate([[0], np.cumsum(counted)])
    before: npt.NDArray[np.intp] = total[_start_of_class(labels)]
    return before
