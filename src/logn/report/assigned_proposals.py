"""How many proposals of a run belong to each class, and what their logits are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.evaluate.detection.assignment import assigned
from logn.evaluate.detection.ground_truth import load_ground_truth
from logn.report.run_folder import Run
from logn.statistics.moments import ClassMoments
from logn.statistics.positives import PositiveMoments


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
    for proposals, classes in assigned(store, truth):
        real = classes >= 0
        per_class += np.bincount(classes[real], minlength=store.num_classes)
        background += int((~real).sum())
        if real.any():
            positives.update(proposals.logits[real].astype(np.float64), columns[classes[real]])
    return AssignedProposals(per_class, background, truth.boxes_per_class, positives.moments(), len(store))
