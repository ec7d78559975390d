"""From the logits of an image to its scores: the map of a method, the activation, and what a framework adds to them.

Scores are dense float32. Methods that only shift the logits of a softmax share its exponentials: at LVIS size, 300
proposals of 1,204 columns, these are most of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import widen
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.proposals import Postprocessing, Proposals
from logn.statistics.head import Head, foreground_columns

Float32 = npt.NDArray[np.float32]
Transform = Callable[[Any], Any]

# What is no candidate, whatever the threshold.
NO_SCORE = np.float32(-np.inf)
# Beyond these, exponentials are taken relative to the largest logit of the row.
_SAFE_EXPONENT = 60.0
_SAFE_SHIFT_RANGE = 40.0
# The exponential of the first is hardly above the smallest full float32; that of the second is 0 in float32.
_LEAST_EXPONENT, _ZERO_EXPONENT = np.float32(-87.0), np.float32(-103.98)
# Below this an objectness is none: its division would leave float32.
_NO_OBJECT = 1e-30


class ImageLogits:
    """The logits of one image in float32, with what several methods share.

    Args:
        proposals: Of the image.
        postprocessing: Of the framework of their model, which says what becomes of an objectness.
    """

    def __init__(self, proposals: Proposals, postprocessing: Postprocessing) -> None:
        logits, objectness = proposals.logits, proposals.objectness
        #: Of each proposal and column.
        self.logits: Float32 = (
            widen(logits, out=np.empty(logits.shape, np.float32))
            if logits.dtype == np.float16
            else logits.astype(np.float32, copy=False)
        )
        #: What the scores of each proposal are multiplied by; None for nothing.
        self.factors: Float32 | None = None
        #: What is added to the logits of each proposal behind the map of a method; None for nothing.
        self.offsets: Float32 | None = None
        if objectness is not None and postprocessing.objectness == "added":
            self.offsets = objectness.astype(np.float32)
        elif objectness is not None:
            self.factors = _sigmoid(objectness.astype(np.float32))

    @cached_property
    def exponentials(self) -> Float32:
        """`exp(logits)`, relative to the largest of each row."""
        relative = self.logits - self.logits.max(axis=1, keepdims=True, initial=-np.inf)
        exponentials: Float32 = np.exp(relative, out=relative)
        return exponentials


@dataclass(frozen=True, eq=False)
class FrameworkScores:
    """What the framework of a model makes of class scores before boxes suppress each other.

    Args:
        how: What decides it.
        class_columns: Place of each class among the foreground columns; None for all, in order.
    """

    how: Postprocessing
    class_columns: npt.NDArray[np.intp] | None

    def __call__(self, scores: Float32, factors: Float32 | None) -> tuple[Float32, float]:
        """The scores of each class, `NO_SCORE` for what is no candidate, and what they must exceed.

        Args:
            scores: Of the foreground columns, times the objectness.
            factors: The objectness of each proposal.
        """
        threshold = self.how.score_threshold
        passed = None
        if factors is not None and self.how.objectness == "late factor":
            passed = scores > (factors * np.float32(max(threshold, 0.0)))[:, None]
            threshold = min(threshold, 0.0)
        if self.how.score_power != 1:
            scores = scores**self.how.score_power
        if passed is not None:
            scores = np.where(passed, scores, NO_SCORE)
        # Classes without labels compete for a proposal, too, where it can be of one class only.
        if not self.how.multi_label:
            scores = best_class_alone(scores)
        if self.class_columns is not None:
            scores = scores[:, self.class_columns]
        return scores, threshold


def best_class_alone(scores: Float32) -> Float32:
    """`NO_SCORE` for all but the best class of each proposal; ties: the first.

    Example:
        >>> best_class_alone(np.array([[0.5, 0.75, 0.75]], np.float32))
        array([[-inf, 0.75, -inf]], dtype=float32)
    """
    best = scores.argmax(axis=1)[:, None]
    alone = np.full_like(scores, NO_SCORE)
    np.put_along_axis(alone, best, np.take_along_axis(scores, best, axis=1), axis=1)
    return alone


class ScoreFunction:
    """The scores of a method: its map of the logits, then the activation.

    Args:
        transform: A `ClassAffine`, a callable from float32 logits `(N, C)` to new ones, or None for no change.
        head: What the logits are.

    Example:
        >>> image = ImageLogits(Proposals([[0, 0, 9, 9]], [[0.0, 0.0, 5.0]], height=9, width=9), Postprocessing())
        >>> ScoreFunction(None, Head(3, activation="softmax"))(image).round(3)
        array([[0.007, 0.007, 0.987]], dtype=float32)
    """

    def __init__(self, transform: ClassAffine | Transform | None, head: Head) -> None:
        self._is_softmax = head.activation == "softmax"
        self._foreground = foreground_columns(head.width, head.background)
        self._map: Transform | None = None
        self._weights: Float32 | None = None
        if isinstance(transform, ClassAffine):
            if transform.num_columns != head.width:
                raise InputError(
                    f"The map {transform.method!r} has {transform.num_columns} columns, but the predictions have "
                    f"{head.width}. Fit it from statistics of this model."
                )
            self._take_affine(transform)
        elif transform is not None:
            self._map = lambda logits: transform(logits.copy())

    def _take_affine(self, affine: ClassAffine) -> None:
        scale, shift = affine.scale.astype(np.float32), affine.shift.astype(np.float32)
        only_shifts = (scale == 1).all()
        if only_shifts and (shift == 0).all():
            return
        if only_shifts and self._is_softmax and np.ptp(affine.shift) < _SAFE_SHIFT_RANGE:
            # Adding to a logit is multiplying its exponential, and those are shared.
            self._weights = np.exp(affine.shift - affine.shift.max()).astype(np.float32)
        else:
            self._map = lambda logits: logits * scale + shift

    def __call__(self, image: ImageLogits) -> Float32:
        """The scores of the foreground columns of one image, times its objectness."""
        return self._softmax(image) if self._is_softmax else self._sigmoid(image)

    def _sigmoid(self, image: ImageLogits) -> Float32:
        mapped = self._mapped(image)[:, self._foreground]
        scores = _sigmoid(mapped if image.offsets is None else mapped + image.offsets[:, None])
        return scores if image.factors is None else np.multiply(scores, image.factors[:, None], out=scores)

    def _softmax(self, image: ImageLogits) -> Float32:
        if self._weights is not None:
            numerators = image.exponentials * self._weights
        elif self._map is None:
            numerators = image.exponentials
        else:
            numerators = _exponentials(self._mapped(image))
        # What is added to every column of a softmax changes nothing, so that `offsets` do not count.
        totals: Float32 = np.einsum("ij->i", numerators)  # as exact as needed, and faster than `sum`
        if image.factors is not None:
            # A factor of the score is a divisor of the total; a proposal that is no object at all has none left.
            no_object = np.full_like(totals, np.inf)
            totals = np.divide(totals, image.factors, out=no_object, where=image.factors > _NO_OBJECT)
        return numerators[:, self._foreground] / totals[:, None]

    def _mapped(self, image: ImageLogits) -> Float32:
        if self._map is None:
            return image.logits
        mapped = np.asarray(self._map(image.logits), dtype=np.float32)
        if mapped.shape != image.logits.shape:
            raise InputError(
                f"The transform gave shape {mapped.shape} for logits of shape {image.logits.shape}. It must keep the "
                "shape."
            )
        return mapped


def _sigmoid(logits: Float32) -> Float32:
    """Logistic function in float32."""
    scores = np.negative(logits)
    with np.errstate(over="ignore"):  # the score of a logit below -88 is 0
        np.exp(scores, out=scores)
    scores += 1
    return np.divide(1, scores, out=scores)


def _exponentials(logits: Float32) -> Float32:
    """Exponentials, up to a factor of each row."""
    if not len(logits):
        return logits
    largest = logits.max(axis=1, keepdims=True)
    if largest.max() > _SAFE_EXPONENT or largest.min() < -_SAFE_EXPONENT:
        logits = logits - largest
    if logits.min() >= _LEAST_EXPONENT:
        return np.asarray(np.exp(logits))
    # Exponentials too small for a full float32 take ten times as long: raised a little, they rank as low.
    logits = logits - np.minimum(logits.max(axis=1, keepdims=True), 0)
    return np.asarray(np.exp(np.maximum(logits, _LEAST_EXPONENT)) * (logits > _ZERO_EXPONENT))
