"""Shift, and scale, of each class by labelled rows: the least log-loss, shrunk towards a map that needs no labels.

For rows of base-mapped logits x with class y the loss is

    sum_i w_i (-log p(y_i | z_i)) + lambda / 2 sum_c v_c (d_c^2 + s_c^2 g_c^2),    z_c = x_c + d_c + g_c (x_c - m_c)

with m_c and s_c the mean and the standard deviation of x_c. A row of class c weighs `v_c`, proportional to the share of
the class in the target over that in the labelled rows, so the fit aims at the target whatever mix was labelled; and
lambda counts as so many rows of each class that say "stay": classes with few rows stay near the base, as in empirical
Bayes. Lambda is chosen by cross-validation. A class without a row stays where the base put it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.labelled_rows import LabelledRows
from logn.errors import InputError
from logn.logits.arrays import FloatArray, foreground_columns

# Rows that say "stay": from hardly any to so many that nothing moves.
STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, np.inf)
FOLDS = 5
# Newton's method ends where a step promises less of the loss than this, as a share of a row.
ENOUGH = 1e-6
MOST_STEPS = 50
# No class is turned upside down.
LEAST_FACTOR = 0.1


class LabelledFit(NamedTuple):
    """What is put on top of the base, and how it was found."""

    affine: ClassAffine
    strength: float
    losses: tuple[float, ...]
    unlabelled_classes: int


class _Rows(NamedTuple):
    """What the loss is made of."""

    logits: FloatArray
    real: FloatArray  # one-hot
    weight: FloatArray  # of each row
    class_weight: FloatArray  # v_c
    free: npt.NDArray[np.bool_]  # columns that may move
    centre: FloatArray
    spread: FloatArray


def fit_to_labels(
    rows: LabelledRows,
    base: ClassAffine,
    activation: str,
    *,
    target: FloatArray | None = None,
    with_scale: bool = False,
    seed: int = 0,
) -> LabelledFit:
    """Fit shifts, or scales and shifts, on top of `base`.

    Args:
        rows: The labelled rows.
        base: The map that needs no labels.
        activation: "softmax" or "sigmoid".
        target: Share of each foreground class that is aimed at; None is the same for all.
        with_scale: Whether the scales move too.
        seed: Of the folds.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat([0, 1], 500)
        >>> rows = LabelledRows(2 * np.eye(2)[labels] + rng.normal(size=(1000, 2)) + [3.0, 0.0], labels)
        >>> shift = fit_to_labels(rows, ClassAffine.identity(2), "softmax").affine.shift
        >>> round(float(shift[1] - shift[0]))
        3
    """
    _check(rows, base)
    weight, class_weight = _weights(rows, target, base.background)
    logits = base(rows.logits)
    fold = _folds(rows.units, seed)
    whole = _prepared(rows, logits, weight, class_weight, base.background, np.ones(len(rows), bool))
    losses = _held_out_losses(rows, logits, weight, class_weight, base.background, fold, activation, with_scale)
    strength = STRENGTHS[int(np.argmin(losses))]
    shift, factor = _minimum(whole, strength, activation, with_scale)
    on_top = ClassAffine(1.0 + factor, shift - factor * whole.centre, base.background)
    unlabelled = int((~whole.free).sum()) - (base.background is not None)
    # Without names of its own and without a source, the map on top only moves what the base made.
    affine = base.with_source(None).then(on_top).with_source(base.source)
    return LabelledFit(affine, strength, tuple(losses), unlabelled)


def _check(rows: LabelledRows, base: ClassAffine) -> None:
    if rows.num_columns != base.num_classes:
        raise InputError(f"Expected the labelled rows to have {base.num_classes} columns, but got {rows.num_columns}.")
    if len(np.unique(rows.units)) < 2:
        raise InputError("Expected labelled rows of at least two images to choose the shrinkage, but got one.")
    if len(np.unique(rows.labels)) < 2:
        raise InputError(
            f"Expected labelled rows of at least two classes, but all {len(rows):,} are of one: nothing can be told "
            "apart."
        )


def _weights(rows: LabelledRows, target: FloatArray | None, background: int | None) -> tuple[FloatArray, FloatArray]:
    """How much each row counts, and a row of each class; those of foreground classes count together what they did."""
    columns = np.arange(rows.num_columns)[foreground_columns(rows.num_columns, background)]
    seen = rows.per_column[columns]
    aim = np.where(seen > 0, np.ones(len(columns)) if target is None else target, 0.0)
    per_class = np.ones(rows.num_columns)
    per_class[columns] = np.divide(aim, seen, out=np.ones(len(columns)), where=seen > 0)
    total = float((per_class[columns] * seen).sum())
    per_class[columns] *= seen.sum() / total if total else 1.0
    return np.where(rows.labels >= 0, per_class[rows.labels], 1.0), per_class


def _folds(units: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int64]:
    """The fold of each row; rows that belong together are in one."""
    _, unit = np.unique(units, return_inverse=True)
    number = int(unit.max()) + 1
    place = np.random.default_rng(seed).permutation(number) % min(FOLDS, number)
    return np.asarray(place[unit])


def _prepared(
    rows: LabelledRows,
    logits: FloatArray,
    weight: FloatArray,
    class_weight: FloatArray,
    background: int | None,
    part: npt.NDArray[np.bool_],
) -> _Rows:
    labels = rows.labels[part]
    known = labels >= 0
    real = np.zeros((len(labels), rows.num_columns))
    real[np.flatnonzero(known), labels[known]] = 1.0
    free = real.sum(axis=0) > 0
    if background is not None:
        free[background] = False
    chosen = logits[part]
    spread = np.maximum(chosen.std(axis=0), 1e-6)
    return _Rows(chosen, real, weight[part], class_weight, free, chosen.mean(axis=0), spread)


def _held_out_losses(
    rows: LabelledRows,
    logits: FloatArray,
    weight: FloatArray,
    class_weight: FloatArray,
    background: int | None,
    fold: npt.NDArray[np.int64],
    activation: str,
    with_scale: bool,
) -> list[float]:
    """Log-loss of each strength on rows that it was not fitted to."""
    losses = np.zeros(len(STRENGTHS))
    for number in np.unique(fold):
        fitted = _prepared(rows, logits, weight, class_weight, background, fold != number)
        held_out = _prepared(rows, logits, weight, class_weight, background, fold == number)
        start = None
        for place in reversed(range(len(STRENGTHS))):  # from the base, each from where the stronger one ended
            start = _minimum(fitted, STRENGTHS[place], activation, with_scale, start)
            shift, factor = start
            moved = held_out.logits + shift + factor * (held_out.logits - fitted.centre)
            losses[place] += _log_loss(moved, held_out, activation)
    return [float(value) for value in losses / weight.sum()]


Moves = tuple[FloatArray, FloatArray]


def _minimum(rows: _Rows, strength: float, activation: str, with_scale: bool, start: Moves | None = None) -> Moves:
    """Newton's method with halved steps; the loss is convex in shifts and factors."""
    columns = rows.logits.shape[1]
    shift, factor = (np.zeros(columns), np.zeros(columns)) if start is None else start
    if not np.isfinite(strength) or not rows.free.any():
        return np.zeros(columns), np.zeros(columns)
    free = np.flatnonzero(rows.free)
    centred = rows.logits - rows.centre
    pull = strength * rows.class_weight[free]
    penalty = np.concatenate([pull, pull * rows.spread[free] ** 2]) if with_scale else pull

    def at(values: FloatArray) -> Moves:
        new_shift, new_factor = np.zeros(columns), np.zeros(columns)
        new_shift[free] = values[: len(free)]
        if with_scale:
            new_factor[free] = np.maximum(values[len(free) :], LEAST_FACTOR - 1.0)
        return new_shift, new_factor

    def loss(values: FloatArray) -> float:
        moves = at(values)
        return _log_loss(rows.logits + moves[0] + moves[1] * centred, rows, activation) + float(penalty @ values**2 / 2)

    values = np.concatenate([shift[free], factor[free]]) if with_scale else shift[free]
    now = loss(values)
    for _ in range(MOST_STEPS):
        moves = at(values)
        gradient, curvature = _derivatives(
            rows.logits + moves[0] + moves[1] * centred, centred, rows, free, activation, with_scale
        )
        gradient = gradient + penalty * values
        step = np.linalg.solve(curvature + np.diag(penalty), gradient)
        if gradient @ step < ENOUGH:
            break
        size, then = 1.0, loss(values - step)
        while then > now - 0.1 * size * float(gradient @ step) and size > 1e-6:
            size /= 2
            then = loss(values - size * step)
        values, now = values - size * step, then
    return at(values)


