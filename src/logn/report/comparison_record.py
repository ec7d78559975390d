"""A comparison as `comparison.json` keeps it, read back for figures and the report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logn.errors import InputError
from logn.evaluate.bootstrap import Interval
from logn.evaluate.comparison import BASELINE, describe_changes
from logn.strict_json import parse_json

NAN = float("nan")
PROTOCOL_FIELDS = ("style", "max_detections", "description", "evaluator")


@dataclass(frozen=True)
class MethodRecord:
    """What was measured about one method; values lie between 0 and 1, NaN where there is none.

    Args:
        name: The specification, such as "logn:balanced".
        metrics: By name: "AP", "APr" and so on.
        differences: Of each metric to the uncorrected model.
        errors: "AP50" and what mending each kind of error would add; None when it was not measured.
        settings: Parameters of the method.
        notes: What to know before reading the numbers.
    """

    name: str
    metrics: Mapping[str, float]
    differences: Mapping[str, Interval] = field(default_factory=dict)
    errors: Mapping[str, float] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __getitem__(self, metric: str) -> float:
        return self.metrics.get(metric, NAN)

    @property
    def verdict(self) -> str:
        """What the method changes, in one sentence."""
        return describe_changes(self.name, self.differences)


@dataclass(frozen=True)
class ClassRecord:
    """One class: its boxes in the evaluated images and its AP under each method."""

    id: int
    name: str
    group: str | None
    boxes: int
    precision: Mapping[str, float]


@dataclass(frozen=True)
class ComparisonRecord:
    """All methods of one comparison; the first is the uncorrected model.

    Args:
        methods: One per row of the table.
        classes: In the order of their ids.
        protocol: Fields of the protocol, with "description".
        draws: How many draws the intervals come from; 0 for none.
        confidence: Of the intervals.
        notes: What to know before reading the numbers.
    """

    methods: tuple[MethodRecord, ...]
    classes: tuple[ClassRecord, ...]
    protocol: Mapping[str, Any]
    draws: int = 0
    confidence: float = 0.95
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> MethodRecord:
        for method in self.methods:
            if method.name == name:
                return method
        known = ", ".join(method.name for method in self.methods)
        raise InputError(f"Expected `method` to be one of {known}, but got {name!r}.")

    @property
    def baseline(self) -> MethodRecord:
        """The uncorrected model."""
        return self.methods[0]

    def focus(self, name: str | None = None) -> MethodRecord:
        """The method to look at closely: the named one, or the first after the uncorrected model."""
        if name is not None:
            return self[name]
        if len(self.methods) < 2:
            raise InputError("Expected the comparison to have a method beside `none`, but it has none.")
        return self.methods[1]

    @property
    def metric_names(self) -> tuple[str, ...]:
        """All metrics, in the order of a table."""
        return tuple(self.baseline.metrics)


def read_comparison(path: str | os.PathLike[str]) -> ComparisonRecord:
    """Read what `logn compare -o` wrote."""
    try:
        content = parse_json(Path(path).read_bytes())
        if content.get("task") == "classification":
            raise InputError(
                f"Expected `{path}` to compare methods on a detector, but it does so on a classifier, for which there "
                "is no page; read `comparison.md` beside it."
            )
        return comparison_record(content)
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise InputError(
            f"Expected `{path}` to be what `logn compare -o` writes, but it is not ({type(error).__name__}: {error})."
        ) from error


def comparison_record(content: Mapping[str, Any]) -> ComparisonRecord:
    """Make the record from the content of `comparison.json`."""
    methods = tuple(_method(entry, content["confidence"]) for entry in content["methods"])
    if not methods or methods[0].name != BASELINE:
        raise InputError(f"Expected the first method of the comparison to be `{BASELINE}`, but it is not.")
    return ComparisonRecord(
        methods=methods,
        classes=tuple(_class(entry) for entry in content["classes"]),
        protocol=_protocol(content["protocol"]),
        draws=int(content["draws"]),
        confidence=float(content["confidence"]),
        notes=tuple(content["notes"]),
    )


def _protocol(entry: Mapping[str, Any]) -> dict[str, Any]:
    missing = next((name for name in PROTOCOL_FIELDS if name not in entry), None)
    if missing is not None:
        raise KeyError(f"protocol.{missing}")
    return dict(entry)


def _value(number: float | None) -> float:
    return NAN if number is None else float(number)


def _method(entry: Mapping[str, Any], confidence: float) -> MethodRecord:
    differences = {
        name: Interval(_value(change["difference"]), _value(change["low"]), _value(change["high"]), confidence)
        for name, change in entry["differences"].items()
    }
    return MethodRecord(
        name=str(entry["method"]),
        metrics={name: _value(value) for name, value in entry["metrics"].items()},
        differences=differences,
        errors=_errors(entry.get("errors")),
        settings=entry.get("settings", {}),
        notes=tuple(entry.get("notes", ())),
    )


def _errors(entry: Mapping[str, Any] | None) -> dict[str, float] | None:
    if entry is None:
        return None
    return {"AP50": _value(entry["AP50"]), **{name: _value(gain) for name, gain in entry["gains"].items()}}


def _class(entry: Mapping[str, Any]) -> ClassRecord:
    precision = {name: _value(value) for name, value in entry["AP"].items()}
    return ClassRecord(int(entry["id"]), str(entry["name"]), entry["group"], int(entry["boxes"]), precision)


def most_changed(
    classes: Sequence[ClassRecord], before: str, after: str, count: int
) -> tuple[list[ClassRecord], list[ClassRecord]]:
    """The classes whose AP rose most and those whose AP fell most; equal ones in the order of their ids.

    Example:
        >>> cup = ClassRecord(1, "cup", None, 9, {"none": 0.5, "logn": 0.6})
        >>> jug = ClassRecord(2, "jug", None, 9, {"none": 0.5, "logn": 0.1})
        >>> [[known.name for known in side] for side in most_changed([cup, jug], "none", "logn", 5)]
        [['cup'], ['jug']]
    """
    change = {known.id: known.precision[after] - known.precision[before] for known in classes}
    gained = sorted((known for known in classes if change[known.id] > 0), key=lambda known: -change[known.id])
    lost = sorted((known for known in classes if change[known.id] < 0), key=lambda known: change[known.id])
    return gained[:count], lost[:count]
