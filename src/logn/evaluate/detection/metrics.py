"""LVIS and COCO average precision by hotcoco, with the protocol that each number was made under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import import_extra
from logn.evaluate.decode.detections import Detections
from logn.evaluate.detection.class_groups import GROUPS, Groups, mean_of_present, mean_per_group
from logn.evaluate.detection.ground_truth import GroundTruth
from logn.evaluate.detection.matching import MatchedDetections, verified_rows
from logn.evaluate.detection.protocol import EvaluationProtocol

Index = npt.NDArray[np.intp]


def rows_within_limits(detections: Detections, protocol: EvaluationProtocol) -> Index:
    """Rows that `protocol` looks at, in their order.

    Example:
        >>> found = Detections(np.zeros(3, np.int32), np.array([4, 4, 7], np.int32),
        ...     np.array([0.9, 0.5, 0.1], np.float32), np.zeros((3, 4), np.float32), np.arange(3, dtype=np.int32))
        >>> rows_within_limits(found, EvaluationProtocol("lvis", max_detections=2)).tolist()
        [0, 1]
        >>> rows_within_limits(found, EvaluationProtocol("coco", max_detections=1)).tolist()
        [0, 2]
        >>> rows_within_limits(found, EvaluationProtocol(max_detections=None, per_class_limit=1)).tolist()
        [0, 2]
    """
    rows = np.arange(len(detections))
    if protocol.max_detections is not None:
        keys = detections.image_index.astype(np.int64)
        if not protocol.federated:
            keys = keys * (int(detections.labels.max(initial=0)) + 1) + detections.labels
        rows = rows[_rank_within(keys) < protocol.max_detections]
    if protocol.per_class_limit is not None:
        labels = detections.labels[rows]
        strongest_first = np.argsort(-detections.scores[rows], kind="stable")
        rank = np.empty(len(rows), np.intp)
        rank[strongest_first] = _rank_within(labels[strongest_first])
        rows = rows[rank < protocol.per_class_limit]
    return rows


def _rank_within(keys: npt.NDArray[Any]) -> Index:
    """How many earlier rows have the same key."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    rank = np.empty(len(keys), np.intp)
    rank[order] = np.arange(len(keys)) - np.searchsorted(ordered, ordered, side="left")
    return rank


BINS = 15


def calibration_error(
    matched: MatchedDetections, *, groups: Groups | None = None, bins: int = BINS
) -> dict[str, float]:
    """Expected calibration error of the counted detections at the first overlap threshold (0.5).

    Scores fall into `bins` bins of equal width; the error is the mean distance of score and share of hits, weighted
    by the detections in a bin. "ECE" is over all classes, "ECEr", "ECEc" and "ECEf" over a group; NaN for none.

    Example:
        >>> sure = MatchedDetections(np.arange(4), np.zeros(4, int), np.zeros(4, int), np.full(4, 0.9),
        ...     np.array([[True, True, True, False]]), np.ones((1, 4), bool))
        >>> round(calibration_error(sure)["ECE"], 3)
        0.15
    """
    members = {"ECE": np.ones(len(matched.labels), bool)}
    if groups is not None:
        members |= {f"ECE{group}": groups[matched.labels] == group for group in GROUPS}
    return {name: _error(matched, rows & matched.counted[0], bins) for name, rows in members.items()}


def _error(matched: MatchedDetections, rows: np.ndarray, bins: int) -> float:
    expected_error = import_extra("hotcoco.metrics", extra="evaluate").calibration_error

    if not rows.any():
        return float("nan")
    error, _ = expected_error(matched.scores[rows], matched.correct[0][rows], n_bins=bins)
    return float(error)


# Far more detections of a class than any image has: the limits are applied before hotcoco sees them.
NO_LIMIT = 1_000_000


