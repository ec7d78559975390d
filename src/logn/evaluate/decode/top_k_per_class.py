"""The best detections of each class over a whole data set, kept while the images stream by."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.decode.detections import Detections


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
