"""Instance masks as annotation files hold them: polygons, compressed and uncompressed run lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hotcoco import mask as hotcoco_mask

from logn.errors import InputError

BoolArray = npt.NDArray[np.bool_]


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
    try:
        rles = _run_lengths(segmentation, height, width)
        if not rles:
            return np.zeros((height, width), np.bool_)
        whole = rles[0] if len(rles) == 1 else hotcoco_mask.merge(rles)
        mask = np.asarray(hotcoco_mask.decode(whole), dtype=np.bool_)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"Expected `segmentation` to be polygons or run lengths, but got {error}."
        ) from error
    if mask.shape != (height, width):
        raise InputError(f"Expected `segmentation` to have size {(height, width)}, but got {mask.shape}.")
    return mask


def _run_lengths(segmentation: Any, height: int, width: int) -> list[Any]:
    if isinstance(segmentation, list):
        # Fewer than three corners enclose nothing; four numbers would be taken for a box.
        polygons = [polygon for polygon in segmentation if len(polygon) >= 6]
        return list(hotcoco_mask.frPyObjects(polygons, height, width)) if polygons else []
    if isinstance(segmentation["counts"], list):
        return [hotcoco_mask.frPyObjects(segmentation, *segmentation["size"])]
    return [segmentation]


def encode_mask(mask: BoolArray) -> dict[str, Any]:
    """Turn a mask into COCO's compressed run lengths, as JSON can hold them.

    Example:
        >>> encode_mask(np.array([[False, True], [True, False]]))
        {'size': [2, 2], 'counts': '121'}
    """
    encoded = hotcoco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    counts = encoded["counts"]
    return {
        "size": [int(side) for side in encoded["size"]],
        "counts": counts.decode("ascii") if isinstance(counts, bytes) else counts,
    }
