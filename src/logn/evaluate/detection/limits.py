"""How many detections count: per image, per image and class, or per class over the whole set."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.decode.detections import Detections
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
