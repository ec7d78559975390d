"""Inverse image frequency (IIF, TIP 2023): a factor per class, by training counts."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from logn.data.class_counts import ClassCounts
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.methods.checks import CountKind, checked_counts
from logn.statistics.head import Head

Variant = Literal["smooth", "raw", "relative", "base2", "base10"]


def inverse_image_frequency(
    counts: ClassCounts | npt.ArrayLike,
    variant: Variant = "smooth",
    *,
    count_kind: CountKind = "images",
    background: int | None = None,
) -> ClassAffine:
    """Inverse image frequency (IIF, TIP 2023): map `x_c` to `x_c * I_c`.

    A logit of 0 stays 0, and a negative logit of a rare class gets more negative: the method helps only where the
    logits that matter are positive.

    Args:
        counts: Training samples of each foreground class.
        variant: "smooth" is `log((N + 1) / (n + 1)) + 1`, the post-hoc default; "raw" `log(N / n)`; "relative"
            `log((N - n) / n)`; "base2" and "base10" are "raw" in that base.
        count_kind: Which counts of a `ClassCounts` to take: "images" or "instances".
        background: Index of the background column, which is left alone: None, 0 or -1.

    Example:
        >>> inverse_image_frequency([100, 10, 1]).scale.round(6)
        array([1.103378, 3.320604, 5.025352])
    """
    numbers = checked_counts("counts", counts, count_kind)
    total = numbers.sum()
    if len(numbers) < 2:
        raise InputError("Expected `counts` to have at least two classes, but got one.")
    factors = {
        "smooth": lambda: np.log((total + 1) / (numbers + 1)) + 1,
        "raw": lambda: np.log(total / numbers),
        "relative": lambda: np.log((total - numbers) / numbers),
        "base2": lambda: np.log2(total / numbers),
        "base10": lambda: np.log10(total / numbers),
    }
    if variant not in factors:
        raise InputError(f"Expected `variant` to be one of {tuple(factors)}, but got {variant!r}.")
    return ClassAffine.over_foreground(
        factors[variant](), 0.0 * numbers, Head(background=background), method="iif", settings={"variant": variant}
    )
