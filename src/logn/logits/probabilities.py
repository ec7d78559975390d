"""Telling probabilities from logits: what has been through a softmax or a sigmoid already."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

# Fewer rows can look like anything.
FEWEST_ROWS = 20
# More rows are not looked at: hundreds that all sum to 1 leave no doubt.
SAMPLED_ROWS = 512
# Half precision, in which sampled rows are kept, rounds a row of probabilities to a sum that is not exactly 1.
SUM_TOLERANCE = 0.02


def probability_kind(
    rows: npt.NDArray[Any], *, tolerance: float = SUM_TOLERANCE
) -> Literal["softmax", "sigmoid"] | None:
    """What `rows` (N, C) have been through: "softmax" is sure, "sigmoid" a guess; None for logits.

    Args:
        rows: Logits or probabilities.
        tolerance: How far the sum of a row of probabilities may be from 1.

    Example:
        >>> probability_kind(np.array([[0.1, 0.9], [0.5, 0.5]])), probability_kind(np.array([[0.1, 0.2], [0.5, 0.9]]))
        ('softmax', 'sigmoid')
        >>> probability_kind(np.array([[0.1, 1.9], [-0.5, 0.5]])) is None
        True
    """
    values = np.asarray(rows, np.float64)
    if values.size == 0 or not (values.min() >= 0 and values.max() <= 1):  # NaN lies nowhere
        return None
    if values.shape[1] > 1 and np.abs(values.sum(axis=1) - 1).max() < tolerance:
        return "softmax"
    return "sigmoid" if values.max() > values.min() else None  # one number everywhere is no answer of a model
