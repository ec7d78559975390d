"""How far a class's own threshold is to be trusted: empirical Bayes on the logits of thresholds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from logn.logits.arrays import FloatArray

# Decisions that a class must have for its spread over draws to say something of the spread of others.
ENOUGH = 10
_HALVINGS = 60


def shrinkage_weights(
    own: FloatArray, common: float, spread: FloatArray, decisions: npt.ArrayLike
) -> tuple[FloatArray, float]:
    """The weight of each class's own threshold against the common one, and how much classes truly differ.

    The own logit of a class is taken to be normal around its true one with a variance `v_c`, the true ones to be normal
    around the common one with a variance `t2`, and the weight is `t2 / (t2 + v_c)`. `v_c` is the variance over draws of
    images, but at least `s2 / n_c`, with n_c the decisions of the class and s2 the median of `n_c v_c` over classes
    with ten or more: all draws of a class with one object give the same threshold, which says nothing. `t2` is where
    the sum of `(own - common)^2 / (t2 + v_c)` is the number of classes (Paule and Mandel).

    Args:
        own: `(F,)` logit of each class's own threshold; NaN for a class without one, which gets the weight 0.
        common: Logit of the common threshold.
        spread: `(F,)` variance of each over draws of images; NaN where it is not known.
        decisions: `(F,)` how many decisions of the class there are to choose by.

    Example:
        >>> own, spread = np.array([2.0, -2.0, 2.0]), np.array([0.1, 0.1, 0.1])
        >>> weights, between = shrinkage_weights(own, 0.0, spread, [100, 100, 2])
        >>> weights.round(2).tolist(), round(between, 1)
        ([0.97, 0.97, 0.38], 3.1)
    """
    count = np.asarray(decisions, np.float64)
    known = np.isfinite(own) & (count > 0)
    sure = known & (count >= ENOUGH) & np.isfinite(spread)
    weights = np.zeros(len(own))
    if not sure.any():
        return weights, 0.0  # no class says how much a threshold moves from draw to draw
    pooled = float(np.median((count * spread)[sure]))
    variance = np.maximum(np.nan_to_num(spread), pooled / np.maximum(count, 1))
    variance = np.maximum(variance, 1e-6)
    between = _between((own - common)[known] ** 2, variance[known])
    weights[known] = between / (between + variance[known])
    return weights, between


def _between(squares: FloatArray, variance: FloatArray) -> float:
    """The variance between classes: 0 where their spread is no larger than that of the draws."""
    low, high = 0.0, float(squares.sum()) + 1.0
    if (squares / variance).sum() <= len(squares):
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if (squares / (middle + variance)).sum() > len(squares):
            low = middle
        else:
            high = middle
    return (low + high) / 2
