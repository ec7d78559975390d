"""Per-class numbers that a loss is given, as tensors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logn.errors import InputError


def class_numbers(name: str, values: npt.ArrayLike, *, above_zero: bool = False) -> Tensor:
    """One finite number of 0 or more for each foreground class, in float64.

    Args:
        name: What to call them in an error.
        values: The numbers.
        above_zero: Refuse 0 too, where a logarithm is taken.

    Example:
        >>> class_numbers("counts", [100, 10, 0], above_zero=True)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `counts` to be above 0, but got 0 for class 2; give a class without a \
sample 1, for example numpy.maximum(counts, 1).
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise InputError(f"Expected `{name}` to be one number per foreground class, but got shape {array.shape}.")
    bad = ~np.isfinite(array) | (array < 0)
    if bad.any():
        place = int(np.flatnonzero(bad)[0])
        raise InputError(f"Expected `{name}` to be finite and not negative, but got {array[place]} for class {place}.")
    if above_zero and (array == 0).any():
        raise InputError(
            f"Expected `{name}` to be above 0, but got 0 for class {int(np.flatnonzero(array == 0)[0])}; give a class"
            f" without a sample 1, for example numpy.maximum({name}, 1)."
        )
    return torch.from_numpy(array.copy())