@dataclass(frozen=True, eq=False)
class DetectionMetrics:
    """Average precision between 0 and 1 under one protocol; NaN where nothing is annotated.

    Args:
        values: "AP", "AP50", "AP75", "APs", "APm", "APl" and, where groups are known, "APr", "APc", "APf".
        per_class: `(F,)` AP of each class.
        protocol: How they were made.
    """

    values: Mapping[str, float]
    per_class: npt.NDArray[np.float64]
    protocol: EvaluationProtocol

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def to_dict(self) -> dict[str, Any]:
        """Give the values with their protocol, for JSON."""
        return {"values": dict(self.values), "protocol": self.protocol.to_dict()}


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
        >>> from logn.evaluate.detection.ground_truth import load_ground_truth
        >>> toy = {"images": [{"id": 1, "neg_category_ids": [], "not_exhaustive_category_ids": []}],
        ...     "categories": [{"id": 1, "name": "cup"}],
        ...     "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "area": 81}]}
        >>> found = Detections(np.zeros(1, np.int32), np.zeros(1, np.int32), np.ones(1, np.float32),
        ...     np.array([[0, 0, 9, 9]], np.float32), np.zeros(1, np.int32))
        >>> round(evaluate_detections(found, load_ground_truth(toy))["AP"], 6)
        1.0
    """
    protocol = protocol or EvaluationProtocol()
    rows = rows_within_limits(detections, protocol)
    # The limits come before the federated filter: what is filtered out has used up the budget.
    rows = rows[verified_rows(detections.image_index[rows], detections.labels[rows], truth)]
    return _summary(_precision(detections, rows, truth, masks), protocol, groups)


def _precision(
    detections: Detections, rows: npt.NDArray[np.intp], truth: GroundTruth, masks: Sequence[Any] | None
) -> npt.NDArray[np.float64]:
    """AP per threshold, class and size, `(10, F, 4)`; NaN where nothing is annotated."""
    hotcoco = import_extra("hotcoco", extra="evaluate")
    # Only classes with a box have an AP; at LVIS size the others would be half of the work on a small split.
    annotated = np.flatnonzero(np.bincount(truth.labels, minlength=truth.num_classes))
    precision = np.full((10, truth.num_classes, 4), np.nan)
    if not len(annotated):
        return precision
    results = _results(detections, rows[np.isin(detections.labels[rows], annotated)], truth, masks)
    federated = truth.style == "lvis"
    kind = "bbox" if masks is None else "segm"
    evaluation = hotcoco.COCOeval(truth.evaluator_dataset, results, kind, lvis_style=federated)
    evaluation.params.cat_ids = (annotated + 1).tolist()
    evaluation.params.max_dets = [NO_LIMIT]
    evaluation.evaluate()
    evaluation.accumulate()
    accumulated: Any = evaluation.eval
    # A class is there with all its recall points or, marked by -1, with none.
    averaged = accumulated["precision"][..., -1].mean(axis=1)
    precision[:, annotated] = np.where(averaged < 0, np.nan, averaged)
    return precision


def _results(
    detections: Detections, rows: npt.NDArray[np.intp], truth: GroundTruth, masks: Sequence[Any] | None
) -> Any:
    """The detections as hotcoco holds them, all of them counted: the limits have been applied."""
    table = result_table(detections.take(rows), truth)
    if masks is None:
        results = truth.evaluator_dataset.load_res(table)
    else:
        # Without boxes, as in the reference: the size of an object is the area of its mask.
        results = truth.evaluator_dataset.load_res(
            [
                {"image_id": int(image), "category_id": int(label), "score": float(score), "segmentation": masks[row]}
                for row, image, score, label in zip(rows, table[:, 0], table[:, 5], table[:, 6], strict=True)
            ]
        )
    # Later versions of hotcoco cap the detections of an image for LVIS; 1.0 does not.
    lift_cap = getattr(results, "cap_detections_per_image", None)
    return lift_cap(None) if lift_cap is not None and truth.style == "lvis" else results


def result_table(detections: Detections, truth: GroundTruth) -> npt.NDArray[np.float64]:
    """Rows of image, x, y, width, height, score and class, as `truth.evaluator_dataset` numbers them."""
    table = np.empty((len(detections), 7))
    boxes = detections.boxes.astype(np.float64)
    table[:, 0] = truth.image_numbers[detections.image_index]
    table[:, 1:3] = boxes[:, :2]
    table[:, 3:5] = boxes[:, 2:] - boxes[:, :2]
    table[:, 5] = detections.scores
    table[:, 6] = detections.labels + 1
    return table


def _summary(
    precision: npt.NDArray[np.float64], protocol: EvaluationProtocol, groups: Groups | None
) -> DetectionMetrics:
    per_size = precision.mean(axis=0)
    per_class = per_size[:, 0]
    values = {
        "AP": mean_of_present(per_class),
        "AP50": mean_of_present(precision[0, :, 0]),
        "AP75": mean_of_present(precision[5, :, 0]),
        **{f"AP{size}": mean_of_present(per_size[:, place]) for place, size in enumerate("sml", start=1)},
        **{f"AP{group}": value for group, value in mean_per_group(per_class, groups).items()},
    }
    return DetectionMetrics(values, per_class, protocol)
