"""Candidates of one image: pairs of proposal and class in the order of their scores, and the best of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.decode.class_scores import Float32, Scores
from logn.evaluate.decode.detections import Detections
from logn.evaluate.decode.nms import Suppression

_LOWER_HALF = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
# Below this there is no point in lowering a level step by step: the next one is the threshold itself.
_LOWEST_GUESS = 1e-6


@dataclass(frozen=True)
class SortedCandidates:
    """Candidates by descending score; equal scores by proposal, then class."""

    proposals: npt.NDArray[np.intp]
    labels: npt.NDArray[np.intp]
    scores: Float32

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, positions: npt.NDArray[np.intp]) -> SortedCandidates:
        """Keep the candidates at `positions`."""
        proposals, labels = self.proposals.take(positions), self.labels.take(positions)
        return SortedCandidates(proposals, labels, self.scores.take(positions))


def sort_candidates(flat: npt.NDArray[np.intp], scores: Float32, num_classes: int) -> SortedCandidates:
    """Sort candidates `proposal * num_classes + class` by their scores, which are not negative.

    Example:
        >>> found = sort_candidates(np.array([1, 2, 5]), np.array([0.5, 0.9, 0.5], np.float32), num_classes=3)
        >>> found.proposals.tolist(), found.labels.tolist()
        ([0, 0, 1], [2, 1, 2])
    """
    # Such floats sort like their bits, and the place in the lower half keeps equal scores in order: one sort of
    # integers is several times as fast as a stable sort of floats by index.
    keys = (~scores.view(np.uint32)).astype(np.uint64) << _HALF
    keys |= flat.astype(np.uint64)
    keys.sort()
    proposals, labels = split_candidates((keys & _LOWER_HALF).astype(np.intp), num_classes)
    return SortedCandidates(proposals, labels, (~(keys >> _HALF).astype(np.uint32)).view(np.float32))


def split_candidates(flat: npt.NDArray[np.intp], num_classes: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Proposal and class of candidates `proposal * num_classes + class`; faster than `numpy.divmod`.

    Example:
        >>> split_candidates(np.array([0, 4]), num_classes=3)
        (array([0, 1]), array([0, 1]))
    """
    proposals = flat // num_classes
    return proposals, flat - proposals * num_classes


def boxes_of(boxes: Float32, candidates: SortedCandidates) -> Float32:
    """The box of each candidate, from boxes `(N, 4)` or `(N, F, 4)`."""
    if boxes.ndim == 2:
        return boxes.take(candidates.proposals, axis=0)
    return boxes[candidates.proposals, candidates.labels]


def has_small_boxes(boxes: Float32, size: float) -> bool:
    """Whether any box `(N, 4)` has a side below `size`.

    Example:
        >>> has_small_boxes(np.array([[0, 0, 3, 1]], np.float32), 2.0)
        True
    """
    return bool((boxes[:, 2:] - boxes[:, :2] < np.float32(size)).any())


