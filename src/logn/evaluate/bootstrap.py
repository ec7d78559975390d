"""How sure a difference is: images drawn anew many times, the same draw for every method.

The matching of detections to boxes does not depend on which images are drawn, so it is done once; a draw is a weight
per image. AP is then computed for many draws at once, from the hits alone: precision can only peak at a hit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.average_precision import RECALL_THRESHOLDS, envelope_per_class
from logn.evaluate.class_groups import GROUPS, Groups
from logn.evaluate.ground_truth import GroundTruth
from logn.evaluate.matching import MatchedDetections

Floats = npt.NDArray[np.float64]
# Numbers in one array of many draws: enough to be quick, little enough for several threads at once.
NUMBERS_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class Interval:
    """A difference with its bootstrap interval.

    Args:
        difference: Between the two methods on all images.
        low: Lower end of the interval.
        high: Upper end.
        confidence: Share of the draws between the ends.
    """

    difference: float
    low: float
    high: float
    confidence: float = 0.95

    @property
    def is_clear(self) -> bool:
        """Whether the whole interval lies on one side of zero.

        Example:
            >>> Interval(0.02, -0.01, 0.05).is_clear, Interval(0.02, 0.01, 0.05).is_clear
            (False, True)
        """
        return self.low > 0 or self.high < 0


def draw_weights(num_images: int, draws: int, seed: int = 0) -> npt.NDArray[np.int32]:
    """How often each image is drawn: `(draws, I)`, every row summing to `I`.

    Example:
        >>> draw_weights(5, 2).sum(axis=1).tolist()
        [5, 5]
    """
    generator = np.random.default_rng(seed)
    weights = np.empty((draws, num_images), np.int32)
    for row in weights:
        row[:] = np.bincount(generator.integers(0, num_images, num_images), minlength=num_images)
    return weights


def bootstrap_metrics(
    matched: MatchedDetections,
    truth: GroundTruth,
    weights: npt.NDArray[np.int32],
    *,
    groups: Groups | None = None,
) -> dict[str, Floats]:
    """AP, AP50 and, where groups are known, APr, APc and APf of every draw: `(draws,)` each.

    Args:
        matched: One method's detections, matched at all overlap thresholds.
        truth: The ground truth.
        weights: `(draws, I)` how often each image was drawn; the same for all methods makes the draws paired.
        groups: `(F,)` "r", "c" or "f" for each class.
    """
    at_once = max(1, NUMBERS_AT_ONCE // (len(matched.rows) + truth.num_classes))
    parts = [
        _metrics_of_draws(matched, truth, weights[first : first + at_once], groups)
        for first in range(0, len(weights), at_once)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def paired_interval(baseline: Floats, other: Floats, difference: float, confidence: float = 0.95) -> Interval:
    """Percentile interval of the difference of two methods over the same draws.

    Example:
        >>> paired_interval(np.zeros(9), np.arange(9.0), 4.0, confidence=0.5)
        Interval(difference=4.0, low=2.0, high=6.0, confidence=0.5)
    """
    change = other - baseline
    change = change[~np.isnan(change)]
    if not len(change):
        return Interval(difference, float("nan"), float("nan"), confidence)
    tail = (1 - confidence) / 2
    low, high = np.quantile(change, [tail, 1 - tail])
    return Interval(difference, float(low), float(high), confidence)


def _metrics_of_draws(
    matched: MatchedDetections, truth: GroundTruth, weights: npt.NDArray[np.int32], groups: Groups | None
) -> dict[str, Floats]:
    boxes = _boxes_per_class(truth, weights)
    precision = _class_precision(matched, weights, boxes)  # (thresholds, draws, classes)
    members = {"AP": slice(None)} | {
        f"AP{group}": np.flatnonzero(groups == group) for group in GROUPS if groups is not None
    }
    mean = precision.mean(axis=0)
    result = {name: _mean_of_annotated(mean[:, rows], boxes[:, rows]) for name, rows in members.items()}
    return {**result, "AP50": _mean_of_annotated(precision[0], boxes)}


def _mean_of_annotated(values: Floats, boxes: npt.NDArray[Any]) -> Floats:
    """Mean over the classes that have a box in the draw; NaN for none."""
    annotated = boxes > 0
    count = annotated.sum(axis=1)
    total = np.where(annotated, values, 0.0).sum(axis=1)
    result: Floats = np.full(len(total), np.nan)
    np.divide(total, count, out=result, where=count > 0)
    return result


def _boxes_per_class(truth: GroundTruth, weights: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    rows = np.flatnonzero(~truth.crowd)
    rows = rows[np.argsort(truth.labels[rows], kind="stable")]
    return _sum_per_class(weights[:, truth.image_index[rows]], truth.labels[rows], truth.num_classes)


def _sum_per_class(values: npt.NDArray[Any], labels: npt.NDArray[np.int64], num_classes: int) -> npt.NDArray[Any]:
    """Sum the columns of each class; columns are sorted by class."""
    result = np.zeros((len(values), num_classes), values.dtype)
    present, start = np.unique(labels, return_index=True)
    if len(present):
        result[:, present] = np.add.reduceat(values, start, axis=1)
    return result


def _class_precision(matched: MatchedDetections, weights: npt.NDArray[np.int32], boxes: npt.NDArray[Any]) -> Floats:
    """AP of each class per threshold and draw: `(T, draws, F)`, 0 for a class without a hit."""
    always: npt.NDArray[np.bool_] = np.all(matched.counted, axis=0)
    running = _running(weights, matched.image_index, always)
    result = np.zeros((len(matched.correct), *boxes.shape))
    for place, (correct, counted) in enumerate(zip(matched.correct, matched.counted, strict=True)):
        hits = np.flatnonzero(correct & counted)
        if not len(hits):
            continue
        sometimes = _running(weights, matched.image_index, counted & ~always)
        result[place] = _precision_of_hits(matched, weights, boxes, hits, (running, sometimes))
    return result


_Running = tuple[npt.NDArray[np.int32], npt.NDArray[np.intp]]


def _running(weights: npt.NDArray[np.int32], images: npt.NDArray[np.int64], rows: npt.NDArray[np.bool_]) -> _Running:
    """Running sum of the weights of `rows`, after a leading zero, and how many such rows end before each row."""
    total = np.zeros((len(weights), int(rows.sum()) + 1), np.int32)
    np.cumsum(weights[:, images[rows]], axis=1, out=total[:, 1:])
    return total, np.concatenate([[0], np.cumsum(rows)])


def _precision_of_hits(
    matched: MatchedDetections,
    weights: npt.NDArray[np.int32],
    boxes: npt.NDArray[Any],
    hits: npt.NDArray[np.intp],
    running: tuple[_Running, _Running],
) -> Floats:
    labels = matched.labels[hits]
    first_row = np.searchsorted(matched.labels, labels)
    first_hit = np.searchsorted(labels, labels)
    hit_sum = np.zeros((len(weights), len(hits) + 1), np.int32)
    np.cumsum(weights[:, matched.image_index[hits]], axis=1, out=hit_sum[:, 1:])
    true_positives = hit_sum[:, 1:] - hit_sum[:, first_hit]
    ranked = sum(total[:, place[hits + 1]] - total[:, place[first_row]] for total, place in running)
    precision = envelope_per_class(true_positives / np.maximum(ranked, 1), boxes.shape[1] - labels)
    # Of the 101 recall points, those reached with this hit and not before it.
    recall = true_positives / np.maximum(boxes[:, labels], 1)
    point = (100 * true_positives) // np.maximum(boxes[:, labels], 1)
    # At equality the last bit of the recall points decides, here as in the evaluators.
    covered = np.where(true_positives > 0, point + (RECALL_THRESHOLDS[point] <= recall), 0)
    covered[:, 1:] -= np.where(first_hit[1:] == np.arange(1, len(hits)), 0, covered[:, :-1])
    return _sum_per_class(precision * covered, labels, boxes.shape[1]) / 101
