"""Average precision, recall and precision at an equal number of detections, and calibration error, from matches.

Each number carries the protocol it was made under: without it two numbers cannot be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn import __version__
from logn.base.arrays import DEFAULT_AT, nan_mean, ratio
from logn.matching.ground_truth import SIZES, GroundTruth, Groups, group_members, mean_per_group
from logn.matching.match import match_sizes
from logn.matching.outcomes import Floats, Index, Marks, Outcomes, unpack
from logn.methods.sampled_scores import matching_threshold
from logn.predictions.detections import LVIS_CAP, Detections
from logn.thresholds.scored_detections import shares

COCO_CAP = 100
# The same floats as the reference evaluators use: at exact equality the last bit decides.
RECALL_THRESHOLDS: Floats = np.linspace(0.0, 1.0, 101)
BINS = 15
# Score thresholds of the uncorrected model, of which the counts are taken, besides the user's own.
COUNTED_AT = (0.5, DEFAULT_AT, 0.05)


@dataclass(frozen=True)
class EvaluationProtocol:
    """Everything that moves a detection metric apart from the detections themselves.

    Args:
        style: "lvis" (federated, one budget of detections per image over all classes) or "coco" (every class
            is annotated in every image, a budget per image and class).
        iou_type: "bbox" or "segm".
        max_detections: The budget per image (LVIS) or per image and class (COCO); None for no limit.
        score_threshold: Scores below it were dropped by the decoder; None when unknown.
        nms_iou: Overlap above which the decoder suppressed boxes; None when unknown, or where there is no suppression.
        groups: Where the rare, common and frequent groups come from.
        images: How many images were evaluated, and which.
        evaluator: Name and version of the package that computed the metrics.
        nms: How boxes suppressed each other: "class-wise", "class-agnostic" or "none".
        multi_label: Whether a proposal could be detected as several classes.

    Example:
        >>> EvaluationProtocol(score_threshold=1e-4, nms_iou=0.5, images="100 images").describe()
        'LVIS box AP, federated, at most 300 detections per image, score threshold 0.0001, NMS 0.5, 100 images'
    """

    style: str = "lvis"
    iou_type: str = "bbox"
    max_detections: int | None = LVIS_CAP
    score_threshold: float | None = None
    nms_iou: float | None = None
    groups: str | None = None
    images: str | None = None
    evaluator: str = field(default=f"logn {__version__}")
    nms: str = "class-wise"
    multi_label: bool = True

    @property
    def federated(self) -> bool:
        """Whether only the classes that were verified in an image count there."""
        return self.style == "lvis"

    def describe(self) -> str:
        """Say the protocol in one line, for the caption of a table."""
        kind = "mask" if self.iou_type == "segm" else "box"
        unit = "per image" if self.federated else "per image and class"
        limit = "no limit of detections" if self.max_detections is None else f"at most {self.max_detections} detections"
        parts = [
            f"{self.style.upper()} {kind} AP",
            "federated" if self.federated else "not federated",
            f"{limit} {unit}",
            self.score_threshold is not None and f"score threshold {self.score_threshold:g}",
            self._suppression(),
            not self.multi_label and "the best class of each proposal",
            self.groups and f"groups by {self.groups}",
            self.images,
        ]
        return ", ".join(part for part in parts if part)

    def _suppression(self) -> str | None:
        if self.nms == "none":
            return "no NMS"
        if self.nms_iou is None:
            return None
        return f"NMS {self.nms_iou:g}" + (" across classes" if self.nms == "class-agnostic" else "")


def rows_within_limits(detections: Detections, protocol: EvaluationProtocol) -> Index:
    """Rows that `protocol` looks at, in their order.

    Example:
        >>> detections = Detections(np.zeros(3, np.int32), np.array([4, 4, 7], np.int32),
        ...     np.array([0.9, 0.5, 0.1], np.float32), np.zeros((3, 4), np.float32), np.arange(3, dtype=np.int32))
        >>> rows_within_limits(detections, EvaluationProtocol("lvis", max_detections=2)).tolist()
        [0, 1]
        >>> rows_within_limits(detections, EvaluationProtocol("coco", max_detections=1)).tolist()
        [0, 2]
    """
    if protocol.max_detections is None:
        return np.arange(len(detections))
    keys = detections.image_index.astype(np.int64)
    if not protocol.federated:
        keys = keys * (int(detections.labels.max(initial=0)) + 1) + detections.labels
    return np.flatnonzero(_rank_within(keys) < protocol.max_detections)


def _rank_within(keys: npt.NDArray[Any]) -> Index:
    """How many earlier rows have the same key."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    rank = np.empty(len(keys), np.intp)
    rank[order] = np.arange(len(keys)) - np.searchsorted(ordered, ordered, side="left")
    return rank


