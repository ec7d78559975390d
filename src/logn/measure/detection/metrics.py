"""Average precision, recall and precision at an equal number of detections, and calibration error, from matches.

Each number carries the protocol it was made under: without it two numbers cannot be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from logn import __version__
from logn.base.arrays import DEFAULT_AT, nan_mean, ratio
from logn.matching.match import Floats, Index, Marks, MatchedDetections, match_detections
from logn.matching.truth import GroundTruth, Groups, group_members, mean_per_group
from logn.methods.sampled_scores import matching_threshold
from logn.predictions.detections import LVIS_CAP, Detections, Skipped
from logn.thresholds.scored_detections import shares

COCO_CAP = 100
# The same floats as the reference evaluators use: at exact equality the last bit decides.
RECALL_THRESHOLDS: Floats = np.linspace(0.0, 1.0, 101)
# Areas in pixels of small, medium and large objects.
SIZES = {"s": (0.0, 32.0**2), "m": (32.0**2, 96.0**2), "l": (96.0**2, 1e10)}
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
        >>> from logn.matching.labels import load_ground_truth
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
    return average_precision(match_detections(detections.take(rows), truth, masks=kept), truth, protocol, groups)


def average_precision(
    matched: MatchedDetections, truth: GroundTruth, protocol: EvaluationProtocol, groups: Groups | None = None
) -> DetectionMetrics:
    """AP over all overlaps and classes, at two overlaps, and by size and group."""
    precision = _precision(matched.labels, matched.correct, matched.counted, truth.boxes_per_class)
    per_class = precision.mean(axis=0)
    of_groups = mean_per_group(per_class, groups)
    values = {
        "AP": of_groups.pop(""),
        "AP50": float(nan_mean(precision[0])),
        "AP75": float(nan_mean(precision[5])),
        **{f"AP{size}": _precision_of_size(matched, truth, *SIZES[size]) for size in SIZES},
        **{f"AP{group}": value for group, value in of_groups.items()},
    }
    return DetectionMetrics(values, per_class, protocol)


def _precision(labels: npt.NDArray[Any], correct: Marks, counted: Marks, boxes: npt.NDArray[Any]) -> Floats:
    """AP per overlap threshold and class."""
    pairs = zip(correct, counted, strict=True)
    return np.stack([average_precision_per_class(labels, right, counts, boxes) for right, counts in pairs])


def _precision_of_size(matched: MatchedDetections, truth: GroundTruth, low: float, high: float) -> float:
    """AP of the objects of some sizes: boxes of other sizes, and detections of other sizes without one, are ignored."""
    if matched.pairs is None:
        return float("nan")
    areas = matched.pairs.areas
    ignored = truth.crowd | (truth.areas < low) | (truth.areas > high)
    excused = matched.pairs.excused | (areas < low) | (areas > high)
    correct, counted, _ = matched.pairs.outcomes(truth, ignored, excused)
    boxes = np.bincount(truth.labels[~ignored], minlength=truth.num_classes)
    return float(nan_mean(_precision(matched.labels, correct, counted, boxes).mean(axis=0)))


def average_precision_pool(
    matched: MatchedDetections, truth: GroundTruth, *, groups: Groups | None = None
) -> dict[str, float]:
    """Rank the detections of all classes together, matched within their class as ever.

    "AP-Pool" is over all classes; "APr-Pool" and so on are rankings of a group of their own.
    """
    members = group_members(groups, truth.num_classes)
    return {f"AP{group}-Pool": _pooled(matched, truth, classes) for group, classes in members.items()}


def _pooled(matched: MatchedDetections, truth: GroundTruth, classes: Any) -> float:
    rows = np.flatnonzero(classes[matched.labels])
    rows = rows[np.argsort(-matched.scores[rows], kind="stable")]
    together = np.zeros(len(rows), np.intp)
    boxes = np.array([truth.boxes_per_class[classes].sum()])
    values = [
        average_precision_per_class(together, correct[rows], counted[rows], boxes)[0]
        for correct, counted in zip(matched.correct, matched.counted, strict=True)
    ]
    return float(np.mean(values))


def calibration_error(
    matched: MatchedDetections, *, groups: Groups | None = None, bins: int = BINS
) -> dict[str, float]:
    """Expected calibration error of the counted detections at the first overlap threshold (0.5).

    Scores fall into `bins` bins of equal width; the error is the mean distance of score and share of hits, weighted
    by the detections in a bin. "ECE" is over all classes, "ECEr", "ECEc" and "ECEf" over a group; NaN for none.

    Example:
        >>> sure = MatchedDetections(np.arange(4), np.zeros(4, int), np.zeros(4, int), np.full(4, 0.9),
        ...     np.array([[True, True, True, False]]), np.ones((1, 4), bool), np.arange(4))
        >>> round(calibration_error(sure)["ECE"], 3)
        0.15
    """
    members = group_members(groups, int(matched.labels.max(initial=0)) + 1)
    gap = matched.scores - matched.correct[0]
    bin_index = np.minimum((matched.scores * bins).astype(np.intp), bins - 1)
    counted = {f"ECE{group}": classes[matched.labels] & matched.counted[0] for group, classes in members.items()}
    return {
        name: float(ratio(np.abs(np.bincount(bin_index[rows], gap[rows])).sum(), rows.sum()))
        for name, rows in counted.items()
    }


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
class Ranking:
    """The best detections of all images, whatever their class, in the order of their scores.

    Ties: lowest image id, then those that are evaluated.

    Args:
        image_index: `(R,)` image of each.
        labels: `(R,)` class of each.
        right: `(R,)` whether it found an object.
        wrong: `(R,)` whether it is a false alarm; one that nobody looked for is neither.
        wanted: `(I,)` how many detections the uncorrected model has in each image, by its threshold.
    """

    image_index: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    right: Marks
    wrong: Marks
    wanted: Mapping[float, Index]

    @property
    def outcomes(self) -> tuple[Marks, Marks]:
        """Right and wrong."""
        return self.right, self.wrong

    @classmethod
    def of(
        cls, matched: MatchedDetections, skipped: Skipped, wanted: Mapping[float, Index], truth: GroundTruth
    ) -> Ranking:
        """Rank the detections that are evaluated, matched at an overlap of one half first, and the others."""
        scores = np.concatenate([matched.scores, skipped.scores])
        images = np.concatenate([matched.image_index, skipped.image_index])
        # An evaluated detection stands where it stands in its image, all others behind it.
        place = np.concatenate([matched.rows, np.full(len(skipped.scores), np.iinfo(np.intp).max)])
        most = most_ranked(wanted)
        rows = np.arange(len(scores))
        if most < len(scores):
            rows = np.flatnonzero(scores >= np.partition(scores, -most)[-most])
        rows = rows[np.lexsort((place[rows], truth.image_ids[images[rows]], -scores[rows]))]
        nobody = np.zeros(len(skipped.scores), bool)
        right = np.append(matched.correct[0], nobody)[rows]
        wrong = np.append(matched.counted[0] & ~matched.correct[0], nobody)[rows]
        labels = np.concatenate([matched.labels, skipped.labels])[rows]
        return cls(images[rows].astype(np.int32), labels.astype(np.int32), right, wrong, wanted)


def most_ranked(wanted: Mapping[float, Index]) -> int:
    """How many detections are ranked: as many as a draw of the images may want, which varies around what all have."""
    return 2 * int(max(counts.sum() for counts in wanted.values())) + 1000


def counts_per_image(
    image_index: npt.NDArray[Any], scores: npt.NDArray[np.floating], thresholds: Iterable[float], num_images: int
) -> dict[float, Index]:
    """How many scores of each image are above each threshold.

    Example:
        >>> counts = counts_per_image(np.array([0, 0, 1]), np.array([0.6, 0.5, 0.1]), (0.5, 0.05), 2)
        >>> {at: of_images.tolist() for at, of_images in counts.items()}
        {0.5: [1, 0], 0.05: [2, 1]}
    """
    return {at: np.bincount(image_index[scores > at], minlength=num_images) for at in thresholds}


def class_shares(hits: npt.NDArray[Any], alarms: npt.NDArray[Any], objects: npt.NDArray[Any]) -> dict[str, Floats]:
    """Recall, precision and F1 of each class; NaN for classes without objects, and for precision if nothing is kept.

    Example:
        >>> found = class_shares(np.array([2, 0, 0]), np.array([2, 1, 1]), np.array([4, 1, 0]))
        >>> {name: values.tolist() for name, values in found.items()}
        {'precision': [0.5, 0.0, nan], 'recall': [0.5, 0.0, nan], 'F1': [0.5, 0.0, nan]}
    """
    return {name: np.where(objects > 0, share, np.nan) for name, share in shares(hits, alarms, objects).items()}


def recall_at_count(
    ranking: Ranking, scores: npt.NDArray[np.floating], truth: GroundTruth, groups: Groups | None
) -> dict[float, RecallAtCount]:
    """What is found by the best detections of all images, as many as the uncorrected model has, by its threshold.

    Args:
        ranking: The detections.
        scores: All of them, in any order.
        truth: The ground truth.
        groups: `(F,)` "r", "c" or "f" for each class; None when unknown.
    """
    points, objects = {}, truth.boxes_per_class
    members = group_members(groups, truth.num_classes)
    for at, wanted in ranking.wanted.items():
        count = int(wanted.sum())
        hits, alarms = (
            np.bincount(ranking.labels[:count][marks[:count]], minlength=truth.num_classes)
            for marks in ranking.outcomes
        )
        share = class_shares(hits, alarms, objects)
        recall = mean_per_group(share["recall"], groups)
        found, wrong = ({group: int(of[classes].sum()) for group, classes in members.items()} for of in (hits, alarms))
        points[at] = RecallAtCount(
            at=at,
            detections=min(count, len(scores)),
            threshold=matching_threshold(scores, count, at),
            found=found.pop(""),
            objects=int(objects.sum()),
            recall=recall.pop(""),
            precision=float(nan_mean(share["precision"])),
            f1=float(nan_mean(share["F1"])),
            false_alarms=wrong.pop(""),
            groups=recall,
            found_in=found,
            false_alarms_in=wrong,
        )
    return points
