"""Which class each proposal belongs to: that of the box it overlaps most, background below an overlap of one half."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logn.models.proposals import Proposals
from logn_research.datasets.sample_dataset import SampleDataset

LEAST_OVERLAP = 0.5


def assign(proposals: npt.NDArray[Any], boxes: npt.NDArray[Any], labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The class of the box that each proposal overlaps most; -1 where no overlap reaches one half.

    Args:
        proposals: `(N, 4)` corners.
        boxes: `(G, 4)` corners.
        labels: `(G,)` class of each box.

    Example:
        >>> at = np.array([[0, 0, 10, 10], [0, 0, 10, 4]], float)
        >>> assign(at, np.array([[0, 0, 10, 9]], float), np.array([7])).tolist()
        [7, -1]
    """
    if not len(boxes):
        return np.full(len(proposals), -1)
    low = np.maximum(proposals[:, None, :2], boxes[None, :, :2])
    high = np.minimum(proposals[:, None, 2:], boxes[None, :, 2:])
    shared = np.maximum(high - low, 0).prod(axis=2)
    areas = [(sides[:, 2:] - sides[:, :2]).prod(axis=1) for sides in (proposals, boxes)]
    whole = areas[0][:, None] + areas[1][None, :] - shared
    overlap = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    best = overlap.argmax(axis=1)
    return np.where(overlap[np.arange(len(best)), best] >= LEAST_OVERLAP, labels[best], -1)


def classes_of(
    proposals: Proposals, dataset: SampleDataset, index: int, background: int | None
) -> npt.NDArray[np.int64]:
    """The foreground class of each proposal of an image; -1 for those of none.

    Args:
        proposals: Of the image; where each class has a box of its own, that of the strongest class counts.
        dataset: Its boxes and classes, those of the detector.
        index: Number of the image.
        background: Where the background is among the columns.
    """
    boxes = proposals.boxes.astype(np.float64)
    if boxes.ndim == 3:
        classes = proposals.logits if background is None else np.delete(proposals.logits, background, axis=1)
        boxes = boxes[np.arange(len(boxes)), classes.argmax(axis=1)]
    objects = ~dataset.is_crowd_of(index)
    return assign(boxes, dataset.boxes_of(index)[objects].astype(np.float64), dataset.labels_of(index)[objects])


def columns_of(
    proposals: Proposals, dataset: SampleDataset, index: int, background: int | None
) -> npt.NDArray[np.int64]:
    """The column of the class of each proposal; -1 for those of none."""
    classes = classes_of(proposals, dataset, index, background)
    return np.where(classes >= 0, classes + (background == 0), -1)