def average_precision_per_class(
    labels: npt.NDArray[Any],
    correct: Marks,
    counted: Marks,
    num_ground_truth: npt.NDArray[Any],
    recall_thresholds: Floats = RECALL_THRESHOLDS,
) -> Floats:
    """Interpolated average precision of each class; NaN for a class without ground truth.

    Args:
        labels: `(D,)` class of each detection, ascending; within a class the highest score first.
        correct: `(D,)` whether a detection found a ground-truth box of its own.
        counted: `(D,)` False where a detection is neither right nor wrong.
        num_ground_truth: `(F,)` boxes of each class.
        recall_thresholds: Where the precision envelope is read.

    Example:
        >>> ranked = np.zeros(3, int), np.array([True, False, True]), np.ones(3, bool)
        >>> average_precision_per_class(*ranked, np.array([2])).round(3)
        array([0.835])
    """
    num_classes = len(num_ground_truth)
    position = np.flatnonzero(correct & counted)
    label = labels[position]
    true_positives = np.arange(1, len(position) + 1) - np.searchsorted(label, label, side="left")
    total = np.concatenate([[0], np.cumsum(counted)])
    before_class = total[np.searchsorted(labels, np.arange(num_classes))]
    precision = true_positives / (total[position + 1] - before_class[label])
    # The best precision at the same or a later rank, as a running maximum over all classes at once: the offset grows
    # from the last class to the first, so that no class sees the values of a later one.
    offset = 2.0 * (num_classes - label)
    precision = np.maximum.accumulate((precision + offset)[::-1])[::-1] - offset
    covered = np.searchsorted(recall_thresholds, true_positives / num_ground_truth[label], side="right")
    steps = covered - np.where(true_positives == 1, 0, np.roll(covered, 1))
    areas = np.bincount(label, weights=precision * steps, minlength=num_classes) / len(recall_thresholds)
    return np.where(num_ground_truth > 0, areas, np.nan)


@dataclass(frozen=True, eq=False)
class DetectionMetrics:
    """Average precision between 0 and 1 under one protocol; NaN where nothing is annotated.

    Args:
        values: "AP", "AP50", "AP75", "APs", "APm", "APl" and, where groups are known, "APr", "APc", "APf".
        per_class: `(F,)` AP of each class.
        protocol: How they were made.
    """

    values: Mapping[str, float]
    per_class: Floats
    protocol: EvaluationProtocol

    def __getitem__(self, name: str) -> float:
        return self.values[name]


def evaluate_detections(
    detections: Detections,
    truth: GroundTruth,
    protocol: EvaluationProtocol | None = None,
    *,
    groups: Groups | None = None,
    masks: Sequence[Any] | None = None,
) -> DetectionMetrics:
    """Evaluate detections by the protocol of LVIS or COCO.

    Args:
        detections: Of all images of `truth`, in its numbering of images and classes.
        truth: The ground truth.
        protocol: Limits and overlap; by default LVIS with 300 detections an image.
        groups: `(F,)` "r", "c" or "f" for each class; None leaves the groups out.
        masks: Run-length encoded mask of each detection, for mask AP.

    Example:
        >>> from logn.matching.ground_truth import load_ground_truth
        >>> toy = {"images": [{"id": 1, "neg_category_ids": [], "not_exhaustive_category_ids": []}],
        ...     "categories": [{"id": 1, "name": "cup"}],
        ...     "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "area": 81}]}
        >>> detections = Detections(np.zeros(1, np.int32), np.zeros(1, np.int32), np.ones(1, np.float32),
        ...     np.array([[0, 0, 9, 9]], np.float32), np.zeros(1, np.int32))
        >>> round(evaluate_detections(detections, load_ground_truth(toy))["AP"], 6)
        1.0
    """
    protocol = protocol or EvaluationProtocol()
    # The limits come before the federated filter: what is filtered out has used up the budget.
    rows = rows_within_limits(detections, protocol)
    kept = None if masks is None else [masks[row] for row in rows.tolist()]
    outcomes, by_size = match_sizes(detections.take(rows), truth, masks=kept)
    return average_precision(outcomes.by_class(truth), by_size.by_class(truth), protocol, groups)


