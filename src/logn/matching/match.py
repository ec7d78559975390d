"""Which detection found which box, at every overlap threshold: matched once, read by every metric.

The rules are those of the reference evaluators: within an image and a class detections, strongest first, each take the
free box that they overlap most; boxes that are not counted (crowds, other sizes) come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.boxes import box_iou
from logn.errors import import_extra
from logn.matching.truth import GroundTruth
from logn.predictions.detections import Detections

Index = npt.NDArray[np.intp]
Marks = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

# Pairs of boxes that are compared at once: few enough to stay in the cache.
PAIRS_AT_ONCE = 16_000
IOU_THRESHOLDS: Floats = np.linspace(0.5, 0.95, 10)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Detections and boxes of one image and class that overlap enough at the lowest threshold.

    Args:
        detection: `(P,)` position among the matched detections.
        box: `(P,)` row of the ground truth.
        iou: `(P,)` their overlap.
        areas: `(D,)` area of each matched detection.
        excused: `(D,)` whether a detection that finds nothing is not wrong: not all objects are annotated.
        thresholds: `(T,)` overlaps.
    """

    detection: Index
    box: Index
    iou: Floats
    areas: Floats
    excused: Marks
    thresholds: Floats

    def outcomes(self, truth: GroundTruth, ignored: Marks, excused: Marks) -> tuple[Marks, Marks, Index]:
        """Per threshold which detections are right and which count; and the box that each finds at the first.

        Args:
            truth: The boxes.
            ignored: `(G,)` boxes that are not counted: what finds one is neither right nor wrong.
            excused: `(D,)` detections that are not wrong when they find nothing.
        """
        order = np.lexsort((-self.box, -self.iou, ignored[self.box], self.detection))  # ties: the later box
        detection, box, iou = self.detection[order], self.box[order], self.iou[order]
        correct: Marks = np.zeros((len(self.thresholds), len(excused)), bool)
        counted = np.zeros_like(correct)
        first: Index = np.full(len(excused), -1)
        for level, threshold in enumerate(self.thresholds):
            enough = iou >= min(threshold, 1 - 1e-10)
            matched = greedy_matches(detection[enough], box[enough], len(excused), truth.crowd)
            into_ignored = np.append(ignored, False)[matched]
            correct[level] = (matched >= 0) & ~into_ignored
            counted[level] = correct[level] | ~(into_ignored | (excused & (matched < 0)))
            if level == 0:
                first = np.where(correct[0], matched, -1)
        return correct, counted, first


@dataclass(frozen=True, eq=False)
class MatchedDetections:
    """The detections that are evaluated, ranked within their class, with what became of each.

    Args:
        rows: `(D,)` their rows in the detections.
        image_index: `(D,)` image of each.
        labels: `(D,)` class of each, ascending.
        scores: `(D,)` descending within a class.
        correct: `(T, D)` whether it found a box of its own, per overlap threshold.
        counted: `(T, D)` False where it is neither right nor wrong.
        box: `(D,)` the box that it found at the first threshold, or -1.
        pairs: What overlaps, for metrics by size; None where it was let go.
    """

    rows: Index
    image_index: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    scores: Floats
    correct: Marks
    counted: Marks
    box: Index
    pairs: Pairs | None = None

    def take(self, rows: npt.NDArray[Any]) -> MatchedDetections:
        """Keep some of them; `rows` ascend or are a mask."""
        names = ("rows", "image_index", "labels", "scores", "box")
        kept = {name: getattr(self, name)[rows] for name in names}
        return MatchedDetections(**kept, correct=self.correct[:, rows], counted=self.counted[:, rows])

    def part(self, images: Marks, detections: Detections, truth: GroundTruth) -> MatchedDetections:
        """Those of the images that the mask `(I,)` names; images, rows and boxes are renumbered."""
        kept = self.take(images[self.image_index])
        image, row, box = (
            np.cumsum(mask) - 1 for mask in (images, images[detections.image_index], images[truth.image_index])
        )
        box = np.where(kept.box >= 0, np.append(box, -1)[kept.box], -1)
        return replace(kept, image_index=image[kept.image_index], rows=row[kept.rows], box=box)


def match_detections(
    detections: Detections,
    truth: GroundTruth,
    *,
    thresholds: Floats = IOU_THRESHOLDS,
    masks: Sequence[Any] | None = None,
) -> MatchedDetections:
    """Match detections to boxes greedily by score within image and class, as the reference evaluators do.

    Limits on the number of detections are the caller's: everything given is looked at. Detections of classes that were
    not verified in their image drop out. `masks` has the run-length encoded mask of each detection; without it the
    boxes are compared.

    Example:
        >>> toy = {"images": [{"id": 1}], "categories": [{"id": 1, "name": "cup"}],
        ...     "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10]}]}
        >>> from logn.matching.labels import load_ground_truth
        >>> detections = Detections(np.zeros(2, np.int32), np.zeros(2, np.int32), np.array([0.9, 0.8], np.float32),
        ...     np.array([[0, 0, 10, 8], [0, 0, 10, 10]], np.float32), np.arange(2, dtype=np.int32))
        >>> truth = load_ground_truth(toy, style="coco")
        >>> match_detections(detections, truth, thresholds=np.array([0.5, 0.9])).correct
        array([[ True, False],
               [False,  True]])
    """
    rows = verified_rows(detections, truth)
    image_index = detections.image_index[rows].astype(np.int64)
    labels = detections.labels[rows].astype(np.int64)
    scores = detections.scores[rows].astype(np.float64)
    # Equal scores go in the order of the image ids, whatever the order of the predictions.
    ranked = np.lexsort((truth.image_ids[image_index], -scores, labels))
    rows, image_index, labels, scores = rows[ranked], image_index[ranked], labels[ranked], scores[ranked]
    keys = truth.image_index * truth.num_classes + truth.labels
    detection, box = joined_pairs(image_index * truth.num_classes + labels, keys)
    iou = overlaps(detections, truth, rows[detection], box, masks)
    near = iou >= min(float(thresholds.min()), 1 - 1e-10)
    excused = np.zeros(len(rows), bool)
    if truth.not_exhaustive is not None:
        excused = truth.not_exhaustive[image_index, labels]
    areas = _areas(detections, rows, masks)
    pairs = Pairs(detection[near], box[near], iou[near], areas, excused, thresholds)
    correct, counted, first = pairs.outcomes(truth, truth.crowd, excused)
    return MatchedDetections(rows, image_index, labels, scores, correct, counted, first, pairs)


