"""The balanced margin: the one shift of the foreground that keeps the detector's own foreground mass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.errors import InputError
from logn.logits.arrays import FloatArray, foreground_columns, sigmoid

# How closely the mean foreground mass is met, as a share of it: where nearly everything is background it is nearly 0.
MASS_TOLERANCE = 1e-9
TINY = float(np.finfo(np.float64).tiny)
SEARCH_RANGE = 1e4


@dataclass(frozen=True)
class BalancedMargin:
    """The solved margin, its standard error from the sampling of the rows, and how many rows there were."""

    value: float
    error: float
    rows: int


def solve_balanced_margin(
    rows: npt.NDArray[np.float16],
    unbalanced: ClassAffine,
    shifted: npt.NDArray[np.bool_],
    activation: str,
) -> BalancedMargin:
    """Find the margin for which the mapped rows have the mean foreground mass of the original rows.

    The mass of a row is its foreground probability (softmax) or its expected number of detections, the sum of its
    class scores (sigmoid). It grows with the margin, so the solution is unique.

    Args:
        rows: Sampled logits (N, C).
        unbalanced: The map without its margin.
        shifted: Which foreground classes take the margin.
        activation: "softmax" (with a background column) or "sigmoid".

    Example:
        >>> rows = np.array([[0.0, 1.0], [2.0, -1.0]], dtype=np.float16)
        >>> lowered = ClassAffine([1.0, 1.0], [0.0, -3.0], background=0)
        >>> round(solve_balanced_margin(rows, lowered, np.array([True]), "softmax").value, 6)
        3.0
    """
    before, after = rows.astype(np.float64), unbalanced(rows.astype(np.float64))
    foreground = foreground_columns(rows.shape[1], unbalanced.background)
    if activation == "softmax":
        if unbalanced.background is None:
            raise InputError("Expected a background column to balance a softmax against, but got none.")
        target = sigmoid(_log_odds(before, foreground, unbalanced.background))
        mass = _softmax_mass(after, foreground, unbalanced.background, shifted)
    else:
        target = sigmoid(before[:, foreground]).sum(axis=1)
        mass = _sigmoid_mass(after[:, foreground], shifted)
    value = _root(mass, float(target.mean()))
    reached, slope = mass(value)
    # Delta method: the error of the mean difference, divided by how fast the margin moves the mass.
    spread = float(np.std(reached - target, ddof=1)) if len(rows) > 1 else float("nan")
    error = spread / np.sqrt(len(rows)) / max(float(slope.mean()), TINY)
    return BalancedMargin(value=value, error=float(error), rows=len(rows))


MassFunction = Callable[[float], tuple[FloatArray, FloatArray]]


def _log_odds(logits: FloatArray, foreground: slice, background: int) -> FloatArray:
    """Log of foreground over background probability."""
    result: FloatArray = _log_sum_exp(logits[:, foreground]) - logits[:, background]
    return result


def _log_sum_exp(logits: FloatArray) -> FloatArray:
    highest = logits.max(axis=1, initial=-np.inf)
    safe = np.where(np.isfinite(highest), highest, 0.0)
    with np.errstate(divide="ignore"):
        result: FloatArray = safe + np.log(np.exp(logits - safe[:, None]).sum(axis=1))
    return result


def _softmax_mass(
    logits: FloatArray, foreground: slice, background: int, shifted: npt.NDArray[np.bool_]
) -> MassFunction:
    """Foreground probability of each row as a function of the margin, and its derivative."""
    moving = _log_sum_exp(logits[:, foreground][:, shifted]) - logits[:, background]
    fixed = _log_sum_exp(logits[:, foreground][:, ~shifted]) - logits[:, background]

    def mass(margin: float) -> tuple[FloatArray, FloatArray]:
        odds = np.logaddexp(moving + margin, fixed)
        probability = sigmoid(odds)
        share = np.exp(moving + margin - odds)
        return probability, probability * (1.0 - probability) * share

    return mass


def _sigmoid_mass(logits: FloatArray, shifted: npt.NDArray[np.bool_]) -> MassFunction:
    """Expected detections of each row as a function of the margin, and its derivative."""
    fixed = sigmoid(logits[:, ~shifted]).sum(axis=1)
    moving = logits[:, shifted]

    def mass(margin: float) -> tuple[FloatArray, FloatArray]:
        scores = sigmoid(moving + margin)
        return fixed + scores.sum(axis=1), (scores * (1.0 - scores)).sum(axis=1)

    return mass


def _root(mass: MassFunction, target: float) -> float:
    """The margin of a mean mass: Newton's method on the mass's logarithm, kept inside a shrinking bracket."""
    low, high, point = -SEARCH_RANGE, SEARCH_RANGE, 0.0
    for _ in range(200):
        reached, slope = (max(float(values.mean()), TINY) for values in mass(point))
        gap = float(np.log(reached) - np.log(max(target, TINY)))
        if abs(gap) < MASS_TOLERANCE or high - low < 1e-12:
            break
        low, high = (point, high) if gap < 0 else (low, point)
        step = point - gap * reached / slope
        point = step if low < step < high else 0.5 * (low + high)
    return point
