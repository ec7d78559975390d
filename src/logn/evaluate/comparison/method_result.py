"""What one method reaches, of a detector or of a classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logn.evaluate.classification.metrics import ClassificationMetrics
from logn.evaluate.classification.reliability import Reliability
from logn.evaluate.comparison.method_fitting import LogitMap, describe_map
from logn.evaluate.comparison.report_details import ReportDetails
from logn.evaluate.detection.bootstrap import Interval
from logn.evaluate.detection.metrics import DetectionMetrics
from logn.evaluate.detection.recall_at_count import RecallAtCount
from logn.evaluate.detection.threshold_curve import ThresholdCurve
from logn.evaluate.detection.tide import ErrorTypes


@dataclass(frozen=True, eq=False)
class MethodResult:
    """What one method reaches on the evaluated images or rows; all values but NLL lie between 0 and 1.

    Args:
        name: The method as it was asked for.
        metrics: AP of boxes by class, size and group, with its protocol; or the accuracies of a classifier.
        others: Of detectors AP-Fixed, AP-Pool, mask AP and ECE, where they were asked for: "APr-Fixed", "AP-Pool",
            "APr-mask", "ECE" and the like.
        differences: Of each metric to the baseline, with an interval where draws were made.
        errors: Of detectors the kinds of error and what they cost, where they were asked for.
        seconds: Of detectors the time for this method's metrics, and its share of decoding.
        notes: What to know before reading the numbers.
        settings: Parameters of the method, for the record.
        transform: The map of logits that was measured: a `ClassAffine`, a callable, or None for no change.
        details: Of detectors what the report shows in addition to the metrics.
        reliability: Of classifiers the accuracy by confidence.
        thresholds: Of detectors what is found at each score threshold.
        recall: Of detectors what is found with as many detections as the uncorrected model has, by the threshold that
            it has so many above: 0.5, 0.25 and 0.05.
    """

    name: str
    metrics: DetectionMetrics | ClassificationMetrics
    others: Mapping[str, float] = field(default_factory=dict)
    differences: Mapping[str, Interval] = field(default_factory=dict)
    errors: ErrorTypes | None = None
    seconds: float = 0.0
    notes: Sequence[str] = field(default_factory=tuple)
    settings: Mapping[str, Any] = field(default_factory=dict)
    transform: LogitMap = None
    details: ReportDetails | None = None
    reliability: Reliability | None = None
    thresholds: ThresholdCurve | None = None
    recall: Mapping[float, RecallAtCount] = field(default_factory=dict)

    @property
    def values(self) -> Mapping[str, float]:
        """All metrics by name."""
        return {**self.metrics.values, **self.others}

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    @property
    def tide(self) -> dict[str, float] | None:
        """AP50 and what mending each kind of error would add: over all images, or those that were looked at."""
        errors = self.errors or (self.details and self.details.errors)
        return {"AP50": errors.base, **errors.gains} if errors else None

    def to_dict(self) -> dict[str, Any]:
        """Give everything but what is said per class, for JSON."""
        classifier = isinstance(self.metrics, ClassificationMetrics)
        return {
            "method": self.name,
            "metrics": dict(self.values),
            "differences": {name: change.to_dict() for name, change in self.differences.items()},
            **({"confused": self.metrics.to_dict()["confused"]} if classifier else {}),
            "errors": self.errors.to_dict() if self.errors else None,
            "seconds": self.seconds,
            "notes": list(self.notes),
            "settings": dict(self.settings),
            "map": describe_map(self.transform),
            "details": self.details.to_dict() if self.details else None,
            "thresholds": self.thresholds.to_dict() if self.thresholds else None,
            "recall": [point.to_dict() for point in self.recall.values()],
        }
