"""What a comparison found: the measured methods, the curves of sweeps, and a verdict in words."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

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

    @classmethod
    def chosen_by(
        cls, sweep: Sweep, objective: str, measured: Iterable[Mapping[str, float]], *, least: bool = False
    ) -> Curve:
        """Choose the value of a sweep that is best on data that is not reported on.

        Args:
            sweep: The values to choose from.
            objective: The metric that decides.
            measured: The metrics of each value on that data.
            least: Whether the least is the best, as of errors.

        Example:
            >>> accuracies = [{"top-1": 0.5}, {"top-1": 0.7}]
            >>> Curve.chosen_by(Sweep.parse("tau=0:1:1"), "top-1", accuracies).chosen
            'loga:tau=1'
        """
        values = []
        for metrics in measured:
            if objective not in metrics:
                raise InputError(f"Expected `objective` to be one of {', '.join(metrics)}, but got {objective!r}.")
            values.append(metrics[objective])
        best = np.nanargmin if least else np.nanargmax
        place = int(best(values)) if not np.isnan(values).all() else 0
        return cls(sweep, {}, sweep.specs[place], tuple(values))

    def with_metrics(self, measured: Mapping[str, Mapping[str, float]]) -> Curve:
        """The curve with the metrics of its values, which `measured` has by the name of the method."""
        values = [measured[spec] for spec in self.sweep.specs]
        return replace(self, metrics={name: tuple(value[name] for value in values) for name in values[0]})

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


class MeasuredMethod(Protocol):
    """What every comparison knows of a method."""

    @property
    def name(self) -> str:
        """The method as it was asked for."""

    @property
    def values(self) -> Mapping[str, float]:
        """All metrics by name."""

    @property
    def differences(self) -> Mapping[str, Interval]:
        """Of each metric to the baseline."""

    def __getitem__(self, name: str) -> float: ...

    def to_dict(self) -> dict[str, Any]:
        """Give the row as plain values, for JSON."""


Row = TypeVar("Row", bound=MeasuredMethod)


@dataclass(frozen=True, eq=False)
class ComparedMethods(ABC, Generic[Row]):
    """Methods measured on the same data, of a detector as of a classifier; the first row is the uncorrected model.

    Args:
        rows: One per method.
        curves: Of the sweeps.
        seconds: Time by step.
        draws: How many draws the intervals come from; 0 for none.
        confidence: Of the intervals.
        notes: What to know before reading the numbers.
    """

    rows: tuple[Row, ...]
    _: KW_ONLY
    curves: tuple[Curve, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    draws: int = 0
    confidence: float = 0.95
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Row:
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
        """Say in a sentence or two what a method changes; by default the first one after the baseline."""
        if len(self.rows) == 1:
            return f"Nothing was compared: {self.rows[0].name} is the only row."
        return self._verdict(self.rows[1] if name is None else self[name])

    def _verdict(self, row: Row) -> str:
        return describe_changes(row.name, row.differences)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values, for JSON."""

    def _plain(self, protocol: Mapping[str, Any], classes: list[dict[str, Any]]) -> dict[str, Any]:
        """Everything as plain values, with what each kind of comparison says of its protocol and its classes."""
        return {
            "verdict": self.verdict(),
            "verdicts": {row.name: self.verdict(row.name) for row in self.rows[1:]},
            **protocol,
            "draws": self.draws,
            "confidence": self.confidence,
            "methods": [row.to_dict() for row in self.rows],
            "classes": classes,
            "curves": [curve.to_dict() for curve in self.curves],
            "seconds": dict(self.seconds),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class EvaluatedClass:
    """A class as the annotations know it; `boxes` are those of the evaluated images."""

    id: int
    name: str
    group: str | None
    boxes: int


@dataclass(frozen=True, eq=False)
class Comparison(ComparedMethods[MethodResult]):
    """Methods measured on the same proposals and images; what is not told here, `ComparedMethods` tells.

    Args:
        protocol: Of AP.
        classes: In the order of `rows[0].metrics.per_class`.
        protocols: Of the metrics that have one of their own: "AP-Fixed", "AP-Pool", "mask".
        seconds: Time by step: "ground truth", "fit", "decode", "metrics", "bootstrap".
    """

    protocol: EvaluationProtocol
    classes: tuple[EvaluatedClass, ...] = ()
    protocols: Mapping[str, EvaluationProtocol] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values, for JSON."""
        protocols = {
            "protocol": {**self.protocol.to_dict(), "description": self.protocol.describe()},
            "protocols": {name: protocol.to_dict() for name, protocol in self.protocols.items()},
        }
        classes = [
            {**asdict(known), "AP": {row.name: float(row.metrics.per_class[place]) for row in self.rows}}
            for place, known in enumerate(self.classes)
        ]
        return self._plain(protocols, classes)


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
