"""Temperature scaling, which changes no ranking within a row."""

from __future__ import annotations

import numpy as np

from logn.methods.affine import ClassAffine
from logn.methods.checks import checked_number
from logn.statistics.head import Head


def temperature(num_columns: int, value: float, *, background: int | None = None) -> ClassAffine:
    """Temperature scaling: divide every logit, the background's too, by `value`; no ranking within a row changes.

    Args:
        num_columns: Columns of the logits, the background included.
        value: The temperature, above 0; more than 1 makes the scores less certain.
        background: Index of the background column, for the record: None, 0 or -1.

    Example:
        >>> temperature(2, 4.0)(np.array([2.0, -8.0]))
        array([ 0.5, -2. ])
    """
    divisor = checked_number("value", value, above=0.0)
    scale = np.full(num_columns, 1.0 / divisor)
    return ClassAffine(
        scale,
        np.zeros(num_columns),
        Head(background=background),
        method="temperature",
        settings={"value": divisor},
    )
