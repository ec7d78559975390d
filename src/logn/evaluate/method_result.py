"""Everything that is measured about one method, from its detections."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.bootstrap import Interval, bootstrap_metrics
from logn.evaluate.calibration_error import calibration_error
from logn.evaluate.class_groups import Groups
from logn.evaluate.detection_limits import rows_within_limits
from logn.evaluate.detection_metrics import DetectionMetrics, evaluate_detections
from logn.evaluate.detections import Detections
from logn.evaluate.error_types import ErrorTypes, error_types
from logn.evaluate.fixed_and_pool import average_precision_pool
from logn.evaluate.ground_truth import GroundTruth
from logn.evaluate.matching import MatchedDetections, match_detections
from logn.evaluate.protocol import EvaluationProtocol

# Matched detections by the suffix of the metrics they give: "" for boxes, "-mask" for masks.
Matched = Mapping[str, MatchedDetections]


@dataclass(frozen=True, eq=False)
class MethodResult:
    """What one method reaches on the evaluated images; all values lie between 0 and 1.

    Args:
        name: The method as it was asked for.
        metrics: AP of boxes by class, size and group, with its protocol.
        others: AP-Fixed, AP-Pool, mask AP and ECE, where they were asked for: "APr-Fixed", "AP-Pool",
            "APr-mask", "ECE" and the like.
        differences: Of each metric to the baseline, with an interval where draws were made.
        errors: The kinds of error and what they cost.
        seconds: Time for this method's metrics, and its share of decoding.
        notes: What to know before reading the numbers.
        settings: Parameters of the method, for the record.
    """

    name: str
    metrics: DetectionMetrics
    others: Mapping[str, float] = field(default_factory=dict)
    differences: Mapping[str, Interval] = field(default_factory=dict)
    errors: ErrorTypes | None = None
    seconds: float = 0.0
    notes: Sequence[str] = field(default_factory=tuple)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, float]:
        """All metrics by name."""
        return {**self.metrics.values, **self.others}

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def to_dict(self) -> dict[str, Any]:
        """Give everything but the AP per class, for JSON."""
        return {
            "method": self.name,
            "metrics": self.values,
            "differences": {name: change.to_dict() for name, change in self.differences.items()},
            "errors": self.errors.to_dict() if self.errors else None,
            "seconds": self.seconds,
            "notes": list(self.notes),
            "settings": dict(self.settings),
        }


@dataclass(frozen=True, eq=False)
class MethodDetections:
    """One method's detections: under the limit per image, and, for AP-Fixed, per class."""

    name: str
    capped: Detections
    fixed: Detections | None = None
    masks: Sequence[Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = field(default_factory=tuple)

    def part(self, images: npt.NDArray[np.bool_]) -> MethodDetections:
        """Keep the images that the mask `(I,)` names; they are numbered anew."""
        rows = np.flatnonzero(images[self.capped.image_index])
        masks = None if self.masks is None else [self.masks[row] for row in rows.tolist()]
        fixed = None if self.fixed is None else _renumbered(self.fixed, images)
        return replace(self, capped=_renumbered(self.capped, images), fixed=fixed, masks=masks)


def _renumbered(detections: Detections, images: npt.NDArray[np.bool_]) -> Detections:
    kept = detections.take(images[detections.image_index])
    position = (np.cumsum(images) - 1).astype(np.int32)
    return replace(kept, image_index=position[kept.image_index])


@dataclass(frozen=True, eq=False)
class Measurement:
    """How methods are measured: ground truth, protocols and groups, the same for all of them.

    Args:
        truth: The ground truth.
        protocol: Of AP, boxes.
        fixed_protocol: Of AP-Fixed.
        groups: `(F,)` "r", "c" or "f"; None when unknown.
        errors: Whether to find the kinds of error.
    """

    truth: GroundTruth
    protocol: EvaluationProtocol
    fixed_protocol: EvaluationProtocol
    groups: Groups | None
    errors: bool = False

    def measure(self, method: MethodDetections) -> tuple[MethodResult, Matched]:
        """Compute all metrics of one method; what was matched, boxes and masks, serves the bootstrap again."""
        started = time.perf_counter()
        metrics = evaluate_detections(method.capped, self.truth, self.protocol, groups=self.groups)
        matched = self._matched(method.capped, self.protocol)
        others = {
            **self._mask_metrics(method),
            **self._fixed_metrics(method.fixed),
            **self._pool_metrics(method.fixed, matched),
            **calibration_error(matched, groups=self.groups),
        }
        errors = None
        if self.errors:
            errors = error_types(method.capped, self.truth, self.protocol, groups=self.groups)
        seconds = time.perf_counter() - started
        result = MethodResult(method.name, metrics, others, {}, errors, seconds, method.notes, method.settings)
        together = {"": matched}
        if method.masks is not None:
            together["-mask"] = self._matched(method.capped, self.protocol, method.masks)
        return result, together

    def _matched(
        self, detections: Detections, protocol: EvaluationProtocol, masks: Sequence[Any] | None = None
    ) -> MatchedDetections:
        rows = rows_within_limits(detections, protocol)
        kept = None if masks is None else [masks[row] for row in rows.tolist()]
        return match_detections(detections.take(rows), self.truth, masks=kept)

    def _mask_metrics(self, method: MethodDetections) -> dict[str, float]:
        if method.masks is None:
            return {}
        protocol = replace(self.protocol, iou_type="segm")
        metrics = evaluate_detections(method.capped, self.truth, protocol, groups=self.groups, masks=method.masks)
        return {f"{name}-mask": value for name, value in metrics.values.items()}

    def _fixed_metrics(self, fixed: Detections | None) -> dict[str, float]:
        if fixed is None:
            return {}
        metrics = evaluate_detections(fixed, self.truth, self.fixed_protocol, groups=self.groups)
        names = ["AP", *(f"AP{group}" for group in "rcf" if self.groups is not None)]
        return {f"{name}-Fixed": metrics[name] for name in names}

    def _pool_metrics(self, fixed: Detections | None, matched: MatchedDetections) -> dict[str, float]:
        """AP-Pool is over the detections of AP-Fixed where they are there, as its authors define it."""
        if fixed is not None:
            matched = self._matched(fixed, self.fixed_protocol)
        return average_precision_pool(matched, self.truth, groups=self.groups)

    def draw(self, matched: Matched, weights: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[np.float64]]:
        """AP over draws of images, of boxes and, where there are any, of masks."""
        return {
            f"{name}{suffix}": values
            for suffix, found in matched.items()
            for name, values in bootstrap_metrics(found, self.truth, weights, groups=self.groups).items()
        }

    def protocols(self, *, masks: bool, fixed: bool) -> dict[str, EvaluationProtocol]:
        """Give the protocols of the metrics that have one of their own."""
        own = {"AP-Pool": self.fixed_protocol if fixed else self.protocol}
        if fixed:
            own["AP-Fixed"] = self.fixed_protocol
        if masks:
            own["mask"] = replace(self.protocol, iou_type="segm")
        return own
