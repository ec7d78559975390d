"""The best detections of each class over all images, where only some of them are looked at in the end.

AP-Fixed takes the 10,000 best of each class, and on federated labels nearly all of these lie in images where nobody
looked for the class: they use up places, and that is all. So of these only the score is kept, and no detection at all
whose class has enough better ones already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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

    def images(self) -> npt.NDArray[np.int32]:
        """The image of each, counted from the first.

        Example:
            >>> PlaceHolders(np.zeros(2, np.uint16), np.ones(2, np.float32), np.array([0, 2])).images()
            array([1, 1], dtype=int32)
        """
        return np.repeat(np.arange(len(self.per_image), dtype=np.int32), self.per_image)

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
        found, holders = Detections.concatenate(self._parts), PlaceHolders.concatenate(self._holders)
        found = found.take(np.flatnonzero(found.scores >= self.floor.take(found.labels)))
        holders = holders.take(np.flatnonzero(holders.scores >= self.floor.take(holders.labels)))
        self._parts, self._holders = [found], [holders]
        self._num_stored = len(found) + len(holders)

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
        found, holders = self._parts[0], self._holders[0]
        number = np.bincount(found.labels, minlength=len(self.floor))
        number += np.bincount(holders.labels, minlength=len(self.floor))
        full = number > self._limit
        if not full.any():
            return found
        kept = ~full.take(found.labels)
        own, others = _RowsByClass(found.labels, full), _RowsByClass(holders.labels, full)
        images = holders.images()
        for label in np.flatnonzero(full).tolist():
            rows, other_rows = own.of(label), others.of(label)
            chosen = self._best_of(found, rows, holders.scores.take(other_rows), images.take(other_rows))
            kept[rows[chosen]] = True
        return found.take(np.flatnonzero(kept))

    def _best_of(self, found: Detections, rows: Indices, others: Float32, images: npt.NDArray[np.int32]) -> Any:
        """Which rows of a class are among its best, those included that only use up places."""
        scores = found.scores.take(rows)
        last = np.partition(np.concatenate([scores, others]), -self._limit)[-self._limit]
        places = self._limit - int((scores > last).sum()) - int((others > last).sum())
        # Equal scores go in the order of the images; one image has no others of a class beside those looked at.
        tied = np.flatnonzero(scores == last)
        before = np.searchsorted(images[others == last], found.image_index.take(rows.take(tied)))
        chosen = scores > last
        chosen[tied[np.arange(len(tied)) + before < places]] = True
        return chosen


def _places(labels: npt.NDArray[np.integer[Any]], scores: Float32) -> npt.NDArray[np.uint32]:
    """Where each score counts in the table of classes and bins, as it lies in memory; scores are not negative."""
    places = scores.view(np.uint32) >> np.uint32(_BIN_BITS)
    np.clip(places, np.uint32(_FIRST_BIN), np.uint32(_FIRST_BIN + _NUM_BINS - 1), out=places)
    places -= np.uint32(_FIRST_BIN)
    places += labels.astype(np.uint32) * np.uint32(_NUM_BINS)
    return places


class _RowsByClass:
    """The rows of each class, ascending, of those classes that are asked for."""

    def __init__(self, labels: npt.NDArray[np.integer[Any]], wanted: npt.NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(wanted.take(labels))
        chosen = labels.take(rows)
        # NumPy sorts 16 bits by counting.
        small = chosen.astype(np.uint16) if len(wanted) <= 2**16 else chosen
        self._rows = rows.take(np.argsort(small, kind="stable"))
        self._ends = np.concatenate([[0], np.cumsum(np.bincount(chosen, minlength=len(wanted)))])

    def of(self, label: int) -> Indices:
        return self._rows[self._ends[label] : self._ends[label + 1]]
