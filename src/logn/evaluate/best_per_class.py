"""The best detections of each class over a whole data set, kept while the images stream by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from logn.evaluate.detections import Detections


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
        by_class = np.lexsort((-found.scores, found.labels))
        labels = found.labels[by_class]
        starts = np.searchsorted(labels, np.arange(len(self.floor) + 1))
        rank = np.arange(len(labels)) - starts[labels]
        last = by_class[rank == self._limit - 1]
        self.floor[found.labels[last]] = found.scores[last]
        self._parts = [found.take(np.sort(by_class[rank < self._limit]))]
        self._waiting = 0

    def detections(self) -> Detections:
        """What is kept, sorted by image, then by descending score."""
        self._cut()
        return self._parts[0]
