"""NumPy arrays and torch tensors of logits, read without importing torch and without changing them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError

FloatArray = npt.NDArray[np.float64]

# The score threshold that a model is used with, unless the user gives another one.
DEFAULT_AT = 0.25


def is_torch_tensor(array: Any) -> bool:
    """Whether `array` is a torch tensor; torch is not imported to find out.

    Example:
        >>> is_torch_tensor(np.zeros(3))
        False
    """
    if isinstance(array, np.ndarray):
        return False
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(array).__mro__)


def as_rows(logits: Any, num_columns: int) -> npt.NDArray[np.floating[Any]]:
    """View `logits` of shape (…, C) as a NumPy array of shape (N, C), in its own precision.

    A tensor comes to the CPU as it is; bfloat16, which NumPy lacks, becomes float32 (exactly).

    Example:
        >>> as_rows(np.zeros((2, 5, 3), dtype=np.float16), num_columns=3).shape
        (10, 3)
        >>> as_rows(np.zeros((2, 5)), num_columns=3)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `logits` to have shape (…, 3), but got (2, 5).
    """
    array = logits if type(logits) is np.ndarray else as_numpy(logits)  # memory maps are slow to slice
    if not array.ndim or array.shape[-1] != num_columns:
        raise InputError(f"Expected `logits` to have shape (…, {num_columns}), but got {array.shape}.")
    if array.dtype.char not in "efd":  # float16, float32, float64
        raise InputError(f"Expected `logits` to be floating point, but got {array.dtype}.")
    return array if array.ndim == 2 else array.reshape(-1, num_columns)


def as_numpy(values: Any) -> npt.NDArray[Any]:
    """An array of what is given; a tensor comes to the CPU, and bfloat16, which NumPy lacks, becomes float32.

    Example:
        >>> as_numpy([1.5, 2.0])
        array([1.5, 2. ])
    """
    if not is_torch_tensor(values):
        return np.asarray(values)
    return (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy(force=True)  # type: ignore[no-any-return]


def row_blocks(rows: npt.NDArray[Any], size: int) -> Iterator[npt.NDArray[Any]]:
    """Cut `rows` into views of at most `size` rows.

    Example:
        >>> [len(block) for block in row_blocks(np.zeros((5, 2)), 2)]
        [2, 2, 1]
    """
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def softmax(logits: npt.ArrayLike) -> FloatArray:
    """Softmax over the last axis in float64, safe for large logits.

    Example:
        >>> softmax([0.0, 0.0]).tolist()
        [0.5, 0.5]
    """
    array = np.asarray(logits, dtype=np.float64)
    exponentials = np.exp(array - array.max(axis=-1, keepdims=True))
    result: FloatArray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return result


def log_softmax(logits: npt.ArrayLike) -> FloatArray:
    """Logarithm of the softmax over the last axis in float64, safe for large logits.

    Example:
        >>> log_softmax([0.0, -1e4]).tolist()
        [0.0, -10000.0]
    """
    array = np.asarray(logits, dtype=np.float64)
    shifted = array - array.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def sigmoid(logits: npt.ArrayLike) -> FloatArray:
    """Logistic function in float64, safe for large logits of either sign.

    Example:
        >>> sigmoid([0.0, -1e4, 1e4]).tolist()
        [0.5, 0.0, 1.0]
    """
    array = np.asarray(logits, dtype=np.float64)
    decay = np.exp(-np.abs(array))
    result: FloatArray = np.where(array >= 0, 1.0, decay) / (1.0 + decay)
    return result


def logit(probability: npt.ArrayLike) -> FloatArray:
    """The logarithm of the odds in float64, the inverse of `sigmoid`; infinite for 0 and 1.

    Example:
        >>> logit([0.5, 0.0, 1.0]).tolist()
        [0.0, -inf, inf]
    """
    values = np.asarray(probability, np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(values) - np.log1p(-values))


def ratio(part: npt.ArrayLike, whole: npt.ArrayLike) -> FloatArray:
    """`part / whole` in float64; NaN where `whole` is 0.

    Example:
        >>> ratio([1, 0], [4, 0]).tolist()
        [0.25, nan]
    """
    above, below = np.asarray(part), np.asarray(whole)
    shape = np.broadcast_shapes(above.shape, below.shape)
    return np.asarray(np.divide(above, below, out=np.full(shape, np.nan), where=below > 0))


def nan_mean(values: npt.NDArray[Any], axis: int = -1) -> FloatArray:
    """Mean of what is not NaN along an axis; NaN where nothing is left.

    Example:
        >>> nan_mean(np.array([[0.2, 0.4, np.nan], [np.nan] * 3])).round(3).tolist()
        [0.3, nan]
    """
    present = ~np.isnan(values)
    return ratio(np.where(present, values, 0.0).sum(axis=axis), present.sum(axis=axis))


def widen(rows: npt.NDArray[np.float16], out: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Finite float16 as float32, exactly, put into `out`, which is returned.

    The bits of the exponent and of the mantissa move to their place in float32; the differing bias of the exponent is
    a factor of 2 ** 112, which also gives subnormal numbers their value.

    Example:
        >>> widen(np.array([1.5, -2.0, 6e-8], np.float16), out=np.empty(3, np.float32)).tolist()
        [1.5, -2.0, 5.960464477539063e-08]
    """
    bits = out.view(np.int32)
    np.copyto(bits, rows.view(np.int16))  # extends the sign over the upper half
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, np.int32(0x0FFFE000 - 2**31), out=bits)
    return np.multiply(out, np.float32(2.0**112), out=out)


def is_finite(rows: npt.NDArray[np.float16]) -> bool:
    """Whether all of the float16 `rows` are finite.

    The bits of infinity and NaN are the largest of their sign: as signed numbers the positive ones come last, as
    unsigned numbers the negative ones.

    Example:
        >>> is_finite(np.array([65504.0, -65504.0], np.float16)), is_finite(np.array([1.0, -np.inf], np.float16))
        (True, False)
    """
    return bool(rows.view(np.int16).max(initial=0) < 0x7C00 and rows.view(np.uint16).max(initial=0) < 0xFC00)
