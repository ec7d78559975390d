"""How sure a difference is: images are drawn with repetition many times, the same for every method.

The matching of detections to boxes does not depend on which images are drawn, so it is done once; a draw is a weight
per image. AP is then computed for many draws at once, from the hits alone: precision can only peak at a hit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.detection.average_precision import RECALL_THRESHOLDS, envelope_per_class
from logn.evaluate.detection.class_groups import GROUPS, Groups
from logn.evaluate.detection.ground_truth import GroundTruth
from logn.evaluate.detection.matching import MatchedDetections
from logn.strict_json import number_or_nan

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]
# Numbers in one array of many draws: enough to be quick, little enough for several threads at once.
NUMBERS_AT_ONCE = 1_000_000


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

    def to_dict(self) -> dict[str, float]:
        """Give the difference and its ends as plain values, for JSON."""
        return {"difference": self.difference, "low": self.low, "high": self.high}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], confidence: float = 0.95) -> Interval:
        """Read what `to_dict` gave, also after a way through JSON, which has no NaN.

        Example:
            >>> Interval.from_dict({"difference": 0.5, "low": None, "high": None}, 0.9)
            Interval(difference=0.5, low=nan, high=nan, confidence=0.9)
        """
        difference, low, high = (number_or_nan(content[name]) for name in ("difference", "low", "high"))
        return cls(difference, low, high, confidence)


def draw_weights(num_images: int, num_bootstrap: int, seed: int = 0) -> npt.NDArray[np.int32]:
    """How often each image is drawn: `(num_bootstrap, I)`, every row summing to `I`.

    Example:
        >>> draw_weights(5, 2).sum(axis=1).tolist()
        [5, 5]
    """
    generator = np.random.default_rng(seed)
    weights = np.empty((num_bootstrap, num_images), np.int32)
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
    """Percentile interval of the difference of two methods over the same draws, less the bias of the draws.

    Drawing images with repetition raises AP a little, since what is found in an image is found again in its copies,
    and it raises the better method more. The interval is moved by as much as the mean of the draws is off the
    difference that was measured.

    Example:
        >>> paired_interval(np.zeros(9), np.arange(9.0), 4.0, confidence=0.5)
        Interval(difference=4.0, low=2.0, high=6.0, confidence=0.5)
        >>> paired_interval(np.zeros(9), np.arange(9.0), 3.0, confidence=0.5)
        Interval(difference=3.0, low=1.0, high=5.0, confidence=0.5)
    """
    change = other - baseline
    change = change[~np.isnan(change)]
    if not len(change):
        return Interval(difference, float("nan"), float("nan"), confidence)
    tail = (1 - confidence) / 2
    low, high = np.quantile(change, [tail, 1 - tail]) - (change.mean() - difference)
    return Interval(difference, float(low), float(high), confidence)


def paired_differences(
    values: Mapping[str, float],
    first: Mapping[str, float],
    draws: Mapping[str, Floats],
    first_draws: Mapping[str, Floats],
    confidence: float,
) -> dict[str, Interval]:
    """What a method changes of each metric, with intervals for those that were drawn.

    Args:
        values: Metrics of the method.
        first: Metrics of the method that it is compared with.
        draws: Metrics of the method over the draws.
        first_draws: Metrics of the other over the same draws.
        confidence: Of the intervals.
    """
    nothing = np.empty(0)
    return {
        name: paired_interval(first_draws.get(name, nothing), draws.get(name, nothing), value - first[name], confidence)
        for name, value in values.items()
    }


def _metrics_of_draws(
    matched: MatchedDetections, truth: GroundTruth, weights: npt.NDArray[np.int32], groups: Groups | None
) -> dict[str, Floats]:
    # Draws are the last axis from here on: picking the rows of images then copies whole runs of memory.
    by_image = np.ascontiguousarray(weights.T)
    boxes = _boxes_per_class(truth, by_image)
    precision = _class_precision(matched, by_image, boxes)  # (thresholds, classes, draws)
    members: dict[str, Any] = {"AP": slice(None)}
    if groups is not None:
        members |= {f"AP{group}": np.flatnonzero(groups == group) for group in GROUPS}
    mean = precision.mean(axis=0)
    result = {name: _mean_of_annotated(mean[rows], boxes[rows]) for name, rows in members.items()}
    return {**result, "AP50": _mean_of_annotated(precision[0], boxes)}


def _mean_of_annotated(values: Floats, boxes: Counts) -> Floats:
    """Mean over the classes that have a box in the draw; NaN for none."""
    annotated = boxes > 0
    count = annotated.sum(axis=0)
    total = np.where(annotated, values, 0.0).sum(axis=0)
    result: Floats = np.full(len(total), np.nan)
    np.divide(total, count, out=result, where=count > 0)
    return result


def _boxes_per_class(truth: GroundTruth, weights: Counts) -> Counts:
    rows = np.flatnonzero(~truth.crowd)
    rows = rows[np.argsort(truth.labels[rows], kind="stable")]
    boxes = np.zeros((truth.num_classes, weights.shape[1]), np.int32)
    present, start = np.unique(truth.labels[rows], return_index=True)
    if len(present):
        boxes[present] = np.add.reduceat(weights[truth.image_index[rows]], start, axis=0)
    return boxes


def _class_precision(matched: MatchedDetections, weights: Counts, boxes: Counts) -> Floats:
    """AP of each class per threshold and draw: `(T, F, draws)`, 0 for a class without a hit."""
    always: npt.NDArray[np.bool_] = np.all(matched.counted, axis=0)
    running = _Running.of(weights, matched.image_index, always)
    result = np.zeros((len(matched.correct), *boxes.shape))
    for place, (correct, counted) in enumerate(zip(matched.correct, matched.counted, strict=True)):
        hits = np.flatnonzero(correct & counted)
        if len(hits):
            ranked = _Ranked.of(matched, hits)
            total = running.within_class(ranked)
            sometimes = counted & ~always
            if sometimes.any():
                total += _Running.of(weights, matched.image_index, sometimes).within_class(ranked)
            result[place, ranked.classes] = _precision_of_hits(matched, ranked, weights, boxes, total)
    return result


@dataclass(frozen=True, eq=False)
class _Ranked:
    """The hits at one threshold, sorted by class, and where each class begins among them."""

    hits: npt.NDArray[np.intp]
    labels: npt.NDArray[np.int64]
    classes: npt.NDArray[np.int64]
    start: npt.NDArray[np.intp]  # of each class, among the hits
    first_row: npt.NDArray[np.intp]  # of each class, among all ranked detections

    @classmethod
    def of(cls, matched: MatchedDetections, hits: npt.NDArray[np.intp]) -> _Ranked:
        labels = matched.labels[hits]
        classes, start = np.unique(labels, return_index=True)
        return cls(hits, labels, classes, start, np.searchsorted(matched.labels, classes))

    def spread(self, per_class: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Repeat what each class has for each of its hits."""
        return np.repeat(per_class, np.diff(np.append(self.start, len(self.hits))), axis=0)


