"""Masks of the detections of several methods, from the model that was predicted with, and what they find."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from logn.base.files import atomic_path
from logn.data.dataset import DetectionDataset
from logn.data.masks import encode_mask
from logn.errors import InputError
from logn.matching.ground_truth import GroundTruth
from logn.matching.match import match_sizes
from logn.matching.outcomes import Outcomes
from logn.models.detector import Detector
from logn.models.open import detector
from logn.models.proposals import MaskFunction
from logn.predictions.detections import Detections
from logn.predictions.predict import prepared_batches
from logn.predictions.store import Predictions

# The run-length encoded mask of each detection.
Masks = npt.NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class MaskModel:
    """A model with a mask head, and its images.

    Args:
        model: The model that `store` was predicted with.
        masks: Its masks of some detections of an image.
        data: The images.
        store: The predictions that the detections are decoded from.
    """

    model: Detector
    masks: MaskFunction
    data: DetectionDataset
    store: Predictions

    @classmethod
    def of(cls, model: Any, data: DetectionDataset, store: Predictions) -> MaskModel:
        """Refuse a model without masks or with other weights, and data without the predicted images."""
        source = detector(model)
        if source.masks is None:
            raise InputError(f"`masks` is {source.name}, which has no mask head; leave it out to measure boxes alone.")
        if source.source != store.head.source:
            raise InputError(
                f"`masks` is {source.name} with other weights than those that `{store.path}` was predicted with; pass "
                "that model."
            )
        missing = np.setdiff1d(store.image_ids, data.image_ids)
        if len(missing):
            raise InputError(f"The predictions have image {missing[0]}, but the data set does not.")
        return cls(source, source.masks, data, store)

    def make(
        self, methods: Sequence[Detections], progress: Callable[[int], object] = lambda count: None
    ) -> list[Masks]:
        """The masks of the detections of several methods.

        The model runs once per image, on each pair of proposal and class that any method keeps there. Masks are
        run-length encoded as soon as they are made; methods share them.

        Args:
            methods: Decoded from the store.
            progress: Called with the number of images whenever some are done.
        """
        distinct, references = distinct_detections(methods)
        encoded = np.empty(len(distinct), np.object_)
        images, starts = np.unique(distinct.image_index, return_index=True)
        progress(len(self.store) - len(images))
        position = {image_id: index for index, image_id in enumerate(self.data.image_ids.tolist())}
        indices = [position[image_id] for image_id in self.store.image_ids[images].tolist()]
        bounds = [*starts.tolist(), len(distinct)]
        for number, (_, (image,)) in enumerate(prepared_batches(self.model, self.data, indices, 1)):
            rows = slice(bounds[number], bounds[number + 1])
            part = distinct.take(rows)
            encoded[rows] = [encode_mask(mask) for mask in self.masks(image, part.boxes, part.labels, part.proposal)]
            progress(1)
        return [encoded[rows] for rows in references]


def distinct_detections(methods: Sequence[Detections]) -> tuple[Detections, list[npt.NDArray[np.intp]]]:
    """Each (image, proposal, class) of any method once, sorted so, and for each method where its rows are.

    Example:
        >>> one = Detections(np.zeros(1, np.int32), np.array([3], np.int32), np.ones(1, np.float32),
        ...     np.zeros((1, 4), np.float32), np.array([7], np.int32))
        >>> union, references = distinct_detections([one, one])
        >>> len(union), references
        (1, [array([0]), array([0])])
    """
    everything = Detections.concatenate(methods)
    if not len(everything):
        return everything, [np.empty(0, np.intp) for _ in methods]
    classes, proposals = int(everything.labels.max()) + 1, int(everything.proposal.max()) + 1
    key = (everything.image_index.astype(np.int64) * proposals + everything.proposal) * classes + everything.labels
    _, first, reference = np.unique(key, return_index=True, return_inverse=True)
    ends = np.cumsum([len(method) for method in methods])
    return everything.take(first), np.split(reference.astype(np.intp), ends[:-1])


@dataclass(frozen=True, eq=False)
class MaskOutcomes:
    """What became of the detections of a method, matched by their masks.

    Args:
        outcomes: Of all detections.
        by_size: Of small, medium and large objects.
        masks: Their masks.
    """

    outcomes: Outcomes
    by_size: Outcomes
    masks: Masks

    @classmethod
    def of(cls, detections: Detections, masks: Masks, truth: GroundTruth) -> MaskOutcomes:
        """Match detections by their masks."""
        return cls(*match_sizes(detections, truth, masks=masks.tolist()), masks)


def write_results(
    folder: str | os.PathLike[str],
    names: Iterable[str],
    methods: Sequence[Detections],
    masks: Sequence[Masks],
    truth: GroundTruth,
) -> None:
    """Write a file of results per method, as LVIS and COCO take them.

    They are lists of `image_id, category_id, score, segmentation`; classes that the annotations do not have are left
    out. There is no `bbox`: both packages take the box and the area from the mask then.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    encode = msgspec.json.encode
    for name, detections, of_method in zip(names, methods, masks, strict=True):
        known = np.flatnonzero(truth.label_ids[detections.labels] >= 0)
        part = detections.take(known)
        columns = truth.image_ids[part.image_index], truth.label_ids[part.labels], part.scores, of_method[known]
        fields = ("image_id", "category_id", "score", "segmentation")
        path = Path(folder) / (re.sub(r"[^\w.=,-]+", "-", name) + ".json")
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            for number, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
                file.write((b",\n" if number else b"[") + encode(dict(zip(fields, row, strict=True))))
            file.write(b"]\n" if len(known) else b"[]\n")
