"""Class by class: the logit statistics against the training frequency, who gained and who lost, and the whole list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from logn.evaluate.comparison.comparison import DETECTION, Comparison, MethodResult
from logn.evaluate.comparison.tables import points
from logn.report.class_changes_data import ClassChanges, FloatArray
from logn.report.svg_charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, padded, symbol_path
from logn.report.task_words import WORDS, TaskWords, words_of

SHOWN = 8
# Below this rank correlation the page does not claim that the mean logits follow the counts.
CLEARLY_FOLLOWS = 0.5
# From the most frequent to the rarest; "x" where the groups are unknown.
GROUP_SHAPES = {"f": "circle", "c": "square", "r": "triangle", "x": "circle"}
GROUP_TITLES = {
    **{"f": "frequent", "c": "common", "r": "rare"},
    **{"many": "many-shot", "medium": "medium-shot", "few": "few-shot"},
}
# The groups of a classifier look like those of a detector.
GROUP_STYLES = {"f": "f", "c": "c", "r": "r", "many": "f", "medium": "c", "few": "r"}

# Of each class where it stands along the training images, before and after; None where it was not seen.
Places = list[tuple[float, float, float] | None]


def arrow(before: float, after: float) -> str:
    """Two values in points.

    Example:
        >>> arrow(0.125, float("nan"))
        '12.5 → –'
    """
    return f"{points(before)} → {points(after)}".replace("-", "–")


@dataclass(frozen=True)
class Symbols:
    """The same symbol at many places, as one path; `style` is a class of the style sheet, `text` what it means."""

    style: str
    path: str
    text: str = ""


@dataclass(frozen=True)
class Scatter:
    """One statistic of every class against its training images, before and after.

    Args:
        key: The name by which the script finds the chart.
        title: The statistic.
        x: The training images.
        y: The statistic.
        symbols: Outlines before, then marks after.
        places: Of each class, for the script.
        known: How many classes have the statistic.
        caption: How far it follows the training images.
    """

    key: str
    title: str
    x: Axis
    y: Axis
    symbols: tuple[Symbols, ...]
    places: Places
    known: int
    caption: str


@dataclass(frozen=True)
class StatisticsCharts:
    """Mean and standard deviation of every class's logit against its training images, before and after.

    Args:
        clearly_follows: Whether the means follow the training images so far that the page may say so.
        legend: What the symbols mean.
        charts: Of the mean and of the standard deviation.
        tips: What the script shows of each class: its name and some lines.
        words: Of the task.
    """

    template: ClassVar[str] = "statistics.html.jinja"
    clearly_follows: bool
    legend: tuple[Symbols, ...]
    charts: tuple[Scatter, ...]
    tips: tuple[tuple[str, ...], ...]
    words: TaskWords = WORDS[DETECTION]

    @property
    def script_data(self) -> dict[str, Any]:
        """What the script reads: the places of the marks in each chart, and what to show of each class."""
        return {"points": {chart.key: chart.places for chart in self.charts}, "classes": self.tips}


def statistics_charts(comparison: Comparison, focus: MethodResult, changes: ClassChanges) -> StatisticsCharts:
    """Place every class in two charts, one mark before and one after."""
    known = {entry.group for entry in comparison.classes}
    groups = [GROUP_STYLES.get(entry.group or "", "x") for entry in comparison.classes]
    shown = [(GROUP_STYLES[group], title) for group, title in GROUP_TITLES.items() if group in known]
    after = [(f"dot-{style}", GROUP_SHAPES[style], title) for style, title in shown]
    before = ("dot-before", "circle", "before (all classes)")
    marks = [before, *(after or [("dot-x", "circle", "after")])]
    return StatisticsCharts(
        clearly_follows=changes.follows_count(changes.mean_before) >= CLEARLY_FOLLOWS,
        legend=tuple(Symbols(style, symbol_path(shape, [(7, 7)], 4.5), text) for style, shape, text in marks),
        charts=(
            _scatter("mean", "Mean logit", changes, changes.mean_before, changes.mean_after, groups),
            _scatter("std", "Standard deviation of the logit", changes, changes.std_before, changes.std_after, groups),
        ),
        tips=tuple(_tip(place, comparison, focus, changes) for place in range(len(comparison.classes))),
        words=words_of(comparison),
    )


def _scatter(
    key: str, title: str, changes: ClassChanges, before: FloatArray, after: FloatArray, groups: list[str]
) -> Scatter:
    known = np.isfinite(before) & np.isfinite(after)
    values = np.concatenate([before[known], after[known]])
    images = np.maximum(changes.images, 1.0)
    x = Axis(float(images.min()) * 0.85, float(images.max()) * 1.15, LEFT, WIDTH - RIGHT, logarithmic=True)
    y = Axis(*padded(values.tolist() or [0.0, 1.0]), HEIGHT - BOTTOM, TOP + 8)
    places: Places = [
        (round(x(images[i]), 1), round(y(before[i]), 1), round(y(after[i]), 1)) if known[i] else None
        for i in range(len(before))
    ]
    size = float(np.clip(60 / math.sqrt(max(len(places), 1)), 1.7, 3.6))
    outlines = [Symbols("dot-before", _path(places, groups, group, 1, size)) for group in GROUP_SHAPES]
    marks = [Symbols(f"dot-{group}", _path(places, groups, group, 2, 0.85 * size)) for group in GROUP_SHAPES]
    symbols = tuple(drawn for drawn in (*outlines, *marks) if drawn.path)
    return Scatter(key, title, x, y, symbols, places, int(known.sum()), _correlations(changes, before, after))


def _path(places: Places, groups: list[str], group: str, side: int, size: float) -> str:
    chosen = [(place[0], place[side]) for place, known in zip(places, groups, strict=True) if place and known == group]
    return symbol_path(GROUP_SHAPES[group], chosen, size)


def _correlations(changes: ClassChanges, before: FloatArray, after: FloatArray) -> str:
    text = f"Rank correlation with the training images: {changes.follows_count(before):+.2f} before, "
    # Where nothing but rounding and the smallest term of the formula is left, ranks say nothing.
    if np.nanmax(after) - np.nanmin(after) < 0.01 * (np.nanmax(before) - np.nanmin(before)):
        return f"{text}none after: all classes are equal."
    return f"{text}{changes.follows_count(after):+.2f} after."


def _tip(place: int, comparison: Comparison, focus: MethodResult, changes: ClassChanges) -> tuple[str, ...]:
    entry, words = comparison.classes[place], words_of(comparison)
    before, after = (float(row.per_class[place]) for row in (comparison.baseline, focus))
    group = f"{GROUP_TITLES[entry.group]}, " if entry.group in GROUP_TITLES else ""
    return (
        entry.name,
        f"{group}{changes.images[place]:,.0f} training images, {entry.examples:,} {words.examples} here",
        f"{words.score} {arrow(before, after)}",
        f"mean {changes.mean_before[place]:.2f} → {changes.mean_after[place]:.2f}",
        f"std {changes.std_before[place]:.2f} → {changes.std_after[place]:.2f}",
    )


@dataclass(frozen=True)
class ClassRow:
    """One class before and after.

    Args:
        name: Of the class.
        group: As the comparison has it; None when unknown.
        images: Training images; None when unknown.
        examples: Boxes that are annotated here, or rows.
        before: AP, or accuracy, of the uncorrected model.
        after: That of the corrected one.
        counted: What the examples are called.
    """

    name: str
    group: str | None
    images: float | None
    examples: int
    before: float
    after: float
    counted: str = "boxes"

    @property
    def change(self) -> float:
        """How far it rose; NaN where the class has none."""
        return self.after - self.before

    @property
    def tone(self) -> str | None:
        """The class of the style sheet for the change."""
        return "up" if self.change > 0 else "down" if self.change < 0 else None

    @property
    def style(self) -> str | None:
        """The letter of the group in the style sheet; None when unknown."""
        return GROUP_STYLES.get(self.group or "")

    @property
    def group_title(self) -> str:
        """The group in a word; empty when unknown."""
        return GROUP_TITLES.get(self.group or "", "")

    @property
    def change_text(self) -> str:
        """The change in points."""
        return "–" if math.isnan(self.change) else f"{100 * self.change:+.1f}"

    @property
    def arrow(self) -> str:
        """The score before and after."""
        return arrow(self.before, self.after)

    @property
    def meta(self) -> str:
        """What to know of the class before believing its row."""
        images = "" if self.images is None else f"{self.images:,.0f} training images"
        return ", ".join(text for text in (self.group_title, images, f"{self.examples:,} {self.counted}") if text)


@dataclass(frozen=True)
class ChangedClasses:
    """The classes that gained most and those that lost most, and all classes in a list to open."""

    template: ClassVar[str] = "classes.html.jinja"
    # The score from 0 to 1 along the line of a class.
    x: ClassVar[Axis] = Axis(0, 1, 6, 114)
    gained: tuple[ClassRow, ...]
    lost: tuple[ClassRow, ...]
    rows: tuple[ClassRow, ...]
    words: TaskWords = WORDS[DETECTION]

    @property
    def more(self) -> int:
        """How many classes gained."""
        return sum(row.change > 0 for row in self.rows)

    @property
    def fewer(self) -> int:
        """How many classes lost."""
        return sum(row.change < 0 for row in self.rows)


def changed_classes(comparison: Comparison, focus: MethodResult) -> ChangedClasses:
    """Put all classes in a list, and those that changed most apart."""
    words = words_of(comparison)
    columns = zip(comparison.classes, comparison.baseline.per_class, focus.per_class, strict=True)
    rows = tuple(
        ClassRow(
            known.name, known.group, known.train_count, known.examples, float(before), float(after), words.examples
        )
        for known, before, after in columns
    )
    gained, lost = most_changed(rows, SHOWN)
    return ChangedClasses(gained, lost, rows, words)


def most_changed(rows: Sequence[ClassRow], count: int) -> tuple[tuple[ClassRow, ...], tuple[ClassRow, ...]]:
    """The classes that rose most and those that fell most; equal ones in their order.

    Example:
        >>> cup, jug = ClassRow("cup", None, None, 9, 0.5, 0.6), ClassRow("jug", None, None, 9, 0.5, 0.1)
        >>> [[row.name for row in side] for side in most_changed([cup, jug], 5)]
        [['cup'], ['jug']]
    """
    gained = sorted((row for row in rows if row.change > 0), key=lambda row: -row.change)
    lost = sorted((row for row in rows if row.change < 0), key=lambda row: row.change)
    return tuple(gained[:count]), tuple(lost[:count])
