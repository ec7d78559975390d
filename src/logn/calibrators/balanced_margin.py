"""The balanced margin: the one shift of the foreground that keeps the detector's own foreground mass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.errors import InputError
from logn.logits.arrays import FloatArray, foreground_columns, sigmoid
from logn.statistics.moments import ClassMoments

# How closely the mean foreground mass is met, as a share of it: where nearly everything is background it is nearly 0.
MASS_TOLERANCE = 1e-9
TINY = float(np.finfo(np.float64).tiny)
SEARCH_RANGE = 1e4
# Nodes of the quadrature over a class's normal distribution.
NODES = 64


@dataclass(frozen=True)
class BalancedMargin:
    """The solved margin.

    Args:
        value: On the foreground.
        error: Its standard error from the sampling of the rows; None where there are too few to tell.
        rows: How many rows there were.
        solved_on: "sample" or "moments"; None where nothing had to be solved.
    """

    value: float
    error: float | None
    rows: int
    solved_on: str | None = "sample"

    def to_settings(self) -> dict[str, float | int | str | None]:
        """What a map keeps of it."""
        return {
            "margin_value": self.value,
            "margin_error": self.error,
            "margin_from": self.solved_on,
            "sample_rows": self.rows,
        }


def margin_that_balances(
    moments: ClassMoments,
    unbalanced: ClassAffine,
    shifted: npt.NDArray[np.bool_],
    activation: str | None,
    *,
    way_out: str,
    needs_sample: bool = False,
) -> BalancedMargin:
    """The margin that keeps the foreground mass; 0 where a common shift changes nothing.

    Args:
        moments: Statistics of the logits.
        unbalanced: The map without its margin.
        shifted: Which foreground classes take the margin.
        activation: "softmax", "sigmoid", or None where nobody knows, which is solved as for sigmoids.
        way_out: What to do without a row sample where one is needed, for the message.
        needs_sample: Solve it on the row sample or not at all; else sigmoids do without one.

    Example:
        >>> moments = ClassMoments(2, sample_rows=10)
        >>> moments.update(np.array([[0.0, 1.0], [2.0, -1.0]]))
        >>> lowered = ClassAffine([1.0, 1.0], [0.0, -3.0], background=0)
        >>> round(margin_that_balances(moments, lowered, np.array([True]), "softmax", way_out="margin=0").value, 6)
        3.0
    """
    if activation == "softmax" and unbalanced.background is None:
        return BalancedMargin(value=0.0, error=0.0, rows=0, solved_on=None)
    if not needs_sample and len(moments.sample) == 0 and unbalanced.background is None:
        return solve_margin_of_moments(moments.mean, moments.variance, unbalanced, shifted)
    rows = needed_sample(moments, 'for margin="balance"', way_out)
    return solve_balanced_margin(rows, unbalanced, shifted, activation or "sigmoid")


def needed_sample(moments: ClassMoments, purpose: str, way_out: str) -> npt.NDArray[np.float16]:
    """The sampled rows; without any, the way out is named.

    Example:
        >>> needed_sample(ClassMoments(2), "to see something", "your glasses")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `moments` to hold a row sample to see something, but got none; collect with \
sample_rows=4096, or take your glasses.
    """
    rows = moments.sample
    if len(rows) == 0:
        raise InputError(
            f"Expected `moments` to hold a row sample {purpose}, but got none; collect with sample_rows=4096, "
            f"or take {way_out}."
        )
    return rows


def solve_balanced_margin(
    rows: npt.NDArray[np.float16],
    unbalanced: ClassAffine,
    shifted: npt.NDArray[np.bool_],
    activation: str,
) -> BalancedMargin:
    """Find the margin for which the mapped rows have the mean foreground mass of the original rows.

    The mass of a row is its foreground probability (softmax) or its expected number of detections, the sum of the
    scores of the classes that take the margin (sigmoid). It grows with the margin, so the solution is unique.

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
    target, mass = _problem(rows.astype(np.float64), unbalanced, shifted, activation)
    value = _root(mass, float(target.mean()))
    reached, slope = mass(value)
    if len(rows) < 2:
        return BalancedMargin(value, None, len(rows))
    # Delta method: the error of the mean difference, divided by how fast the margin moves the mass.
    spread = float(np.std(reached - target, ddof=1))
    error = spread / np.sqrt(len(rows)) / max(float(slope.mean()), TINY)
    return BalancedMargin(value, float(error), len(rows))


def solve_margin_of_moments(
    mean: FloatArray, variance: FloatArray, unbalanced: ClassAffine, shifted: npt.NDArray[np.bool_]
) -> BalancedMargin:
    """The same for sigmoids where there is no row sample: each class is taken to be normal.

    The expected number of detections is a sum over the classes, so how they depend on each other does not matter.

    Args:
        mean: Mean logit of each class.
        variance: Variance of each class; what is not a number counts as 0.
        unbalanced: The map without its margin and without a background.
        shifted: Which classes take the margin.

    Example:
        >>> lowered = ClassAffine([1.0, 1.0], [-3.0, -3.0])
        >>> round(solve_margin_of_moments(np.array([-2.0, 1.0]), np.ones(2), lowered, np.array([True, True])).value, 6)
        3.0
    """
    nodes, weights = np.polynomial.hermite.hermgauss(NODES)
    spread = np.sqrt(2.0 * np.where(np.isfinite(variance), variance, 0.0))
    target, mass = _problem(mean + spread * nodes[:, None], unbalanced, shifted, "sigmoid")
    weights = weights / weights.sum()
    value = _root(mass, float(weights @ target), weights)
    return BalancedMargin(value, None, 0, solved_on="moments")


MassFunction = Callable[[float], tuple[FloatArray, FloatArray]]


def _problem(
    before: FloatArray, unbalanced: ClassAffine, shifted: npt.NDArray[np.bool_], activation: str
) -> tuple[FloatArray, MassFunction]:
    """The mass that each row has and should keep, and the mass that it gets as a function of the margin."""
    after, place = unbalanced(before), unbalanced.background
    foreground = foreground_columns(before.shape[1], place)
    if activation == "sigmoid":
        # What does not move has the same mass on both sides, so it is left out, lest a large one drown the rest.
        return sigmoid(before[:, foreground][:, shifted]).sum(axis=1), _sigmoid_mass(after[:, foreground][:, shifted])
    if place is None:
        raise InputError("Expected a background column to balance a softmax against, but got none.")
    return sigmoid(_log_odds(before, foreground, place)), _softmax_mass(after, foreground, place, shifted)


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


def _sigmoid_mass(logits: FloatArray) -> MassFunction:
    """Expected detections of each row as a function of the margin, and its derivative."""

    def mass(margin: float) -> tuple[FloatArray, FloatArray]:
        scores = sigmoid(logits + margin)
        return scores.sum(axis=1), (scores * (1.0 - scores)).sum(axis=1)

    return mass


def _root(mass: MassFunction, target: float, weights: FloatArray | None = None) -> float:
    """The margin of a mean mass: Newton's method on the mass's logarithm, kept inside a shrinking bracket."""
    low, high, point = -SEARCH_RANGE, SEARCH_RANGE, 0.0
    for _ in range(200):
        reached, slope = (max(float(np.average(values, weights=weights)), TINY) for values in mass(point))
        gap = float(np.log(reached) - np.log(max(target, TINY)))
        if abs(gap) < MASS_TOLERANCE or high - low < 1e-12:
            break
        low, high = (point, high) if gap < 0 else (low, point)
        step = point - gap * reached / slope
        point = step if low < step < high else 0.5 * (low + high)
    return point
