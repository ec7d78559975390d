"""Thresholds on images that they were not chosen on: every fold of the images with what the other folds choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.operating.choice import Draws, choose, shrunk
from logn.evaluate.operating.class_levels import logit
from logn.evaluate.operating.scored_outcomes import ScoredOutcomes
from logn.evaluate.operating.shrinkage import Trust
from logn.evaluate.operating.target import Target
from logn.logits.arrays import FloatArray

Ints = npt.NDArray[np.int64]
FOLDS = 5
# The folds are made anew this often: one partition of few images says little of a class.
REPEATS = 4
# A difference of this many standard errors is more than noise.
CLEAR = 2.0


@dataclass(frozen=True)
class HeldOut:
    """The F-score of the target on the held-out folds: with the common threshold, and with the chosen ones.

    Args:
        overall: Of all detections together.
        class_mean: Mean over the classes that have objects.
        error: Standard error of the difference of `overall`, over images.
    """

    overall: tuple[float, float]
    class_mean: tuple[float, float]
    error: float

    @property
    def is_lower(self) -> bool:
        """Whether the chosen thresholds have a lower overall score, by more than noise."""
        return self.overall[1] - self.overall[0] < -CLEAR * self.error


@dataclass(frozen=True, eq=False)
class CrossFit:
    """The thresholds that each fold gets from the others.

    Args:
        outcomes: What can be kept, and what is right.
        folds: `(R, I)` the fold of each unit, in each partition.
        common: `(R, K)` the common threshold of each fold.
        own: `(R, F, K)` of each class, shrunk.
        beta: Of the F-score.
    """

    outcomes: ScoredOutcomes
    folds: Ints
    common: FloatArray
    own: FloatArray
    beta: float

    def better(self) -> npt.NDArray[np.bool_]:
        """`(F,)` the classes whose own threshold has a higher F-score on the held-out folds than the common one."""
        before, after = (self._class_f(self._thresholds(own)) for own in (False, True))
        found: npt.NDArray[np.bool_] = after > before
        return found

    def held_out(self, own: npt.NDArray[np.bool_]) -> HeldOut:
        """The score on the held-out folds, with the own thresholds of the classes in the mask and else the common."""
        sides = [self._thresholds(np.zeros_like(own)), self._thresholds(own)]
        present = self.outcomes.objects_per_class > 0
        means = [float(self._class_f(side)[present].mean()) for side in sides]
        found = [self._overall(side) for side in sides]
        error = float(np.sqrt(((found[1][1] - found[0][1]) ** 2).sum()))
        return HeldOut((found[0][0], found[1][0]), (means[0], means[1]), error)

    def _thresholds(self, own: Any) -> FloatArray:
        """`(R, F, K)` the own thresholds of some classes, the common one of others."""
        return np.where(np.reshape(own, (-1, 1)), self.own, self.common[:, None, :])

    def _kept(self, thresholds: FloatArray) -> tuple[Ints, Ints]:
        """How often each decision is kept over the partitions, split into hits and false alarms."""
        found = self.outcomes
        kept = np.zeros(len(found.labels), np.int64)
        for folds, values in zip(self.folds, thresholds, strict=True):
            kept += found.scores >= values[found.labels, folds[found.units]]
        return kept * found.right, kept * (found.judged & ~found.right)

    def _class_f(self, thresholds: FloatArray) -> FloatArray:
        found, square = self.outcomes, self.beta**2
        hits, alarms = (np.bincount(found.labels, side, found.num_classes) for side in self._kept(thresholds))
        wanted = square * len(self.folds) * found.objects_per_class + hits + alarms
        result: FloatArray = (1 + square) * hits / np.maximum(wanted, 1e-9)
        return result

    def _overall(self, thresholds: FloatArray) -> tuple[float, FloatArray]:
        """The score of all detections, and how much each unit moves it."""
        found, square = self.outcomes, self.beta**2
        hits, alarms = (np.bincount(found.units, side, found.num_units) for side in self._kept(thresholds))
        objects = np.bincount(found.object_units, minlength=found.num_units)
        wanted = square * len(self.folds) * objects + hits + alarms
        value = (1 + square) * hits.sum() / wanted.sum()
        return float(value), ((1 + square) * hits - value * wanted) / wanted.sum()


def cross_fit(outcomes: ScoredOutcomes, target: Target, trust: Trust, seed: int = 0) -> CrossFit | None:
    """Choose thresholds for each fold of the units on the others; None for a single unit, which has no others.

    Args:
        outcomes: What can be kept, and what is right.
        target: An F-score.
        trust: How far the own threshold of a class is to be trusted.
        seed: Of the partitions.
    """
    units = outcomes.num_units
    if units < 2:
        return None
    count = min(FOLDS, units)
    rng = np.random.default_rng(seed)
    folds = np.array([rng.permutation(units) % count for _ in range(REPEATS)])
    common, own = np.empty((REPEATS, count)), np.empty((REPEATS, outcomes.num_classes, count))
    for repeat, fold in np.ndindex(REPEATS, count):
        others = Draws.once(outcomes.part(folds[repeat] != fold))
        choice = choose(others, target)
        weights, _ = trust.weights(logit(choice.own[:, 0]), float(logit(choice.common[0])))
        common[repeat, fold] = choice.common[0]
        own[repeat, :, fold] = shrunk(choice, weights, others, target)[:, 0]
    return CrossFit(outcomes, folds, common, own, target.value)
