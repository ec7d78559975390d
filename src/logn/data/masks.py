"""Instance masks as annotation files hold them: polygons, compressed and uncompressed run lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError, import_extra

BoolArray = npt.NDArray[np.bool_]

_FARTHEST = 1e6  # pixels; a corner out there is a broken file, and would take long to draw


def _rle() -> Any:
    """Run-length codes of masks; imported late, since reading labels needs no masks."""
    return import_extra("hotcoco", extra="evaluate").mask


def encode_segmentation(segmentation: Any, height: int, width: int) -> Any:
    """Turn one `segmentation` field into the run lengths that hotcoco takes."""
    try:
        rles = _run_lengths(segmentation, height, width)
        if not rles:
            return _rle().encode(np.zeros((height, width), np.uint8, order="F"))
        return rles[0] if len(rles) == 1 else _rle().merge(rles)
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise InputError(f"`segmentation` is neither polygons nor run lengths: {error}.") from error


def _run_lengths(segmentation: Any, height: int, width: int) -> list[Any]:
    if isinstance(segmentation, list):
        # Fewer than three corners enclose nothing; four numbers would be taken for a box.
        polygons = [polygon for polygon in segmentation if len(polygon) >= 6]
        for polygon in polygons:
            _check_polygon(polygon)
        return list(_rle().frPyObjects(polygons, height, width)) if polygons else []
    # hotcoco makes room for whatever size it is given, so what does not fit must not get that far.
    if list(segmentation["size"]) != [height, width]:
        raise InputError(f"Expected `segmentation` to have size {[height, width]}, but got {segmentation['size']}.")
    counts = segmentation["counts"]
    if not isinstance(counts, list):
        return [segmentation]
    if any(type(count) is not int or count < 0 for count in counts) or sum(counts) != height * width:
        raise InputError(
            f"The run lengths of `segmentation` do not add up to the {height * width} pixels of the image."
        )
    return [_rle().frPyObjects(segmentation, height, width)]


def _check_polygon(polygon: Sequence[float]) -> None:
    if len(polygon) % 2 or not all(abs(value) <= _FARTHEST for value in polygon):  # NaN is not less than anything
        raise InputError(f"A polygon of `segmentation` is not pairs of numbers of at most {_FARTHEST:,.0f}.")
