"""From logits to scores: the map of a method, the activation, and the candidates above a level.

At LVIS size an image has 360,000 logits, of which some hundred matter. So scores are never normalised as a whole: they
are compared in a form that needs no division, and only candidates become scores. What methods share (the logits in
float32, the exponentials of all shift-only methods) is computed once per image. What a framework does to scores before
suppression (a power, the best class, an objectness) wraps the scores of an image and is the scores of an image again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from logn.base.arrays import logit, widen
from logn.errors import InputError
from logn.methods.affine import ClassAffine

Float32 = npt.NDArray[np.float32]
# What scores must exceed: one number, or one for each class.
Level = float | Float32
Transform = Callable[[Any], Any]
# Candidates `proposal * F + class`, ascending, and the score of each.
ScoredPairs = tuple[npt.NDArray[np.intp], Float32]

# Beyond these, exponentials are taken relative to the largest logit of the row.
_SAFE_EXPONENT = 60.0
_SAFE_SHIFT_RANGE = 40.0
# The exponential of the first is hardly above the smallest full float32; that of the second is 0 in float32.
_LEAST_EXPONENT, _ZERO_EXPONENT = -87.0, np.float32(-103.98)
# The comparison without division may be off by rounding; it must never lose a candidate, so it is a little lax.
_LAX = 1e-5
# Below this an objectness is none: its division would leave float32.
_NO_OBJECT = 1e-30
# From here on sigmoids of logits that are further apart than rounding may be the same in float32.
_LARGE_LOGIT = 5.0


class Scratch:
    """Arrays that one thread uses again for each image, since fresh memory costs as much as the arithmetic."""

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def array(self, name: str, shape: tuple[int, int], dtype: type) -> npt.NDArray[Any]:
        """An array of unknown content; the same memory for the same name."""
        size = shape[0] * shape[1]
        array = self._arrays.get(name)
        if array is None or array.size < size or array.dtype != dtype:
            array = self._arrays[name] = np.empty(size, dtype)
        return array[:size].reshape(shape)


class ImageLogits:
    """The logits of one image in float32, with what several methods share."""

    def __init__(
        self,
        rows: npt.NDArray[Any],
        scratch: Scratch,
        objectness: npt.NDArray[Any] | None = None,
        *,
        added: bool = False,
    ) -> None:
        self.scratch = scratch
        extra: Float32 | None = None if objectness is None else objectness.astype(np.float32)
        #: What the scores of each proposal are multiplied by; None for nothing.
        self.factors: Float32 | None = None if extra is None or added else _sigmoid(extra)
        #: What is added to the logits of each proposal behind the map of a method; None for nothing.
        self.offsets: Float32 | None = extra if added else None
        if rows.dtype == np.float16:
            shape = (rows.shape[0], rows.shape[1])
            self.logits: Float32 = widen(rows, out=scratch.array("logits", shape, np.float32))
        else:
            self.logits = rows.astype(np.float32, copy=False)
        self._exponentials: Float32 | None = None

    @property
    def exponentials(self) -> Float32:
        """`exp(logits)`, relative to the largest of each row."""
        if self._exponentials is None:
            out = self.scratch.array("exponentials", self.logits.shape, np.float32)
            np.subtract(self.logits, self.logits.max(axis=1, keepdims=True, initial=-np.inf), out=out)
            self._exponentials = np.exp(out, out=out)
        return self._exponentials


class Scores(Protocol):
    """The scores of one image under one method."""

    def above(self, level: Level) -> ScoredPairs:
        """Candidates with a score strictly greater than `level`: `proposal * F + class`, ascending, and the score."""
        ...

    def near_best(self) -> ScoredPairs:
        """Of each proposal the candidates that may be its best, ties included; in the form of `above`."""
        ...


class SoftmaxScores:
    """Scores as numerators and one total per proposal, times its objectness where there is one."""

    def __init__(
        self, numerators: Float32, foreground: slice, scratch: Scratch, factors: Float32 | None = None
    ) -> None:
        self._totals: Float32 = np.einsum("ij->i", numerators)  # as exact as needed, and faster than `sum`
        if factors is not None:
            # A factor of the score is a divisor of the total; a proposal that is no object at all has none left.
            self._totals = np.divide(
                self._totals, factors, out=np.full_like(self._totals, np.inf), where=factors > _NO_OBJECT
            )
        self._numerators = numerators[:, foreground]
        self._flat, self._columns = numerators.reshape(-1), numerators.shape[1]
        self._first = foreground.indices(self._columns)[0]
        self._scratch = scratch

    def above(self, level: Level) -> ScoredPairs:
        """See `Scores.above`."""
        shape = (self._numerators.shape[0], self._numerators.shape[1])
        mask = self._scratch.array("mask", shape, np.bool_)
        if isinstance(level, np.ndarray) and (level > 0).all():
            # Numerators over the level of their class: cheaper than a level for each pair.
            shares: Float32 = self._scratch.array("least", shape, np.float32)
            np.multiply(self._numerators, np.float32(1.0) / (level * np.float32(1.0 - _LAX)), out=shares)
            np.greater(shares, self._totals[:, None], out=mask)
        else:
            np.greater(self._numerators, self._least(level), out=mask)
        flat = true_places(mask)
        return strictly_above(flat, self._scores_at(flat), level)

    def near_best(self) -> ScoredPairs:
        """See `Scores.near_best`."""
        best = self._numerators.max(axis=1, keepdims=True, initial=0)
        flat = np.flatnonzero(self._numerators >= best * np.float32(1.0 - _LAX))
        return flat, self._scores_at(flat)

    def _scores_at(self, flat: npt.NDArray[np.intp]) -> Float32:
        classes = self._numerators.shape[1]
        rows = flat // max(classes, 1)
        # One index into the rows as they lie in memory is several times as fast as a pair of them.
        places = flat + rows * (self._columns - classes) + self._first
        scores: Float32 = self._flat.take(places) / self._totals.take(rows)
        return scores

    def _least(self, level: Level) -> Float32:
        """What numerators must exceed, a little less than it is."""
        if isinstance(level, np.ndarray):
            lax = np.where(level > 0, level * np.float32(1.0 - _LAX), np.float32(-1.0))
            least: Float32 = self._scratch.array("least", (len(self._totals), len(lax)), np.float32)
            return np.multiply(self._totals[:, None], lax, out=least)
        share = np.float32(level * (1.0 - _LAX) if level > 0 else -1.0)
        return (self._totals * share)[:, None]


class SigmoidScores:
    """Scores of which each stands for itself, times the objectness of its proposal where there is one."""

    def __init__(self, logits: Float32, foreground: slice, scratch: Scratch, factors: Float32 | None = None) -> None:
        self._logits = logits[:, foreground]
        self._scratch, self._factors = scratch, factors

    def above(self, level: Level) -> ScoredPairs:
        """See `Scores.above`."""
        shape = (self._logits.shape[0], self._logits.shape[1])
        mask = self._scratch.array("mask", shape, np.bool_)
        np.greater(self._logits, self._lax_logits(level), out=mask)
        flat = true_places(mask)
        return strictly_above(flat, self._scores_at(flat), level)

    def near_best(self) -> ScoredPairs:
        """See `Scores.near_best`."""
        # Large logits have scores that rounding makes equal: those of all that are at least this are looked at.
        best = np.minimum(self._logits.max(axis=1, keepdims=True, initial=-np.inf), np.float32(_LARGE_LOGIT))
        flat = np.flatnonzero(self._logits >= best - np.float32(_LAX) * np.maximum(np.abs(best), 1))
        return flat, self._scores_at(flat)

    def _scores_at(self, flat: npt.NDArray[np.intp]) -> Float32:
        rows = flat // max(self._logits.shape[1], 1)
        scores = _sigmoid(self._logits[rows, flat - rows * self._logits.shape[1]])
        if self._factors is not None:
            scores *= self._factors.take(rows)
        return scores

    def _lax_logits(self, level: Level) -> Any:
        """The logit that a class needs for a score of `level`: of each proposal where these have objectness."""
        if self._factors is None:
            return _lax_logit(level)
        lowest = float(np.min(level))  # a level for each pair of proposal and class would cost more than it spares
        if lowest <= 0:
            return _lax_logit(lowest)
        # Lax here too: near 1 a score has few bits, and a proposal whose objectness is too low is dropped at the end.
        needed = (1.0 - _LAX) * lowest / np.maximum(self._factors.astype(np.float64), lowest)
        exact = logit(needed)
        return (exact - _LAX * np.maximum(1.0, np.abs(exact)))[:, None].astype(np.float32)


def _sigmoid(logits: Float32) -> Float32:
    """Logistic function in float32, safe for large logits of either sign."""
    decay = np.exp(-np.abs(logits))
    scores: Float32 = (np.where(logits >= 0, np.float32(1.0), decay) / (np.float32(1.0) + decay)).astype(np.float32)
    return scores


def _lax_logit(level: Level) -> Any:
    inside = np.clip(level, np.finfo(np.float64).tiny, 1.0 - 2.0**-53)
    exact = logit(inside)
    lax = exact - _LAX * np.maximum(1.0, np.abs(exact))
    lax = np.where(np.less(level, 1), lax, 60.0)
    return np.where(np.greater(level, 0), lax, -np.inf).astype(np.float32)


def true_places(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """What `numpy.flatnonzero` gives for a contiguous mask, in half of the time where few are true.

    Example:
        >>> true_places(np.arange(20) % 9 == 1)
        array([ 1, 10, 19])
    """
    flat = mask.reshape(-1)
    whole = len(flat) // 8 * 8
    # Eight at a time, and then only those eight of which one is true.
    eights = np.flatnonzero(flat[:whole].view(np.uint64) != 0)
    if 4 * len(eights) > len(flat) // 8:
        return np.flatnonzero(flat)
    places = np.flatnonzero(flat[:whole].reshape(-1, 8).take(eights, axis=0))
    found = 8 * eights.take(places >> 3) + (places & 7)
    return np.concatenate([found, np.flatnonzero(flat[whole:]) + whole])


def strictly_above(flat: npt.NDArray[np.intp], scores: Float32, level: Level) -> ScoredPairs:
    """Those of the candidates `proposal * F + class` whose score is strictly greater than `level`."""
    least = level.take(flat % len(level)) if isinstance(level, np.ndarray) else np.float32(level)
    keep = scores > least
    return (flat, scores) if keep.all() else (flat[keep], scores[keep])


class ScoreFunction:
    """The scores of a method: its map of the logits, then the activation.

    Args:
        transform: A `ClassAffine`, a callable from float32 logits `(N, C)` to new ones, or None for no change.
        num_columns: Columns of the logits.
        activation: "softmax" or "sigmoid".
        foreground: The columns that are not background.

    Example:
        >>> image = ImageLogits(np.array([[0.0, 0.0, 5.0]], np.float32), Scratch())
        >>> plain = ScoreFunction(None, 3, "softmax", slice(0, 3))
        >>> plain(image).above(0.5)
        (array([2]), array([0.9867033], dtype=float32))
    """

    def __init__(
        self, transform: ClassAffine | Transform | None, num_columns: int, activation: str, foreground: slice
    ) -> None:
        self._activation, self._foreground, self._num_columns = activation, foreground, num_columns
        self._call: Transform | None = None
        self._scale: Float32 | None = None
        self._shift: Float32 | None = None
        self._weights: Float32 | None = None
        if isinstance(transform, ClassAffine):
            self._take_affine(transform)
        elif transform is not None:
            self._call = transform

    def _take_affine(self, affine: ClassAffine) -> None:
        if affine.num_columns != self._num_columns:
            raise InputError(
                f"The map {affine.method!r} has {affine.num_columns} columns, but the predictions have "
                f"{self._num_columns}. Fit it from statistics of this model."
            )
        scale, shift = affine.scale.astype(np.float32), affine.shift.astype(np.float32)
        if (scale == 1).all() and (shift == 0).all():
            return
        spread = float(affine.shift.max() - affine.shift.min())
        if self._activation == "softmax" and (scale == 1).all() and spread < _SAFE_SHIFT_RANGE:
            # Adding to a logit is multiplying its exponential, and those are shared.
            self._weights = np.exp(affine.shift - affine.shift.max()).astype(np.float32)
        else:
            self._scale, self._shift = scale, shift

    def __call__(self, image: ImageLogits) -> Scores:
        """Score one image."""
        if self._activation == "sigmoid":
            mapped = self._mapped(image)
            if image.offsets is not None:
                mapped = mapped + image.offsets[:, None]
            return SigmoidScores(mapped, self._foreground, image.scratch, image.factors)
        # What is added to every column of a softmax changes nothing.
        return SoftmaxScores(self._numerators(image), self._foreground, image.scratch, image.factors)

    def _mapped(self, image: ImageLogits) -> Float32:
        if self._call is not None:
            mapped = np.asarray(self._call(image.logits.copy()), dtype=np.float32)
            if mapped.shape != image.logits.shape:
                raise InputError(
                    f"The transform gave shape {mapped.shape} for logits of shape {image.logits.shape}. It must keep "
                    "the shape."
                )
            return mapped
        if self._scale is None or self._shift is None:
            return image.logits
        out: Float32 = image.scratch.array("mapped", image.logits.shape, np.float32)
        np.multiply(image.logits, self._scale, out=out)
        return np.add(out, self._shift, out=out)

    def _numerators(self, image: ImageLogits) -> Float32:
        if self._call is None and self._scale is None:
            if self._weights is None:
                return image.exponentials
            out: Float32 = image.scratch.array("mapped", image.logits.shape, np.float32)
            return np.multiply(image.exponentials, self._weights, out=out)
        mapped = self._mapped(image)
        if not len(mapped):
            return mapped
        largest = mapped.max(axis=1, keepdims=True)
        if largest.max() > _SAFE_EXPONENT or largest.min() < -_SAFE_EXPONENT:
            mapped = np.subtract(mapped, largest, out=mapped)
        if mapped.min() >= _LEAST_EXPONENT:
            return np.exp(mapped, out=mapped)
        # Exponentials too small for a full float32 take ten times as long: raised a little, they rank as low.
        np.subtract(mapped, np.minimum(mapped.max(axis=1, keepdims=True), 0), out=mapped)
        alive = mapped > _ZERO_EXPONENT
        np.exp(np.maximum(mapped, np.float32(_LEAST_EXPONENT), out=mapped), out=mapped)
        return np.multiply(mapped, alive, out=mapped)


class PowerScores:
    """Scores to a power: torchvision's FCOS takes the square root of class score times centerness."""

    def __init__(self, scores: Scores, power: float) -> None:
        self._scores, self._power = scores, power

    def above(self, level: Level) -> ScoredPairs:
        """See `Scores.above`."""
        flat, scores = self._scores.above(self._before(level))
        return strictly_above(flat, np.power(scores, np.float32(self._power)), level)

    def near_best(self) -> ScoredPairs:
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

    def above(self, level: Level) -> ScoredPairs:
        """See `Scores.above`."""
        return self._passed(*self._scores.above(level))

    def near_best(self) -> ScoredPairs:
        """See `Scores.near_best`."""
        return self._passed(*self._scores.near_best())

    def _passed(self, flat: npt.NDArray[np.intp], scores: Float32) -> ScoredPairs:
        keep = scores > self._least.take(flat // self._num_classes)
        return flat[keep], scores[keep]


class BestClassScores:
    """Only the best class of each proposal; ties: the first."""

    def __init__(self, scores: Scores, num_classes: int) -> None:
        self._scores, self._num_classes = scores, num_classes

    def above(self, level: Level) -> ScoredPairs:
        """See `Scores.above`."""
        return strictly_above(*self._best, level)

    def near_best(self) -> ScoredPairs:
        """See `Scores.near_best`."""
        return self._best

    @cached_property
    def _best(self) -> ScoredPairs:
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

    def above(self, level: Level) -> ScoredPairs:
        """See `Scores.above`."""
        if isinstance(level, np.ndarray):
            # Columns without a class are taken out below; where they compete, the lowest level of all counts.
            level = np.where(self._class_of >= 0, level.take(self._class_of, mode="clip"), np.float32(np.inf))
        return self._renumbered(*self._scores.above(level))

    def near_best(self) -> ScoredPairs:
        """See `Scores.near_best`; where only some columns have a class, the best of all may be none of these."""
        return self.above(-1.0)

    def _renumbered(self, flat: npt.NDArray[np.intp], scores: Float32) -> ScoredPairs:
        rows = flat // len(self._class_of)
        classes = self._class_of[flat - rows * len(self._class_of)]
        chosen = np.flatnonzero(classes >= 0)
        renumbered = rows[chosen] * self._num_classes + classes[chosen]
        order = np.argsort(renumbered)
        return renumbered[order], scores[chosen[order]]