def average_precision(
    ranked: Outcomes, by_size: Outcomes, protocol: EvaluationProtocol, groups: Groups | None = None
) -> DetectionMetrics:
    """AP over all overlaps and classes, at two overlaps, and by size and group.

    Args:
        ranked: Outcomes by class.
        by_size: Outcomes of small, medium and large objects by class, as `match_sizes` gives them.
        protocol: How they were made.
        groups: `(F,)` "r", "c" or "f" for each class.
    """
    precision = _precision(ranked)
    per_class = precision.mean(axis=0)
    of_groups = mean_per_group(per_class, groups)
    of_sizes = nan_mean(_precision(by_size).mean(axis=0).reshape(len(SIZES), -1))
    values = {
        "AP": of_groups.pop(""),
        "AP50": float(nan_mean(precision[0])),
        "AP75": float(nan_mean(precision[5])),
        **{f"AP{size}": float(value) for size, value in zip(SIZES, of_sizes, strict=True)},
        **{f"AP{group}": value for group, value in of_groups.items()},
    }
    return DetectionMetrics(values, per_class, protocol)


def _precision(ranked: Outcomes) -> Floats:
    """AP per overlap threshold and class."""
    right, counted = (unpack(bits, len(ranked.thresholds)) for bits in (ranked.right, ranked.counted))
    levels = zip(right, counted, strict=True)
    return np.stack([average_precision_per_class(ranked.label, *marks, ranked.num_objects) for marks in levels])


def average_precision_pool(ranked: Outcomes, *, groups: Groups | None = None) -> dict[str, float]:
    """Rank the detections of all classes together, matched within their class as ever.

    "AP-Pool" is over all classes; "APr-Pool" and so on are rankings of a group of their own.
    """
    members = group_members(groups, ranked.num_classes)
    return {f"AP{group}-Pool": _pooled(ranked, classes) for group, classes in members.items()}


def _pooled(ranked: Outcomes, classes: Marks) -> float:
    rows = np.flatnonzero(classes[ranked.label])
    rows = rows[np.argsort(-ranked.score[rows], kind="stable")]
    as_one = np.zeros(len(rows), np.int32), np.array([ranked.num_objects[classes].sum()])
    together = replace(ranked.take(rows), label=as_one[0], num_objects=as_one[1])
    return float(_precision(together).mean())


def calibration_error(ranked: Outcomes, *, groups: Groups | None = None, bins: int = BINS) -> dict[str, float]:
    """Expected calibration error of the counted detections at the first overlap threshold (0.5).

    Scores fall into `bins` bins of equal width; the error is the mean distance of score and share of hits, weighted
    by the detections in a bin. "ECE" is over all classes, "ECEr", "ECEc" and "ECEf" over a group; NaN for none.

    Example:
        >>> sure = Outcomes(np.zeros(4, int), np.zeros(4, int), np.full(4, 0.9), np.array([1, 1, 1, 0], np.uint16),
        ...     np.ones(4, np.uint16), np.arange(4), np.array([4]), np.array([0.5]))
        >>> round(calibration_error(sure)["ECE"], 3)
        0.15
    """
    score = ranked.score.astype(np.float64)
    gap = score - ranked.hits
    bin_index = np.minimum((score * bins).astype(np.intp), bins - 1)
    counted = ranked.hits | ranked.alarms
    errors = {}
    for group, classes in group_members(groups, ranked.num_classes).items():
        rows = classes[ranked.label] & counted
        errors[f"ECE{group}"] = float(ratio(np.abs(np.bincount(bin_index[rows], gap[rows])).sum(), rows.sum()))
    return errors


def count_name(metric: str, at: float, group: str = "") -> str:
    """What a metric at an equal number of detections is called.

    Example:
        >>> count_name("recall", 0.25), count_name("false-alarms", 0.25, "r")
        ('recall@n:0.25', 'false-alarms-r@n:0.25')
    """
    return f"{metric}{group and '-' + group}@n:{at:g}"


