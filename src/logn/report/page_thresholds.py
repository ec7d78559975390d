"""What is found at each score threshold, before and after: curves, the points to choose, and every class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from logn.errors import InputError
from logn.evaluate.comparison.comparison import Comparison, MethodResult
from logn.evaluate.comparison.threshold_curve import ThresholdCurve, describe_threshold
from logn.report.svg_charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, number, symbol_path

# More classes than this would be a page of their own: those with the most objects are shown.
MOST_CLASSES = 300


@dataclass(frozen=True)
class ThresholdChart:
    """One measure over the score threshold: lines before and after, with the thresholds of the best F1 as marks."""

    title: str
    x: Axis
    y: Axis
    before: str
    after: str
    marks_before: str
    marks_after: str
    at: float


@dataclass(frozen=True)
class ClassRow:
    """One class at the threshold of the user, before and after, and the threshold of its best F1."""

    name: str
    objects: int
    found: tuple[int, int]
    false_alarms: tuple[int, int]
    best: tuple[float | None, float | None]


@dataclass(frozen=True)
class Thresholds:
    """Curves, the sentence at the threshold of the user, and the classes.

    Args:
        charts: Precision, recall and F1.
        at: The threshold of the user.
        sentence: What becomes of a user who keeps it.
        best: The one threshold with the best F1, before and after.
        rows: The classes.
        left_out: How many classes are not shown.
    """

    template: ClassVar[str] = "thresholds.html.jinja"
    charts: tuple[ThresholdChart, ...]
    at: float
    sentence: str
    best: tuple[float, float]
    rows: tuple[ClassRow, ...]
    left_out: int


def threshold_curves(comparison: Comparison, focus: MethodResult) -> Thresholds:
    """Draw the curves of a method next to those of the uncorrected model."""
    before, after = comparison.baseline.thresholds, focus.thresholds
    if before is None or after is None:
        raise InputError(
            "Expected the comparison to say what is found at each threshold, but it was made before that was measured; "
            "compare again."
        )
    names = [known.name for known in comparison.classes]
    return Thresholds(
        charts=tuple(_charts(before, after)),
        at=after.at,
        sentence=describe_threshold(before, after),
        best=(before.best, after.best),
        rows=tuple(_rows(names, before, after)),
        left_out=max(len(names) - MOST_CLASSES, 0),
    )


def _charts(before: ThresholdCurve, after: ThresholdCurve) -> Iterable[ThresholdChart]:
    measures: dict[str, Callable[[ThresholdCurve, int], float | None]] = {
        "Precision": ThresholdCurve.precision,
        "Recall": ThresholdCurve.recall,
        "F1": ThresholdCurve.f1,
    }
    x, y = Axis(0, 1, LEFT, WIDTH - RIGHT), Axis(0, 1, HEIGHT - BOTTOM, TOP + 8)
    for title, measure in measures.items():
        lines, marks = [], []
        for curve in (before, after):
            values = [measure(curve, place) for place in range(len(curve.thresholds))]
            known = [(x(t), y(value)) for t, value in zip(curve.thresholds, values, strict=True) if value is not None]
            lines.append("M" + "L".join(f"{number(across)},{number(up)}" for across, up in known) if known else "")
            distances = [abs(threshold - curve.best) for threshold in curve.thresholds]
            nearest = distances.index(min(distances))
            chosen = values[nearest]
            points = [] if chosen is None else [(x(curve.thresholds[nearest]), y(chosen))]
            marks.append(symbol_path("circle", points, 4.0))
        yield ThresholdChart(title, x, y, lines[0], lines[1], marks[0], marks[1], x(after.at))


def _rows(names: list[str], before: ThresholdCurve, after: ThresholdCurve) -> Iterable[ClassRow]:
    order = sorted(range(len(names)), key=lambda place: (-after.class_objects[place], place))[:MOST_CLASSES]
    for place in order:
        yield ClassRow(
            names[place],
            after.class_objects[place],
            (before.class_found[place], after.class_found[place]),
            (before.class_false_alarms[place], after.class_false_alarms[place]),
            (before.class_best[place], after.class_best[place]),
        )
