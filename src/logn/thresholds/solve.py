"""Solving for shifts with which one threshold acts as one per class, for a softmax.

The score of a class grows with its own shift, so every row has a critical shift per class, at which it begins to be
kept, and given the shifts of the others the best one of a class is found by sorting. This is repeated until nothing
moves.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray, logit, softmax

Bools = npt.NDArray[np.bool_]
MOST_SWEEPS = 12


def shifted_scores(logits: FloatArray, columns: list[int], shifts: FloatArray | float) -> FloatArray:
    """`(R, F)` softmax scores of the classes in these columns, with these shifts."""
    moved = logits.copy()
    moved[:, columns] += shifts
    return softmax(moved)[:, columns]


def agreement(left: Bools, right: Bools) -> float:
    """Of what either keeps, the share that both keep; 1 where neither keeps anything.

    Example:
        >>> agreement(np.array([True, True, False]), np.array([True, False, False]))
        0.5
    """
    either = int((left | right).sum())
    return int((left & right).sum()) / either if either else 1.0


def solve_shifts(logits: FloatArray, columns: list[int], wanted: Bools, at: float, start: FloatArray) -> FloatArray:
    """Shifts `(F,)` with which the threshold `at` keeps as much as possible of what is wanted, and little else.

    Args:
        logits: `(R, C)` with the background, where there is one.
        columns: `(F,)` the column of each class.
        wanted: `(R, F)` what is to be kept.
        at: The one threshold.
        start: `(F,)` shifts to start from; the result is never worse.
    """
    shifts = best = start.copy()
    share = agreement(wanted, shifted_scores(logits, columns, start) >= at)
    for _ in range(MOST_SWEEPS):
        moved = _sweep(logits, columns, wanted, at, shifts)
        reached = agreement(wanted, shifted_scores(logits, columns, moved) >= at)
        if reached > share:
            share, best = reached, moved
        if share == 1.0 or np.array_equal(moved, shifts):
            break
        shifts = moved
    return best


def _sweep(logits: FloatArray, columns: list[int], wanted: Bools, at: float, shifts: FloatArray) -> FloatArray:
    """Each class once, given all others."""
    moved, shifted = shifts.copy(), logits.copy()
    shifted[:, columns] += shifts
    peak = shifted.max(axis=1)
    exponentials = np.exp(shifted - peak[:, None])
    total = exponentials.sum(axis=1)
    for label, column in enumerate(columns):
        others = np.maximum(total - exponentials[:, column], 1e-300)
        critical = logit(at) - logits[:, column] + np.log(others) + peak
        moved[label] = best_cut(critical, wanted[:, label], float(shifts[label]))
        exponentials[:, column] = np.exp(logits[:, column] + moved[label] - peak)
        total = others + exponentials[:, column]
    return moved


def best_cut(critical: FloatArray, wanted: Bools, now: float) -> float:
    """The shift that keeps the wanted rows and drops the others, with the fewest mistakes.

    A row is kept from its critical shift on. Ties go to the shift nearest to `now`, in the middle of its gap unless
    `now` lies in the gap.

    Example:
        >>> best_cut(np.array([1.0, 2.0, 5.0]), np.array([True, True, False]), 9.0)
        3.5
        >>> best_cut(np.array([1.0, 2.0, 5.0]), np.array([True, True, False]), 3.0)
        3.0
    """
    if not len(critical):
        return now
    order = np.argsort(critical, kind="stable")
    values, flags = critical[order], wanted[order]
    # After the first k rows: those of them that are unwanted are mistakes, and so are the wanted ones behind them.
    mistakes = np.concatenate([[0], np.cumsum(~flags)]) + flags.sum() - np.concatenate([[0], np.cumsum(flags)])
    low = np.concatenate([[values[0] - 2.0], values])
    high = np.concatenate([values, [values[-1] + 2.0]])
    candidates = np.flatnonzero((mistakes == mistakes[high > low].min()) & (high > low))
    if ((low[candidates] < now) & (now < high[candidates])).any():
        return now
    middle = (low[candidates] + high[candidates]) / 2
    return float(middle[np.abs(middle - now).argmin()])
