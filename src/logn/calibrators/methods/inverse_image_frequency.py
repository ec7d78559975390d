"""Inverse image frequency (IIF, TIP 2023): multiply each logit by how unusual its class is."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.class_frequencies import checked_counts
from logn.calibrators.method import COUNT_KIND_OPTION, Method, MethodInputs, Option, Options
from logn.errors import InputError

Variant = Literal["smooth", "raw", "relative", "base2", "base10"]


def inverse_image_frequency(
    counts: npt.ArrayLike, variant: Variant = "smooth", *, background: int | None = None
) -> ClassAffine:
    """Map `x_c` to `x_c * I_c`.

    A logit of 0 stays 0, and a negative logit of a rare class gets more negative: the method helps only where the
    logits that matter are positive.

    Args:
        counts: Training samples of each foreground class.
        variant: "smooth" is `log((N + 1) / (n + 1)) + 1`, the post-hoc default; "raw" `log(N / n)`; "relative"
            `log((N - n) / n)`; "base2" and "base10" are "raw" in that base.
        background: Place of the background column, which is left alone: None, 0 or -1.

    Example:
        >>> inverse_image_frequency([100, 10, 1]).scale.round(6)
        array([1.103378, 3.320604, 5.025352])
    """
    numbers = checked_counts("counts", counts)
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
        factors[variant](), 0.0 * numbers, background, method="iif", settings={"variant": variant}
    )


def _fit(inputs: MethodInputs, options: Options) -> ClassAffine:
    counts = inputs.needed_counts(options.pop("counts", "images"))
    return inverse_image_frequency(counts, background=inputs.background, **options)


METHOD = Method(
    "iif",
    "inverse image frequency",
    _fit,
    {
        "variant": Option("name", "smooth (default), raw, relative, base2, base10.", get_args(Variant), "--variant"),
        "counts": COUNT_KIND_OPTION,
    },
    needs=("counts",),
)
