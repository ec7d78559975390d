"""Checking what methods are given: numbers, class counts, class shares, statistics."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray
from logn.data.class_counts import ClassCounts
from logn.errors import InputError
from logn.statistics.doubts import refuse_probabilities
from logn.statistics.moments import ClassMoments

CountKind = Literal["images", "instances"]


def checked_counts(name: str, counts: ClassCounts | npt.ArrayLike, kind: str = "images") -> FloatArray:
    """Class counts as float64: one per foreground class, finite, above 0.

    Args:
        name: What to call them in messages.
        counts: The counts, or a `ClassCounts`.
        kind: Which counts of a `ClassCounts`: "images" or "instances".

    Example:
        >>> checked_counts("counts", [100, 10, 0])
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `counts` to be above 0 and finite, but got 0.0 for class 2; give a class \
without a training sample 1, for example numpy.maximum(counts, 1).
    """
    if kind not in ("images", "instances"):
        raise InputError(f"Expected `count_kind` to be images or instances, but got {kind!r}.")
    if isinstance(counts, ClassCounts):
        counts = counts.image_counts if kind == "images" else counts.instance_counts
    return _positive(name, counts, "give a class without a training sample 1, for example numpy.maximum(counts, 1)")


def checked_target(target: npt.ArrayLike, num_classes: int) -> FloatArray:
    """The class shares to aim at as float64, which sum to 1: one per foreground class, finite, above 0.

    Example:
        >>> checked_target([1, 3], num_classes=2).tolist()
        [0.25, 0.75]
    """
    array = _positive("target", target, "give a class that you do not expect a small share")
    if len(array) != num_classes:
        raise InputError(
            f"Expected `target` to be one share per foreground class ({num_classes}), but got {len(array)}."
        )
    shares: FloatArray = array / array.sum()
    return shares


def _positive(name: str, values: npt.ArrayLike, hint: str) -> FloatArray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"Expected `{name}` to be one number per foreground class, but got {type(values).__name__}."
        ) from None
    if array.ndim != 1 or len(array) == 0:
        raise InputError(f"Expected `{name}` to be one number per foreground class, but got shape {array.shape}.")
    bad = ~(np.isfinite(array) & (array > 0))
    if bad.any():
        index = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"Expected `{name}` to be above 0 and finite, but got {array[index]} for class {index}; {hint}."
        )
    return array


def checked_number(name: str, value: float, *, above: float | None = None) -> float:
    """A finite number, above a bound where one is given.

    Example:
        >>> checked_number("tau", float("nan"))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `tau` to be a finite number, but got nan.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not np.isfinite(value):
        raise InputError(f"Expected `{name}` to be a finite number, but got {value!r}.")
    if above is not None and value <= above:
        raise InputError(f"Expected `{name}` to be above {above:g}, but got {value!r}.")
    return float(value)


def checked_share(name: str, value: float) -> float:
    """A number from 0 to 1, such as a strength or a score threshold.

    Example:
        >>> checked_share("strength", 1.5)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `strength` to be from 0 to 1, but got 1.5.
    """
    if not 0.0 <= checked_number(name, value) <= 1.0:
        raise InputError(f"Expected `{name}` to be from 0 to 1, but got {value!r}.")
    return float(value)


def check_moments(moments: ClassMoments) -> None:
    """Refuse other objects than statistics, statistics of one row, and those of probabilities."""
    if not isinstance(moments, ClassMoments):
        raise InputError(
            f"Expected `moments` to be a logn.ClassMoments, but got {type(moments).__name__}; logits are added by its "
            "update(logits), a file is read by its load(path)."
        )
    if moments.count.max() == 1 and np.isnan(moments.variance).all():
        raise InputError("Expected `moments` to hold at least two rows of logits, but got 1.")
    refuse_probabilities(moments)
