"""The common scale that keeps a softmax classifier's own mean confidence.

Without a background, one factor on all logits changes no prediction: it is a temperature. A correction that divides by
standard deviations sets this factor by accident; here it is set so that the model is, on average, as sure as it was.

The rows should be of images that the model was not trained on; labels are not needed. On its training images an
overfitted model is sure of everything, a correction makes it doubt some of them, and to be as sure as before on average
it would have to be far too sure of all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.errors import InputError
from logn.logits.arrays import FloatArray, softmax

# How closely the mean confidence, which is at most 1, is met.
CONFIDENCE_TOLERANCE = 1e-9
# The logarithm of the factor is sought between these: from a two-billionth to half a billion.
LOG_RANGE = 20.0


@dataclass(frozen=True)
class KeptConfidence:
    """The solved factor, its standard error from the sampling of the rows, and what it was solved on.

    Args:
        factor: On all logits, above 0.
        error: Of the factor.
        confidence: Mean confidence of the original rows.
        rows: How many rows there were.
    """

    factor: float
    error: float
    confidence: float
    rows: int


def keep_confidence(affine: ClassAffine, rows: npt.ArrayLike) -> ClassAffine:
    """Give `affine` the common scale for which the mean confidence over `rows` stays what it was.

    The confidence of a row is the highest of its softmax probabilities. All classes get the same factor, those too that
    `affine` leaves alone, so the predicted class of every row is the one that `affine` predicts.

    Args:
        affine: Any map without a background, of a softmax as far as it knows.
        rows: Logits (N, C) before the map, best of images that the model was not trained on.

    Example:
        >>> rows = np.array([[2.0, 0.0], [0.0, 1.0]])
        >>> halved = ClassAffine([0.5, 0.5], [0.0, 0.0])
        >>> keep_confidence(halved, rows).scale.round(6)
        array([1., 1.])
    """
    if not isinstance(affine, ClassAffine):
        raise InputError(f"Expected `affine` to be a logn.ClassAffine, but got {type(affine).__name__}.")
    if affine.source is not None and affine.source.activation == "sigmoid":
        raise InputError("Expected `affine` to be of a softmax to keep the mean confidence, but it is of a sigmoid.")
    solution = solve_kept_confidence(rows, affine)
    settings = {
        **affine.settings,
        "keep_confidence": True,
        "confidence": solution.confidence,
        "common_scale": solution.factor,
        "common_scale_error": solution.error,
        "sample_rows": solution.rows,
    }
    factor = solution.factor
    return replace(affine, scale=affine.scale * factor, shift=affine.shift * factor, settings=settings)


def solve_kept_confidence(rows: npt.ArrayLike, affine: ClassAffine) -> KeptConfidence:
    """Find the factor for which the mapped rows have the mean confidence of the original rows.

    The confidence of a row, `1 / sum(exp(-factor * (highest - logit)))`, grows with the factor unless all its logits
    are equal, so the solution is unique.

    Args:
        rows: Sampled logits (N, C).
        affine: The map whose common scale is sought.

    Example:
        >>> rows = np.array([[2.0, 0.0], [0.0, 1.0]])
        >>> round(solve_kept_confidence(rows, ClassAffine([4.0, 4.0], [0.0, 0.0])).factor, 6)
        0.25
    """
    if affine.background is not None:
        raise InputError("Expected a map without a background to keep the mean confidence, but got one with it.")
    before = np.asarray(rows, dtype=np.float64)
    if before.ndim != 2 or len(before) == 0:
        raise InputError(f"Expected `rows` to be at least one row of logits (N, C), but got shape {before.shape}.")
    if not np.isfinite(before).all():
        row = int(np.flatnonzero(~np.isfinite(before).all(axis=1))[0])
        raise InputError(f"Expected `rows` to be finite, but row {row} is not.")
    target = softmax(before).max(axis=1)
    after = affine(before)
    behind = after.max(axis=1, keepdims=True) - after
    factor = _solve(behind, float(target.mean()))
    reached, slope = _confidence(behind, factor)
    # Delta method: the error of the mean difference, divided by how fast the factor moves the confidence.
    spread = float(np.std(reached - target, ddof=1)) if len(before) > 1 else float("nan")
    error = spread / np.sqrt(len(before)) / max(float(slope.mean()), np.finfo(np.float64).tiny)
    return KeptConfidence(factor, float(error), float(target.mean()), len(before))


def _confidence(behind: FloatArray, factor: float) -> tuple[FloatArray, FloatArray]:
    """Confidence of each row under a factor, and its derivative; `behind` is the distance to the row's highest."""
    weights = np.exp(-factor * behind)
    confidence = 1.0 / weights.sum(axis=1)
    return confidence, confidence**2 * (behind * weights).sum(axis=1)


def _solve(behind: FloatArray, target: float) -> float:
    """Newton's method on the logarithm of the factor, kept inside a shrinking bracket."""
    highest = float(_confidence(behind, np.exp(LOG_RANGE))[0].mean())
    if highest < target - CONFIDENCE_TOLERANCE:
        raise InputError(
            f"Expected some scale to give the mean confidence {target:.6g} of the original logits, but the corrected "
            f"ones have ties and reach {highest:.6g} at most."
        )
    low, high, point = -LOG_RANGE, LOG_RANGE, 0.0
    for _ in range(200):
        factor = float(np.exp(point))
        confidence, slope = _confidence(behind, factor)
        gap = float(confidence.mean()) - target
        if abs(gap) < CONFIDENCE_TOLERANCE or high - low < 1e-12:
            break
        low, high = (point, high) if gap < 0 else (low, point)
        steepness = factor * float(slope.mean())
        step = point - gap / steepness if steepness > 0 else np.inf
        point = step if low < step < high else 0.5 * (low + high)
    return float(np.exp(point))
