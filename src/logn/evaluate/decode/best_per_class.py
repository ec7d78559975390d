"""The best detections of each class over all images, where only some of them are looked at in the end.

AP-Fixed takes the 10,000 best of each class, and on federated labels nearly all of these lie in images where nobody
looked for the class: they use up places, and that is all. So of these only the score is kept, and no detection at all
whose class has enough better ones already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from logn.evaluate.decode.detections import Detections

Float32 = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]

# Scores are counted by the bits of their exponent and the first four behind it: 16 bins for each factor of two, from
# 2**-32, below which all are in the first bin, up to 1.
_BIN_BITS = 19
_FIRST_BIN = (127 - 32) << 4
_NUM_BINS = (127 << 4) - _FIRST_BIN + 1
# New detections, as a share of all that can be kept, after which the floors are raised.
_NEW_SHARE = 1 / 16
# What may lie around below the floors, as a share of what is above them, before it is let go of.
_LEFTOVER_SHARE = 1 / 3
_FEW = 100_000
# Classes whose rows are looked up together, and labels that are counted together: there are millions of them, and NumPy
# wants eight bytes for each.
_CLASSES_AT_ONCE, _LABELS_AT_ONCE = 256, 1_000_000


@dataclass(frozen=True, eq=False)
class PlaceHolders:
    """Detections that are not looked at but use up places of their class: by image, in no order within one.

    Args:
        labels: `(D,)` class of each.
        scores: `(D,)` score of each.
        per_image: How many of them each image has, of images that follow each other.
    """

    labels: npt.NDArray[np.integer[Any]]
    scores: Float32
    per_image: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, rows: Indices) -> PlaceHolders:
        """Keep some of them; `rows` ascend."""
        ends = np.searchsorted(rows, np.cumsum(self.per_image))
        return PlaceHolders(self.labels.take(rows), self.scores.take(rows), np.diff(ends, prepend=0))

    def images(self, rows: Indices) -> Indices:
        """The images of some of them, counted from the first.

        Example:
            >>> holders = PlaceHolders(np.zeros(3, np.uint16), np.ones(3, np.float32), np.array([1, 0, 2]))
            >>> holders.images(np.array([0, 2])).tolist()
            [0, 2]
        """
        return np.searchsorted(np.cumsum(self.per_image), rows, side="right")

    @staticmethod
    def concatenate(parts: Sequence[PlaceHolders]) -> PlaceHolders:
        """Join parts whose images follow each other."""
        if not parts:
            return PlaceHolders(np.empty(0, np.uint16), np.empty(0, np.float32), np.empty(0, np.int64))
        return PlaceHolders(
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.per_image for part in parts]),
        )


_Part = TypeVar("_Part", Detections, PlaceHolders)


class BestPerClass:
    """Keeps the `limit` best detections of each class; of equal scores, those of earlier images.

    Args:
        num_classes: How many foreground classes there are.
        limit: How many detections to keep of each.
        guess: Floors to begin with, which may turn out to be too high (`guessed_too_high`); where bins begin.

    Example:
        >>> best = BestPerClass(num_classes=2, limit=1)
        >>> best.add(Detections.empty())
        >>> len(best.detections())
        0
    """

    def __init__(self, num_classes: int, limit: int, guess: Float32 | None = None) -> None:
        self._limit = limit
        self._guess: Float32 = np.zeros(num_classes, np.float32) if guess is None else guess
        self._parts: list[Detections] = []
        self._holders: list[PlaceHolders] = []
        # How many scores of each class fell into each bin.
        self._counts = np.zeros((num_classes, _NUM_BINS), np.int32)
        self._new: list[tuple[npt.NDArray[np.integer[Any]], Float32]] = []
        self._num_new = self._num_stored = 0
        # No detection of a class below its floor can be among its best any more: it need not even be suppressed. The
        # floor is where the bin begins that the last of the best is in.
        self.floor: Float32 = self._guess.copy()

    def add(self, detections: Detections, holders: PlaceHolders | None = None) -> None:
        """Take in detections of images after those of before, and others of the same images that are only counted."""
        self._parts.append(detections)
        self._new.append((detections.labels, detections.scores))
        if holders is not None:
            self._holders.append(holders)
            self._new.append((holders.labels, holders.scores))
        added = len(detections) + (0 if holders is None else len(holders))
        self._num_new += added
        self._num_stored += added
        if self._num_new > _NEW_SHARE * len(self.floor) * self._limit:
            self._raise_floors()

    def _raise_floors(self) -> None:
        places = np.concatenate([_places(labels, scores) for labels, scores in self._new] or [np.empty(0, np.uint32)])
        self._counts += np.bincount(places, minlength=self._counts.size).reshape(self._counts.shape)
        self._new, self._num_new = [], 0
        at_least = np.cumsum(self._counts[:, ::-1], axis=1, dtype=np.int32)[
            :, ::-1
        ]  # of each class, in this bin or above
        full = at_least >= self._limit
        last = np.maximum(full.sum(axis=1) - 1, 0)  # the highest bin that has enough in it and above
        edges = ((last + _FIRST_BIN).astype(np.uint32) << np.uint32(_BIN_BITS)).view(np.float32)
        np.maximum(np.where((last > 0) & full[:, 0], edges, np.float32(0)), self._guess, out=self.floor)
        above = int(at_least[np.arange(len(last)), last].sum())
        if self._num_stored > (1 + _LEFTOVER_SHARE) * above + _FEW:
            self._cut()

    def _cut(self) -> None:
        """Let go of what is below the floors."""
        self._num_stored = _keep_above(self._parts, self.floor) + _keep_above(self._holders, self.floor)

    def settled_floor(self) -> Float32:
        """The floors by all that was added."""
        self._raise_floors()
        return self.floor

    def guessed_too_high(self) -> bool:
        """Whether fewer detections of any class than are wanted reached its guess, so that some may be missing."""
        if not self._guess.any():
            return False
        self._raise_floors()
        first = _places(np.zeros(len(self._guess), np.uint16), self._guess)
        reached = np.where(np.arange(_NUM_BINS) >= first[:, None], self._counts, 0).sum(axis=1)
        return bool(((reached < self._limit) & (self._guess > 0)).any())

    def detections(self) -> Detections:
        """What is kept, sorted by image, then by descending score."""
        self._raise_floors()
        self._cut()
        found, holders = Detections.concatenate(self._parts), PlaceHolders.concatenate(self._holders)
        self._parts, self._holders = [found], [holders]
        number = _number_of_each(found.labels, len(self.floor)) + _number_of_each(holders.labels, len(self.floor))
        full = number > self._limit
        kept = ~full.take(found.labels)
        for first in range(0, len(full), _CLASSES_AT_ONCE):
            some = slice(first, first + _CLASSES_AT_ONCE)
            if not full[some].any():
                continue
            own, others = _RowsByClass(found.labels, some), _RowsByClass(holders.labels, some)
            for label in (first + np.flatnonzero(full[some])).tolist():
                rows = own.of(label)
                kept[rows[self._best_of(found, rows, holders, others.of(label))]] = True
        return found if kept.all() else found.take(np.flatnonzero(kept))

    def _best_of(self, found: Detections, rows: Indices, holders: PlaceHolders, other_rows: Indices) -> Any:
        """Which rows of a class are among its best, those included that only use up places."""
        scores, others = found.scores.take(rows), holders.scores.take(other_rows)
        last = np.partition(np.concatenate([scores, others]), -self._limit)[-self._limit]
        places = self._limit - int((scores > last).sum()) - int((others > last).sum())
        # Equal scores go in the order of the images; one image has no others of a class beside those looked at.
        tied = np.flatnonzero(scores == last)
        images = holders.images(other_rows[others == last])
        before = np.searchsorted(images, found.image_index.take(rows.take(tied)))
        chosen = scores > last
        chosen[tied[np.arange(len(tied)) + before < places]] = True
        return chosen


def _keep_above(parts: list[_Part], floor: Float32) -> int:
    """Cut the parts one by one, in place, so that never all is there twice; returns how many rows are left."""
    for place, part in enumerate(parts):
        kept = np.flatnonzero(part.scores >= floor.take(part.labels))
        if len(kept) < len(part):
            parts[place] = part.take(kept)
    return sum(map(len, parts))


def _places(labels: npt.NDArray[np.integer[Any]], scores: Float32) -> npt.NDArray[np.uint32]:
    """Where each score counts in the table of classes and bins, as it lies in memory; scores are not negative."""
    places = scores.view(np.uint32) >> np.uint32(_BIN_BITS)
    np.clip(places, np.uint32(_FIRST_BIN), np.uint32(_FIRST_BIN + _NUM_BINS - 1), out=places)
    places -= np.uint32(_FIRST_BIN)
    places += labels.astype(np.uint32) * np.uint32(_NUM_BINS)
    return places


def _number_of_each(labels: npt.NDArray[np.integer[Any]], num_classes: int) -> npt.NDArray[np.int64]:
    number = np.zeros(num_classes, np.int64)
    for start in range(0, len(labels), _LABELS_AT_ONCE):
        number += np.bincount(labels[start : start + _LABELS_AT_ONCE], minlength=num_classes)
    return number


class _RowsByClass:
    """The rows of each of some classes that follow each other, ascending."""

    def __init__(self, labels: npt.NDArray[np.integer[Any]], classes: slice) -> None:
        rows = np.flatnonzero((labels >= classes.start) & (labels < classes.stop))
        # NumPy sorts 16 bits by counting.
        chosen = (labels.take(rows) - labels.dtype.type(classes.start)).astype(np.uint16)
        self._first = classes.start
        self._rows = rows.take(np.argsort(chosen, kind="stable"))
        self._ends = np.concatenate([[0], np.cumsum(np.bincount(chosen, minlength=classes.stop - classes.start))])

    def of(self, label: int) -> Indices:
        place = label - self._first
        return self._rows[self._ends[place] : self._ends[place + 1]]
