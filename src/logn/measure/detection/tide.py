"""What goes wrong, and how much AP each kind of error costs: TIDE (Bolya et al. 2020), version 1.0.1.

Every unmatched detection gets the first label that fits; then one kind of error at a time is repaired and AP50 is
computed again. Which detection found which box is what AP says; all images are handled at once, and the result is also
given per frequency group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import nan_mean
from logn.matching.match import Index, MatchedDetections, joined_pairs, overlaps
from logn.matching.truth import GroundTruth, Groups, group_members
from logn.measure.detection.metrics import average_precision_per_class
from logn.predictions.detections import Detections

ERROR_TYPES = ("Cls", "Loc", "Both", "Dupe", "Bkg", "Miss")
SPECIAL_ERRORS = ("FP", "FN")
FOREGROUND_IOU, BACKGROUND_IOU = 0.5, 0.1
# TIDE's own recall points, which differ from the LVIS ones in the last bit.
TIDE_RECALLS: npt.NDArray[np.float64] = np.arange(101) / 100
IMAGES_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class ErrorTypes:
    """AP50 and what it would gain, between 0 and 1.

    Args:
        base: AP50 as TIDE defines it: a class with detections but without boxes counts as 0.
        gains: "Cls", "Loc", "Both", "Dupe", "Bkg", "Miss" and the special "FP" and "FN", which overlap with them.
        counts: How many errors of each of the six kinds there are.
        per_group: `base` and the gains over the classes of "r", "c" and "f".
    """

    base: float
    gains: Mapping[str, float]
    counts: Mapping[str, int]
    per_group: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class _Diagnosis:
    """How each detection and each box was matched."""

    labels: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    correct: npt.NDArray[np.bool_]
    counted: npt.NDArray[np.bool_]
    kind: npt.NDArray[np.int8]  # position in ERROR_TYPES, or -1
    repairs: Index  # the box that this detection would find if its error were repaired, or -1
    box_found: npt.NDArray[np.bool_]
    box_missed: npt.NDArray[np.bool_]  # and no error could be repaired to find it


def error_types(
    detections: Detections, truth: GroundTruth, matched: MatchedDetections, groups: Groups | None = None
) -> ErrorTypes:
    """Find the errors of `detections` and what each kind costs.

    Detections of classes that were not verified in an image do not count against the detector, but, as in version
    1.0.1, they may be the ones that repairing a class or place error turns into hits.

    Args:
        detections: Within the limits, with those of unverified classes.
        truth: The ground truth.
        matched: Which of them found which box.
        groups: `(F,)` "r", "c" or "f" for each class.
    """
    diagnosis = _diagnose(detections, truth, matched)
    per_class = {name: _class_precision(*repaired) for name, repaired in _repaired(diagnosis, truth)}
    members = group_members(groups, truth.num_classes)
    by_group = {group: _gains(per_class, classes) for group, classes in members.items()}
    whole = by_group.pop("")
    counts = {name: int((diagnosis.kind == number).sum()) for number, name in enumerate(ERROR_TYPES)}
    counts["Miss"] = int(diagnosis.box_missed.sum())
    return ErrorTypes(whole.pop("AP50"), whole, counts, by_group)


def _diagnose(detections: Detections, truth: GroundTruth, matched: MatchedDetections) -> _Diagnosis:
    labels = detections.labels.astype(np.int64)
    correct, counted = np.zeros((2, len(labels)), bool)
    correct[matched.rows], counted[matched.rows] = matched.box >= 0, matched.counted[0]
    box_found = np.zeros(len(truth.labels), bool)
    box_found[matched.box[matched.box >= 0]] = True

    detection, box, iou = _overlapping_pairs(detections, truth)
    same = truth.labels[box] == labels[detection]
    same_iou, same_box = _best(detection[same], box[same], iou[same], len(labels))
    other_iou, other_box = _best(detection[~same], box[~same], iou[~same], len(labels))
    duplicate = np.zeros(len(labels), bool)
    duplicate[detection[same & (iou >= FOREGROUND_IOU) & box_found[box]]] = True
    away = np.maximum(same_iou, other_iou) <= BACKGROUND_IOU
    poor_place = (same_iou >= BACKGROUND_IOU) & (same_iou <= FOREGROUND_IOU)
    # The order is the rule: the first label that fits.
    fits = [correct, poor_place, other_iou >= FOREGROUND_IOU, duplicate, away]
    kind = np.select(fits, [-1, 1, 0, 3, 4], default=2).astype(np.int8)
    repairs = np.select([kind == 1, kind == 0], [same_box, other_box], default=-1)
    repairs[np.append(box_found, False)[repairs]] = -1  # no box is the last one, which is never found
    usable = np.zeros(len(truth.labels), bool)
    usable[repairs[repairs >= 0]] = True
    _keep_first_of_each(repairs)
    scores, missed = detections.scores.astype(np.float64), ~box_found & ~usable & ~truth.crowd
    return _Diagnosis(labels, scores, correct, counted, kind, repairs, box_found, missed)


def _overlapping_pairs(detections: Detections, truth: GroundTruth) -> tuple[Index, Index, npt.NDArray[np.float64]]:
    """Pairs of any classes in one image that overlap enough to matter; best first for each detection."""
    parts = [(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0))]
    for detection, box in _pairs_of_images(detections, truth):
        iou = overlaps(detections, truth, detection, box)
        near = (iou >= BACKGROUND_IOU) & ~truth.crowd[box]
        parts.append((detection[near], box[near], iou[near]))
    detection, box, iou = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((box, -iou, detection))
    return detection[order], box[order], iou[order]


def _pairs_of_images(detections: Detections, truth: GroundTruth) -> Iterator[tuple[Index, Index]]:
    """All pairs, some images at a time: memory does not grow with their number."""
    for first in range(0, truth.num_images, IMAGES_AT_ONCE):
        start, stop = np.searchsorted(detections.image_index, [first, first + IMAGES_AT_ONCE])
        boxes = np.flatnonzero((truth.image_index >= first) & (truth.image_index < first + IMAGES_AT_ONCE))
        images = detections.image_index[start:stop].astype(np.int64)
        detection, box = joined_pairs(images, truth.image_index[boxes])
        yield detection + start, boxes[box]


def _best(
    detection: Index, box: Index, iou: npt.NDArray[np.float64], num_detections: int
) -> tuple[npt.NDArray[np.float64], Index]:
    """Best overlap of each detection and the box it is with; pairs are sorted best first."""
    best_iou, best_box = np.zeros(num_detections), np.full(num_detections, -1)
    best_iou[detection[::-1]], best_box[detection[::-1]] = iou[::-1], box[::-1]
    return best_iou, best_box


def _keep_first_of_each(repairs: Index) -> None:
    """Only the strongest detection may find a box; within an image the strongest stands first."""
    candidates = np.flatnonzero(repairs >= 0)
    _, first = np.unique(repairs[candidates], return_index=True)
    repairs[np.delete(candidates, first)] = -1


_Ranked = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_], npt.NDArray[np.int64]]


def _repaired(diagnosis: _Diagnosis, truth: GroundTruth) -> Iterator[tuple[str, _Ranked]]:
    """Labels, scores, hits and boxes per class: as they are, and with one kind of error repaired at a time."""
    counted, total = diagnosis.counted, truth.boxes_per_class
    labels, scores, correct = diagnosis.labels[counted], diagnosis.scores[counted], diagnosis.correct[counted]
    yield "AP50", (labels, scores, correct, total)
    for number, name in enumerate(ERROR_TYPES[:-1]):
        wrong = diagnosis.kind == number
        repaired = wrong & (diagnosis.repairs >= 0)
        keep = (counted & ~wrong) | repaired
        turned = np.where(repaired & (name == "Cls"), np.append(truth.labels, 0)[diagnosis.repairs], diagnosis.labels)
        yield name, (turned[keep], diagnosis.scores[keep], (diagnosis.correct | repaired)[keep], total)
    for name, unfound in (("Miss", diagnosis.box_missed), ("FN", ~diagnosis.box_found & ~truth.crowd)):
        yield name, (labels, scores, correct, total - np.bincount(truth.labels[unfound], minlength=len(total)))
    yield "FP", (labels, correct.astype(np.float64), correct, total)


def _class_precision(
    labels: npt.NDArray[Any], scores: npt.NDArray[Any], correct: npt.NDArray[np.bool_], boxes: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """AP50 of each class; 0 for one with detections only, NaN for one with nothing at all."""
    order = np.lexsort((-scores, labels))
    precision = average_precision_per_class(
        labels[order], correct[order], np.ones(len(order), bool), boxes, TIDE_RECALLS
    )
    detected = np.bincount(labels, minlength=len(boxes)) > 0
    return np.where((boxes == 0) & detected, 0.0, precision)


def _gains(per_class: Mapping[str, npt.NDArray[np.float64]], classes: npt.NDArray[np.bool_]) -> dict[str, float]:
    means = {name: float(nan_mean(values[classes])) for name, values in per_class.items()}
    base = means["AP50"]
    gains = {name: max(means[name] - base, 0.0) for name in ERROR_TYPES}
    return {"AP50": base, **gains, **{name: means[name] - base for name in SPECIAL_ERRORS}}
