"""What the comparison says in all: the verdict, every method, the score by group, kinds of error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from logn.evaluate.comparison.comparison import DETECTION, Comparison, MethodResult
from logn.evaluate.comparison.tables import interval_text, tone
from logn.evaluate.detection.bootstrap import Interval
from logn.evaluate.detection.metrics import SHOWN_AT, recall_name
from logn.evaluate.detection.tide import ERROR_TYPES, SPECIAL_ERRORS
from logn.report.svg_charts import Axis, Bar, bar_length, ring_parts
from logn.report.task_words import (
    NEITHER_IS_GOOD,
    SMALL_IS_GOOD,
    WORDS,
    TaskWords,
    metric_of,
    metric_text,
    words_of,
)

UNKNOWN = Interval(math.nan, math.nan, math.nan)
MEANINGS = {
    "Cls": "right place, wrong class",
    "Loc": "right class, poor place",
    "Both": "wrong class and poor place",
    "Dupe": "found once more",
    "Bkg": "nothing there",
    "Miss": "not found at all",
}


def change_words(change: Interval) -> str:
    """A difference with its interval.

    Example:
        >>> change_words(Interval(0.041, 0.02, 0.063)), change_words(Interval(-0.01, float("nan"), float("nan")))
        ('+4.1 [2.0, 6.3]', '-1.0')
    """
    if math.isnan(change.difference):
        return "–"
    written = f"{100 * change.difference:+.1f}"
    return written if math.isnan(change.low) else f"{written} {interval_text(change)}"


@dataclass(frozen=True)
class Headline:
    """What the method does to the score; `amount` stands out, in the colour of its tone; `ends` are of its interval.

    Example:
        >>> headline(Interval(0.02, 0.01, 0.03))
        Headline(words='raises AP by', amount='2.0 points', tone='up', ends='1.0 to 3.0')
    """

    words: str
    amount: str = ""
    tone: str | None = None
    ends: str = ""


def headline(change: Interval, score: str = "AP") -> Headline:
    """Claim as much as the interval allows, and no more."""
    if math.isnan(change.difference):
        return Headline("was compared with the uncorrected model")
    if math.isnan(change.low):
        return Headline(f"changes {score} by", f"{100 * change.difference:+.1f} points")
    if not change.is_clear:
        return Headline(
            f"makes no clear difference to {score}", ends=f"{100 * change.low:.1f} to {100 * change.high:.1f}"
        )
    low, high = sorted((abs(100 * change.low), abs(100 * change.high)))
    amount = f"{abs(100 * change.difference):.1f} points"
    return Headline(
        f"{'raises' if change.low > 0 else 'lowers'} {score} by", amount, tone(change), f"{low:.1f} to {high:.1f}"
    )


@dataclass(frozen=True)
class Tile:
    """The score of one group before and after."""

    title: str
    before: float
    after: float
    change: Interval


@dataclass(frozen=True)
class SideEffect:
    """What else changes, written out; `tone` says whether that is good."""

    title: str
    before: str
    after: str
    remark: str = ""
    tone: str = "flat"


@dataclass(frozen=True)
class Verdict:
    """The top of the page.

    Args:
        method: Whose verdict it is.
        headline: What it does to the score.
        sentence: All of what it changes.
        tiles: One per group.
        confidence: Of the intervals.
        draws: How many draws they come from; 0 where there are none.
        others: The verdicts of all other methods.
        words: Of the task.
        effects: What else changes: calibration, and what is found at the user's threshold.
    """

    method: str
    headline: Headline
    sentence: str
    tiles: tuple[Tile, ...]
    confidence: float
    draws: int
    others: tuple[str, ...]
    words: TaskWords = WORDS[DETECTION]
    effects: tuple[SideEffect, ...] = ()


def verdict(comparison: Comparison, focus: MethodResult) -> Verdict:
    """What the method changes: a headline, the whole sentence, one tile per group."""
    words = words_of(comparison)
    return Verdict(
        method=focus.name,
        headline=headline(focus.differences.get(words.metric, UNKNOWN), words.score),
        sentence=comparison.verdict(focus.name),
        tiles=tuple(
            Tile(title, metric_of(comparison.baseline, metric), metric_of(focus, metric), focus.differences[metric])
            for metric, title in words.groups.items()
            if metric in focus.differences and not math.isnan(metric_of(focus, metric))
        ),
        confidence=comparison.settings.confidence,
        draws=comparison.settings.num_bootstrap,
        others=tuple(comparison.verdict(row.name) for row in comparison.rows[1:] if row.name != focus.name),
        words=words,
        effects=(
            *_at_count(comparison, focus),
            *_calibration(comparison, focus),
            *_at_threshold(comparison, focus),
        ),
    )


def _calibration(comparison: Comparison, focus: MethodResult) -> list[SideEffect]:
    """Whether scores still mean what they say: a calibration error that rises is a loss."""
    found = []
    for metric, title in (("ECE", "Calibration error (ECE)"), ("confidence", "Mean confidence")):
        before, after = metric_of(comparison.baseline, metric), metric_of(focus, metric)
        if math.isnan(before) or math.isnan(after):
            continue
        written = metric_text(metric, before), metric_text(metric, after)
        tones = {"up": "down", "down": "up"} if metric in SMALL_IS_GOOD else {}
        change = focus.differences.get(metric, UNKNOWN)
        found.append(SideEffect(title, *written, change_words(change), tones.get(tone(change), "flat")))
    return found


def _at_count(comparison: Comparison, focus: MethodResult) -> list[SideEffect]:
    """What a user finds who keeps as many detections as before, and the threshold that does."""
    before, after = comparison.baseline.recall.get(SHOWN_AT), focus.recall.get(SHOWN_AT)
    if before is None or after is None or math.isnan(after.recall):
        return []
    change = focus.differences.get(recall_name(SHOWN_AT), UNKNOWN)
    written = metric_text("recall", before.recall), metric_text("recall", after.recall)
    kept = f"keeps {after.detections:,} detections"
    return [
        SideEffect("Class-mean recall at as many detections", *written, change_words(change), tone(change)),
        SideEffect("Threshold for as many", f"{before.threshold:.3g}", f"{after.threshold:.3g}", kept),
    ]


def _at_threshold(comparison: Comparison, focus: MethodResult) -> list[SideEffect]:
    """What a user finds who keeps the threshold, and where the best one is now."""
    before, after = comparison.baseline.thresholds, focus.thresholds
    if before is None or after is None:
        return []
    found = _tone(after.found_at - before.found_at)
    alarms = _tone(before.false_alarms_at - after.false_alarms_at)
    return [
        SideEffect(
            f"Found at a score of {after.at:g}",
            f"{before.found_at:,}",
            f"{after.found_at:,}",
            f"of {after.objects:,} objects",
            found,
        ),
        SideEffect(
            f"False alarms at {after.at:g}", f"{before.false_alarms_at:,}", f"{after.false_alarms_at:,}", "", alarms
        ),
        SideEffect("Best single threshold", f"{before.best:.2f}", f"{after.best:.2f}", "by F1"),
    ]


def _tone(gain: int) -> str:
    return "up" if gain > 0 else "down" if gain < 0 else "flat"


@dataclass(frozen=True)
class MetricCell:
    """A metric of a method and how it is written; `change` is None where no difference is shown."""

    value: float
    text: str
    change: Interval | None
    is_best: bool


@dataclass(frozen=True)
class MethodRow:
    """A method with the metrics of all columns."""

    name: str
    cells: tuple[MetricCell, ...]
    is_focus: bool


@dataclass(frozen=True)
class MethodTable:
    """Every method with its main metrics, their differences and the other metrics.

    Args:
        columns: All metrics.
        shown: How many of them stand in the table; the others are folded below it.
        rows: The methods.
        protocol: What was measured.
        notes: What to know before reading the numbers.
        words: Of the task.
    """

    template: ClassVar[str] = "methods.html.jinja"
    columns: tuple[str, ...]
    shown: int
    rows: tuple[MethodRow, ...]
    protocol: str
    notes: tuple[str, ...]
    words: TaskWords


def method_table(comparison: Comparison, focus: MethodResult) -> MethodTable:
    """Put all methods in one table; main metrics say how far they are from the uncorrected model."""
    words = words_of(comparison)
    known = [name for name in (*words.main, *words.others) if name in comparison.metric_names]
    first = [name for name in known if name in (*words.main, *words.beside)]
    columns = (*first, *(name for name in known if name not in first))
    best = {name: metric_text(name, _best(comparison, name)) for name in columns}
    rows = []
    for place, row in enumerate(comparison.rows):
        shown = row.differences if place else {}
        cells = tuple(
            MetricCell(
                metric_of(row, name),
                metric_text(name, metric_of(row, name)),
                shown.get(name) if name in words.main else None,
                is_best=metric_text(name, metric_of(row, name)) == best[name] != "-",
            )
            for name in columns
        )
        rows.append(MethodRow(row.name, cells, is_focus=row is focus))
    notes = [*comparison.notes, *(f"{row.name}: {text}" for row in comparison.rows for text in row.notes)]
    protocol = comparison.description
    if comparison.task == DETECTION:
        protocol = f"{protocol}; {comparison.protocol.evaluator}"
    return MethodTable(columns, len(first), tuple(rows), protocol, tuple(dict.fromkeys(notes)), words)


def _best(comparison: Comparison, name: str) -> float:
    values = [metric_of(row, name) for row in comparison.rows if not math.isnan(metric_of(row, name))]
    if len(values) < 2 or name in NEITHER_IS_GOOD:
        return math.nan
    return min(values) if name in SMALL_IS_GOOD else max(values)


@dataclass(frozen=True)
class GroupChart:
    """The score of one group under every method."""

    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class GroupBars:
    """The score of each frequency group: one small chart per group, the same scale in all."""

    template: ClassVar[str] = "groups.html.jinja"
    width: ClassVar[int] = 250
    method: str
    charts: tuple[GroupChart, ...]
    words: TaskWords

    @property
    def title(self) -> str:
        """Of the section."""
        return f"{self.words.score[0].upper()}{self.words.score[1:]} by group"


def group_bars(comparison: Comparison, focus: MethodResult) -> GroupBars | None:
    """Measure the bars; None where the comparison knows no groups."""
    words = words_of(comparison)
    metrics = [metric for metric in words.groups if not math.isnan(metric_of(comparison.baseline, metric))]
    if len(metrics) < 2:
        return None
    values = [metric_of(row, metric) for row in comparison.rows for metric in metrics]
    x = Axis(0, max(value for value in values if not math.isnan(value)) or 1.0, 0, GroupBars.width - 44)

    def bar(row: MethodResult, metric: str) -> Bar:
        kind = "before" if row is comparison.baseline else "after" if row is focus else "other"
        return Bar(row.name, kind, metric_of(row, metric), bar_length(x, metric_of(row, metric)))

    charts = (
        GroupChart(words.groups[metric], tuple(bar(row, metric) for row in comparison.rows)) for metric in metrics
    )
    return GroupBars(focus.name, tuple(charts), words)


@dataclass(frozen=True)
class Ring:
    """How the kinds of error share the loss.

    Args:
        title: Before or after.
        base: AP50 with all its errors.
        gains: What mending each kind would add.
        parts: Kind and path of each part of the ring.
        largest: The kind of the largest part, or why there is none.
        share: Of the largest part; None where there is none.
    """

    title: str
    base: float
    gains: Mapping[str, float]
    parts: tuple[tuple[str, str], ...]
    largest: str
    share: float | None


@dataclass(frozen=True)
class ErrorBars:
    """One kind of error before and after; a sum overlaps with the kinds above it."""

    kind: str
    is_sum: bool
    before: Bar
    after: Bar


@dataclass(frozen=True)
class ErrorKinds:
    """Which kinds of error there are before and after, by TIDE; `scope` says over which images and classes."""

    template: ClassVar[str] = "errors.html.jinja"
    width: ClassVar[int] = 300
    start: ClassVar[int] = 40
    legend: ClassVar[tuple[tuple[str, str], ...]] = tuple(
        (kind, f"{kind}: {words}") for kind, words in MEANINGS.items()
    )
    rings: tuple[Ring, ...]
    bars: tuple[ErrorBars, ...]
    scope: str


def error_kinds(before: Mapping[str, float], after: Mapping[str, float], scope: str) -> ErrorKinds:
    """Measure rings and bars; `before` and `after` have "AP50" and the AP50 that mending each kind would add."""
    kinds = (*ERROR_TYPES, *SPECIAL_ERRORS)
    known = [errors[kind] for errors in (before, after) for kind in kinds if not math.isnan(errors[kind])]
    x = Axis(0, max(known, default=0.0) or 1.0, ErrorKinds.start, ErrorKinds.width - 44)
    bars = (
        ErrorBars(
            kind,
            kind in SPECIAL_ERRORS,
            Bar(kind, "before", before[kind], bar_length(x, before[kind])),
            Bar(kind, "after", after[kind], bar_length(x, after[kind])),
        )
        for kind in kinds
    )
    return ErrorKinds((_ring("Before", before), _ring("After", after)), tuple(bars), scope)


def _ring(title: str, errors: Mapping[str, float]) -> Ring:
    gains = {kind: errors[kind] for kind in ERROR_TYPES}
    known = {kind: gain for kind, gain in gains.items() if gain > 0}
    if known:
        largest = max(known, key=lambda kind: known[kind])
        share = known[largest] / sum(known.values())
    else:
        largest, share = "–" if any(map(math.isnan, gains.values())) else "no error", None
    return Ring(title, errors["AP50"], gains, tuple(ring_parts(known)), largest, share)
