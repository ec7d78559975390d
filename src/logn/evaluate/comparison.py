"""What a comparison found: the measured methods, the curves of sweeps, and a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from logn.errors import InputError
from logn.evaluate.bootstrap import Interval
from logn.evaluate.class_groups import Groups
from logn.evaluate.ground_truth import GroundTruth
from logn.evaluate.method_result import MethodResult
from logn.evaluate.protocol import EvaluationProtocol
from logn.evaluate.sweep import Sweep

BASELINE = "none"
VERDICT_METRICS = ("APr", "APc", "APf", "AP")


@dataclass(frozen=True)
class Curve:
    """A metric over the values of a sweep.

    Args:
        sweep: The method, its parameter and the values.
        metrics: Metric by name, one number per value, on the images that are reported on.
        chosen: The specification that was best on the other half; None when no choice was made.
        choosing: The objective per value on that other half; None when no choice was made.
    """

    sweep: Sweep
    metrics: Mapping[str, tuple[float, ...]]
    chosen: str | None = None
    choosing: tuple[float, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give the curve as plain values, for JSON."""
        return {
            "method": self.sweep.method,
            "parameter": self.sweep.parameter,
            "values": list(self.sweep.values),
            "metrics": {name: list(values) for name, values in self.metrics.items()},
            "chosen": self.chosen,
            "objective_on_the_other_half": None if self.choosing is None else list(self.choosing),
        }


@dataclass(frozen=True)
class EvaluatedClass:
    """A class as the annotations know it; `boxes` are those of the evaluated images."""

    id: int
    name: str
    group: str | None
    boxes: int


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods measured on the same proposals and images; the first row is the uncorrected model.

    Args:
        rows: One per method.
        protocol: Of AP.
        classes: In the order of `rows[0].metrics.per_class`.
        protocols: Of the metrics that have one of their own: "AP-Fixed", "AP-Pool", "mask".
        curves: Of the sweeps.
        seconds: Time by step: "ground truth", "fit", "decode", "metrics", "bootstrap".
        draws: How many draws the intervals come from; 0 for none.
        confidence: Of the intervals.
        notes: What to know before reading the numbers.
    """

    rows: tuple[MethodResult, ...]
    protocol: EvaluationProtocol
    classes: tuple[EvaluatedClass, ...] = ()
    protocols: Mapping[str, EvaluationProtocol] = field(default_factory=dict)
    curves: tuple[Curve, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    draws: int = 0
    confidence: float = 0.95
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> MethodResult:
        for row in self.rows:
            if row.name == name:
                return row
        known = ", ".join(row.name for row in self.rows)
        raise InputError(f"Expected `name` to be one of {known}, but got {name!r}.")

    @property
    def metric_names(self) -> tuple[str, ...]:
        """All metrics that were measured, in the order of a table."""
        return tuple(self.rows[0].values)

    def verdict(self, name: str | None = None) -> str:
        """Say in one sentence what a method changes; by default the first one after the baseline."""
        if len(self.rows) == 1:
            return f"Nothing was compared: {self.rows[0].name} is the only row."
        row = self.rows[1] if name is None else self[name]
        return describe_changes(row.name, row.differences)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values, for JSON."""
        return {
            "verdict": self.verdict(),
            "verdicts": {row.name: self.verdict(row.name) for row in self.rows[1:]},
            "protocol": {**self.protocol.to_dict(), "description": self.protocol.describe()},
            "protocols": {name: protocol.to_dict() for name, protocol in self.protocols.items()},
            "draws": self.draws,
            "confidence": self.confidence,
            "methods": [row.to_dict() for row in self.rows],
            "classes": [
                {**asdict(known), "AP": {row.name: float(row.metrics.per_class[place]) for row in self.rows}}
                for place, known in enumerate(self.classes)
            ],
            "curves": [curve.to_dict() for curve in self.curves],
            "seconds": dict(self.seconds),
            "notes": list(self.notes),
        }


def evaluated_classes(truth: GroundTruth, groups: Groups | None) -> tuple[EvaluatedClass, ...]:
    """List the classes with their group and their number of boxes."""
    columns = zip(truth.category_ids.tolist(), truth.class_names, truth.boxes_per_class.tolist(), strict=True)
    return tuple(
        EvaluatedClass(number, name, None if groups is None else str(groups[place]), boxes)
        for place, (number, name, boxes) in enumerate(columns)
    )


def describe_changes(name: str, differences: Mapping[str, Interval], metrics: tuple[str, ...] = VERDICT_METRICS) -> str:
    """Say which of `metrics` a method raises, which it lowers, and of which neither can be said.

    Example:
        >>> describe_changes("logn", {"APr": Interval(0.041, 0.02, 0.063), "APf": Interval(-0.003, -0.009, 0.002)})
        'logn raises APr by 4.1 [2.0, 6.3]; no clear change of APf (-0.3 [-0.9, 0.2]).'
        >>> describe_changes("logn", {"AP": Interval(0.01, float("nan"), float("nan"))})
        'logn changes AP by +1.0, without intervals to say how sure that is.'
    """
    changes = {
        metric: differences[metric]
        for metric in metrics
        if metric in differences and not math.isnan(differences[metric].difference)
    }
    if not changes:
        return f"Nothing can be said about {name}: no metric was measured."
    if all(math.isnan(change.low) for change in changes.values()):
        listed = join_words(f"{metric} by {100 * change.difference:+.1f}" for metric, change in changes.items())
        return f"{name} changes {listed}, without intervals to say how sure that is."
    raised = [_amount(metric, change) for metric, change in changes.items() if change.low > 0]
    lowered = [_amount(metric, change) for metric, change in changes.items() if change.high < 0]
    unclear = [
        f"{metric} ({100 * change.difference:+.1f} {interval_text(change)})"
        for metric, change in changes.items()
        if not change.is_clear
    ]
    verbs = [f"{verb} {join_words(amounts)}" for verb, amounts in (("raises", raised), ("lowers", lowered)) if amounts]
    clear = f"{name} {' and '.join(verbs)}" if verbs else f"{name} changes nothing for sure"
    return f"{clear}; no clear change of {join_words(unclear)}." if unclear else f"{clear}."


def _amount(metric: str, change: Interval) -> str:
    return f"{metric} by {100 * abs(change.difference):.1f} {interval_text(change)}"


def interval_text(change: Interval) -> str:
    """Write the ends of an interval in points.

    Example:
        >>> interval_text(Interval(0.02, -0.01, 0.05))
        '[-1.0, 5.0]'
    """
    return f"[{100 * change.low:.1f}, {100 * change.high:.1f}]"


def join_words(words: Any) -> str:
    """Join with commas and a last "and".

    Example:
        >>> join_words(["a", "b", "c"])
        'a, b and c'
    """
    listed = list(words)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
