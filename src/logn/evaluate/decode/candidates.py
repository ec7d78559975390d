"""Candidates of one image: pairs of proposal and class in the order of their scores, and the best of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.evaluate.decode.candidate_boxes import Boxes, boxes_at
from logn.evaluate.decode.class_scores import Float32, Level, Scores
from logn.evaluate.decode.nms import Suppression

_LOWER_HALF = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
# A guess that is too high is lowered by these factors before the threshold itself is the level.
_LOWERED = (1.0, 0.25, 0.0625)
# Of more candidates than so many times the wanted ones the best are tried first: sorting all takes longer.
_ENOUGH_TIMES = 8


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
    """

    def __init__(self, scores: Scores, boxes: Boxes, num_classes: int, *, min_box_size: float = 0.0) -> None:
        self._scores, self._boxes, self._num_classes = scores, boxes, num_classes
        self._min_box_size = np.float32(min_box_size)

    def unsorted(self, level: Level) -> tuple[npt.NDArray[np.intp], Float32]:
        """Candidates with a score strictly greater than `level`, ascending, and the score of each."""
        flat, scores = self._scores.above(level)
        if self._min_box_size > 0:
            proposals, labels = split_candidates(flat, self._num_classes)
            boxes = boxes_at(self._boxes, proposals, labels)
            large = (boxes[:, 2:] - boxes[:, :2] >= self._min_box_size).all(axis=1)
            flat, scores = flat[large], scores[large]
        return flat, scores

    def strongest(self, flat: npt.NDArray[np.intp], scores: Float32, number: int) -> SortedCandidates:
        """The best `number` of some candidates, and those that tie with the last, sorted."""
        if number < len(flat):
            rows = np.flatnonzero(scores >= np.partition(scores, -number)[-number])
            flat, scores = flat.take(rows), scores.take(rows)
        return sort_candidates(flat, scores, self._num_classes)


@dataclass(frozen=True)
class BestCandidates:
    """The best candidates of an image after suppression.

    Args:
        kept: Those that are left.
        guess: A level for the next image.
    """

    kept: SortedCandidates
    guess: float


def best_candidates(
    candidates: Candidates, suppression: Suppression, guess: float, *, threshold: float, limit: int
) -> BestCandidates:
    """The best candidates above `threshold` after suppression, at most `limit`.

    Of the candidates above any level, those that suppression keeps are the leading part of all that it keeps. So
    any level will do that leaves as many as are wanted: the work is that of some hundred candidates instead of ten
    thousand. The guess, half of the last score of the image before, is most often such a level; the result does not
    depend on it.
    """
    found = kept = SortedCandidates(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0, np.float32))
    for level in (*(guess * factor for factor in _LOWERED if guess * factor > threshold), threshold):
        flat, scores = candidates.unsorted(level)
        if level > threshold and len(flat) < limit:
            continue
        for number in (_ENOUGH_TIMES * limit, len(flat)):
            found = candidates.strongest(flat, scores, number)
            places = suppression.keep(found.proposals, found.labels, limit)
            kept = found.take(places)
            if len(kept) >= limit:
                return BestCandidates(kept, 0.5 * float(kept.scores[-1]))
            if len(found) == len(flat):
                break
    return BestCandidates(kept, 0.0)
