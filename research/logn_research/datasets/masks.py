"""Masks as arrays, from and to what annotation files hold."""

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


def encode_mask(mask: BoolArray) -> dict[str, Any]:
    """Turn a mask into COCO's compressed run lengths, as JSON can hold them.

    Example:
        >>> encode_mask(np.array([[False, True], [True, False]]))
        {'size': [2, 2], 'counts': '121'}
    """
    encoded = _rle.encode(np.asfortranarray(mask, dtype=np.uint8))
    counts = encoded["counts"]
    return {
        "size": [int(side) for side in encoded["size"]],
        "counts": counts.decode("ascii") if isinstance(counts, bytes) else counts,
    }
