"""How many proposals of a run belong to each class, and what their logits are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.evaluate.detection.assignment import assigned
from logn.evaluate.detection.ground_truth import load_ground_truth
from logn.report.run_folder import Run
from logn.statistics.moments import ClassMoments
from logn_research.estimators import PositiveMoments


@dataclass(frozen=True, eq=False)
class AssignedProposals:
    """Proposals of the predicted images, counted by the class that they were assigned to.

    Args:
        per_class: `(F,)` proposals of each foreground class.
        background: Proposals of no class.
        objects: `(F,)` annotated objects of each class in the same images.
        positives: Statistics of each class's logit over its own proposals only.
        images: How many images were looked at.
        proposal_image: `(P,)` the image of each proposal that was assigned to a class; None where that is not known.
        proposal_class: `(P,)` that class.
        image_classes: The classes of the objects of each image.
    """

    per_class: npt.NDArray[np.int64]
    background: int
    objects: npt.NDArray[np.int64]
    positives: ClassMoments
    images: int
    proposal_image: npt.NDArray[np.int64] | None = None
    proposal_class: npt.NDArray[np.int64] | None = None
    image_classes: tuple[npt.NDArray[np.int64], ...] = ()

    def repeated_per_class(self, factors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
        """Proposals of each class where images are shown as often as repeat factor sampling shows them.

        Args:
            factors: `(F,)` repeat factor of each class; an image has the largest of its classes'.

        Example:
            >>> one = AssignedProposals(np.array([2, 1]), 9, np.array([1, 1]), ClassMoments(2), 2, np.array([0, 0, 1]),
            ...                         np.array([0, 0, 1]), (np.array([0]), np.array([1])))
            >>> one.repeated_per_class(np.array([1.0, 3.0])).tolist()
            [2.0, 3.0]
        """
        if self.proposal_image is None or self.proposal_class is None:
            return None
        repeats = np.array([factors[classes].max(initial=1.0) for classes in self.image_classes])
        return np.bincount(
            self.proposal_class, weights=repeats[self.proposal_image], minlength=len(self.per_class)
        ).astype(np.float64)


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
    background, of_images = 0, list[npt.NDArray[np.int64]]()
    for proposals, classes in assigned(store, truth):
        real = classes >= 0
        of_images.append(classes[real])
        per_class += np.bincount(classes[real], minlength=store.num_classes)
        background += int((~real).sum())
        if real.any():
            positives.update(proposals.logits[real].astype(np.float64), columns[classes[real]])
    return AssignedProposals(
        per_class,
        background,
        truth.boxes_per_class,
        positives.moments(),
        len(store),
        np.repeat(np.arange(len(of_images)), [len(classes) for classes in of_images]),
        np.concatenate([*of_images, np.empty(0, np.int64)]),
        tuple(np.unique(truth.labels[truth.image_index == index]) for index in range(truth.num_images)),
    )
