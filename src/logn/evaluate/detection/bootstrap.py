"""How sure a difference is: images are drawn with repetition many times, the same for every method.

The matching of detections to boxes does not depend on which images are drawn, so it is done once; a draw is a weight
per image. AP is then computed class by class for all draws at once, from the hits alone: precision can only peak at a
hit.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.detection.average_precision import RECALL_THRESHOLDS
from logn.evaluate.detection.class_groups import GROUPS, Groups
from logn.evaluate.detection.ground_truth import GroundTruth
from logn.evaluate.detection.matching import MatchedDetections
from logn.strict_json import number_or_nan

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]
# Hits whose precision is computed at once: what is done to them should stay in the cache.
HITS_AT_ONCE = 32
# What the recall points of the evaluators are multiples of, to the last bit.
RECALL_STEP = 0.01


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
    # The draws of an image lie next to each other: that is how they are read.
    weights = np.empty((num_images, num_bootstrap), np.int32).T
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
    by_image = np.ascontiguousarray(weights.T)
    boxes = _boxes_per_class(truth, by_image)
    mean, first = np.zeros(boxes.shape), np.zeros(boxes.shape)
    area = _Area(len(weights))
    for label in np.unique(matched.labels).tolist():
        ranked = _RankedClass.of(matched, label)
        if ranked is not None:
            mean[label], first[label] = ranked.precision(by_image, boxes[label], area)
    members: dict[str, Any] = {"AP": slice(None)}
    if groups is not None:
        members |= {f"AP{group}": np.flatnonzero(groups == group) for group in GROUPS}
    result = {name: _mean_of_annotated(mean[rows], boxes[rows]) for name, rows in members.items()}
    return {**result, "AP50": _mean_of_annotated(first, boxes)}


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
    present, starts = np.unique(truth.labels[rows], return_index=True)
    for label, of_class in zip(present.tolist(), np.split(truth.image_index[rows], starts[1:]), strict=True):
        np.add.reduce(weights.take(of_class, axis=0), axis=0, out=boxes[label])
    return boxes


@dataclass(frozen=True, eq=False)
class _RankedClass:
    """The ranked detections of one class, up to its last hit: what comes after it has no say."""

    images: npt.NDArray[np.int64]
    correct: npt.NDArray[np.bool_]  # (T, R), those that count
    counted: npt.NDArray[np.bool_]  # (T, R)
    hits: npt.NDArray[np.intp]  # rows that are correct at any threshold

    @classmethod
    def of(cls, matched: MatchedDetections, label: int) -> _RankedClass | None:
        """The detections of a class; None where it has no hit."""
        first, last = np.searchsorted(matched.labels, [label, label + 1])
        correct = matched.correct[:, first:last] & matched.counted[:, first:last]
        hits = np.flatnonzero(correct.any(axis=0))
        if not len(hits):
            return None
        stop = int(hits[-1]) + 1
        counted = matched.counted[:, first : first + stop]
        return cls(matched.image_index[first : first + stop], correct[:, :stop], counted, hits)

    def precision(self, weights: Counts, boxes: Counts, area: _Area) -> tuple[Floats, Floats]:
        """AP of every draw: the mean over the thresholds, and at the first of them."""
        always: npt.NDArray[np.bool_] = np.all(self.counted, axis=0)
        total = self._running_total(weights, always)
        annotated = np.maximum(boxes, 1).astype(np.float64)
        results: list[Floats] = []
        for place, (correct, counted) in enumerate(zip(self.correct, self.counted, strict=True)):
            if place and self._is_as_before(place):
                results.append(results[-1])
                continue
            hits = np.flatnonzero(correct)
            of_hits = total.take(np.searchsorted(self.hits, hits), axis=0)
            sometimes = np.flatnonzero(counted & ~always)
            if len(sometimes):
                extra = _running(weights.take(self.images[sometimes], axis=0))
                extra = np.concatenate([np.zeros_like(extra[:1]), extra])
                of_hits += extra.take(np.searchsorted(sometimes, hits, side="right"), axis=0)
            found = _running(weights.take(self.images[hits], axis=0))
            results.append(area.of(found, of_hits, annotated))
        return np.mean(results, axis=0), results[0]

    def _is_as_before(self, place: int) -> bool:
        same_hits = np.array_equal(self.correct[place], self.correct[place - 1])
        return same_hits and np.array_equal(self.counted[place], self.counted[place - 1])

    def _running_total(self, weights: Counts, rows: npt.NDArray[np.bool_]) -> Counts:
        """At each hit, the weights of some of the rows up to it: `(hits, draws)`."""
        result = np.empty((len(self.hits), weights.shape[1]), np.int32)
        total = np.zeros_like(result[0])
        chosen = np.flatnonzero(rows)
        stops = np.searchsorted(chosen, self.hits, side="right").tolist()
        images = self.images[chosen].tolist()
        # Row by row: `numpy.add.reduceat` takes ten times as long for sums of a few rows.
        for place, (start, stop) in enumerate(itertools.pairwise([0, *stops])):
            for image in images[start:stop]:
                np.add(total, weights[image], out=total)
            result[place] = total
        return result


def _running(rows: Counts) -> Counts:
    """Running sum over the rows, in place; row by row since `numpy.cumsum` takes three times as long."""
    for before, row in itertools.pairwise(rows):
        np.add(row, before, out=row)
    return rows


class _Area:
    """AP of many draws, from the hits of a class; memory is used again, since fresh memory costs more than the work."""

    def __init__(self, draws: int) -> None:
        self._arrays = [np.empty((HITS_AT_ONCE + 1, draws)) for _ in range(3)]
        self._mask = np.empty((HITS_AT_ONCE, draws), np.bool_)

    def of(self, found: Counts, total: Counts, boxes: Floats) -> Floats:
        """The area of each draw from the running weights of hits and of all that counts, `(hits, draws)`.

        It is the sum over hits of the recall points reached, times what the best precision falls by behind the hit; so
        the last hits come first.
        """
        area = np.zeros(found.shape[1])
        best: Floats = np.zeros(found.shape[1])  # precision at the hits behind those that are looked at
        for stop in range(len(found), 0, -HITS_AT_ONCE):
            block = slice(max(stop - HITS_AT_ONCE, 0), stop)
            size = block.stop - block.start
            precision, recall, reached = (array[: size + 1] for array in self._arrays)
            np.divide(found[block], np.maximum(total[block], 1), out=precision[:-1])
            precision[-1] = best
            for behind, row in itertools.pairwise(precision[::-1]):
                np.maximum(row, behind, out=row)
            best = precision[0].copy()
            recall, reached, falls = recall[:-1], reached[:-1], precision[:-1]
            np.divide(found[block], boxes, out=recall)
            np.multiply(recall, 100.0, out=reached)
            reached += 1e-9
            np.floor(reached, out=reached)
            falls -= precision[1:]
            # At equality the last bit of the recall points decides, here as in the evaluators.
            area += np.einsum("ij,ij->j", reached, falls)
            reached *= RECALL_STEP
            area += np.einsum("ij,ij->j", np.less_equal(reached, recall, out=self._mask[:size]), falls)
        return area / len(RECALL_THRESHOLDS)
