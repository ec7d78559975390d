"""Which class each proposal belongs to: that of the box it overlaps most, background below an overlap of one half."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from logn.evaluate.detection.ground_truth import GroundTruth
from logn.evaluate.store.store import PredictionStore
from logn.labels.dataset import DetectionDataset
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


def assigned(store: PredictionStore, truth: GroundTruth) -> Iterator[tuple[Proposals, npt.NDArray[np.int64]]]:
    """Each image's proposals, and the class of each: -1 for none."""
    order = np.argsort(truth.image_index, kind="stable")
    starts = np.searchsorted(truth.image_index[order], np.arange(truth.num_images + 1))
    for index, proposals in enumerate(store):
        rows = order[starts[index] : starts[index + 1]]
        rows = rows[~truth.crowd[rows]]
        yield proposals, assign(one_box_each(proposals, store.header.columns), truth.boxes[rows], truth.labels[rows])


def one_box_each(proposals: Proposals, columns: npt.NDArray[np.intp]) -> Floats:
    """One box per proposal; where each class has its own, that of the strongest foreground class.

    Args:
        proposals: Of an image.
        columns: `(F,)` the columns of the foreground classes.
    """
    boxes: Floats = proposals.boxes.astype(np.float64)
    if boxes.ndim == 2:
        return boxes
    strongest: Floats = boxes[np.arange(len(boxes)), proposals.logits[:, columns].argmax(axis=1)]
    return strongest


def columns_of(
    proposals: Proposals,
    dataset: DetectionDataset,
    index: int,
    columns: npt.NDArray[np.intp],
    model_of_label: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]:
    """The column of the class that each proposal of an image belongs to; -1 for those of none.

    Args:
        proposals: Of the image.
        dataset: Its boxes and classes.
        index: Which image.
        columns: `(F,)` the columns of the model's foreground classes.
        model_of_label: Place among these of each class of the data set, -1 for none; by default they are the same.
    """
    objects = ~dataset.is_crowd_of(index)
    corners = dataset.boxes_of(index)[objects].astype(np.float64)
    boxes = np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]])
    labels = dataset.labels_of(index)[objects]
    if model_of_label is not None:
        known = model_of_label[labels] >= 0
        boxes, labels = boxes[known], model_of_label[labels[known]]
    classes = assign(one_box_each(proposals, columns), boxes, labels)
    return np.where(classes >= 0, columns[classes], -1)
