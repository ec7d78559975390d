"""What a comparison of methods on a classifier's logits found: a row per method, curves, a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from logn.errors import InputError
from logn.evaluate.bootstrap import Interval
from logn.evaluate.classification import ClassificationMetrics
from logn.evaluate.classification_truth import ClassificationTruth
from logn.evaluate.comparison import Curve, describe_changes

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
            "differences": {
                name: {"difference": change.difference, "low": change.low, "high": change.high}
                for name, change in self.differences.items()
            },
            "confused": self.metrics.to_dict()["confused"],
            "settings": dict(self.settings),
        }


@dataclass(frozen=True, eq=False)
class ClassificationComparison:
    """Methods measured on the same logits and labels; the first row is the uncorrected model.

    Args:
        rows: One per method.
        truth: The labels, and what is known about their classes.
        curves: Of the sweeps.
        seconds: Time by step: "statistics", "fit", "logits", "choices", "metrics".
        draws: How many draws of rows the intervals come from; 0 for none.
        confidence: Of the intervals.
        notes: What to know before reading the numbers.
    """

    rows: tuple[ClassifierResult, ...]
    truth: ClassificationTruth
    curves: tuple[Curve, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    draws: int = 0
    confidence: float = 0.95
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> ClassifierResult:
        for row in self.rows:
            if row.name == name:
                return row
        known = ", ".join(row.name for row in self.rows)
        raise InputError(f"Expected `name` to be one of {known}, but got {name!r}.")

    def __str__(self) -> str:
        from logn.evaluate.classification_tables import write_classification

        return write_classification(self)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """All metrics that were measured, in the order of a table."""
        return tuple(self.rows[0].values)

    def verdict(self, name: str | None = None) -> str:
        """Say in two sentences what a method changes; by default the first one after the baseline."""
        if len(self.rows) == 1:
            return f"Nothing was compared: {self.rows[0].name} is the only row."
        row = self.rows[1] if name is None else self[name]
        called = {VERDICT_NAMES[metric]: row.differences[metric] for metric in VERDICT_NAMES if metric in row.values}
        changes = describe_changes(row.name, called, tuple(VERDICT_NAMES.values()))
        return f"{changes} {_confidence_sentence(self.rows[0], row)}"

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values, for JSON."""
        classes = self.rows[0].metrics.to_dict()["classes"]
        for place, known in enumerate(classes):
            known["accuracy"] = {row.name: float(row.metrics.per_class[place]) for row in self.rows}
            known["predicted"] = {row.name: int(row.metrics.predictions_per_class[place]) for row in self.rows}
        return {
            "task": "classification",
            "verdict": self.verdict(),
            "verdicts": {row.name: self.verdict(row.name) for row in self.rows[1:]},
            "protocol": self.truth.describe(),
            "draws": self.draws,
            "confidence": self.confidence,
            "methods": [row.to_dict() for row in self.rows],
            "classes": classes,
            "curves": [curve.to_dict() for curve in self.curves],
            "seconds": dict(self.seconds),
            "notes": list(self.notes),
        }


def _confidence_sentence(first: ClassifierResult, row: ClassifierResult) -> str:
    """Say what became of the confidence: whether probabilities still mean something."""
    error, confidence = (f"{100 * first[name]:.1f} to {100 * row[name]:.1f}" for name in ("ECE", "confidence"))
    change = row.differences["ECE"].difference
    verb = "stays at" if math.isclose(change, 0.0, abs_tol=5e-4) else "falls from" if change < 0 else "rises from"
    error = f"{100 * row['ECE']:.1f}" if verb == "stays at" else error
    return f"Its calibration error (ECE) {verb} {error}, its mean confidence goes from {confidence}."