@dataclass(frozen=True)
class RecallAtCount:
    """What a method finds with as many detections as the uncorrected model has above a score threshold.

    Args:
        at: The threshold of the uncorrected model.
        detections: How many are kept: fewer than the uncorrected model has only where the method has no more.
        threshold: The method's own score threshold that keeps as many: the one to use instead of `at`.
        found: Objects found, of all classes.
        objects: How many there are.
        recall: Mean over the classes that have objects of the share that is found.
        precision: Mean over the classes that have objects, and of which something is kept, of the share that is right.
        f1: Mean over the classes that have objects of the F1 of both shares.
        false_alarms: Wrong detections, of all classes.
        groups: Recall of rare ("r"), common ("c") and frequent ("f") classes; empty where they are unknown.
        found_in: Objects found in each group.
        false_alarms_in: Wrong detections in each group.
    """

    at: float
    detections: int
    threshold: float
    found: int
    objects: int
    recall: float
    precision: float
    f1: float
    false_alarms: int
    groups: Mapping[str, float]
    found_in: Mapping[str, int]
    false_alarms_in: Mapping[str, int]

    @property
    def values(self) -> dict[str, float]:
        """The metrics by name."""
        means = {"recall": self.recall, "precision": self.precision, "F1": self.f1}
        values = {count_name(name, self.at): value for name, value in means.items()}
        columns = {
            "recall": self.groups,
            "found": {"": self.found, **self.found_in},
            "false-alarms": {"": self.false_alarms, **self.false_alarms_in},
        }
        named = {name: column.items() for name, column in columns.items()}
        return values | {count_name(name, self.at, group): v for name, items in named.items() for group, v in items}


@dataclass(frozen=True, eq=False)
class BestDetections:
    """The best detections of all images, and how many of them are looked at.

    Args:
        outcomes: Whatever their class, in the order of their scores.
        wanted: `(I,)` how many detections the uncorrected model has in each image above a threshold, by the threshold.
    """

    outcomes: Outcomes
    wanted: Mapping[float, Index]

    @classmethod
    def of(cls, outcomes: Outcomes, wanted: Mapping[float, Index], truth: GroundTruth) -> BestDetections:
        """As many as a draw of the images may want, which varies around what all have."""
        return cls(outcomes.first(2 * int(max(counts.sum() for counts in wanted.values())) + 1000, truth), wanted)


def counts_per_image(outcomes: Outcomes, thresholds: Iterable[float], num_images: int) -> dict[float, Index]:
    """How many detections of each image have a score above each threshold."""
    return {at: np.bincount(outcomes.image[outcomes.score > at], minlength=num_images) for at in thresholds}


def class_shares(hits: npt.NDArray[Any], alarms: npt.NDArray[Any], objects: npt.NDArray[Any]) -> dict[str, Floats]:
    """Recall, precision and F1 of each class; NaN for classes without objects, and for precision if nothing is kept.

    Example:
        >>> found = class_shares(np.array([2, 0, 0]), np.array([2, 1, 1]), np.array([4, 1, 0]))
        >>> {name: values.tolist() for name, values in found.items()}
        {'precision': [0.5, 0.0, nan], 'recall': [0.5, 0.0, nan], 'F1': [0.5, 0.0, nan]}
    """
    return {name: np.where(objects > 0, share, np.nan) for name, share in shares(hits, alarms, objects).items()}


def recall_at_count(
    best: BestDetections, scores: npt.NDArray[np.floating[Any]], groups: Groups | None
) -> dict[float, RecallAtCount]:
    """What is found by the best detections of all images, as many as the uncorrected model has, by its threshold.

    Args:
        best: The detections.
        scores: All of them, in any order.
        groups: `(F,)` "r", "c" or "f" for each class; None when unknown.
    """
    ranked, objects = best.outcomes, best.outcomes.num_objects
    members = group_members(groups, ranked.num_classes)
    scores = scores.astype(np.float64)
    points = {}
    for at, wanted in best.wanted.items():
        count = int(wanted.sum())
        hits, alarms = (
            np.bincount(ranked.label[:count][marks[:count]], minlength=ranked.num_classes)
            for marks in (ranked.hits, ranked.alarms)
        )
        share = class_shares(hits, alarms, objects)
        recall = mean_per_group(share["recall"], groups)
        hits_in, alarms_in = (
            {group: int(numbers[classes].sum()) for group, classes in members.items()} for numbers in (hits, alarms)
        )
        points[at] = RecallAtCount(
            at=at,
            detections=min(count, len(scores)),
            threshold=matching_threshold(scores, count, at),
            found=hits_in.pop(""),
            objects=int(objects.sum()),
            recall=recall.pop(""),
            precision=float(nan_mean(share["precision"])),
            f1=float(nan_mean(share["F1"])),
            false_alarms=alarms_in.pop(""),
            groups=recall,
            found_in=hits_in,
            false_alarms_in=alarms_in,
        )
    return points
