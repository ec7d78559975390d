"""What a framework does with scores before suppression, besides a threshold: a power, the best class and so on.

Each wraps the scores of an image and is the scores of an image again, so that the fast search for candidates below
stays what it is.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from logn.evaluate.decode.class_scores import Float32, Level, Scores, strictly_above

Found = tuple[npt.NDArray[np.intp], Float32]
# A level that is turned back from a power may be off by rounding; it must never lose a candidate.
_LAX = 1e-5


class PowerScores:
    """Scores to a power: torchvision's FCOS takes the square root of class score times centerness."""

    def __init__(self, scores: Scores, power: float) -> None:
        self._scores, self._power = scores, power

    def above(self, level: Level) -> Found:
        """See `Scores.above`."""
        flat, scores = self._scores.above(self._before(level))
        return strictly_above(flat, np.power(scores, np.float32(self._power)), level)

    def near_best(self) -> Found:
        """See `Scores.near_best`."""
        flat, scores = self._scores.near_best()
        return flat, np.power(scores, np.float32(self._power))

    def _before(self, level: Level) -> Level:
        if isinstance(level, np.ndarray):
            turned = np.maximum(level, 0) ** np.float32(1 / self._power) * np.float32(1.0 - _LAX)
            return np.where(level > 0, turned, level)
        return level if level <= 0 else level ** (1 / self._power) * (1.0 - _LAX)


class LateFactorScores:
    """Scores with an objectness in them, where the threshold is held against the class scores alone.

    Args:
        scores: Class scores times the objectness.
        factors: The objectness of each proposal, from 0 to 1.
        num_classes: How many columns have scores.
        threshold: What the class scores must exceed.
    """

    def __init__(self, scores: Scores, factors: Float32, num_classes: int, threshold: float) -> None:
        self._scores, self._num_classes = scores, num_classes
        self._least = factors * np.float32(max(threshold, 0.0))

    def above(self, level: Level) -> Found:
        """See `Scores.above`."""
        return self._passed(*self._scores.above(level))

    def near_best(self) -> Found:
        """See `Scores.near_best`."""
        return self._passed(*self._scores.near_best())

    def _passed(self, flat: npt.NDArray[np.intp], scores: Float32) -> Found:
        keep = scores > self._least.take(flat // self._num_classes)
        return flat[keep], scores[keep]


class BestClassScores:
    """Only the best class of each proposal; of equal ones the first."""

    def __init__(self, scores: Scores, num_classes: int) -> None:
        self._scores, self._num_classes = scores, num_classes

    def above(self, level: Level) -> Found:
        """See `Scores.above`."""
        return strictly_above(*self._best, level)

    def near_best(self) -> Found:
        """See `Scores.near_best`."""
        return self._best

    @cached_property
    def _best(self) -> Found:
        flat, scores = self._scores.near_best()
        if not len(flat):
            return flat, scores
        rows = flat // self._num_classes
        starts = np.flatnonzero(np.diff(rows, prepend=-1))
        counts = np.diff(starts, append=len(rows))
        best = np.flatnonzero(scores == np.repeat(np.maximum.reduceat(scores, starts), counts))
        first = best[np.diff(rows[best], prepend=-1) > 0]
        return flat[first], scores[first]


class ChosenClassScores:
    """Scores of some columns, under the numbers of their classes: where a model knows more classes than the labels.

    Args:
        scores: The scores of all columns.
        class_of: Per column the class that it stands for, -1 for none.
        num_classes: How many classes there are.
    """

    def __init__(self, scores: Scores, class_of: npt.NDArray[np.intp], num_classes: int) -> None:
        self._scores, self._class_of, self._num_classes = scores, class_of, num_classes

    def above(self, level: Level) -> Found:
        """See `Scores.above`."""
        if isinstance(level, np.ndarray):
            # Columns without a class are taken out below; where they compete, the lowest level of all counts.
            level = np.where(self._class_of >= 0, level.take(self._class_of, mode="clip"), np.float32(np.inf))
        return self._renumbered(*self._scores.above(level))

    def near_best(self) -> Found:
        """See `Scores.near_best`; where only some columns have a class, the best of all may be none of these."""
        return self.above(-1.0)

    def _renumbered(self, flat: npt.NDArray[np.intp], scores: Float32) -> Found:
        rows = flat // len(self._class_of)
        classes = self._class_of[flat - rows * len(self._class_of)]
        chosen = np.flatnonzero(classes >= 0)
        renumbered = rows[chosen] * self._num_classes + classes[chosen]
        order = np.argsort(renumbered)
        return renumbered[order], scores[chosen[order]]
