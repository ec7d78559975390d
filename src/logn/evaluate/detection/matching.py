"""Which detection found which box, at every overlap threshold at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import import_extra
from logn.evaluate.decode.detections import Detections
from logn.evaluate.detection.ground_truth import GroundTruth

Index = npt.NDArray[np.intp]
# Overlap of pairs: rows of the detections, rows of the ground truth -> intersection over union.
PairOverlap = Callable[[Index, Index], npt.NDArray[np.float64]]

IOU_THRESHOLDS: npt.NDArray[np.float64] = np.linspace(0.5, 0.95, 10)


@dataclass(frozen=True, eq=False)
class MatchedDetections:
    """The detections that the protocol looks at, ranked within their class, with what became of each.

    Args:
        rows: `(D,)` their rows in the detections.
        image_index: `(D,)` image of each.
        labels: `(D,)` class of each, ascending.
        scores: `(D,)` descending within a class.
        correct: `(T, D)` whether it found a box of its own, per overlap threshold.
        counted: `(T, D)` False where it is neither right nor wrong.
    """

    rows: Index
    image_index: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    correct: npt.NDArray[np.bool_]
    counted: npt.NDArray[np.bool_]

    def take(self, rows: Index) -> MatchedDetections:
        """Keep some of them; `rows` ascend."""
        return MatchedDetections(
            self.rows[rows],
            self.image_index[rows],
            self.labels[rows],
            self.scores[rows],
            self.correct[:, rows],
            self.counted[:, rows],
        )


def match_detections(
    detections: Detections,
    truth: GroundTruth,
    *,
    thresholds: npt.NDArray[np.float64] = IOU_THRESHOLDS,
    masks: Sequence[Any] | None = None,
) -> MatchedDetections:
    """Match detections to boxes greedily by score within image and class, as the reference evaluators do.

    Limits on the number of detections are the caller's: everything given is looked at. Detections of
    classes that were not verified in their image drop out. `masks` has the run-length encoded mask of each
    detection; without it the boxes are compared.

    Example:
        >>> toy = {"images": [{"id": 1}], "categories": [{"id": 1, "name": "cup"}],
        ...     "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10]}]}
        >>> from logn.evaluate.detection.ground_truth import load_ground_truth
        >>> found = Detections(np.zeros(2, np.int32), np.zeros(2, np.int32), np.array([0.9, 0.8], np.float32),
        ...     np.array([[0, 0, 10, 8], [0, 0, 10, 10]], np.float32), np.arange(2, dtype=np.int32))
        >>> truth = load_ground_truth(toy, style="coco")
        >>> match_detections(found, truth, thresholds=np.array([0.5, 0.9])).correct
        array([[ True, False],
               [False,  True]])
    """
    rows = verified_rows(detections.image_index, detections.labels, truth)
    image_index = detections.image_index[rows].astype(np.int64)
    labels = detections.labels[rows].astype(np.int64)
    overlap = box_overlap(detections, truth) if masks is None else mask_overlap(detections, masks, truth)
    detection, box = same_class_pairs(image_index, labels, truth)
    iou = overlap(rows[detection], box)
    correct, into_crowd = _match(detection, box, iou, len(rows), truth, thresholds)
    counted = correct | ~into_crowd
    if truth.not_exhaustive is not None:
        counted &= correct | ~truth.not_exhaustive[image_index, labels]
    scores = detections.scores[rows].astype(np.float64)
    # Equal scores go in the order of the image ids, whatever the order of the predictions.
    ranked = np.lexsort((truth.image_numbers[image_index], -scores, labels))
    return MatchedDetections(
        rows[ranked],
        image_index[ranked],
        labels[ranked],
        scores[ranked],
        correct[:, ranked],
        counted[:, ranked],
    )


def verified_rows(image_index: npt.NDArray[Any], labels: npt.NDArray[Any], truth: GroundTruth) -> Index:
    """Rows whose class was looked for in their image; the others are not evaluated."""
    if truth.verified is None:
        return np.arange(len(labels))
    return np.flatnonzero(truth.verified[image_index, labels])


def same_class_pairs(
    image_index: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], truth: GroundTruth
) -> tuple[Index, Index]:
    """All pairs of a detection and a box of the same image and class."""
    keys = truth.image_index * truth.num_classes + truth.labels
    return joined_pairs(image_index * truth.num_classes + labels, keys)


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


def box_overlap(detections: Detections, truth: GroundTruth) -> PairOverlap:
    """Overlap of boxes; with a crowd, the share of the detection that lies in it."""
    corners = detections.boxes.astype(np.float64)
    start, size = corners[:, :2], corners[:, 2:] - corners[:, :2]
    area = size.prod(axis=1)
    box_start, box_size = truth.boxes[:, :2], truth.boxes[:, 2:]
    box_area = box_size.prod(axis=1)

    def overlap(rows: Index, boxes: Index) -> npt.NDArray[np.float64]:
        low = np.maximum(start[rows], box_start[boxes])
        high = np.minimum(start[rows] + size[rows], box_start[boxes] + box_size[boxes])
        shared: npt.NDArray[np.float64] = np.maximum(high - low, 0).prod(axis=1)
        whole = np.where(truth.crowd[boxes], area[rows], area[rows] + box_area[boxes] - shared)
        np.divide(shared, whole, out=shared, where=whole > 0)
        return shared

    return overlap


def mask_overlap(detections: Detections, masks: Sequence[Any], truth: GroundTruth) -> PairOverlap:
    """Overlap of run-length encoded masks, image by image."""
    mask_iou = import_extra("hotcoco.primitives", extra="evaluate").mask_iou

    def overlap(rows: Index, boxes: Index) -> npt.NDArray[np.float64]:
        result = np.zeros(len(rows))
        images = detections.image_index[rows]
        cuts = np.flatnonzero(np.diff(images)) + 1
        for part in np.split(np.arange(len(rows)), cuts) if len(rows) else ():
            left, left_place = np.unique(rows[part], return_inverse=True)
            right, right_place = np.unique(boxes[part], return_inverse=True)
            crowd = truth.crowd[right].tolist()
            matrix = mask_iou([masks[row] for row in left], [truth.masks[box] for box in right], crowd)
            result[part] = matrix[left_place, right_place]
        return result

    return overlap


def _match(
    detection: Index,
    box: Index,
    iou: npt.NDArray[np.float64],
    num_detections: int,
    truth: GroundTruth,
    thresholds: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Per threshold: which detections found a box, and which others fell into a crowd."""
    correct = np.zeros((len(thresholds), num_detections), bool)
    into_crowd = np.zeros_like(correct)
    detection, box, iou = best_first(detection, box, iou)
    for index, threshold in enumerate(thresholds):
        enough = iou >= min(threshold, 1 - 1e-10)
        matched, into_crowd[index] = matched_boxes(detection[enough], box[enough], num_detections, truth)
        correct[index] = matched >= 0
    return correct, into_crowd


def best_first(
    detection: Index, box: Index, iou: npt.NDArray[np.float64]
) -> tuple[Index, Index, npt.NDArray[np.float64]]:
    """Sort pairs by detection, then by overlap; of equal ones the reference takes the box that stands later."""
    order = np.lexsort((-box, -iou, detection))
    return detection[order], box[order], iou[order]


def matched_boxes(
    detection: Index, box: Index, num_detections: int, truth: GroundTruth
) -> tuple[Index, npt.NDArray[np.bool_]]:
    """The box that each detection finds, -1 for none, and whether it falls into a crowd.

    Args:
        detection: Of each pair that overlaps enough, as `best_first` sorts them.
        box: Of each of these pairs.
        num_detections: How many detections there are.
        truth: The boxes.
    """
    crowd = truth.crowd[box]
    into_crowd = np.zeros(num_detections, bool)
    into_crowd[detection[crowd]] = True
    return greedy_matches(detection[~crowd], box[~crowd], num_detections, len(truth.labels)), into_crowd


def greedy_matches(detection: Index, box: Index, num_detections: int, num_boxes: int) -> Index:
    """Let the detections, strongest first, each take the best box that is still free; -1 for those without.

    The pairs are sorted by detection (a lower number is stronger), the best box first. A detection's choice
    is settled as soon as no stronger detection that is still open could take that box: then nothing that
    happens before its turn can change it. All such choices are made at once, so a few rounds do for a whole
    data set.

    Example:
        >>> greedy_matches(np.array([0, 1, 1]), np.array([5, 5, 2]), num_detections=3, num_boxes=6).tolist()
        [5, 2, -1]
    """
    matched = np.full(num_detections, -1)
    free = np.ones(num_boxes, bool)
    strongest = np.empty(num_boxes, np.intp)
    while len(detection):
        strongest[box[::-1]] = detection[::-1]  # of repeated positions the last one written stays
        is_best = np.concatenate([[True], detection[1:] != detection[:-1]])
        chooser, choice = detection[is_best], box[is_best]
        settled = strongest[choice] == chooser
        matched[chooser[settled]] = choice[settled]
        free[choice[settled]] = False
        still_open = free[box] & (matched[detection] < 0)
        detection, box = detection[still_open], box[still_open]
    return matched
