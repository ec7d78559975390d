"""AP-Fixed and AP-Pool: average precision without the per-image limit, and over one ranking of all classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from logn.calibrators.affine import ClassAffine
from logn.evaluate.decode.detections import Detections
from logn.evaluate.detection.average_precision import average_precision_per_class
from logn.evaluate.detection.class_groups import GROUPS, Groups
from logn.evaluate.detection.ground_truth import GroundTruth
from logn.evaluate.detection.matching import MatchedDetections
from logn.evaluate.detection.metrics import DetectionMetrics, evaluate_detections
from logn.evaluate.detection.protocol import EvaluationProtocol

FIXED_LIMIT = 10_000
# The least score that AP-Fixed looks at, as its authors have it: with a higher one, methods that lower all scores would
# lose detections that others keep.
FIXED_THRESHOLD = 1e-7


def fixed_protocol(protocol: EvaluationProtocol, limit: int = FIXED_LIMIT) -> EvaluationProtocol:
    """Give the protocol of AP-Fixed: no limit per image, `limit` detections per class over the whole set.

    Example:
        >>> fixed_protocol(EvaluationProtocol(score_threshold=1e-4)).describe()
        'LVIS box AP, federated, no limit of detections per image, the best 10,000 of each class over the set, score \
threshold 1e-07'
    """
    decoded = protocol.score_threshold
    lowest = None if decoded is None else min(decoded, FIXED_THRESHOLD)
    return replace(protocol, max_detections=None, per_class_limit=limit, score_threshold=lowest)


def average_precision_fixed(
    detections: Detections,
    truth: GroundTruth,
    protocol: EvaluationProtocol | None = None,
    *,
    limit: int = FIXED_LIMIT,
    groups: Groups | None = None,
    masks: Sequence[Any] | None = None,
) -> DetectionMetrics:
    """Evaluate with the best `limit` detections of each class over the set instead of a limit per image.

    The detector must really give that many: decode without a limit per image and with a low threshold, or the
    result is too low.
    """
    fixed = fixed_protocol(protocol or EvaluationProtocol(), limit)
    return evaluate_detections(detections, truth, fixed, groups=groups, masks=masks)


def average_precision_pool(
    matched: MatchedDetections, truth: GroundTruth, *, groups: Groups | None = None
) -> dict[str, float]:
    """Rank the detections of all classes together, matched within their class as ever.

    "AP-Pool" is over all classes; "APr-Pool" and so on are rankings of a group of their own.
    """
    members = {"AP-Pool": np.ones(truth.num_classes, bool)}
    if groups is not None:
        members |= {f"AP{group}-Pool": groups == group for group in GROUPS}
    return {name: _pooled(matched, truth, classes) for name, classes in members.items()}


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


def why_fixed_cannot_move(activation: str, transform: Any) -> str | None:
    """Say why AP-Fixed stays what it is under `transform`, or None where it may move.

    With independent sigmoids a map that increases within each class never changes the order within a class, and
    AP-Fixed knows no other order.

    Example:
        >>> why_fixed_cannot_move("sigmoid", ClassAffine([2.0, 1.0], [0.0, -3.0]))
        'AP-Fixed cannot move: the head is a sigmoid and the map increases within each class, so no order changes.'
        >>> why_fixed_cannot_move("softmax", ClassAffine([2.0, 1.0], [0.0, -3.0])) is None
        True
    """
    increasing = getattr(transform, "increasing", False)
    if isinstance(transform, ClassAffine):
        increasing = bool((transform.scale > 0).all())
    if activation != "sigmoid" or not increasing:
        return None
    return "AP-Fixed cannot move: the head is a sigmoid and the map increases within each class, so no order changes."
