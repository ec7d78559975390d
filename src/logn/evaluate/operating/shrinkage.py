"""How far a class's own threshold is to be trusted: empirical Bayes on the logits of thresholds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.logits.arrays import FloatArray

# Decisions that a class must have for its spread over draws to say something of the spread of others.
ENOUGH = 10
_HALVINGS = 60
# Right detections that a class must have for a threshold of its own.
FEWEST = 5


@dataclass(frozen=True, eq=False)
class Trust:
    """How far the own thresholds of the classes are to be trusted.

    Args:
        spread: `(F,)` variance of each own logit over draws of images; None without draws: then nothing is shrunk.
        decisions: `(F,)` how many decisions of the class there are to choose by.
        fewest: A class with fewer keeps the common threshold.
    """

    spread: FloatArray | None
    decisions: npt.NDArray[np.int64]
    fewest: int = FEWEST

    def weights(self, own: FloatArray, common: float) -> tuple[FloatArray, float]:
        """As `shrinkage_weights`; 0 for classes with too few decisions, and without draws 1 for all others."""
        enough = self.decisions >= self.fewest
        if self.spread is None:
            return np.where(enough & np.isfinite(own), 1.0, 0.0), float("nan")
        weights, between = shrinkage_weights(own, common, self.spread, self.decisions)
        return np.where(enough, weights, 0.0), between


def shrinkage_weights(
    own: FloatArray, common: float, spread: FloatArray, decisions: npt.ArrayLike
) -> tuple[FloatArray, float]:
    """The weight of each class's own threshold against the common one, and how much classes truly differ.

    The own logit of a class is taken to be normal around its true one with a variance `v_c`, the true ones to be normal
    around the common one with a variance `t2`, and the weight is `t2 / (t2 + v_c)`. `v_c` is the variance over draws of
    images, but at least `s2 / n_c`, with n_c the decisions of the class and s2 the median of `n_c v_c` over classes
    with ten or more: all draws of a class with one object give the same threshold, which says nothing. `t2` is where
    the sum of `(own - common)^2 / (t2 + v_c)` is the number of classes (Paule and Mandel), over classes with ten or
    more: one far threshold of a class with three objects would speak for trusting it.

    Args:
        own: `(F,)` logit of each class's own threshold; NaN for a class without one, which gets the weight 0.
        common: Logit of the common threshold.
        spread: `(F,)` variance of each over draws of images; NaN where it is not known.
        decisions: `(F,)` how many decisions of the class there are to choose by.

    Example:
        >>> own, spread = np.array([2.0, -2.0, 2.0]), np.array([0.1, 0.1, 0.1])
        >>> weights, between = shrinkage_weights(own, 0.0, spread, [100, 100, 2])
        >>> weights.round(2).tolist(), round(between, 1)
        ([0.98, 0.98, 0.44], 3.9)
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
    between = _between((own - common)[sure] ** 2, variance[sure])
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
