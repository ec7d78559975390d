"""What can be kept or dropped by a threshold, with what is right: detections of images, or predictions of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.evaluate.classification.logits import RowOutcomes
from logn.evaluate.decode.detections import Detections
from logn.evaluate.detection.ground_truth import GroundTruth
from logn.evaluate.detection.outcomes import LEAST_OVERLAP, find_matches
from logn.evaluate.operating.class_levels import ClassScores
from logn.logits.arrays import FloatArray, sigmoid

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ScoredOutcomes:
    """Scored decisions of all units (images of a detector, rows of a classifier), and the objects there are to find.

    Args:
        labels: `(D,)` class of each decision.
        units: `(D,)` its image or row.
        scores: `(D,)` from 0 to 1.
        right: `(D,)` whether it found an object.
        judged: `(D,)` False where it is neither right nor wrong: its class was not verified there.
        object_labels: `(G,)` class of each object.
        object_units: `(G,)` its image or row.
        num_units: How many images or rows there are.
        class_names: `(F,)` names.
        floor: Scores up to this were not looked at.
        unit: What a unit is called: "images", "rows".
    """

    labels: Ints
    units: Ints
    scores: FloatArray
    right: Bools
    judged: Bools
    object_labels: Ints
    object_units: Ints
    num_units: int
    class_names: tuple[str, ...]
    floor: float = 0.0
    unit: str = "images"

    def __post_init__(self) -> None:
        if np.isnan(self.scores).any():
            place = int(np.flatnonzero(np.isnan(self.scores))[0])
            name = self.class_names[int(self.labels[place])]
            raise InputError(f"Expected scores to be numbers, but a score of class `{name}` is NaN.")

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def objects_per_class(self) -> Ints:
        """`(F,)` objects of each class."""
        return np.bincount(self.object_labels, minlength=self.num_classes).astype(np.int64)

    def part(self, units: Bools) -> ScoredOutcomes:
        """The outcomes of the units that the mask names; they are renumbered."""
        position = np.cumsum(units) - 1
        kept, objects = units[self.units], units[self.object_units]
        return replace(
            self,
            **{name: getattr(self, name)[kept] for name in ("labels", "scores", "right", "judged")},
            units=position[self.units[kept]],
            object_labels=self.object_labels[objects],
            object_units=position[self.object_units[objects]],
            num_units=int(units.sum()),
        )

    @cached_property
    def by_class(self) -> tuple[ClassScores, ...]:
        """The scores of each class."""
        order = np.argsort(self.labels, kind="stable")
        starts = np.searchsorted(self.labels[order], np.arange(self.num_classes + 1))
        objects = np.argsort(self.object_labels, kind="stable")
        ends = np.searchsorted(self.object_labels[objects], np.arange(self.num_classes + 1))
        return tuple(
            self._scores_of(order[starts[label] : starts[label + 1]], objects[ends[label] : ends[label + 1]])
            for label in range(self.num_classes)
        )

    @cached_property
    def pooled(self) -> ClassScores:
        """The scores of all classes as if they were one."""
        return self._scores_of(np.arange(len(self.labels)), np.arange(len(self.object_labels)))

    def _scores_of(self, rows: npt.NDArray[Any], objects: npt.NDArray[Any]) -> ClassScores:
        return ClassScores.of(
            self.scores[rows],
            self.units[rows],
            right=self.right[rows],
            judged=self.judged[rows],
            objects=self.object_units[objects],
            floor=self.floor,
        )


def detection_outcomes(
    detections: Detections, truth: GroundTruth, *, iou: float = LEAST_OVERLAP, floor: float = 0.0
) -> ScoredOutcomes:
    """The detections of images, and which of them find a box at an overlap of at least `iou`."""
    matches = find_matches(detections, truth, least_overlap=iou)
    wanted = np.flatnonzero(~truth.crowd)
    return ScoredOutcomes(
        labels=detections.labels.astype(np.int64),
        units=detections.image_index.astype(np.int64),
        scores=detections.scores.astype(np.float64),
        right=matches.box >= 0,
        judged=matches.judged,
        object_labels=truth.labels[wanted],
        object_units=truth.image_index[wanted],
        num_units=truth.num_images,
        class_names=truth.class_names,
        floor=max(floor, 0.0),
    )


def top1_outcomes(outcome: RowOutcomes, labels: Ints, class_names: tuple[str, ...]) -> ScoredOutcomes:
    """The predictions of a classifier: one per row, which a threshold accepts or rejects.

    Example:
        >>> rows = RowOutcomes(np.array([0, 1]), np.array([0.9, 0.6]), np.zeros(2))
        >>> top1_outcomes(rows, np.array([0, 0]), ("cat", "dog")).right.tolist()
        [True, False]
    """
    rows = np.arange(len(labels))
    return ScoredOutcomes(
        labels=outcome.predicted,
        units=rows,
        scores=outcome.confidence,
        right=outcome.predicted == labels,
        judged=np.ones(len(labels), bool),
        object_labels=labels,
        object_units=rows,
        num_units=len(labels),
        class_names=class_names,
        unit="rows",
    )


def multilabel_outcomes(logits: FloatArray, labels: npt.NDArray[Any], class_names: tuple[str, ...]) -> ScoredOutcomes:
    """The scores of sigmoids of a multi-label classifier; labels are 1, 0, or -1 where it is not known.

    Example:
        >>> found = multilabel_outcomes(np.array([[2.0, -1.0]]), np.array([[1, -1]]), ("cat", "dog"))
        >>> found.right.tolist(), found.judged.tolist()
        ([True, False], [True, False])
    """
    rows, columns = (axis.ravel() for axis in np.indices(logits.shape))
    flat = labels.ravel()
    present = flat == 1
    return ScoredOutcomes(
        labels=columns,
        units=rows,
        scores=sigmoid(logits).ravel(),
        right=present,
        judged=flat >= 0,
        object_labels=columns[present],
        object_units=rows[present],
        num_units=len(logits),
        class_names=class_names,
        unit="rows",
    )
