"""Masks as arrays, from what annotation files hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from logn.data.masks import BoolArray, encode_segmentation
from logn.errors import InputError, import_extra

_rle = import_extra("hotcoco", extra="evaluate").mask


def decode_segmentation(segmentation: Any, height: int, width: int) -> BoolArray:
    """Turn one `segmentation` field into a mask of shape `(height, width)`.

    Example:
        >>> decode_segmentation([[1, 1, 4, 1, 4, 3, 1, 3]], 4, 5).astype(int)
        array([[0, 0, 0, 0, 0],
               [0, 1, 1, 1, 0],
               [0, 1, 1, 1, 0],
               [0, 0, 0, 0, 0]])
        >>> decode_segmentation({"size": [2, 2], "counts": [1, 2, 1]}, 2, 2).astype(int)
        array([[0, 1],
               [1, 0]])
    """
    encoded = encode_segmentation(segmentation, height, width)
    try:
        return np.asarray(_rle.decode(encoded), dtype=np.bool_)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"`segmentation` is neither polygons nor run lengths: {error}.") from error
