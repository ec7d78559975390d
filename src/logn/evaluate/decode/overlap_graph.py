"""Suppression of all candidates of an image at once, where all classes of a proposal share its box.

Without a limit per image some ten thousand candidates are suppressed, one by one too slow for Python. Here the classes
are bits: which classes a proposal is kept for is a row of 64-bit words, and so are the classes in which it loses to an
overlapping one. A few rounds of word operations then settle all classes together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]
Words = npt.NDArray[np.uint64]

# Scores that are compared at once: they should stay in the cache.
_COMPARED_AT_ONCE = 2**17
_WORD_BITS = 64


class OverlapGraph:
    """Which proposals overlap by more than the threshold, and what follows from it for candidates.

    Args:
        overlaps: `(N, N)` bool, symmetric; the diagonal does not count.

    Example:
        >>> graph = OverlapGraph(np.array([[True, True], [True, True]]))
        >>> candidates, scores = np.array([0, 1, 2]), np.array([0.5, 0.2, 0.9], np.float32)
        >>> graph.survivors(candidates, scores, num_classes=2)
        array([1, 2])
    """

    def __init__(self, overlaps: npt.NDArray[np.bool_]) -> None:
        self._proposals = len(overlaps)
        self._first, self._second = _positions(np.triu(overlaps, 1))
        number = np.zeros(overlaps.shape, np.intp)
        number[self._first, self._second] = number[self._second, self._first] = np.arange(len(self._first))
        # Each pair in both directions, by the one that may lose.
        loser, winner = _positions(overlaps & ~np.eye(self._proposals, dtype=np.bool_))
        self._loser, self._pair = loser, number[loser, winner]
        self._starts = np.flatnonzero(np.diff(loser, prepend=-1))
        # Proposals that overlap none need not be settled; the others are renumbered.
        self._overlapping = loser[self._starts]
        renumbered = np.zeros(self._proposals, np.intp)
        renumbered[self._overlapping] = np.arange(len(self._overlapping))
        self._winner_number = renumbered[winner]
        # All bits where the winner is the second of its pair: it wins where the first does not.
        self._flip: Words = np.where(winner > loser, ~np.uint64(0), np.uint64(0))[:, None]
        self._scratch: dict[str, npt.NDArray[Any]] = {}

    @property
    def pairs(self) -> int:
        """How many pairs of proposals overlap."""
        return len(self._first)

    def survivors(self, flat: Indices, scores: Float32, num_classes: int) -> Indices:
        """Positions that greedy suppression per class keeps, ascending.

        Args:
            flat: The candidates, `proposal * num_classes + class`.
            scores: Their scores, not negative; of equal ones the proposal that stands first wins.
            num_classes: How many classes there are.
        """
        if self.pairs == 0:
            return np.arange(len(flat))
        width = -(-num_classes // _WORD_BITS) * _WORD_BITS
        places = flat + flat // num_classes * (width - num_classes)
        table: Float32 = self._array("table", (self._proposals, width), np.float32)
        table.fill(-1.0)
        table.reshape(-1)[places] = scores
        candidates = _pack(table >= 0)
        lost = self._lost_to(table, candidates)
        candidates[self._overlapping] = self._settle(candidates.take(self._overlapping, axis=0), lost)
        alive = np.unpackbits(candidates.view(np.uint8), bitorder="little").view(np.bool_)
        return np.flatnonzero(alive.take(places))

    def _lost_to(self, table: Float32, candidates: Words) -> Words:
        """Per pair and direction the classes in which both are candidates and the winner stands first."""
        step = max(1, _COMPARED_AT_ONCE // table.shape[1])
        ahead: Words = self._array("ahead", (self.pairs, candidates.shape[1]), np.uint64)
        shape = (min(step, self.pairs), table.shape[1])
        left, right = self._array("left", shape, np.float32), self._array("right", shape, np.float32)
        for start in range(0, self.pairs, step):
            some = slice(start, start + step)
            size = len(self._first[some])
            np.take(table, self._first[some], axis=0, out=left[:size], mode="clip")
            np.take(table, self._second[some], axis=0, out=right[:size], mode="clip")
            ahead[some] = _pack(np.greater_equal(left[:size], right[:size]))
        lost = ahead.take(self._pair, axis=0)
        lost ^= self._flip
        lost &= candidates.take(self._loser, axis=0)
        return lost

    def _settle(self, candidates: Words, lost: Words) -> Words:
        """Greedy result: a candidate goes where one that it loses to stays.

        Each round decides at least one more of a chain of overlaps, so the repetition ends at the greedy result; in
        practice after some five to ten rounds.
        """
        kept = candidates
        while True:
            against = kept.take(self._winner_number, axis=0)
            against &= lost
            settled = candidates & ~np.bitwise_or.reduceat(against, self._starts, axis=0)
            if not (settled ^ kept).any():
                return kept
            kept = settled

    def _array(self, name: str, shape: tuple[int, int], dtype: type) -> npt.NDArray[Any]:
        """Memory that all methods use in turn: fresh memory costs as much as the work on it."""
        found = self._scratch.get(name)
        if found is None or found.shape != shape:
            found = self._scratch[name] = np.empty(shape, dtype)
        return found


def _positions(mask: npt.NDArray[np.bool_]) -> tuple[Indices, Indices]:
    """Rows and columns of what is true, several times as fast as `numpy.nonzero`."""
    flat = np.flatnonzero(mask)
    rows = flat // max(mask.shape[1], 1)
    return rows, flat - rows * mask.shape[1]


def _pack(mask: npt.NDArray[np.bool_]) -> Words:
    """Rows of bits as words; the width is a multiple of 64."""
    words: Words = np.packbits(mask.reshape(-1), bitorder="little").view(np.uint64)
    return words.reshape(len(mask), -1)
