"""Choosing thresholds for a target, over many draws of images at once: of each class by itself, or of all together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.operating.class_levels import Drawn, Levels, above, logit
from logn.evaluate.operating.scored_outcomes import ScoredOutcomes
from logn.evaluate.operating.target import F_BETA, FALSE_ALARMS, KEEP_COUNTS, PRECISION, RECALL, Target
from logn.logits.arrays import FloatArray, sigmoid

Array = npt.NDArray[Any]
# What a false alarm may cost in objects found, in logarithms; beyond it nothing changes any more.
_PRICES = (-16.0, 16.0)
_HALVINGS = 26


@dataclass(frozen=True, eq=False)
class Draws:
    """Outcomes over several draws of units.

    Args:
        outcomes: The outcomes.
        weights: `(I, B)` how often each unit was drawn.
        reference: Outcomes of the uncorrected model, for `keep-counts`.
    """

    outcomes: ScoredOutcomes
    weights: Array
    reference: ScoredOutcomes | None = None

    @classmethod
    def once(cls, outcomes: ScoredOutcomes, reference: ScoredOutcomes | None = None) -> Draws:
        """Every unit once."""
        return cls(outcomes, np.ones((outcomes.num_units, 1), np.int32), reference)

    @cached_property
    def classes(self) -> tuple[Drawn, ...]:
        """Each class."""
        return tuple(Drawn.of(scores, self.weights) for scores in self.outcomes.by_class)

    @cached_property
    def pooled(self) -> Drawn:
        """All classes as if they were one."""
        return Drawn.of(self.outcomes.pooled, self.weights)

    @property
    def units(self) -> Array:
        """`(B,)` units of each draw, repetitions counted."""
        total: Array = self.weights.sum(axis=0)
        return total


@dataclass(frozen=True, eq=False)
class Choice:
    """Thresholds of several draws, before anything is shrunk.

    Args:
        common: `(B,)` one threshold for all classes.
        own: `(F, B)` of each class; NaN where it has none of its own.
    """

    common: FloatArray
    own: FloatArray = field(repr=False)


def choose(draws: Draws, target: Target) -> Choice:
    """The thresholds of each draw that meet the target there."""
    common = _of_one(draws.pooled, target, draws, None)
    levels = draws.pooled.scores.levels.thresholds
    # Where no threshold meets the target over all classes, the one that comes nearest.
    common = np.where(np.isnan(common), levels[-1] if target.kind == RECALL else levels[0], common)
    if target.is_joint:
        return Choice(common, _allotted(draws, target))
    own = [_of_one(drawn, target, draws, label) for label, drawn in enumerate(draws.classes)]
    return Choice(common, np.array(own).reshape(len(own), draws.weights.shape[1]))


def _of_one(drawn: Drawn, target: Target, draws: Draws, label: int | None) -> FloatArray:
    """The threshold `(B,)` of one class, or of all as one; NaN where the target cannot be met."""
    if target.kind == KEEP_COUNTS:
        return _keeping_counts(drawn, target, draws, label)
    levels = drawn.scores.hit_levels
    hits, alarms = drawn.at_levels(levels)
    if target.is_joint:
        allowed = _is_allowed(target, hits, alarms, draws.units)
        return _last(allowed, levels)
    if target.kind == F_BETA:
        return _best_f(hits, alarms, drawn.objects, target.value, levels)
    if target.kind == PRECISION:
        return _last((hits > 0) & (hits >= target.value * (hits + alarms) - 1e-9), levels)
    enough = (hits >= target.value * drawn.objects - 1e-9) & (drawn.objects > 0)
    return _where(enough.any(axis=0), levels, enough.argmax(axis=0))


def _best_f(hits: Array, alarms: Array, objects: Array, beta: float, levels: Levels) -> FloatArray:
    square = beta * beta
    wanted = np.maximum(square * objects + hits + alarms, 1e-9)
    value = (1 + square) * hits / wanted
    return _where(value.max(axis=0) > 0, levels, value.argmax(axis=0))


def _last(allowed: Array, levels: Levels) -> FloatArray:
    """The lowest threshold that is allowed."""
    return _where(allowed.any(axis=0), levels, len(allowed) - 1 - allowed[::-1].argmax(axis=0))


def _where(reached: Any, levels: Levels, place: Array) -> FloatArray:
    return np.where(reached, levels.thresholds[place], np.nan)


def _keeping_counts(drawn: Drawn, target: Target, draws: Draws, label: int | None) -> FloatArray:
    """The threshold that keeps about as many detections as the uncorrected model has at the old one."""
    reference = draws.reference or draws.outcomes
    scores = reference.pooled if label is None else reference.by_class[label]
    wanted = draws.weights[scores.units[: int(above(scores.scores, target.value))]].sum(axis=0)
    levels = drawn.scores.levels
    kept = drawn.everything[above(drawn.scores.scores, levels.least)]
    return _where(wanted > 0, levels, np.abs(kept - wanted).argmin(axis=0))


def _is_allowed(target: Target, hits: Array, alarms: Array, units: Array) -> npt.NDArray[np.bool_]:
    if target.kind == FALSE_ALARMS:
        return np.asarray(alarms <= target.value * units + 1e-9)
    return np.asarray(hits >= target.value * (hits + alarms) - 1e-9)


def _allotted(draws: Draws, target: Target) -> FloatArray:
    """Thresholds `(F, B)` that find most objects under a target over all classes.

    At a price of a false alarm in objects each class takes the level with the most objects less the price of its false
    alarms: a corner of the concave hull of its curve. No other thresholds find more objects with as few false alarms.
    The lowest price that the target allows is found by halving; what it leaves over of the target is less than one
    step of the hull.
    """
    counts = [drawn.at_levels(drawn.scores.hit_levels) for drawn in draws.classes]
    size = draws.weights.shape[1]
    low, high = np.full(size, _PRICES[0]), np.full(size, _PRICES[1])
    units = draws.units
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        hits, alarms = _totals(counts, _taken(counts, np.exp(middle)))
        allowed = _is_allowed(target, hits, alarms, units)
        high, low = np.where(allowed, middle, high), np.where(allowed, low, middle)
    taken = _taken(counts, np.exp(high))
    thresholds = [drawn.scores.hit_levels.thresholds[place] for drawn, place in zip(draws.classes, taken, strict=True)]
    return np.array(thresholds).reshape(len(thresholds), size)


def _taken(counts: Sequence[tuple[Array, Array]], price: FloatArray) -> list[Array]:
    return [(hits - price * alarms).argmax(axis=0) for hits, alarms in counts]


def _totals(counts: Sequence[tuple[Array, Array]], taken: Sequence[Array]) -> tuple[Array, Array]:
    draws = np.arange(len(taken[0]))
    pairs = [(hits[place, draws], alarms[place, draws]) for (hits, alarms), place in zip(counts, taken, strict=True)]
    return np.sum([hits for hits, _ in pairs], axis=0), np.sum([alarms for _, alarms in pairs], axis=0)


def shrunk(choice: Choice, weights: FloatArray, draws: Draws, target: Target) -> FloatArray:
    """Thresholds `(F, B)` between those of the classes and the common one, in logits.

    Where the target is over all classes, all of them are moved together until it is met again.

    Args:
        choice: What was chosen on the draws.
        weights: `(F,)` of the class's own threshold; 0 for the common one.
        draws: The draws.
        target: The target.
    """
    common = logit(choice.common)
    own = np.where(np.isnan(choice.own), common, logit(np.nan_to_num(choice.own, nan=0.5)))
    mixed = common + weights[:, None] * (own - common)
    if target.is_joint and (weights < 1).any():
        mixed = mixed + offset_to_meet(mixed, draws, target)
    return sigmoid(mixed)


def offset_to_meet(mixed: FloatArray, draws: Draws, target: Target) -> FloatArray:
    """The least common move `(B,)` of all thresholds with which a target over all classes is met.

    Args:
        mixed: `(F, B)` logits of the thresholds.
        draws: The draws.
        target: False alarms per image, or the precision of all detections.
    """
    size = mixed.shape[1]
    low, high = np.full(size, -8.0), np.full(size, 32.0)
    units = draws.units
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        pairs = [drawn.at(sigmoid(row)) for drawn, row in zip(draws.classes, mixed + middle, strict=True)]
        hits, alarms = np.sum([pair[0] for pair in pairs], axis=0), np.sum([pair[1] for pair in pairs], axis=0)
        allowed = _is_allowed(target, hits, alarms, units)
        high, low = np.where(allowed, middle, high), np.where(allowed, low, middle)
    return high