def _log_loss(logits: FloatArray, rows: _Rows, activation: str) -> float:
    if activation == "sigmoid":
        return float(rows.weight @ (np.logaddexp(0.0, logits) - rows.real * logits).sum(axis=1))
    top = logits.max(axis=1)
    total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    return float(rows.weight @ (total - (rows.real * logits).sum(axis=1)))


def _derivatives(
    logits: FloatArray,
    centred: FloatArray,
    rows: _Rows,
    free: npt.NDArray[np.intp],
    activation: str,
    with_scale: bool,
) -> tuple[FloatArray, FloatArray]:
    """Gradient and curvature of the loss by the shifts, then the factors, of the free columns."""
    if activation == "sigmoid":
        scores = np.exp(-np.logaddexp(0.0, -logits))
    else:
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    weight = rows.weight[:, None]
    wrong = (weight * (scores - rows.real))[:, free]
    features: list[Any] = [1.0, centred[:, free]] if with_scale else [1.0]
    own = weight * scores * (1.0 - scores if activation == "sigmoid" else 1.0)
    gradient = np.concatenate([(wrong * feature).sum(axis=0) for feature in features])
    curvature = np.block(
        [[np.diag((own[:, free] * one * other).sum(axis=0)) for other in features] for one in features]
    )
    if activation == "softmax":
        table = np.hstack([np.sqrt(weight) * scores[:, free] * feature for feature in features])
        curvature = curvature - table.T @ table
    return gradient, curvature
