"""tau-norm (Kang et al., ICLR 2020): the weights of the classifier brought to one length."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import as_numpy
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.methods.checks import checked_number
from logn.statistics.head import Head, foreground_columns


def tau_norm(weight: Any, tau: float = 1.0, bias: Any = None, *, background: int | None = None) -> ClassAffine:
    """tau-norm (Kang et al., ICLR 2020): map `x_c = w_c · f + b_c` to `w_c · f / |w_c|^tau`; the bias is dropped.

    Every weight of a normalised (cosine) classifier has the same effective length, so tau-norm cannot change one.

    Args:
        weight: Weight of the classifier, one row per column of the logits: `(C, D)`, or a convolution's
            `(C, in, k, k)`; a NumPy array or a torch tensor.
        tau: The power, 0 to keep the weights (the bias is dropped even then).
        bias: Bias of the classifier, if it has one.
        background: Index of the background column, which is left alone: None, 0 or -1.

    Example:
        >>> weight, feature = np.array([[3.0, 4.0], [0.6, 0.8], [0.0, 0.5]]), np.array([1.0, 2.0])
        >>> tau_norm(weight, 0.7)(weight @ feature).round(6)
        array([3.565445, 2.2     , 1.624505])
    """
    power = checked_number("tau", tau)
    rows = _as_array("weight", weight)
    if rows.ndim < 2:
        raise InputError(f"Expected `weight` to have one row per class, but got shape {rows.shape}.")
    lengths = np.sqrt((rows.reshape(len(rows), -1) ** 2).sum(axis=1))
    if (lengths == 0).any():
        row = int(np.flatnonzero(lengths == 0)[0])
        raise InputError(f"Expected `weight` to have no row of zeros, but row {row} is one.")
    offsets = np.zeros(len(rows)) if bias is None else _as_array("bias", bias)
    if offsets.shape != (len(rows),):
        raise InputError(f"Expected `bias` to have shape ({len(rows)},), but got {offsets.shape}.")
    head = Head(len(rows), background=background)
    foreground = foreground_columns(len(rows), head.background)
    scale = lengths[foreground] ** -power
    return ClassAffine.over_foreground(
        scale, -scale * offsets[foreground], head, method="tau-norm", settings={"tau": power}
    )


def _as_array(name: str, values: Any) -> npt.NDArray[np.float64]:
    array = np.asarray(as_numpy(values), np.float64)
    if not np.isfinite(array).all():
        raise InputError(f"Expected `{name}` to be finite, but it has values that are not.")
    return array
