"""What only a classifier has: what it takes for what, and whether its probabilities can be believed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from logn.errors import InputError
from logn.evaluate.classification.metrics import Reliability
from logn.evaluate.comparison.comparison import Comparison, MethodResult
from logn.report.svg_charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, number, symbol_path
from logn.report.task_words import metric_of, metric_text


@dataclass(frozen=True)
class ConfusedClasses:
    """A class, what it is taken for, and how often under each method."""

    name: str
    taken_for: str
    rows: int
    errors: tuple[int, ...]


@dataclass(frozen=True)
class ConfusionTable:
    """The pairs that the uncorrected model confuses most.

    Args:
        methods: The columns.
        pairs: The rows.
    """

    template: ClassVar[str] = "confusions.html.jinja"
    methods: tuple[str, ...]
    pairs: tuple[ConfusedClasses, ...]


def confusion_table(comparison: Comparison) -> ConfusionTable:
    """Count how often each method makes the errors that the uncorrected model makes most."""
    if not comparison.baseline.confused:
        raise InputError("Expected the uncorrected model to confuse some classes, but it makes no error.")
    classes = comparison.classes
    pairs = tuple(
        ConfusedClasses(
            classes[pair.label].name,
            classes[pair.predicted].name,
            classes[pair.label].examples,
            tuple(row.confused[place].errors for row in comparison.rows),
        )
        for place, pair in enumerate(comparison.baseline.confused)
    )
    return ConfusionTable(tuple(row.name for row in comparison.rows), pairs)


@dataclass(frozen=True)
class ReliabilityChart:
    """How often a method is right, by how sure it says it is.

    Args:
        title: The method.
        x: The confidence.
        y: The accuracy.
        line: From bin to bin.
        marks: One per bin that has rows.
        diagonal: Where a classifier would be whose word can be taken: the two ends.
        words: Its calibration error, its mean confidence and its accuracy.
    """

    title: str
    x: Axis
    y: Axis
    line: str
    marks: str
    diagonal: tuple[tuple[float, float], tuple[float, float]]
    words: str


@dataclass(frozen=True)
class ReliabilityCharts:
    """The uncorrected model next to a method."""

    template: ClassVar[str] = "reliability.html.jinja"
    charts: tuple[ReliabilityChart, ...]


def reliability_charts(comparison: Comparison, focus: MethodResult) -> ReliabilityCharts:
    """Draw the accuracy over the confidence, before and after."""
    return ReliabilityCharts(tuple(_chart(row) for row in (comparison.baseline, focus)))


def _chart(row: MethodResult) -> ReliabilityChart:
    if row.reliability is None:
        raise InputError("Expected the comparison to have the accuracy by confidence, but it does not; compare again.")
    x, y = Axis(0, 1, LEFT, WIDTH - RIGHT), Axis(0, 1, HEIGHT - BOTTOM, TOP + 8)
    places = _places(row.reliability, x, y)
    line = "L".join(f"{number(across)},{number(up)}" for across, up in places)
    named = {"ECE": "ECE", "confidence": "mean confidence", "top-1": "accuracy"}
    words = ", ".join(f"{title} {metric_text(name, metric_of(row, name))}" for name, title in named.items())
    diagonal = ((x(0), y(0)), (x(1), y(1)))
    return ReliabilityChart(row.name, x, y, f"M{line}", symbol_path("circle", places, 3.2), diagonal, words)


def _places(bins: Reliability, x: Axis, y: Axis) -> list[tuple[float, float]]:
    columns = zip(bins.confidence.tolist(), bins.accuracy.tolist(), strict=True)
    return [(x(confidence), y(accuracy)) for confidence, accuracy in columns if not math.isnan(confidence)]
