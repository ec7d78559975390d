"""Greedy non-maximum suppression, per class or across classes, on candidates that are sorted by descending score.

A candidate is a pair (proposal, class). It goes when a candidate of the same class (of any class, where classes
suppress each other) that stands before it is kept and overlaps it by more than the threshold. Only candidates that
stand before count, so suppressing a leading part of the list gives the leading part of the result: an early stop is
exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.boxes import box_iou
from logn.models.proposals import Proposals

Float32 = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]

LOWER_HALF = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
# Pairs of boxes that are compared at once: some tens of megabytes.
_PAIRS_AT_ONCE = 1_000_000
# With more proposals than this not all pairs of them are compared, but only those of candidates.
_MANY_PROPOSALS = 2048
# Candidates between two looks at whether there are enough.
_BLOCK = 256
# How many times the wanted candidates are looked at first, and by how much the part grows.
_FIRST_PART = 4


class Boxes:
    """The boxes of one image's candidates: one per proposal, one per class, or those of each proposal's top classes.

    Args:
        proposals: Of the image. Where it has the boxes of the top classes only, another class uses that of the top one.
        num_classes: Foreground classes.

    Example:
        >>> image = Proposals(np.zeros((2, 3, 4)), np.zeros((2, 3)), height=8, width=8)
        >>> Boxes(image, 3).at(np.array([1]), np.array([2])).shape, Boxes(image, 3).shared
        ((1, 4), False)
    """

    def __init__(self, proposals: Proposals, num_classes: int) -> None:
        self.boxes: Float32 = proposals.boxes.astype(np.float32, copy=False)
        #: Whether all classes of a proposal share its box.
        self.shared = self.boxes.ndim == 2
        self._rank: npt.NDArray[np.uint16] | None = None
        if (classes := proposals.box_classes) is not None:
            self._rank = np.zeros((len(self.boxes), num_classes), np.uint16)
            np.put_along_axis(
                self._rank, classes.astype(np.intp), np.arange(classes.shape[1], dtype=np.uint16)[None], 1
            )

    def at(self, proposals: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Float32:
        """The box of each pair of proposal and class."""
        if self.shared:
            return self.boxes.take(proposals, axis=0)
        chosen: Float32 = self.boxes[proposals, labels if self._rank is None else self._rank[proposals, labels]]
        return chosen

    def some_smaller_than(self, size: float) -> bool:
        """Whether any box may have a side below `size`."""
        return not self.shared or bool((self.boxes[:, 2:] - self.boxes[:, :2] < np.float32(size)).any())

    def overlap_their_copies(self, threshold: float) -> bool:
        """Whether every box suppresses its copy, as those are that all classes of a proposal share."""
        return self.shared and threshold < 1 and bool((self.boxes[:, 2:] > self.boxes[:, :2]).all())


class Suppression:
    """Greedy suppression among the candidates of one image.

    Where all classes of a proposal share its box, the overlaps of the proposals are computed once, whatever the number
    of classes and of methods; a row of them is one integer of N bits, and so is the set of proposals kept for a class.

    Args:
        kind: "class-wise", "class-agnostic" or "none".
        boxes: Of the image.
        threshold: Overlap above which a box is suppressed.

    Example:
        >>> corners = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [50, 50, 60, 60]], np.float32)
        >>> boxes = Boxes(Proposals(corners, np.zeros((3, 9)), height=80, width=80), 9)
        >>> candidates = np.array([0, 1, 1, 2]), np.array([7, 7, 8, 7])
        >>> Suppression("class-wise", boxes, 0.5).best(*candidates, limit=9)
        array([0, 2, 3])
        >>> Suppression("class-agnostic", boxes, 0.5).best(*candidates, limit=9)
        array([0, 3])
    """

    def __init__(self, kind: str, boxes: Boxes, threshold: float) -> None:
        self._kind, self._boxes, self._threshold = kind, boxes, floor_float32(threshold)
        # Whether the overlaps of all proposals with each other are looked up.
        self._looks_up = kind != "none" and boxes.shared and len(boxes.boxes) <= _MANY_PROPOSALS
        if self._looks_up:
            self._overlaps = box_iou(boxes.boxes[:, None], boxes.boxes) > self._threshold

    def best(self, proposals: Indices, labels: Indices, limit: int) -> Indices:
        """Positions that are kept, ascending, at most `limit`; candidates come sorted by descending score."""
        if self._kind == "none":
            return np.arange(len(proposals))[:limit]
        groups = np.zeros_like(labels) if self._kind == "class-agnostic" else labels
        if self._looks_up:
            return self._keep_one_by_one(proposals, groups, limit)
        # A leading part gives the leading part of the result: a small one usually has enough.
        size = max(_BLOCK, _FIRST_PART * limit)
        while True:
            kept = self._keep_by_pairs(proposals[:size], labels[:size], groups[:size])
            if len(kept) >= limit or size >= len(proposals):
                return kept[:limit]
            size *= _FIRST_PART

    @cached_property
    def _rows(self) -> list[int]:
        packed = np.packbits(self._overlaps, axis=1, bitorder="little")
        return [int.from_bytes(row.tobytes(), "little") for row in packed]

    @cached_property
    def _bits(self) -> list[int]:
        return [1 << number for number in range(len(self._overlaps))]

    def _keep_one_by_one(self, proposals: Indices, groups: Indices, limit: int) -> Indices:
        overlapping, own_bit = self._rows, self._bits
        kept_of_class = [0] * (int(groups.max(initial=0)) + 1)
        kept: list[int] = []
        keep = kept.append
        for start in range(0, len(proposals), _BLOCK):
            block = slice(start, start + _BLOCK)
            pairs = zip(proposals[block].tolist(), groups[block].tolist(), strict=True)
            for position, (proposal, group) in enumerate(pairs, start):
                kept_here = kept_of_class[group]
                if not kept_here & overlapping[proposal]:
                    kept_of_class[group] = kept_here | own_bit[proposal]
                    keep(position)
            if len(kept) >= limit:
                break
        return np.array(kept[:limit], dtype=np.intp)

    def _keep_by_pairs(self, proposals: Indices, labels: Indices, groups: Indices) -> Indices:
        """Look at all pairs of candidates of one group at once."""
        # NumPy sorts 16 bits by counting.
        by_group = np.argsort(groups.astype(np.uint16) if groups.max(initial=0) < 2**16 else groups, kind="stable")
        boxes = self._boxes.at(proposals[by_group], labels[by_group])
        losing: list[tuple[Indices, Indices]] = [(np.empty(0, np.intp), np.empty(0, np.intp))]
        for first, second in _pairs_in_groups(groups[by_group]):
            overlapping = box_iou(boxes[first], boxes[second]) > self._threshold
            losing.append((first[overlapping], second[overlapping]))
        winners, losers = (np.concatenate(column) for column in zip(*losing, strict=True))
        kept = np.empty(len(groups), dtype=bool)
        kept[by_group] = _settle(len(groups), winners, losers)
        return np.flatnonzero(kept)


def _pairs_in_groups(groups: npt.NDArray[np.integer[Any]]) -> Iterator[tuple[Indices, Indices]]:
    """All pairs `first < second` of one group, some at a time; `groups` is sorted."""
    places = np.arange(len(groups))
    starts = np.maximum.accumulate(np.where(np.diff(groups, prepend=groups[:1] - 1) != 0, places, 0))
    before = places - starts  # each is paired with those before it in its group
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


def descending_keys(scores: Float32, places: Indices) -> npt.NDArray[np.uint64]:
    """Scores, which are not negative, and their places in one sorted number each: the highest score comes first.

    Such floats sort like their bits, and the place in the lower half keeps equal scores in order: one sort of integers
    is several times as fast as a stable sort of floats by index.
    """
    keys: npt.NDArray[np.uint64] = (~scores.view(np.uint32)).astype(np.uint64) << HALF
    keys |= places.astype(np.uint64)
    keys.sort()
    return keys


def floor_float32(value: float) -> np.float32:
    """The largest float32 not above `value`: for float32 numbers, greater than it is greater than `value`.

    Example:
        >>> float(floor_float32(0.5)), float(floor_float32(0.7)) <= 0.7
        (0.5, True)
    """
    nearest = np.float32(value)
    return nearest if float(nearest) <= value else np.nextafter(nearest, np.float32(-np.inf))
