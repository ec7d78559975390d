"""Shifts after which one threshold decides as thresholds per class did, where that is not a matter of one formula.

The score of a class grows with its own shift, so every row has one critical shift for each class, at which it begins to
be kept; given the shifts of the others, the best shift of a class is found by sorting. With a softmax the critical
shifts depend on the other classes, so this is repeated until nothing moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.logits.arrays import FloatArray, sigmoid, softmax

Bools = npt.NDArray[np.bool_]
MOST_SWEEPS = 12


@dataclass(frozen=True, eq=False)
class FoldRows:
    """Rows of logits, as they are after the correction, and how they become scores.

    Args:
        logits: `(R, C)` with the background, where there is one.
        activation: "softmax" or "sigmoid".
        columns: `(F,)` the column of each class.
        objectness: `(R,)` a factor of all scores of a row, from 0 to 1; None for none.
        only_best: Whether only the best class of a row counts, as for a classifier.
    """

    logits: FloatArray
    activation: str
    columns: tuple[int, ...]
    objectness: FloatArray | None = None
    only_best: bool = False

    def scores(self, shifts: FloatArray | float = 0.0) -> FloatArray:
        """`(R, F)` scores with these shifts of the foreground; 0 for classes that do not count in their row."""
        moved = self.logits.copy()
        moved[:, self.columns] += shifts
        scores = (softmax if self.activation == "softmax" else sigmoid)(moved)[:, self.columns]
        if self.objectness is not None:
            scores = scores * self.objectness[:, None]
        if self.only_best:
            best = scores.argmax(axis=1)[:, None] == np.arange(scores.shape[1])
            scores = np.where(best, scores, 0.0)
        return scores

    def row_levels(self, at: float) -> FloatArray:
        """`(R,)` the logit that the score must reach before the objectness; infinite where it cannot."""
        share = np.full(len(self.logits), at) if self.objectness is None else at / np.maximum(self.objectness, 1e-12)
        with np.errstate(divide="ignore"):
            reachable: FloatArray = np.log(share) - np.log1p(-np.minimum(share, 1.0))
        return np.where(share < 1, reachable, np.inf)


def agreement(left: Bools, right: Bools) -> float:
    """Of what either keeps, the share that both keep; 1 where neither keeps anything.

    Example:
        >>> agreement(np.array([True, True, False]), np.array([True, False, False]))
        0.5
    """
    either = int((left | right).sum())
    return int((left & right).sum()) / either if either else 1.0


def solve_shifts(rows: FoldRows, wanted: Bools, at: float, start: FloatArray) -> FloatArray:
    """Shifts `(F,)` with which the threshold `at` keeps as much as possible of what is wanted, and little else.

    Args:
        rows: The logits.
        wanted: `(R, F)` what is to be kept.
        at: The one threshold.
        start: `(F,)` shifts to start from; the result is never worse.
    """
    shifts = best = start.copy()
    share = agreement(wanted, rows.scores(start) >= at)
    for _ in range(MOST_SWEEPS):
        moved = _sweep(rows, wanted, at, shifts)
        found = agreement(wanted, rows.scores(moved) >= at)
        if found > share:
            share, best = found, moved
        if share == 1.0 or np.array_equal(moved, shifts):
            break
        shifts = moved
    return best


def _sweep(rows: FoldRows, wanted: Bools, at: float, shifts: FloatArray) -> FloatArray:
    """Each class once, given all others."""
    moved, levels = shifts.copy(), rows.row_levels(at)
    logits = rows.logits.copy()
    logits[:, rows.columns] += shifts
    peak = logits.max(axis=1)
    exponentials = np.exp(logits - peak[:, None])
    total = exponentials.sum(axis=1)
    for label, column in enumerate(rows.columns):
        own = rows.logits[:, column]
        if rows.activation == "sigmoid":
            critical = levels - own
        else:
            others = np.maximum(total - exponentials[:, column], 1e-300)
            critical = levels + np.log(others) + peak - own
        if rows.only_best:
            rivals = logits[:, [other for other in rows.columns if other != column]].max(axis=1, initial=-np.inf)
            critical = np.maximum(critical, rivals - own)
        moved[label] = best_cut(critical, wanted[:, label], float(shifts[label]))
        logits[:, column] = own + moved[label]
        renewed = np.exp(logits[:, column] - peak)
        total += renewed - exponentials[:, column]
        exponentials[:, column] = renewed
    return moved


def best_cut(critical: FloatArray, wanted: Bools, now: float) -> float:
    """The shift that keeps the rows that are wanted and drops the others, with the fewest mistakes.

    A row is kept from its critical shift on. Of shifts that are equally good the one nearest to `now` is taken, in the
    middle of the gap that it lies in unless `now` lies there.

    Example:
        >>> best_cut(np.array([1.0, 2.0, 5.0]), np.array([True, True, False]), 9.0)
        3.5
        >>> best_cut(np.array([1.0, 2.0, 5.0]), np.array([True, True, False]), 3.0)
        3.0
    """
    reachable = np.isfinite(critical)
    values, flags = critical[reachable], wanted[reachable]
    if not len(values):
        return now
    order = np.argsort(values, kind="stable")
    values, flags = values[order], flags[order]
    # After the first k rows: those of them that are unwanted are mistakes, and so are the wanted ones behind them.
    mistakes = np.concatenate([[0], np.cumsum(~flags)]) + flags.sum() - np.concatenate([[0], np.cumsum(flags)])
    low = np.concatenate([[values[0] - 2.0], values])
    high = np.concatenate([values, [values[-1] + 2.0]])
    candidates = np.flatnonzero((mistakes == mistakes[high > low].min()) & (high > low))
    inside = candidates[(low[candidates] < now) & (now < high[candidates])]
    if len(inside):
        return now
    middle = (low[candidates] + high[candidates]) / 2
    return float(middle[np.abs(middle - now).argmin()])