@dataclass(frozen=True, eq=False)
class _Running:
    """Running sum of the weights of some ranked detections."""

    total: Counts  # after a leading zero
    before: npt.NDArray[np.intp]  # how many of them stand before each ranked detection

    @classmethod
    def of(cls, weights: Counts, images: npt.NDArray[np.int64], rows: npt.NDArray[np.bool_]) -> _Running:
        total = np.zeros((int(rows.sum()) + 1, weights.shape[1]), np.int32)
        np.cumsum(weights[images[rows]], axis=0, out=total[1:])
        return cls(total, np.concatenate([[0], np.cumsum(rows)]))

    def within_class(self, ranked: _Ranked) -> Counts:
        """Sum from the first detection of a hit's class up to the hit."""
        result: Counts = self.total[self.before[ranked.hits + 1]]
        result -= ranked.spread(self.total[self.before[ranked.first_row]])
        return result


def _precision_of_hits(
    matched: MatchedDetections, ranked: _Ranked, weights: Counts, boxes: Counts, total: Counts
) -> Floats:
    every_hit = np.zeros(len(matched.rows), bool)
    every_hit[ranked.hits] = True
    true_positives = _Running.of(weights, matched.image_index, every_hit).within_class(ranked)
    precision = envelope_per_class(true_positives / np.maximum(total, 1), len(boxes) - ranked.labels)
    # Of the 101 recall points, those reached with this hit and not before it.
    recall = true_positives / ranked.spread(np.maximum(boxes[ranked.classes], 1))
    covered = (100 * recall + 1e-9).astype(np.int32)
    # At equality the last bit of the recall points decides, here as in the evaluators.
    covered += RECALL_THRESHOLDS[covered] <= recall
    reached = covered.copy()
    reached[1:] -= covered[:-1]
    reached[ranked.start] = covered[ranked.start]
    precision *= reached
    area: Floats = np.add.reduceat(precision, ranked.start, axis=0) / len(RECALL_THRESHOLDS)
    return area
