"""What goes wrong, and how much AP each kind of error costs: TIDE (Bolya et al. 2020), version 1.0.1.

Every unmatched detection gets the first label that fits; then one kind of error at a time is repaired and AP50 is
computed again. Which detection found which box is what AP says; all images are handled at once, and the result is also
given per frequency group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import nan_mean
from logn.matching.ground_truth import GroundTruth, Groups, group_members
from logn.matching.match import joined_pairs, overlaps
from logn.matching.outcomes import Index, Outcomes
from logn.measure.detection.metrics import average_precision_per_class
from logn.predictions.detections import Detections

ERROR_TYPES = ("Cls", "Loc", "Both", "Dupe", "Bkg", "Miss")
SPECIAL_ERRORS = ("FP", "FN")
FOREGROUND_IOU, BACKGROUND_IOU = 0.5, 0.1
# TIDE's own recall points, which differ from the LVIS ones in the last bit.
TIDE_RECALLS: npt.NDArray[np.float64] = np.arange(101) / 100


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
class ErrorKinds:
    """What is wrong with each of some detections.

    Args:
        kind: `(D,)` position in ERROR_TYPES; -1 for one that is right.
        repair: `(D,)` the object that it would find if its error were repaired, or -1.
    """

    kind: npt.NDArray[np.int8]
    repair: npt.NDArray[np.int32]

    @staticmethod
    def joined(parts: Sequence[ErrorKinds]) -> ErrorKinds:
        """Join the kinds of images that follow each other."""
        return ErrorKinds(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("kind", "repair")))


def error_kinds(detections: Detections, outcomes: Outcomes, truth: GroundTruth) -> ErrorKinds:
    """Find the error of each detection of some images.

    Args:
        detections: Within the limits, with those of unverified classes.
        outcomes: What became of each.
        truth: The ground truth.
    """
    labels, hit = detections.labels.astype(np.int64), outcomes.object >= 0
    is_found = np.zeros(len(truth.labels) + 1, bool)  # the last one stands for no object
    is_found[outcomes.object[hit]] = True
    first, last = (int(detections.image_index[end]) for end in (0, -1)) if len(detections) else (0, -1)
    objects = truth.rows_of_images(first, last + 1)
    detection, candidate = joined_pairs(detections.image_index.astype(np.int64), truth.image_index[objects])
    candidate = objects[candidate]
    iou = overlaps(detections, truth, detection, candidate)
    near = (iou >= BACKGROUND_IOU) & ~truth.crowd[candidate]
    detection, candidate, iou = detection[near], candidate[near], iou[near]
    best_first = np.lexsort((candidate, -iou, detection))
    detection, candidate, iou = detection[best_first], candidate[best_first], iou[best_first]

    same = truth.labels[candidate] == labels[detection]
    same_iou, same_object = _best(detection[same], candidate[same], iou[same], len(labels))
    other_iou, other_object = _best(detection[~same], candidate[~same], iou[~same], len(labels))
    duplicate = np.zeros(len(labels), bool)
    duplicate[detection[same & (iou >= FOREGROUND_IOU) & is_found[candidate]]] = True
    away = np.maximum(same_iou, other_iou) <= BACKGROUND_IOU
    poor_place = (same_iou >= BACKGROUND_IOU) & (same_iou <= FOREGROUND_IOU)
    # The order is the rule: the first label that fits.
    kind = np.select([hit, poor_place, other_iou >= FOREGROUND_IOU, duplicate, away], [-1, 1, 0, 3, 4], default=2)
    repair = np.select([kind == 1, kind == 0], [same_object, other_object], default=-1)
    repair[is_found[repair]] = -1
    # Only the strongest detection may find an object; within an image the strongest stands first.
    candidates = np.flatnonzero(repair >= 0)
    _, strongest = np.unique(repair[candidates], return_index=True)
    repair[np.delete(candidates, strongest)] = -1
    return ErrorKinds(kind.astype(np.int8), repair.astype(np.int32))


def error_types(
    outcomes: Outcomes,
    kinds: ErrorKinds,
    truth: GroundTruth,
    groups: Groups | None = None,
    images: npt.NDArray[np.bool_] | None = None,
) -> ErrorTypes:
    """What each kind of error costs.

    Detections of classes that were not verified in an image do not count against the detector, but, as in version
    1.0.1, they may be the ones that repairing a class or place error turns into hits.

    Args:
        outcomes: Of all detections of the images.
        kinds: Their errors.
        truth: The ground truth.
        groups: `(F,)` "r", "c" or "f" for each class.
        images: `(I,)` the images that are looked at; None for all.
    """
    wanted = ~truth.crowd if images is None else ~truth.crowd & images[truth.image_index]
    is_missed = wanted.copy()
    is_missed[outcomes.object[outcomes.object >= 0]] = False
    never_found = np.bincount(truth.labels[is_missed], minlength=truth.num_classes)
    is_missed[kinds.repair[kinds.repair >= 0]] = False  # what a repair would find is no miss
    total = np.bincount(truth.labels[wanted], minlength=truth.num_classes)
    total_without = {"Miss": total - np.bincount(truth.labels[is_missed], minlength=truth.num_classes)}
    total_without["FN"] = total - never_found
    per_class = {
        name: _class_precision(*repaired) for name, repaired in _repaired(outcomes, kinds, truth, total, total_without)
    }
    members = group_members(groups, truth.num_classes)
    by_group = {group: _gains(per_class, classes) for group, classes in members.items()}
    whole = by_group.pop("")
    counts = {name: int((kinds.kind == number).sum()) for number, name in enumerate(ERROR_TYPES)}
    counts["Miss"] = int(is_missed.sum())
    return ErrorTypes(whole.pop("AP50"), whole, counts, by_group)


def _best(
    detection: Index, candidate: Index, iou: npt.NDArray[np.float64], num_detections: int
) -> tuple[npt.NDArray[np.float64], Index]:
    """Best overlap of each detection and the object it is with; pairs are sorted best first."""
    best_iou, best_object = np.zeros(num_detections), np.full(num_detections, -1)
    best_iou[detection[::-1]], best_object[detection[::-1]] = iou[::-1], candidate[::-1]
    return best_iou, best_object


_Ranked = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_], npt.NDArray[np.int64]]


def _repaired(
    outcomes: Outcomes,
    kinds: ErrorKinds,
    truth: GroundTruth,
    total: npt.NDArray[np.int64],
    total_without: Mapping[str, npt.NDArray[np.int64]],
) -> Iterator[tuple[str, _Ranked]]:
    """Labels, scores, hits and objects per class: as they are, and with one kind of error repaired at a time."""
    hits = outcomes.object >= 0
    counted = hits | outcomes.alarms
    labels, scores, correct = outcomes.label[counted], outcomes.score[counted], hits[counted]
    yield "AP50", (labels, scores, correct, total)
    for number, name in enumerate(ERROR_TYPES[:-1]):
        wrong = kinds.kind == number
        repaired = wrong & (kinds.repair >= 0)
        keep = (counted & ~wrong) | repaired
        turned = np.where(repaired & (name == "Cls"), np.append(truth.labels, 0)[kinds.repair], outcomes.label)
        yield name, (turned[keep], outcomes.score[keep], (hits | repaired)[keep], total)
    for name, objects in total_without.items():
        yield name, (labels, scores, correct, objects)
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
