"""Which class each proposal belongs to: that of the box it overlaps most, none below an overlap of one half."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from logn.datasets.detection_dataset import DetectionDataset
from logn.logits.arrays import foreground_columns
from logn.logits.proposals import Proposals

Floats = npt.NDArray[np.float64]
LEAST_OVERLAP = 0.5


def assign(proposals: Floats, boxes: Floats, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The class of the box that each proposal overlaps most; -1 where no overlap reaches one half.

    Args:
        proposals: `(N, 4)` corners.
        boxes: `(G, 4)` as x, y, width, height.
        labels: `(G,)` class of each box.

    Example:
        >>> at = np.array([[0, 0, 10, 10], [0, 0, 10, 4]], float)
        >>> assign(at, np.array([[0, 0, 10, 9]], float), np.array([7])).tolist()
        [7, -1]
    """
    if not len(boxes):
        return np.full(len(proposals), -1)
    corners = np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]])
    low = np.maximum(proposals[:, None, :2], corners[None, :, :2])
    high = np.minimum(proposals[:, None, 2:], corners[None, :, 2:])
    shared = np.maximum(high - low, 0).prod(axis=2)
    areas = [(sides[:, 2:] - sides[:, :2]).prod(axis=1) for sides in (proposals, corners)]
    whole = areas[0][:, None] + areas[1][None, :] - shared
    overlap = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    best = overlap.argmax(axis=1)
    return np.where(overlap[np.arange(len(best)), best] >= LEAST_OVERLAP, labels[best], -1)


def one_box_each(proposals: Proposals, background: int | None) -> Floats:
    """One box per proposal; where each class has its own, that of the strongest foreground class."""
    boxes: Floats = proposals.boxes.astype(np.float64)
    if boxes.ndim == 2:
        return boxes
    foreground = foreground_columns(proposals.num_columns, background)
    strongest: Floats = boxes[np.arange(len(boxes)), proposals.logits[:, foreground].argmax(axis=1)]
    return strongest


def columns_of(
    proposals: Proposals, dataset: DetectionDataset, index: int, background: int | None
) -> npt.NDArray[np.int64]:
    """The column of the class that each proposal of an image belongs to; -1 for those of none."""
    objects = ~dataset.is_crowd_of(index)
    corners = dataset.boxes_of(index)[objects].astype(np.float64)
    boxes = np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]])
    classes = assign(one_box_each(proposals, background), boxes, dataset.labels_of(index)[objects])
    return np.where(classes >= 0, classes + (background == 0), -1)
