"""Logits in float16, the precision in which many are dumped: read several times as fast as NumPy's cast reads them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


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