class Candidates:
    """The candidates of one image under one method, those with tiny boxes left out.

    Args:
        scores: The scores of the method.
        boxes: Boxes of the proposals.
        num_classes: Foreground classes.
        min_box_size: Shortest side of a box that is kept.
        floor: Per class, the score below which candidates are of no use; None for no such bound.
    """

    def __init__(
        self,
        scores: Scores,
        boxes: Float32,
        num_classes: int,
        *,
        min_box_size: float = 0.0,
        floor: Float32 | None = None,
    ) -> None:
        self._scores, self._boxes, self._num_classes = scores, boxes, num_classes
        self._min_box_size, self._floor = np.float32(min_box_size), floor

    def above(self, level: float) -> SortedCandidates:
        """Candidates with a score strictly greater than `level`, sorted."""
        return sort_candidates(*self._unsorted(level), self._num_classes)

    def survivors(self, level: float, suppression: Suppression) -> SortedCandidates:
        """Candidates with a score strictly greater than `level` that suppression leaves, sorted."""
        flat, scores = self._unsorted(level)
        kept = suppression.survivors(flat, scores, self._num_classes)
        return sort_candidates(flat.take(kept), scores.take(kept), self._num_classes)

    def _unsorted(self, level: float) -> tuple[npt.NDArray[np.intp], Float32]:
        flat, scores = self._scores.above(level)
        if self._floor is not None:
            _, labels = split_candidates(flat, self._num_classes)
            useful = np.flatnonzero(scores >= self._floor.take(labels))
            flat, scores = flat.take(useful), scores.take(useful)
        if self._min_box_size > 0:
            boxes = self._boxes.reshape(-1, 4)
            boxes = boxes[flat if self._boxes.ndim == 3 else flat // self._num_classes]
            large = (boxes[:, 2:] - boxes[:, :2] >= self._min_box_size).all(axis=1)
            flat, scores = flat[large], scores[large]
        return flat, scores


def best_candidates(
    candidates: Candidates, suppression: Suppression, guess: float, *, threshold: float, limit: int | None
) -> tuple[SortedCandidates, float]:
    """The best candidates above `threshold` after suppression, at most `limit`, and a guess for the next image.

    Of the candidates above any level, those that suppression keeps are the leading part of all that it keeps. So
    any level will do that leaves as many as are wanted: the work is that of some hundred candidates instead of ten
    thousand. The guess, half of the last score of the image before, is most often such a level; the result does not
    depend on it.
    """
    if limit is None:
        return candidates.survivors(threshold, suppression), 0.0
    level = max(threshold, guess)
    while True:
        found = candidates.above(level)
        if level <= threshold or len(found) >= limit:
            kept = found.take(suppression.keep(found.proposals, found.labels, limit))
            if len(kept) >= limit:
                return kept, 0.5 * float(kept.scores[-1])
            if level <= threshold:
                return kept, 0.0
        level = level * 0.25 if level * 0.25 > max(threshold, _LOWEST_GUESS) else threshold


class BestPerClass:
    """Keeps the `limit` best detections of each class; of equal scores, those of earlier images.

    Args:
        num_classes: How many foreground classes there are.
        limit: How many detections to keep of each.

    Example:
        >>> best = BestPerClass(num_classes=2, limit=1)
        >>> best.add(Detections.empty())
        >>> len(best.detections())
        0
    """

    def __init__(self, num_classes: int, limit: int) -> None:
        self._limit = limit
        self._parts: list[Detections] = []
        self._waiting = 0
        # No detection of a class below its floor can be among its best any more: it need not even be suppressed.
        self.floor: npt.NDArray[np.float32] = np.zeros(num_classes, np.float32)

    def add(self, detections: Detections) -> None:
        """Take in detections of images after those of before."""
        self._parts.append(detections)
        self._waiting += len(detections)
        # Cutting costs a sort of all, so it waits until there is as much again to cut.
        if self._waiting > len(self._parts[0]) + len(self.floor) * self._limit // 4 + 100_000:
            self._cut()

    def _cut(self) -> None:
        found = Detections.concatenate(self._parts)
        full = np.bincount(found.labels, minlength=len(self.floor)) >= self._limit
        if full.any():
            found = found.take(self._best_of(found, full))
        self._parts = [found]
        self._waiting = 0

    def _best_of(self, found: Detections, full: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
        """Rows to keep: all of the classes that are not full, of the others the best; raises the floors of these."""
        kept = ~full.take(found.labels)
        # Only classes that are full are looked at, and none is sorted by score: its last place is enough.
        rows = np.flatnonzero(~kept)
        labels = found.labels.take(rows)
        by_class = rows.take(np.argsort(_small(labels), kind="stable"))
        ends = np.cumsum(np.bincount(labels, minlength=len(full)))
        for label in np.flatnonzero(full):
            of_class = by_class[ends[label - 1] if label else 0 : ends[label]]
            scores = found.scores.take(of_class)
            last = np.partition(scores, -self._limit)[-self._limit]
            self.floor[label] = last
            kept[of_class[scores > last]] = True
            kept[of_class[scores == last][: self._limit - int((scores > last).sum())]] = True
        return np.flatnonzero(kept)

    def detections(self) -> Detections:
        """What is kept, sorted by image, then by descending score."""
        self._cut()
        return self._parts[0]


def _small(labels: npt.NDArray[np.int32]) -> npt.NDArray[np.integer[Any]]:
    """The labels in 16 bits where they fit: NumPy sorts these by counting."""
    return labels.astype(np.uint16) if labels.max(initial=0) < 2**16 else labels
