"""What a comparison of methods on a classifier's logits found: a row per method, curves, a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from logn.evaluate.bootstrap import Interval
from logn.evaluate.classification import ClassificationMetrics
from logn.evaluate.classification_truth import ClassificationTruth
from logn.evaluate.comparison import ComparedMethods, describe_changes

# What the verdict is about, and what to call it there.
VERDICT_NAMES = {
    "few": "few-shot accuracy",
    "medium": "medium-shot accuracy",
    "many": "many-shot accuracy",
    "top-1": "overall accuracy",
}


@dataclass(frozen=True, eq=False)
class ClassifierResult:
    """What one method reaches.

    Args:
        name: The method as it was asked for.
        metrics: Accuracies, calibration and confusions.
        differences: Of each metric to the baseline, with an interval where draws were made.
        settings: Parameters of the method, for the record.
    """

    name: str
    metrics: ClassificationMetrics
    differences: Mapping[str, Interval] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> Mapping[str, float]:
        """All metrics by name."""
        return self.metrics.values

    def __getitem__(self, name: str) -> float:
        return self.metrics[name]

    def to_dict(self) -> dict[str, Any]:
        """Give everything but what is said per class, for JSON."""
        return {
            "method": self.name,
            "metrics": dict(self.values),
            "differences": {name: change.to_dict() for name, change in self.differences.items()},
            "confused": self.metrics.to_dict()["confused"],
            "settings": dict(self.settings),
        }


@dataclass(frozen=True, eq=False)
class ClassificationComparison(ComparedMethods[ClassifierResult]):
    """Methods measured on the same logits and labels; what is not told here, `ComparedMethods` tells.

    Args:
        truth: The labels, and what is known about their classes.
        seconds: Time by step: "statistics", "fit", "logits", "choices", "metrics".
    """

    truth: ClassificationTruth

    def __str__(self) -> str:
        from logn.evaluate.classification_tables import write_classification

        return write_classification(self)

    def _verdict(self, row: ClassifierResult) -> str:
        called = {VERDICT_NAMES[metric]: row.differences[metric] for metric in VERDICT_NAMES if metric in row.values}
        changes = describe_changes(row.name, called, tuple(VERDICT_NAMES.values()))
        return f"{changes} {_confidence_sentence(self.rows[0], row)}"

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values, for JSON."""
        classes = self.rows[0].metrics.to_dict()["classes"]
        for place, known in enumerate(classes):
            known["accuracy"] = {row.name: float(row.metrics.per_class[place]) for row in self.rows}
            known["predicted"] = {row.name: int(row.metrics.predictions_per_class[place]) for row in self.rows}
        return {"task": "classification", **self._plain({"protocol": self.truth.describe()}, classes)}


def _confidence_sentence(first: ClassifierResult, row: ClassifierResult) -> str:
    """Say what became of the confidence: whether probabilities still mean something."""
    error, confidence = (f"{100 * first[name]:.1f} to {100 * row[name]:.1f}" for name in ("ECE", "confidence"))
    change = row.differences["ECE"].difference
    verb = "stays at" if math.isclose(change, 0.0, abs_tol=5e-4) else "falls from" if change < 0 else "rises from"
    error = f"{100 * row['ECE']:.1f}" if verb == "stays at" else error
    return f"Its calibration error (ECE) {verb} {error}, its mean confidence goes from {confidence}."
