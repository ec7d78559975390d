"""The scores of one class: where a threshold can stand, and what it keeps over many draws of images at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.logits.arrays import FloatArray, sigmoid

Ints = npt.NDArray[np.int64]
# Scores whose logits are nearer than this are not told apart: a folded model computes them in another order, and
# float32 sums of some hundred products are off by some 1e-6 of their size.
LEAST_GAP = 1e-4
# Nor are scores that are nearer than some last bits of float32, as those next to 1 are.
_LEAST_STEP = 16 * float(np.finfo(np.float32).eps)
# How far from the nearest score a threshold stays where there is room.
_ROOM = 1e-3
# Beyond this a sigmoid in float32 is 1.
LARGEST_LOGIT = 16.0


def logit(probability: npt.ArrayLike) -> FloatArray:
    """The logarithm of the odds, at most 16 either way.

    Example:
        >>> logit([0.5, 0.0, 1.0]).tolist()
        [0.0, -16.0, 16.0]
    """
    values = np.asarray(probability, np.float64)
    with np.errstate(divide="ignore"):
        odds: FloatArray = np.log(values) - np.log1p(-values)
    return odds.clip(-LARGEST_LOGIT, LARGEST_LOGIT)


def apart(higher: FloatArray, lower: FloatArray) -> npt.NDArray[np.bool_]:
    """Whether a threshold between two scores keeps them apart, whatever the last bits of a computation.

    Example:
        >>> apart(np.array([0.5, 0.5]), np.array([0.4, 0.49999])).tolist()
        [True, False]
    """
    result: npt.NDArray[np.bool_] = (logit(higher) - logit(lower) >= LEAST_GAP) & (
        higher - lower >= _LEAST_STEP * higher
    )
    return result


@dataclass(frozen=True, eq=False)
class Levels:
    """Places for a threshold, highest first; the first of them keeps nothing.

    Args:
        thresholds: `(K + 1,)`, midway in logits between the lowest score that is kept and the next one.
        least: `(K + 1,)` the lowest score that is kept; infinity for the first.
    """

    thresholds: FloatArray
    least: FloatArray


@dataclass(frozen=True, eq=False)
class ClassScores:
    """The scores of one class, highest first.

    Args:
        scores: `(D,)` of all decisions, judged or not.
        units: `(D,)` their images or rows.
        hits: `(H,)` scores of right decisions.
        hit_units: `(H,)` their images or rows.
        alarms: `(A,)` scores of wrong decisions.
        alarm_units: `(A,)` their images or rows.
        objects: `(G,)` images or rows of the objects there are to find.
        floor: Scores up to this were not looked at.

    Example:
        >>> one = ClassScores.of([0.9, 0.6, 0.2], [0, 1, 1], right=[True, False, True], judged=[True] * 3, objects=[0])
        >>> one.levels.thresholds.round(3).tolist()
        [0.961, 0.786, 0.38, 0.002]
        >>> one.hit_levels.least.tolist()
        [inf, 0.9, 0.2]
    """

    scores: FloatArray
    units: Ints
    hits: FloatArray
    hit_units: Ints
    alarms: FloatArray
    alarm_units: Ints
    objects: Ints
    floor: float = 0.0

    @classmethod
    def of(
        cls,
        scores: npt.ArrayLike,
        units: npt.ArrayLike,
        *,
        right: npt.ArrayLike,
        judged: npt.ArrayLike,
        objects: npt.ArrayLike,
        floor: float = 0.0,
    ) -> ClassScores:
        """Sort decisions by their scores."""
        values = np.asarray(scores, np.float64)
        order = np.argsort(-values, kind="stable")
        values, places = values[order], np.asarray(units, np.int64)[order]
        hit = np.asarray(right, bool)[order]
        alarm = np.asarray(judged, bool)[order] & ~hit
        inside = np.asarray(objects, np.int64)
        return cls(values, places, values[hit], places[hit], values[alarm], places[alarm], inside, floor)

    @cached_property
    def _ends(self) -> npt.NDArray[np.intp]:
        """Positions of the last score of each run of scores that no threshold tells apart."""
        if not len(self.scores):
            return np.empty(0, np.intp)
        return np.append(np.flatnonzero(apart(self.scores[:-1], self.scores[1:])), len(self.scores) - 1)

    @cached_property
    def levels(self) -> Levels:
        """All places for a threshold."""
        ends = self._ends
        if not len(ends):
            return Levels(np.array([sigmoid(LARGEST_LOGIT)]), np.array([np.inf]))
        low = logit(self.scores[ends])
        # The last threshold lies between the lowest score and what was not looked at.
        below = max(float(logit(self.floor)), float(low[-1]) - 10.0)
        after = np.append(logit(self.scores[ends[:-1] + 1]), min(below, float(low[-1])))
        above = min(float(logit(self.scores[0])) + 1.0, LARGEST_LOGIT)
        thresholds = sigmoid(np.concatenate([[above], (low + after) / 2]))
        return Levels(thresholds, np.concatenate([[np.inf], self.scores[ends]]))

    @cached_property
    def hit_levels(self) -> Levels:
        """Those that end with a hit: going on to the next hit is never worse than stopping between two."""
        every = self.levels
        # The run of each hit: the first whose end is not above it.
        places = np.unique(np.searchsorted(-every.least, -self.hits, side="left"))
        kept = np.concatenate([[0], places]).astype(np.intp)
        return Levels(every.thresholds[kept], every.least[kept])

    def settled(self, threshold: float) -> float:
        """The threshold moved, by as little as possible, to where rounding cannot flip a decision on these scores."""
        if not len(self.scores):
            return threshold
        place = int(np.searchsorted(-self.scores, -threshold, side="right"))
        around = self.scores[max(place - 1, 0) : place + 1]
        if 0 < place < len(self.scores) and not apart(around[:1], around[1:])[0]:
            options = self.levels.thresholds  # it lies inside a run: to the nearer end of it
            return float(options[np.abs(logit(options) - logit(threshold)).argmin()])
        high = float(self.scores[place - 1]) if place else 1.0
        low = float(self.scores[place]) if place < len(self.scores) else 0.0
        top, bottom = float(logit(high)), float(logit(low))
        room = min(max(_ROOM, _LEAST_STEP / 2 / max(high * (1 - low), 1e-12)), (top - bottom) / 2)
        least = bottom + room if place < len(self.scores) else -np.inf
        most = top - room if place else np.inf
        return float(sigmoid(np.clip(logit(threshold), least, most)))


def above(scores: FloatArray, thresholds: npt.ArrayLike) -> npt.NDArray[np.intp]:
    """How many of descending scores are at or above each threshold.

    Example:
        >>> above(np.array([0.9, 0.5, 0.1]), [0.5, 1.0]).tolist()
        [2, 0]
    """
    return np.searchsorted(-scores, -np.asarray(thresholds, np.float64), side="right")


@dataclass(frozen=True, eq=False)
class Drawn:
    """One class over several draws of units: running sums of how often each decision was drawn.

    Args:
        scores: The class.
        hits: `(H + 1, B)` running sum over the hits, from 0.
        alarms: `(A + 1, B)` over the false alarms.
        objects: `(B,)` objects that were drawn.
        weights: `(I, B)` how often each unit was drawn.
    """

    scores: ClassScores
    hits: npt.NDArray[Any]
    alarms: npt.NDArray[Any]
    objects: Ints
    weights: npt.NDArray[Any]

    @classmethod
    def of(cls, scores: ClassScores, weights: npt.NDArray[Any]) -> Drawn:
        """Sum up the draws `(I, B)` of one class."""
        objects = weights[scores.objects].sum(axis=0, dtype=np.int64)
        hits, alarms = (_running(weights, units) for units in (scores.hit_units, scores.alarm_units))
        return cls(scores, hits, alarms, objects, weights)

    @cached_property
    def everything(self) -> npt.NDArray[Any]:
        """`(D + 1, B)` over all decisions, judged or not."""
        return _running(self.weights, self.scores.units)

    def at_levels(self, levels: Levels) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Hits and false alarms `(K + 1, B)` at each level."""
        return self.hits[above(self.scores.hits, levels.least)], self.alarms[above(self.scores.alarms, levels.least)]

    def at(self, thresholds: FloatArray) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Hits and false alarms `(B,)` of each draw at its own threshold."""
        draws = np.arange(self.hits.shape[1])
        hits = self.hits[above(self.scores.hits, thresholds), draws]
        return hits, self.alarms[above(self.scores.alarms, thresholds), draws]


def _running(weights: npt.NDArray[Any], units: Ints) -> npt.NDArray[Any]:
    total = np.zeros((len(units) + 1, weights.shape[1]), np.int32)
    np.cumsum(weights[units], axis=0, out=total[1:], dtype=np.int32)
    return total
