"""Greedy non-maximum suppression, per class or across classes, on candidates that are sorted by descending score.

A candidate is a pair (proposal, class). It goes when a candidate of the same class (of any class, where classes
suppress each other) that stands before it is kept and overlaps it by more than the threshold. Since only candidates
that stand before count, suppressing a leading part of the list gives the leading part of the result; that is what
makes an early stop exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from logn.evaluate.decode.candidate_boxes import Boxes, boxes_at
from logn.evaluate.decode.overlap_graph import OverlapGraph

Float32 = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]

# Pairs of boxes that are compared at once: some tens of megabytes.
_PAIRS_AT_ONCE = 1_000_000
# With more proposals than this not all pairs of them are compared, but only those of candidates.
_MANY_PROPOSALS = 2048
# Candidates between two looks at whether there are enough.
_BLOCK = 256
# How many times the wanted candidates are looked at first, and by how much the part grows.
_FIRST_PART = 4
# Comparisons of scores, for all classes of two proposals together, that take about as long as one pair of candidates.
_COMPARISONS_PER_PAIR = 16


class Suppression(Protocol):
    """Greedy suppression among the candidates of one image."""

    def keep(self, proposals: Indices, labels: Indices, limit: int | None) -> Indices:
        """Positions that are kept, ascending, at most `limit`; candidates come sorted by descending score."""
        ...

    def survivors(self, flat: Indices, scores: Float32, num_classes: int) -> Indices:
        """Positions that are kept where there is no limit, ascending.

        The candidates are `proposal * num_classes + class`, ascending; of equal scores the first stands before.
        """
        ...


def make_suppression(kind: str, boxes: Boxes, threshold: float) -> Suppression:
    """The suppression of a kind, "class-wise", "class-agnostic" or "none", for boxes of any form.

    Example:
        >>> boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9]], np.float32)
        >>> make_suppression("class-agnostic", boxes, 0.5).keep(np.array([0, 1]), np.array([7, 8]), None)
        array([0])
    """
    if kind == "none":
        return NoSuppression()
    across = kind == "class-agnostic"
    if isinstance(boxes, np.ndarray) and boxes.ndim == 2 and len(boxes) <= _MANY_PROPOSALS:
        return AgnosticSuppression(boxes, threshold, across_classes=across)
    return ClassBoxSuppression(boxes, threshold, across_classes=across)


def overlaps_itself(boxes: Boxes, threshold: float) -> bool:
    """Whether every box suppresses its copy, as those are that all classes of a proposal share.

    Example:
        >>> boxes = np.array([[0, 0, 9, 9], [5, 5, 5, 9]], np.float32)
        >>> overlaps_itself(boxes[:1], 0.5), overlaps_itself(boxes[:1], 1.0), overlaps_itself(boxes, 0.5)
        (True, False, False)
    """
    if not isinstance(boxes, np.ndarray) or boxes.ndim != 2 or threshold >= 1:
        return False
    return bool((boxes[:, 2:] > boxes[:, :2]).all())


class NoSuppression:
    """Every candidate stays: for models that find each object once.

    Example:
        >>> NoSuppression().keep(np.array([0, 0, 1]), np.array([1, 2, 1]), 2)
        array([0, 1])
    """

    def keep(self, proposals: Indices, labels: Indices, limit: int | None) -> Indices:
        """See `Suppression.keep`."""
        return np.arange(len(proposals))[:limit]

    def survivors(self, flat: Indices, scores: Float32, num_classes: int) -> Indices:
        """See `Suppression.survivors`."""
        return np.arange(len(flat))


class AgnosticSuppression:
    """Suppression where all classes of a proposal share its box.

    The overlaps of the proposals are computed once, whatever the number of classes and of methods; a row of them is
    one integer of N bits, and so is the set of proposals kept so far for a class.

    Example:
        >>> boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [50, 50, 60, 60]], np.float32)
        >>> AgnosticSuppression(boxes, 0.5).keep(np.array([0, 1, 1, 2]), np.array([7, 7, 8, 7]), None)
        array([0, 2, 3])
    """

    def __init__(self, boxes: Float32, threshold: float, *, across_classes: bool = False) -> None:
        self._overlaps = pairwise_iou(boxes) > floor_float32(threshold)
        self._across = across_classes

    @cached_property
    def _rows(self) -> list[int]:
        packed = np.packbits(self._overlaps, axis=1, bitorder="little")
        content, width = packed.tobytes(), packed.shape[1]
        return [
            int.from_bytes(content[start : start + width], "little") for start in range(0, len(content), width or 1)
        ]

    @cached_property
    def _graph(self) -> OverlapGraph:
        return OverlapGraph(self._overlaps)

    def keep(self, proposals: Indices, labels: Indices, limit: int | None) -> Indices:
        """See `Suppression.keep`."""
        labels = np.zeros_like(labels) if self._across else labels
        overlapping = self._rows
        own_bit = [1 << number for number in range(len(overlapping))]
        kept_of_class = [0] * (int(labels.max(initial=0)) + 1)
        kept: list[int] = []
        keep = kept.append
        wanted = len(proposals) if limit is None else limit
        # In blocks, since with a limit the end of the list is seldom reached.
        for start in range(0, len(proposals), _BLOCK):
            block = slice(start, start + _BLOCK)
            pairs = zip(proposals[block].tolist(), labels[block].tolist(), strict=True)
            for position, (proposal, label) in enumerate(pairs, start):
                kept_here = kept_of_class[label]
                if not kept_here & overlapping[proposal]:
                    kept_of_class[label] = kept_here | own_bit[proposal]
                    keep(position)
            if len(kept) >= wanted:
                break
        return np.array(kept[:wanted], dtype=np.intp)

    @cached_property
    def _num_overlapping(self) -> int:
        """How many pairs of proposals overlap."""
        return int(np.triu(self._overlaps, 1).sum())

    def survivors(self, flat: Indices, scores: Float32, num_classes: int) -> Indices:
        """See `Suppression.survivors`."""
        if self._across:
            return _keep_without_limit(self, flat, scores, num_classes)
        comparisons = self._num_overlapping * num_classes
        # Pairs of candidates are fewest when all classes have as many of them.
        if comparisons > _COMPARISONS_PER_PAIR * len(flat) * (len(flat) / num_classes - 1) / 2:
            per_class = np.bincount(flat % num_classes, minlength=num_classes)
            if comparisons > _COMPARISONS_PER_PAIR * (per_class * (per_class - 1)).sum() / 2:
                return self._survivors_by_pairs(flat, scores, num_classes)
        return self._graph.survivors(flat, scores, num_classes)

    def _survivors_by_pairs(self, flat: Indices, scores: Float32, num_classes: int) -> Indices:
        """Look at all pairs of candidates of one class, where these are few."""
        proposals = flat // num_classes
        labels = flat - proposals * num_classes
        by_class = np.argsort(labels.astype(np.uint16) if num_classes <= 2**16 else labels, kind="stable")
        proposals, scores = proposals.take(by_class), scores.take(by_class)
        kept = np.empty(len(flat), dtype=bool)
        found: list[tuple[Indices, Indices]] = [(np.empty(0, np.intp), np.empty(0, np.intp))]
        for first, second in _pairs_in_groups(labels.take(by_class)):
            close = self._overlaps[proposals.take(first), proposals.take(second)]
            first, second = first[close], second[close]
            ahead = scores.take(first) >= scores.take(second)  # of equal ones the proposal that stands first
            found.append((np.where(ahead, first, second), np.where(ahead, second, first)))
        winners, losers = (np.concatenate(column) for column in zip(*found, strict=True))
        kept[by_class] = _settle(len(flat), winners, losers)
        return np.flatnonzero(kept)


class ClassBoxSuppression:
    """Suppression that compares the boxes of candidates: one per class, all or some, or one of very many proposals.

    Example:
        >>> boxes = np.zeros((2, 1, 4), np.float32)
        >>> boxes[:, 0] = [[0, 0, 10, 10], [0, 0, 10, 9]]
        >>> ClassBoxSuppression(boxes, 0.5).keep(np.array([1, 0]), np.array([0, 0]), None)
        array([0])
    """

    def __init__(self, boxes: Boxes, threshold: float, *, across_classes: bool = False) -> None:
        self._boxes, self._threshold, self._across = boxes, floor_float32(threshold), across_classes

    def keep(self, proposals: Indices, labels: Indices, limit: int | None) -> Indices:
        """See `Suppression.keep`."""
        if limit is None:
            return self._keep_all(proposals, labels)
        # A leading part gives the leading part of the result: most often a small one has enough.
        size = max(_BLOCK, _FIRST_PART * limit)
        while True:
            kept = self._keep_all(proposals[:size], labels[:size])
            if len(kept) >= limit or size >= len(proposals):
                return kept[:limit]
            size *= _FIRST_PART

    def _keep_all(self, proposals: Indices, labels: Indices) -> Indices:
        groups = np.zeros_like(labels) if self._across else labels
        by_class = np.argsort(groups, kind="stable")
        boxes = boxes_at(self._boxes, proposals[by_class], labels[by_class])
        first, second = _overlapping_pairs(boxes, groups[by_class], self._threshold)
        kept = np.ones(len(labels), dtype=bool)
        kept[by_class] = _settle(len(labels), first, second)
        return np.flatnonzero(kept)

    def survivors(self, flat: Indices, scores: Float32, num_classes: int) -> Indices:
        """See `Suppression.survivors`."""
        return _keep_without_limit(self, flat, scores, num_classes)


def _keep_without_limit(suppression: Suppression, flat: Indices, scores: Float32, num_classes: int) -> Indices:
    order = np.argsort(-scores, kind="stable")
    proposals = flat[order] // num_classes
    kept = suppression.keep(proposals, flat[order] - proposals * num_classes, None)
    return np.sort(order[kept])


def _overlapping_pairs(boxes: Float32, groups: Indices, threshold: np.float32) -> tuple[Indices, Indices]:
    """Pairs `first < second` of one group whose boxes overlap by more than `threshold`; `groups` is sorted."""
    found: list[tuple[Indices, Indices]] = [(np.empty(0, np.intp), np.empty(0, np.intp))]
    for first, second in _pairs_in_groups(groups):
        overlapping = iou_of_pairs(boxes[first], boxes[second]) > threshold
        found.append((first[overlapping], second[overlapping]))
    first, second = (np.concatenate(column) for column in zip(*found, strict=True))
    return first, second


def _pairs_in_groups(groups: npt.NDArray[np.integer[Any]]) -> Iterator[tuple[Indices, Indices]]:
    """All pairs `first < second` of one group, some at a time; `groups` is sorted."""
    starts = np.searchsorted(groups, groups, side="left")
    before = np.arange(len(groups)) - starts  # each is paired with those before it in its group
    pairs_up_to = np.cumsum(before)
    begin = 0
    while begin < len(groups):
        done = int(pairs_up_to[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(pairs_up_to, done + _PAIRS_AT_ONCE, side="right")), begin + 1)
        second = np.repeat(np.arange(begin, end), before[begin:end])
        first = np.arange(len(second)) - np.repeat(pairs_up_to[begin:end] - before[begin:end] - done, before[begin:end])
        first += starts[second]
        yield first, second
        begin = end


def _settle(count: int, first: Indices, second: Indices) -> npt.NDArray[np.bool_]:
    """Greedy result from the overlapping pairs: `second` goes when `first` stays.

    Each round decides at least one more of a chain of overlaps, so the repetition ends at the greedy result; in
    practice after a few rounds.
    """
    kept = np.ones(count, dtype=bool)
    while True:
        settled = np.bincount(second[kept[first]], minlength=count) == 0
        if np.array_equal(settled, kept):
            return kept
        kept = settled


def pairwise_iou(boxes: Float32) -> Float32:
    """Intersection over union of all boxes with each other, in the arithmetic of torchvision's NMS.

    Example:
        >>> pairwise_iou(np.array([[0, 0, 2, 2], [0, 0, 2, 1]], np.float32)).tolist()
        [[1.0, 0.5], [0.5, 1.0]]
    """
    x1, y1, x2, y2 = np.ascontiguousarray(boxes.T)
    intersection = _overlap_length(x1[:, None], x2[:, None], x1, x2)
    intersection *= _overlap_length(y1[:, None], y2[:, None], y1, y2)
    area = (x2 - x1) * (y2 - y1)
    union = area[:, None] + area
    union -= intersection
    with np.errstate(invalid="ignore", divide="ignore"):  # two empty boxes: NaN, which overlaps nothing
        intersection /= union
    return intersection


def iou_of_pairs(left: Float32, right: Float32) -> Float32:
    """Intersection over union of each box of `left` with the box of `right` in the same row.

    Example:
        >>> iou_of_pairs(np.array([[0, 0, 2, 2]], np.float32), np.array([[0, 0, 2, 1]], np.float32)).tolist()
        [0.5]
    """
    ax1, ay1, ax2, ay2 = np.ascontiguousarray(left.T)
    bx1, by1, bx2, by2 = np.ascontiguousarray(right.T)
    intersection = _overlap_length(ax1, ax2, bx1, bx2)
    intersection *= _overlap_length(ay1, ay2, by1, by2)
    union = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1)
    union -= intersection
    with np.errstate(invalid="ignore", divide="ignore"):
        intersection /= union
    return intersection


def _overlap_length(low: Float32, high: Float32, other_low: Float32, other_high: Float32) -> Float32:
    length = np.minimum(high, other_high)
    length -= np.maximum(low, other_low)
    return np.maximum(length, np.float32(0), out=length)


def floor_float32(value: float) -> np.float32:
    """The largest float32 not above `value`: for float32 numbers, greater than it is greater than `value`.

    Example:
        >>> float(floor_float32(0.5)), float(floor_float32(0.7)) <= 0.7
        (0.5, True)
    """
    nearest = np.float32(value)
    return nearest if float(nearest) <= value else np.nextafter(nearest, np.float32(-np.inf))
