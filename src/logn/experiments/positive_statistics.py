"""Statistics of positives only, the paper's rejected alternative: it needs labels, so it is an ablation and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.datasets.detection_dataset import DetectionDataset
from logn.evaluate.store.predict import as_tensor
from logn.logits.proposals import Proposals
from logn.report.assigned_proposals import assign
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments
from logn.statistics.positives import PositiveMoments


def positive_statistics(
    detector: Any,
    dataset: DetectionDataset,
    *,
    images: int,
    metadata: StatisticsMetadata,
    batch: int = 8,
    seed: int = 0,
    advance: Callable[[float], object] = lambda count: None,
) -> tuple[ClassMoments, ClassMoments]:
    """Moments of each class's logit over the proposals of that class, and over those that are also recognised.

    A proposal belongs to the class of the box that it overlaps most, from an overlap of one half on. A class that has
    no such proposal keeps its logits as they are.

    Args:
        detector: A detector with `propose`.
        dataset: Training images with labels.
        images: How many of them; those that `collect_detector_statistics` takes with the same seed.
        metadata: Of the usual statistics of this detector.
        batch: Images per forward pass.
        seed: Of the draw of the images.
        advance: Called with the number of images whenever some are done.
    """
    offset = 1 if detector.background == 0 else 0
    columns = detector.num_classes + (detector.background is not None)
    forms = [PositiveMoments(columns, require_correct=correct, metadata=metadata) for correct in (False, True)]
    order = np.random.default_rng(seed).permutation(len(dataset))[:images]
    for start in range(0, len(order), batch):
        chosen = [int(index) for index in order[start : start + batch]]
        found = detector.propose([as_tensor(dataset.read_image(index)) for index in chosen])
        for index, proposals in zip(chosen, found, strict=True):
            labels = _classes_of(proposals, dataset, index)
            real = labels >= 0
            for form in forms:
                form.update(proposals.logits[real], labels[real] + offset)
        advance(len(chosen))
    return forms[0].moments(), forms[1].moments()


def _classes_of(proposals: Proposals, dataset: DetectionDataset, index: int) -> npt.NDArray[np.int64]:
    objects = ~dataset.is_crowd_of(index)
    corners = dataset.boxes_of(index)[objects].astype(np.float64)
    boxes = np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]])
    return assign(proposals.boxes.astype(np.float64), boxes, dataset.labels_of(index)[objects])
