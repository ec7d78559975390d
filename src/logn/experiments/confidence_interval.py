"""Student's t: how far the mean of a few values may be from the truth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

#: Two-sided 95 % quantiles for 1, 2, … degrees of freedom.
_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL = 1.959964


def student_quantile(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t, to three digits after the point.

    Args:
        freedom: Degrees of freedom, at least 1.

    Example:
        >>> [round(student_quantile(freedom), 3) for freedom in (1, 6, 24, 1000)]
        [12.706, 2.447, 2.064, 1.962]
    """
    if freedom <= len(_QUANTILES):
        return _QUANTILES[freedom - 1]
    # Fisher's expansion around the normal distribution.
    z = _NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of independent values; NaN for fewer than two.

    Example:
        >>> round(half_width([60.0, 61.0, 62.0]), 2)
        2.48
    """
    if len(values) < 2:
        return math.nan
    return student_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