def _areas(detections: Detections, rows: Index, masks: Sequence[Any] | None) -> Floats:
    if masks is None:
        boxes = detections.boxes[rows].astype(np.float64)
        areas: Floats = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        return areas
    area = import_extra("hotcoco", extra="evaluate").mask.area
    return np.atleast_1d(area([masks[row] for row in rows.tolist()])).astype(np.float64) if len(rows) else np.empty(0)


def verified_rows(detections: Detections, truth: GroundTruth) -> Index:
    """Rows whose class was looked for in their image; the others are not evaluated."""
    if truth.verified is None:
        return np.arange(len(detections))
    return np.flatnonzero(truth.verified[detections.image_index, detections.labels])


def joined_pairs(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> tuple[Index, Index]:
    """All pairs of rows with equal keys, ordered by the row on the left.

    Example:
        >>> [rows.tolist() for rows in joined_pairs(np.array([7, 8, 7]), np.array([7, 7, 9]))]
        [[0, 0, 2, 2], [0, 1, 0, 1]]
    """
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    first = np.searchsorted(ordered, left, side="left")
    count = np.searchsorted(ordered, left, side="right") - first
    left_rows = np.repeat(np.arange(len(left)), count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return left_rows, order[np.repeat(first, count) + within]


def overlaps(
    detections: Detections, truth: GroundTruth, rows: Index, boxes: Index, masks: Sequence[Any] | None = None
) -> Floats:
    """Overlap of pairs of detection and box; with a crowd, the share of the detection that lies in it."""
    result = np.zeros(len(rows))
    if masks is None:
        # Column by column, as `box_iou` takes them apart.
        corners = np.concatenate([truth.boxes[:, :2], truth.boxes[:, :2] + truth.boxes[:, 2:]], axis=1).T.copy()
        areas = truth.boxes[:, 2:].prod(axis=1)
        for start in range(0, len(rows), PAIRS_AT_ONCE):
            some, box = slice(start, start + PAIRS_AT_ONCE), boxes[start : start + PAIRS_AT_ONCE]
            left = np.ascontiguousarray(detections.boxes.take(rows[some], axis=0).T, np.float64)
            right, crowd = corners.take(box, axis=1), truth.crowd.take(box)
            result[some] = box_iou(
                left.T, right.T, right_area=areas.take(box), share_of_left=crowd if crowd.any() else None
            )
        return result
    mask_iou = import_extra("hotcoco.primitives", extra="evaluate").mask_iou
    images = truth.image_index[boxes]
    order = np.argsort(images, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(images[order])) + 1) if len(rows) else ():
        left_rows, left_place = np.unique(rows[part], return_inverse=True)
        right_rows, right_place = np.unique(boxes[part], return_inverse=True)
        crowd = truth.crowd[right_rows].tolist()
        matrix = mask_iou([masks[row] for row in left_rows], [truth.masks[box] for box in right_rows], crowd)
        result[part] = matrix[left_place, right_place]
    return result


def greedy_matches(detection: Index, box: Index, num_detections: int, shared: Marks) -> Index:
    """Let the detections, strongest first, each take the best box that is still free; -1 for those without.

    The pairs are sorted by detection (a lower number is stronger), the best box first. A detection's choice is settled
    as soon as no stronger detection that is still open could take that box. All such choices are made at once, so a few
    rounds do for a whole data set.

    Args:
        detection: Of each pair.
        box: Of each pair.
        num_detections: How many detections there are.
        shared: `(G,)` boxes that any number of detections may take: crowds.

    Example:
        >>> greedy_matches(np.array([0, 1, 1]), np.array([5, 5, 2]), 3, np.zeros(6, bool)).tolist()
        [5, 2, -1]
    """
    matched = np.full(num_detections, -1)
    free = np.ones(len(shared), bool)
    strongest = np.empty(len(shared), np.intp)
    while len(detection):
        strongest[box[::-1]] = detection[::-1]  # of repeated positions the last one written stays
        is_best = np.concatenate([[True], detection[1:] != detection[:-1]])
        chooser, choice = detection[is_best], box[is_best]
        settled = (strongest[choice] == chooser) | shared[choice]
        matched[chooser[settled]] = choice[settled]
        free[choice[settled]] = shared[choice[settled]]
        still_open = free[box] & (matched[detection] < 0)
        detection, box = detection[still_open], box[still_open]
    return matched
