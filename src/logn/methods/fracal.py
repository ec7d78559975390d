"""FRACAL (CVPR 2025): class frequency and the fractal dimension of where a class's boxes lie."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray
from logn.data.class_counts import ClassCounts
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.methods.checks import CountKind, checked_counts, checked_number
from logn.statistics.head import Head


def fracal(
    counts: ClassCounts | npt.ArrayLike,
    num_images: float | None = None,
    dimensions: npt.ArrayLike | None = None,
    *,
    power: float = 2.0,
    base: float = 10.0,
    count_kind: CountKind = "images",
    background: int | None = None,
    activation: str | None = None,
) -> ClassAffine:
    """The form for softmax heads: `x_c - log_B(p_c) - log_B(F) - power * ln(D_c)`, F the number of classes.

    Dividing the probability of class c by `D_c^power` and renormalising is the shift by its natural logarithm.

    Args:
        counts: Training images of each foreground class (the released configuration). Instance counts, with their sum
            as `num_images`, give the paper's text.
        num_images: What the counts are divided by to make `p_c`; it matters, since the background is kept. By default
            that of a `ClassCounts`.
        dimensions: Fractal dimension of each class (`logn.data.fractal_dimensions.fractal_dimension`); None leaves the
            spatial part out.
        power: Power of the dimension (lambda); 0 leaves the spatial part out.
        base: Base of the logarithm of the frequencies: 10 in the released configuration; 2 and e are the others.
        count_kind: Which counts of a `ClassCounts` to take: "images" or "instances".
        background: Index of the background column, which is left alone: None, 0 or -1.
        activation: What the model applies to the logits; "sigmoid" is refused: that form is not affine.

    Example:
        >>> fracal([60, 20, 1], 100, background=-1).shift.round(6)
        array([-0.255273,  0.221849,  1.522879,  0.      ])
    """
    if activation == "sigmoid":
        raise InputError(
            "The method `fracal` is for a softmax: its form for sigmoids is a product of two sigmoids, which is no "
            "scale and shift of the logits."
        )
    shift, total = _frequency_shift(counts, num_images, base, count_kind)
    lengths = _checked_dimensions(dimensions, len(shift))
    exponent = checked_number("power", power)
    settings = {"num_images": total, "power": exponent, "base": float(base), "spatial": float(dimensions is not None)}
    return ClassAffine.over_foreground(
        np.ones_like(shift),
        shift - exponent * np.log(lengths),
        Head(background=background),
        method="fracal",
        settings=settings,
    )


def _frequency_shift(
    counts: ClassCounts | npt.ArrayLike, num_images: float | None, base: float, count_kind: str
) -> tuple[FloatArray, float]:
    """The shift by the frequencies, and what the counts were divided by."""
    if num_images is None and isinstance(counts, ClassCounts):
        num_images = counts.num_images
    if num_images is None:
        raise InputError("The method `fracal` needs `num_images`, which the counts do not say: pass it.")
    numbers = checked_counts("counts", counts, count_kind)
    total = checked_number("num_images", num_images, above=0.0)
    if numbers.max() > total:
        index = int(numbers.argmax())
        raise InputError(
            f"Expected `counts` to be at most `num_images` ({total:g}), but got {numbers[index]:g} for class {index}."
        )
    logarithm = np.log(checked_number("base", base, above=1.0))
    shift: FloatArray = -(np.log(numbers / total) + np.log(len(numbers))) / logarithm
    return shift, total


def _checked_dimensions(dimensions: npt.ArrayLike | None, num_classes: int) -> FloatArray:
    if dimensions is None:
        return np.ones(num_classes)
    array = checked_counts("dimensions", dimensions)
    if len(array) != num_classes:
        raise InputError(f"Expected `dimensions` to have {num_classes} numbers, but got {len(array)}.")
    return array
