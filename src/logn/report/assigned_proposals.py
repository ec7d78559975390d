"""Which class each proposal belongs to: that of the box it overlaps most, background below an overlap of one half."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.evaluate.detection.ground_truth import GroundTruth, load_ground_truth
from logn.evaluate.store.prediction_store import PredictionStore
from logn.logits.proposals import Proposals
from logn.report.run_folder import Run
from logn.statistics.moments import ClassMoments
from logn.statistics.positives import PositiveMoments

Floats = npt.NDArray[np.float64]
LEAST_OVERLAP = 0.5


@dataclass(frozen=True, eq=False)
class AssignedProposals:
    """Proposals of the predicted images, counted by the class that they were assigned to.

    Args:
        per_class: `(F,)` proposals of each foreground class.
        background: Proposals of no class.
        objects: `(F,)` annotated objects of each class in the same images.
        positives: Statistics of each class's logit over its own proposals only.
        images: How many images were looked at.
    """

    per_class: npt.NDArray[np.int64]
    background: int
    objects: npt.NDArray[np.int64]
    positives: ClassMoments
    images: int


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


def assigned_proposals(run: Run) -> AssignedProposals:
    """Assign all proposals of a run to the annotated boxes of their images."""
    store = run.store
    truth = load_ground_truth(
        run.path("annotations"),
        style="coco",  # every box counts here, whatever was verified
        image_ids=store.image_ids.tolist(),
        category_ids=store.header.category_ids,
        class_names=store.header.class_names,
        num_classes=store.num_classes,
        only_predicted=True,
    )
    columns = store.header.columns
    positives = PositiveMoments(store.num_columns, metadata=run.moments.metadata if run.has("statistics") else None)
    per_class = np.zeros(store.num_classes, np.int64)
    background = 0
    for proposals, classes in _assigned(store, truth):
        real = classes >= 0
        per_class += np.bincount(classes[real], minlength=store.num_classes)
        background += int((~real).sum())
        if real.any():
            positives.update(proposals.logits[real].astype(np.float64), columns[classes[real]])
    return AssignedProposals(per_class, background, truth.boxes_per_class, positives.moments(), len(store))


def _assigned(store: PredictionStore, truth: GroundTruth) -> Iterator[tuple[Proposals, npt.NDArray[np.int64]]]:
    order = np.argsort(truth.image_index, kind="stable")
    starts = np.searchsorted(truth.image_index[order], np.arange(truth.num_images + 1))
    for index, proposals in enumerate(store):
        rows = order[starts[index] : starts[index + 1]]
        rows = rows[~truth.crowd[rows]]
        yield proposals, assign(_boxes(proposals, store), truth.boxes[rows], truth.labels[rows])


def _boxes(proposals: Proposals, store: PredictionStore) -> Floats:
    """One box per proposal; where each class has its own, that of the strongest foreground class."""
    boxes: Floats = proposals.boxes.astype(np.float64)
    if boxes.ndim == 2:
        return boxes
    strongest: Floats = boxes[np.arange(len(boxes)), proposals.logits[:, store.header.columns].argmax(axis=1)]
    return strongest
