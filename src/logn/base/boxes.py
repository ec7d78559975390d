"""Boxes as corners `x1, y1, x2, y2`: their overlap, and corners from centre and size."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from logn.base.arrays import is_torch_tensor

ArrayT = TypeVar("ArrayT")


def corners_of(boxes: ArrayT) -> ArrayT:
    """Corners from centre and size in the last axis, of an array or a tensor alike.

    Example:
        >>> corners_of(np.array([5.0, 5.0, 4.0, 2.0])).tolist()
        [3.0, 4.0, 7.0, 6.0]
    """
    values = cast(Any, boxes)
    centre, half = values[..., :2], values[..., 2:] / 2
    if is_torch_tensor(boxes):
        import torch

        return cast(ArrayT, torch.cat([centre - half, centre + half], dim=-1))
    return cast(ArrayT, np.concatenate([centre - half, centre + half], axis=-1))


def box_iou(
    left: npt.NDArray[Any],
    right: npt.NDArray[Any],
    *,
    right_area: npt.NDArray[Any] | None = None,
    share_of_left: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[Any]:
    """Intersection over union of boxes, in the arithmetic of torchvision's NMS; 0 for empty boxes.

    Args:
        left: `(..., 4)` corners.
        right: `(..., 4)` corners; both are broadcast against each other.
        right_area: Areas of `right`, where they are known more exactly than from the corners.
        share_of_left: Where to divide by the area of `left` alone, as for crowds.

    Example:
        >>> boxes = np.array([[0, 0, 2, 2], [0, 0, 2, 1]], np.float32)
        >>> box_iou(boxes[:, None], boxes).tolist()
        [[1.0, 0.5], [0.5, 1.0]]
    """
    ax1, ay1, ax2, ay2 = np.ascontiguousarray(np.moveaxis(left, -1, 0))
    bx1, by1, bx2, by2 = np.ascontiguousarray(np.moveaxis(right, -1, 0))
    shared: npt.NDArray[Any] = _overlap_length(ax1, ax2, bx1, bx2)
    shared *= _overlap_length(ay1, ay2, by1, by2)
    area = (ax2 - ax1) * (ay2 - ay1)
    union = area + ((bx2 - bx1) * (by2 - by1) if right_area is None else right_area)
    union -= shared
    if share_of_left is not None:
        union = np.where(share_of_left, area, union)
    np.divide(shared, union, out=shared, where=union > 0)
    return shared


def _overlap_length(
    low: npt.NDArray[Any], high: npt.NDArray[Any], other_low: npt.NDArray[Any], other_high: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    length: npt.NDArray[Any] = np.minimum(high, other_high)
    length -= np.maximum(low, other_low)
    np.maximum(length, 0, out=length)
    return length
