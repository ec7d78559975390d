"""Checking the per-class numbers that count-based methods are given."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import FloatArray


def checked_counts(name: str, counts: npt.ArrayLike) -> FloatArray:
    """Class counts as float64: one per foreground class, finite, above 0.

    Example:
        >>> checked_counts("counts", [100, 10, 0])
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `counts` to be above 0, but got 0.0 for class 2; a class without a training \
sample has no logarithm: give it 1, for example numpy.maximum(counts, 1).
    """
    try:
        array = np.asarray(counts, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Expected `{name}` to be one number per foreground class, but got {type(counts).__name__}."
        ) from error
    if array.ndim != 1 or len(array) == 0:
        raise InputError(f"Expected `{name}` to be one number per foreground class, but got shape {array.shape}.")
    bad = ~np.isfinite(array)
    if bad.any():
        column = int(np.flatnonzero(bad)[0])
        raise InputError(f"Expected `{name}` to be finite, but got {array[column]} for class {column}.")
    if (array <= 0).any():
        column = int(np.flatnonzero(array <= 0)[0])
        raise InputError(
            f"Expected `{name}` to be above 0, but got {array[column]} for class {column}; a class without a training "
            "sample has no logarithm: give it 1, for example numpy.maximum(counts, 1)."
        )
    return array


def checked_target(target: npt.ArrayLike, num_classes: int) -> FloatArray:
    """The class shares to aim at as float64, which sum to 1: one per foreground class, finite, above 0.

    Example:
        >>> checked_target([1, 3], num_classes=2).tolist()
        [0.25, 0.75]
        >>> checked_target([1, 0], num_classes=2)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `target` to be above 0 and finite, but got 0.0 for class 1; give a class that \
you do not expect a small share.
    """
    try:
        array = np.asarray(target, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"Expected `target` to be one share per foreground class, but got {target!r}.") from error
    if array.shape != (num_classes,):
        raise InputError(
            f"Expected `target` to be one share per foreground class ({num_classes}), but got shape {array.shape}."
        )
    bad = ~(np.isfinite(array) & (array > 0))
    if bad.any():
        column = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"Expected `target` to be above 0 and finite, but got {array[column]} for class {column}; give a class "
            "that you do not expect a small share."
        )
    shares: FloatArray = array / array.sum()
    return shares


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


def checked_strength(strength: float) -> float:
    """How much of a correction: a number from 0 to 1.

    Example:
        >>> checked_strength(1.5)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `strength` to be from 0 to 1, but got 1.5.
    """
    value = checked_number("strength", strength)
    if not 0.0 <= value <= 1.0:
        raise InputError(f"Expected `strength` to be from 0 to 1, but got {strength!r}.")
    return value
