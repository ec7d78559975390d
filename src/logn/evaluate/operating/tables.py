"""Operating points as text: what is expected, what was measured, and the thresholds of the classes."""

from __future__ import annotations

import math

import numpy as np

from logn.evaluate.operating.measured import METRICS, Estimates
from logn.evaluate.operating.points import ClassPoint, OperatingPoints
from logn.text_table import USUAL, TextStyle, write_table

# More classes than this are shown by the ones that moved farthest.
MOST_ROWS = 20


def write_points(points: OperatingPoints, most: int = MOST_ROWS, style: TextStyle = USUAL) -> str:
    """The summary and the table of classes, as text."""
    head = f"Thresholds for {points.target}; correction before them: {points.method}"
    parts = [style.wrap(head), *_held_out(points, style), *_summary(points, style), "", *_classes(points, most, style)]
    return "\n".join([*parts, *(f"\n{style.wrap(note)}" for note in points.notes)])


def _held_out(points: OperatingPoints, style: TextStyle) -> list[str]:
    """One line with the score before and after, overall and as a mean over classes."""
    found = points.settings.get("held_out")
    if found is None:
        return []
    sides = ", ".join(f"{name} {before:.3f} -> {after:.3f}" for name, (before, after) in found.items())
    return [style.wrap(f"{points.target.upper()} on held-out folds, with one threshold -> with these: {sides}")]


def _summary(points: OperatingPoints, style: TextStyle) -> list[str]:
    columns: list[tuple[str, Estimates]] = []
    if points.expected:
        columns += [("expected on new ones", points.expected), ("with one threshold", points.expected_common)]
    if points.measured is not None:
        columns += [(f"on {points.measured.on}", points.measured.values), ("with one", points.measured.common)]
    if not columns:
        return []
    rows = [[name, *(str(values[name]) for _, values in columns)] for name in METRICS if name in columns[0][1]]
    return ["", write_table(["", *(title for title, _ in columns)], rows, style)]


def _classes(points: OperatingPoints, most: int, style: TextStyle) -> list[str]:
    order = np.argsort(-np.abs(points.thresholds - points.common), kind="stable")
    shown = sorted(order[:most].tolist())
    header = ["class", "threshold", "interval", "own", "weight", "objects", "found", "false alarms"]
    table = write_table(header, [_row(points.points[place]) for place in shown], style)
    left = len(points.points) - len(shown)
    if left:
        last = f"{left} more classes, whose thresholds are nearer to the common one, {points.common:.3f}"
    else:
        last = f"The common threshold is {points.common:.3f}"
    return [table, style.wrap(last)]


def _row(point: ClassPoint) -> list[str]:
    ends = "–" if math.isnan(point.low) else f"[{point.low:.3f}, {point.high:.3f}]"
    own = "–" if math.isnan(point.own) else f"{point.own:.3f}"
    counts = (str(point.objects), str(point.found), str(point.false_alarms))
    return [point.name, f"{point.threshold:.3f}", ends, own, f"{point.weight:.2f}", *counts]
