"""Average precision of every class over many draws of images at once.

A draw gives each image a weight, and with it each detection and each box. Precision can peak only at the last hit of a
run, since every hit raises it, whatever its weight; so it is computed at the ends of runs only, for all draws side by
side.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt

from logn.matching.outcomes import Outcomes, unpack
from logn.measure.detection.metrics import RECALL_THRESHOLDS

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]
Weights = npt.NDArray[np.integer]
Marks = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int64]

# Weights are added up in groups of so many rows, as many groups at once, and so many ends of runs are looked at, at
# once: what is done to them should stay in the cache.
ROWS_OF_GROUP, ENDS_AT_ONCE = 12, 32
# Lifts a recall that is just as much as a point over it in spite of rounding; others are much farther from a point.
A_LITTLE_MORE = 1 + 1e-12
# Points whose float, with the evaluators, is above what they stand for: a recall that is just as much misses them.
MISSED_POINTS: Marks = np.arange(101) / 100 < RECALL_THRESHOLDS
# Only so many boxes, or a multiple, can have a recall that is just as much as one of these.
MISSED_WITH = np.unique([100 // gcd(100, int(point)) for point in np.flatnonzero(MISSED_POINTS)])


def drawn_precision(ranked: Outcomes, weights: Weights, boxes: Counts) -> Iterator[tuple[int, Floats, Floats]]:
    """Each class that has a hit, with its AP in every draw: the mean over the thresholds, and at the first of them.

    Args:
        ranked: One method's detections by class, matched at all overlap thresholds.
        weights: `(I, draws)` how often each image was drawn.
        boxes: `(F, draws)` of each class.
    """
    ends = EndsOfRuns.of(ranked)
    hits, always, at_times = (WeightSums(weights, images) for images in (ends.hits, ends.always, ends.at_times))
    recall = RecallCurves(weights.shape[1])
    for label, rows, times in ends.by_class():
        starts = np.searchsorted(ends.thresholds[rows], np.arange(len(times) + 1)).tolist()
        hit_weight = _each_from_its_start(hits.up_to(ends.num_hits[rows]), starts)
        stops, which = np.unique(ends.num_always[rows], return_inverse=True)
        total = always.up_to(stops).take(which, axis=0)
        if ends.num_at_times[rows.stop - 1] > at_times.number:
            total += _each_from_its_start(at_times.up_to(ends.num_at_times[rows]), starts)
        areas = recall.areas(hit_weight, total, boxes[label], starts)
        yield label, (areas * times[:, None]).sum(axis=0) / times.sum(), areas[0]


def _each_from_its_start(sums: Counts, starts: list[int]) -> Counts:
    """Let sums that go on from threshold to threshold begin anew at each, in place."""
    for first, last in reversed(list(itertools.pairwise(starts))):
        if 0 < first < last:
            sums[first:last] -= sums[first - 1]
    return sums


@dataclass(frozen=True, eq=False)
class EndsOfRuns:
    """The last hits of runs: of one class after the other, and of each class of one overlap threshold after the other.

    Args:
        labels: `(E,)` class of each.
        thresholds: `(E,)` number of its threshold; none of one that is as the threshold before.
        hits: Images of all hits, in that order.
        num_hits: `(E,)` how many of them come up to each end.
        always: Images of what counts at all thresholds, of one class after the other.
        num_always: `(E,)` how many of them come up to each end.
        at_times: Images of what counts at some thresholds, in the order of the hits.
        num_at_times: `(E,)` how many of them come up to each end.
        times: `(F, T)` how many thresholds are as each one; 0 for one that is as the threshold before.
    """

    labels: Index
    thresholds: Index
    hits: Index
    num_hits: Index
    always: Index
    num_always: Index
    at_times: Index
    num_at_times: Index
    times: Index

    @classmethod
    def of(cls, ranked: Outcomes) -> EndsOfRuns:
        """The ends of the runs of one method."""
        right, counted = (unpack(bits, len(ranked.thresholds)) for bits in (ranked.right, ranked.counted))
        number, size = right.shape
        correct, labels, images = right & counted, ranked.label.astype(np.int64), ranked.image
        times = _times(labels, correct, counted)
        # One number says class, threshold and rank.
        hits = _keys(labels, correct, times)
        rank = np.cumsum(counted, axis=1, dtype=np.int32)[hits // size % number, hits % size]
        is_end = np.append((np.diff(rank) != 1) | (np.diff(hits // size) != 0), True)[: len(hits)]
        ends = hits[is_end]
        # What comes behind the last end has no say.
        last_row = np.full(len(times), -1)
        np.maximum.at(last_row, ends // size // number, ends % size)
        always = np.all(counted, axis=0) & (np.arange(size) <= last_row[labels])
        at_times = _keys(labels, counted & ~always, times)
        next_end = np.append(ends, -1)[np.searchsorted(ends, at_times)]
        at_times = at_times[next_end // size == at_times // size]
        return cls(
            labels=ends // size // number,
            thresholds=ends // size % number,
            hits=images[hits % size],
            num_hits=np.flatnonzero(is_end) + 1,
            always=images[always],
            num_always=np.cumsum(always)[ends % size],
            at_times=images[at_times % size],
            num_at_times=np.searchsorted(at_times, ends, side="right"),
            times=times,
        )

    def by_class(self) -> Iterator[tuple[int, slice, Index]]:
        """Each class with its ends, and how many thresholds are as each."""
        present, starts = np.unique(self.labels, return_index=True)
        bounds = itertools.pairwise([*starts.tolist(), len(self.labels)])
        for label, (first, last) in zip(present.tolist(), bounds, strict=True):
            yield label, slice(first, last), self.times[label]


def _times(labels: Index, correct: Marks, counted: Marks) -> Index:
    """How many thresholds have the outcome of each one, itself included, `(F, T)`; 0 for one that is as that before."""
    present, starts = np.unique(labels, return_index=True)
    number = len(correct)
    times = np.zeros((int(labels.max(initial=-1)) + 1, number), np.int64)
    if not len(present):
        return times
    changes = (correct[1:] != correct[:-1]) | (counted[1:] != counted[:-1])
    is_new: Marks = np.ones((len(present), number), bool)
    is_new[:, 1:] = np.logical_or.reduceat(changes, starts, axis=1).T
    first = np.where(is_new, np.arange(number), 0)
    source = np.maximum.accumulate(first, axis=1)
    np.add.at(times, (present[:, None], source), 1)
    return times


def _keys(labels: Index, marks: Marks, times: Index) -> Index:
    """Class, threshold and rank of each mark as one number, ascending; without those of repeated thresholds."""
    number, size = marks.shape
    threshold, row = np.nonzero(marks)
    kept = times[labels[row], threshold] > 0
    return np.sort(((labels[row] * number + threshold) * size + row)[kept])


class WeightSums:
    """Sums of the weights of the first so many of many images, for numbers that only go up.

    Adding row after row takes a call for each, and `numpy.cumsum` takes even longer. So rows are put into groups: the
    second rows of all groups are added to the first ones at once, and so on; then group is added to group.

    Args:
        weights: `(I, draws)` of each image.
        images: What is summed over.

    Example:
        >>> sums = WeightSums(np.array([[1, 0], [2, 5]]), np.array([0, 1, 1, 0]))
        >>> sums.up_to(np.array([1, 3])).tolist(), sums.up_to(np.array([4])).tolist()
        ([[1, 0], [5, 10]], [[1, 0]])
    """

    def __init__(self, weights: Weights, images: Index) -> None:
        self._weights, self._images = weights, images
        groups = ROWS_OF_GROUP
        self._order = np.arange(groups**2).reshape(groups, groups).T.ravel()
        # Where the sum over the first so many of a block stands: the order is its own inverse.
        self._place = np.append(0, self._order + 1)
        self._sums: Counts = np.zeros((groups**2 + 1, weights.shape[1]), np.int32)
        self._first = -len(self._order)
        self._last: Counts = np.zeros(weights.shape[1], np.int32)
        self.number = 0  # up to which the sums were given

    def up_to(self, numbers: Index) -> Counts:
        """The sums over the first so many images, less that of the last number of the call before: `(N, draws)`."""
        result: Counts = np.empty((len(numbers), len(self._last)), np.int32)
        done = 0
        while done < len(numbers):
            until = int(np.searchsorted(numbers, self._first + len(self._order), side="right"))
            rows = self._place[numbers[done:until] - self._first]
            self._sums.take(rows, axis=0, out=result[done:until], mode="clip")  # by its default `take` would copy twice
            done = until
            if done < len(numbers):
                self._add_next_block()
        last = result[-1].copy()
        result -= self._last
        self._last, self.number = last, int(numbers[-1])
        return result

    def _add_next_block(self) -> None:
        self._first += len(self._order)
        rows = np.minimum(self._order + self._first, len(self._images) - 1)
        self._sums[0] = self._sums[-1]
        sums = self._sums[1:]
        sums[:] = self._weights.take(self._images[rows], axis=0)
        sums[0] += self._sums[0]
        layers = sums.reshape(ROWS_OF_GROUP, ROWS_OF_GROUP, -1)
        for last, layer in itertools.pairwise(layers):
            np.add(layer, last, out=layer)
        before = layers[-1].copy()
        for last, group in itertools.pairwise(before):
            np.add(group, last, out=group)
        layers[:, 1:] += before[:-1]


class RecallCurves:
    """AP of many draws side by side; memory is used again, since fresh memory costs more than the work."""

    def __init__(self, draws: int) -> None:
        self._arrays = [np.empty((ENDS_AT_ONCE, draws)) for _ in range(3)]

    def areas(self, hit_weight: Counts, total: Counts, boxes: Counts, starts: list[int]) -> Floats:
        """AP of each threshold and draw, from what is found and what counts up to the ends of runs, `(ends, draws)`.

        It is the sum over ends of the recall points reached, times what the best precision falls by behind the end; so
        the last ends come first.

        Args:
            hit_weight: Weight of the hits up to each end.
            total: Weight of all that counts up to each end.
            boxes: `(draws,)` of the class.
            starts: Where the ends of each threshold start; then the number of ends.
        """
        areas: Floats = np.zeros((len(starts) - 1, hit_weight.shape[1]))
        points_of_hit = 100 / np.maximum(boxes, 1) * A_LITTLE_MORE
        missed = _MissedPoints.of(hit_weight, boxes, starts)
        best: Floats = np.zeros(0)  # precision, from here on
        for stop in range(len(hit_weight), 0, -ENDS_AT_ONCE):
            block = slice(max(stop - ENDS_AT_ONCE, 0), stop)
            precision, falls, reached = (array[: stop - block.start] for array in self._arrays)
            np.divide(hit_weight[block], np.maximum(total[block], 1), out=precision)
            np.multiply(hit_weight[block], points_of_hit, out=reached)
            np.floor(reached, out=reached)
            for threshold, first, last in _parts(starts, block):
                if last + block.start in starts:
                    best = np.zeros(hit_weight.shape[1])
                part = slice(first, last)
                best = _best_from_here(precision[part], falls[part], best)
                areas[threshold] += np.einsum("ij,ij->j", reached[part], falls[part])
                if first + block.start == starts[threshold]:
                    areas[threshold] += best  # every end reaches the recall of 0
            missed.take_back(areas, falls, block)
        return areas / len(RECALL_THRESHOLDS)


def _parts(starts: list[int], block: slice) -> list[tuple[int, int, int]]:
    """The thresholds of the ends in a block, last first, each with where its part of the block starts and stops."""
    inside = [min(max(start, block.start), block.stop) - block.start for start in starts]
    parts = enumerate(itertools.pairwise(inside))
    return [(threshold, first, last) for threshold, (first, last) in parts if first < last][::-1]


def _best_from_here(precision: Floats, falls: Floats, behind: Floats) -> Floats:
    """Raise precision to the best that comes from each end on, in place, and note by how much that falls behind it."""
    np.maximum(precision[-1], behind, out=precision[-1])
    for following, row in itertools.pairwise(precision[::-1]):
        np.maximum(row, following, out=row)
    np.subtract(precision[:-1], precision[1:], out=falls[:-1])
    np.subtract(precision[-1], behind, out=falls[-1])
    best: Floats = precision[0].copy()
    return best


@dataclass(frozen=True, eq=False)
class _MissedPoints:
    """Where recall is just as much as a point and misses it."""

    ends: Index  # ascending
    draws: Index
    thresholds: Index

    @classmethod
    def of(cls, hit_weight: Counts, boxes: Counts, starts: list[int]) -> _MissedPoints:
        special = np.flatnonzero(np.any(boxes % MISSED_WITH[:, None] == 0, axis=0) & (boxes > 0))
        points = 100 * hit_weight.take(special, axis=1) / boxes[special]
        whole = points.astype(np.intp)
        ends, draws = np.nonzero((points == whole) & MISSED_POINTS[whole])
        return cls(ends, special[draws], np.searchsorted(starts, ends, side="right") - 1)

    def take_back(self, areas: Floats, falls: Floats, block: slice) -> None:
        """Take back what was counted for these points at the ends of a block."""
        if not len(self.ends):
            return
        rows = slice(*np.searchsorted(self.ends, [block.start, block.stop]))
        ends, draws = self.ends[rows] - block.start, self.draws[rows]
        np.subtract.at(areas, (self.thresholds[rows], draws), falls[ends, draws])
