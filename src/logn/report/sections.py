"""The parts of the page: each is a function of a view of a comparison, and gives what its template macro draws.

What a function returns goes to the template macro of the same name. It raises `InputError` where its input is missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from logn.base.arrays import FloatArray
from logn.base.commands import command
from logn.errors import InputError
from logn.measure import tables
from logn.measure.comparison import Comparison, EvaluatedClass, MethodResult
from logn.measure.detection.threshold_curve import ThresholdCurve, describe_threshold
from logn.measure.detection.tide import ERROR_TYPES, SPECIAL_ERRORS
from logn.measure.tables import change_text, main_columns, points, small_is_good, tone
from logn.methods.affine import ClassAffine
from logn.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, line_path, padded, symbol_path
from logn.report.view import UNKNOWN, View, metric_of, metric_text
from logn.statistics.summary import spearman

Section = dict[str, Any]

EQUAL_NUMBER = "Recall is measured at an equal number of detections before and after."
UNVERIFIED = (
    "Where nobody looked for a class in an image, its detections there are neither found objects nor false alarms; so "
    "both together are fewer than the detections."
)
# The headline is about recall where the AP of every group moves by less than this.
AP_HARDLY_MOVES = 0.02
# Below this rank correlation the page does not claim that the mean logits follow the counts.
CLEARLY_FOLLOWS = 0.5
# Classes that gained or lost most.
SHOWN_CLASSES = 8
# Name and style of each group, from the rarest to the most frequent; a classifier's look like a detector's.
GROUPS = {
    **{"r": ("rare", "r"), "c": ("common", "c"), "f": ("frequent", "f")},
    **{"few": ("few-shot", "r"), "medium": ("medium-shot", "c"), "many": ("many-shot", "f")},
}
SHAPES = {"f": "circle", "c": "square", "r": "triangle", "x": "circle"}
COLUMN_TITLES = {
    **{"APr": "AP rare", "APc": "AP common", "APf": "AP frequent"},
    **{"recall-r": "recall rare", "recall-f": "recall frequent"},
    **{"found-r": "rare right", "false-alarms-r": "rare false alarms"},
    **{"top-1": "accuracy", "balanced": "class-mean accuracy", "confidence": "mean confidence"},
}
ERROR_MEANINGS = {
    "Cls": "right place, wrong class",
    "Loc": "right class, poor place",
    "Both": "wrong class and poor place",
    "Dupe": "found twice",
    "Bkg": "nothing there",
    "Miss": "not found at all",
    "FP": "all false alarms",
    "FN": "all misses",
}
# Both axes of a chart over scores or probabilities.
SHARE_X, SHARE_Y = Axis(0, 1, LEFT, WIDTH - RIGHT), Axis(0, 1, HEIGHT - BOTTOM, TOP + 8)


class Piece(NamedTuple):
    """A sentence of the headline."""

    words: str
    before: float
    after: float
    tone: str


class Card(NamedTuple):
    """A value before and after; the first remark is coloured by the tone."""

    title: str
    before: str
    after: str
    remarks: Sequence[str]
    tone: str


def top(view: View) -> Section:
    """The headline and the cards below it."""
    pieces, where = headline(view)
    return {"headline": pieces, "where": where, "cards": cards(view)}


def headline(view: View) -> tuple[list[Piece], str]:
    """The rarest and the most frequent group before and after, or all classes without groups; and at which number."""
    words = view.words
    groups, score, where = dict(words.groups), words.score, ""
    if view.is_detector and _by_recall(view):
        groups = {view.at_count("recall", metric.removeprefix("AP")): title for metric, title in groups.items()}
        score, where = "recall", EQUAL_NUMBER
    grouped = [metric for metric in groups if view.has(metric)][:-1]
    if len(grouped) > 1:
        chosen = {grouped[0]: f"{groups[grouped[0]]} classes: {score}", grouped[-1]: f"{groups[grouped[-1]]}:"}
    else:
        chosen = {words.metric: words.score, view.class_mean: words.class_mean}
        where = EQUAL_NUMBER if view.is_detector else ""
    pieces = [
        Piece(text, metric_of(view.before, metric), metric_of(view.focus, metric), tone(view.change(metric)))
        for metric, text in chosen.items()
        if metric == words.metric or view.has(metric)
    ]
    return pieces, where


def _by_recall(view: View) -> bool:
    """Whether AP says little: sigmoid heads compete with nobody, so only the threshold decides what is found."""
    if not view.has(view.at_count("recall")):
        return False
    if any(source and source.activation == "sigmoid" for source in (view.inputs.predictions, view.inputs.statistics)):
        return True
    changes = [view.change(metric).difference for metric in view.words.groups]
    return all(math.isnan(change) or abs(change) < AP_HARDLY_MOVES for change in changes)


def cards(view: View) -> list[Card]:
    """The score of each group, the class means, and what becomes of the user's threshold or of the confidence."""
    words, before, after = view.words, view.before, view.focus
    score = words.score[0].upper() + words.score[1:]
    titles = {metric: f"{score}, {title.lower()}" for metric, title in words.groups.items()}
    titles[view.class_mean] = words.class_mean
    if view.is_detector:
        titles |= {view.at_count(name): f"Class-mean {name}" for name in ("precision", "F1")}
    else:
        titles["ECE"] = "Calibration error (ECE)"
    shown = []
    for metric, title in titles.items():
        if view.has(metric):
            change = view.change(metric)
            remarks = [change_text(change), *(["with as many detections"] if "@n:" in metric else [])]
            shown.append(Card(title, points(before[metric]), points(after[metric]), remarks, tone(change, metric)))
    right, wrong = (view.at_count(name, "r") for name in ("found", "false-alarms"))
    if view.is_detector and view.has(wrong):
        old, new = (f"{row[right]:,.0f} / {row[wrong]:,.0f}" for row in (before, after))
        gained, paid = view.change(right), view.change(wrong)
        remarks = [f"false alarms {change_text(paid, wrong)}", f"right {change_text(gained, right)}"]
        shown.append(Card("Rare classes: right / false alarms", old, new, remarks, tone(paid, wrong)))
    if before.thresholds is not None and after.thresholds is not None:
        shown.append(_threshold_card(before.thresholds, after.thresholds))
    return shown


def _threshold_card(before: ThresholdCurve, after: ThresholdCurve) -> Card:
    found, false_alarms = after.outcome
    remarks = [
        f"{before.found_at:,} → {found:,} of {after.objects:,} found",
        f"{before.false_alarms_at:,} → {false_alarms:,} false alarms",
    ]
    use = "keep it" if after.new.stays else f"use {after.use:.2g}"
    return Card("Score threshold", f"{before.at:g}", use, remarks, "flat")


def methods(view: View) -> Section:
    """Every method with its main metrics and their differences; the other metrics are folded away."""
    comparison = view.comparison
    main = main_columns(comparison)
    of_number = [name for name in main if "@n:" in name]
    by_group = [view.at_count("recall", group) for group in "rf"]
    others = [name for name in (*by_group, *tables.OTHER_COLUMNS[comparison.task]) if name in comparison.metric_names]
    main = [name for name in main if "@n:" not in name]
    main += [others.pop(others.index(name)) for name in ("balanced", "ECE") if name in others]
    protocol, number = comparison.description, ""
    if view.is_detector:
        protocol = f"{protocol}; {comparison.protocol.evaluator}"
        if point := view.focus.recall.get(comparison.settings.at):
            number = (
                f"The {point.detections:,} highest-scored detections of each method, as many as the uncorrected model "
                f"has above {point.at:g} (IoU 0.5). Recall, precision and F1 are means over classes. "
                f"{UNVERIFIED if comparison.protocol.federated else ''}"
            )
    return {
        "title": f"All methods on the same {view.words.data}",
        "table": _table(view, main),
        "at_number": _table(view, of_number) if number else None,
        "number": number,
        "others": _table(view, others) if others else None,
        "protocol": protocol,
        "verdicts": [comparison.verdict(row.name) for row in comparison.rows[1:]],
    }


def _table(view: View, columns: list[str]) -> Section:
    rows, with_change = view.comparison.rows, main_columns(view.comparison)
    best = {name: metric_text(name, _best(rows, name)) for name in columns}

    def cell(row: MethodResult, name: str) -> Section:
        value, change = metric_of(row, name), row.differences.get(name, UNKNOWN)
        has_change = (name in with_change or "@n:" in name) and row is not view.before
        text = metric_text(name, value)
        of_change = {"change": change_text(change, name) if has_change else "", "tone": tone(change, name)}
        return {"value": value, "text": text, **of_change, "is_best": text == best[name] != "–"}

    short = [name.partition("@")[0] for name in columns]
    return {
        "columns": [COLUMN_TITLES.get(name, name) for name in short],
        "rows": [
            {"name": row.name, "is_focus": row is view.focus, "cells": [cell(row, name) for name in columns]}
            for row in rows
        ],
    }


def _best(rows: Sequence[MethodResult], name: str) -> float:
    values = [row.values[name] for row in rows if not math.isnan(metric_of(row, name))]
    if len(values) < 2 or name in tables.NEITHER_IS_GOOD:
        return math.nan
    return min(values) if small_is_good(name) else max(values)


@dataclass(frozen=True, eq=False)
class LogitStatistics:
    """Of each class the training images, and mean and standard deviation of its logit before and after."""

    images: FloatArray
    mean: tuple[FloatArray, FloatArray]
    std: tuple[FloatArray, FloatArray]


def logit_statistics(view: View) -> LogitStatistics:
    """The logits of each class before and after an affine correction."""
    entries, counts = view.comparison.classes, "train.json" if view.is_detector else "counts.csv"
    images = _column(view.comparison, [entry.train_count for entry in entries], "--counts", counts)
    mean = _column(view.comparison, [entry.mean for entry in entries], "--statistics", "statistics.safetensors")
    std = _column(view.comparison, [entry.std for entry in entries], "--statistics", "statistics.safetensors")
    scale, shift, affine = np.ones_like(mean), np.zeros_like(mean), view.focus.transform
    if isinstance(affine, ClassAffine):
        foreground = slice(None) if affine.head is None else affine.head.foreground
        scale, shift = affine.scale[foreground], affine.shift[foreground]
    elif affine is not None:
        raise InputError(
            f"`{view.focus.name}` is not a scale and shift per class: the statistics after it are unknown."
        )
    return LogitStatistics(images, (mean, scale * mean + shift), (std, np.abs(scale) * std))


def _column(comparison: Comparison, values: Sequence[float | None], option: str, example: str) -> FloatArray:
    """What is known of each class; where it is of none, how to compare again with the option that was left out."""
    if any(value is not None for value in values):
        return np.array([math.nan if value is None else value for value in values], np.float64)
    typed, advice = comparison.provenance.command, "Compare again with it."
    if typed:
        replacing = () if "--overwrite" in typed else ("--overwrite",)
        advice = f"Compare again with it: {command(*typed, option, example, *replacing)}"
    raise InputError(f"The comparison was made without `{option}`. {advice}")


def follows_count(values: FloatArray, images: FloatArray) -> float:
    """Rank correlation of the classes' values with their training images; NaN where the values do not vary."""
    finite = np.isfinite(values)
    return spearman(values[finite], images[finite])


def statistics(view: View) -> Section:
    """Mean and standard deviation of every class's logit against its training images, before and after."""
    values, words, entries = logit_statistics(view), view.words, view.comparison.classes
    present = {entry.group for entry in entries}
    groups = [GROUPS.get(entry.group or "", ("", "x"))[1] for entry in entries]
    shown = [style_of for group, style_of in GROUPS.items() if group in present] or [("after", "x")]
    marks = [("before", "dot-before", "circle"), *((title, f"dot-{style}", SHAPES[style]) for title, style in shown)]
    charts = [
        _scatter("mean", "Mean logit", values.images, values.mean, groups),
        _scatter("std", "Standard deviation of the logit", values.images, values.std, groups),
    ]
    tips = []
    for label, entry in enumerate(entries):
        old, new = (points(float(row.per_class[label])) for row in (view.before, view.focus))
        tip = [entry.name, _about(entry, words.examples), f"{words.score} {old} → {new}"]
        for name, (before, after) in (("mean", values.mean), ("std", values.std)):
            tip.append(f"{name} {before[label]:.2f} → {after[label]:.2f}")
        tips.append(tip)
    follows = follows_count(values.mean[0], values.images) >= CLEARLY_FOLLOWS
    return {
        "title": "Why: logits follow the training frequency" if follows else "Do logits follow the training frequency?",
        "legend": [(style, symbol_path(shape, [(7, 7)], 4.5), text) for text, style, shape in marks],
        "charts": charts,
        "script": {"points": {chart["key"]: chart["places"] for chart in charts}, "classes": tips},
    }


def _scatter(
    key: str, title: str, images: FloatArray, sides: tuple[FloatArray, FloatArray], groups: list[str]
) -> Section:
    before, after = sides
    finite = np.isfinite(before) & np.isfinite(after)
    counts = np.maximum(images, 1.0)
    x = Axis(float(counts.min()) * 0.85, float(counts.max()) * 1.15, LEFT, WIDTH - RIGHT, logarithmic=True)
    y = Axis(*padded([*before[finite], *after[finite]] or [0.0, 1.0]), HEIGHT - BOTTOM, TOP + 8)
    places = [
        (round(x(counts[i]), 1), round(y(before[i]), 1), round(y(after[i]), 1)) if finite[i] else None
        for i in range(len(before))
    ]
    size = float(np.clip(60 / math.sqrt(max(len(places), 1)), 1.7, 3.6))

    def path(group: str, side: int, size: float) -> str:
        chosen = [(point[0], point[side]) for point, own in zip(places, groups, strict=True) if point and own == group]
        return symbol_path(SHAPES[group], chosen, size)

    outlines = [("dot-before", path(group, 1, size)) for group in SHAPES]
    marks = [(f"dot-{group}", path(group, 2, 0.85 * size)) for group in SHAPES]
    # Where only rounding is left, ranks mean nothing.
    is_flat = finite.any() and np.ptp(after[finite]) < 0.01 * np.ptp(before[finite])
    new = "none after: all classes are equal" if is_flat else f"{follows_count(after, images):+.2f} after"
    return {
        "key": key,
        "title": title,
        "places": places,
        "known": int(finite.sum()),
        "caption": f"Rank correlation with the training images: {follows_count(before, images):+.2f} before, {new}.",
        "x": x,
        "y": y,
        "symbols": [(style, path) for style, path in (*outlines, *marks) if path],
    }


def _about(entry: EvaluatedClass, examples: str) -> str:
    """What to know of a class before believing its numbers."""
    trained = "" if entry.train_count is None else f"{entry.train_count:,.0f} training images"
    texts = (GROUPS.get(entry.group or "", ("", ""))[0], trained, f"{entry.examples:,} {examples}")
    return ", ".join(text for text in texts if text)


class ClassRow(NamedTuple):
    """A class with its score before and after."""

    entry: EvaluatedClass
    group: str
    style: str
    about: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """What the correction adds to the score."""
        return self.after - self.before

    @property
    def tone(self) -> str:
        """How it is coloured."""
        return "up" if self.change > 0 else "down" if self.change < 0 else "flat"


def classes(view: View) -> Section:
    """The classes that gained most and those that lost most, and all classes."""
    rows = [
        ClassRow(entry, *GROUPS.get(entry.group or "", ("", "")), _about(entry, view.words.examples), *map(float, pair))
        for entry, *pair in zip(view.comparison.classes, view.before.per_class, view.focus.per_class, strict=True)
    ]
    gained = sorted((row for row in rows if row.change > 0), key=lambda row: -row.change)
    lost = sorted((row for row in rows if row.change < 0), key=lambda row: row.change)
    return {
        "counts": (len(gained), len(lost)),
        "sides": [("Gained most", gained[:SHOWN_CLASSES]), ("Lost most", lost[:SHOWN_CLASSES])],
        "rows": rows,
        "x": Axis(0, 1, 6, 114),
    }


def errors(view: View) -> Section:
    """What each kind of error costs before and after, by TIDE."""
    before, after = view.before.tide, view.focus.tide
    if before is None or after is None:
        raise InputError(
            "The comparison has no kinds of error. Compare again (in Python with `report_images` above 0)."
        )
    kinds = (*ERROR_TYPES, *SPECIAL_ERRORS)
    largest = max((value for side in (before, after) for kind in kinds if (value := side[kind]) > 0), default=1.0)

    def bar(side: Mapping[str, float], kind: str) -> tuple[float, float]:
        value = side[kind]
        return value, 0.0 if math.isnan(value) else 100 * max(value, 0.0) / largest

    scope, details = "Over all images and classes of the comparison.", view.focus.details
    if view.focus.errors is None and details is not None:
        scope = f"Over {details.images:,} of the {details.of_images:,} images."
    return {
        "bases": (before["AP50"], after["AP50"]),
        "rows": [(kind, ERROR_MEANINGS[kind], bar(before, kind), bar(after, kind)) for kind in kinds],
        "scope": scope,
    }


def thresholds(view: View) -> Section:
    """Precision, recall and F1 over the score threshold, and which threshold to use now."""
    before, after = view.before.thresholds, view.focus.thresholds
    if before is None or after is None:
        raise InputError("The comparison has no threshold curves. Compare again.")

    def line(curve: ThresholdCurve, values: Sequence[float | None], at: float) -> Section:
        curve_values = zip(curve.thresholds, values, strict=True)
        places = [(SHARE_X(threshold), SHARE_Y(value)) for threshold, value in curve_values if value is not None]
        chosen = values[int(np.abs(np.array(curve.thresholds) - at).argmin())]
        mark = [] if chosen is None else [(SHARE_X(at), SHARE_Y(chosen))]
        return {"line": line_path(places), "mark": symbol_path("circle", mark, 4.5)}

    old, new = before.measures(), after.measures()
    charts = [
        {
            "title": title,
            "x": SHARE_X,
            "y": SHARE_Y,
            "before": line(before, old[title], before.at),
            "after": line(after, new[title], after.use),
        }
        for title in old
    ]
    sentence, note = describe_threshold(before, after), UNVERIFIED if view.comparison.protocol.federated else ""
    return {"sentence": sentence, "charts": charts, "best": (before.best, after.best), "note": note}


def confusions(view: View) -> Section:
    """The pairs of classes that the uncorrected classifier confuses most, and how often each method does."""
    if not view.before.confused:
        raise InputError("The uncorrected model confuses no classes.")
    rows, entries = view.comparison.rows, view.comparison.classes
    pairs = []
    for index, pair in enumerate(view.before.confused):
        entry, other = entries[pair.label], entries[pair.predicted]
        pairs.append((entry.name, other.name, [entry.examples, *(row.confused[index].errors for row in rows)]))
    return {"columns": ["rows", *(row.name for row in rows)], "pairs": pairs}


def reliability(view: View) -> Section:
    """How often a classifier is right, by how sure it says it is, before and after."""
    charts = []
    for title, row in (("Before", view.before), ("After", view.focus)):
        if row.reliability is None:
            raise InputError("The comparison has no accuracy by confidence. Compare again.")
        columns = zip(row.reliability.confidence.tolist(), row.reliability.accuracy.tolist(), strict=True)
        places = [(SHARE_X(sure), SHARE_Y(right)) for sure, right in columns if not math.isnan(sure)]
        named = {"ECE": "ECE", "confidence": "mean confidence", "top-1": "accuracy"}
        caption = ", ".join(f"{words} {metric_text(name, metric_of(row, name))}" for name, words in named.items())
        drawn = {"line": line_path(places), "marks": symbol_path("circle", places, 3.2)}
        charts.append({"title": title, "x": SHARE_X, "y": SHARE_Y, "caption": caption, **drawn})
    return {"charts": charts}


def provenance(view: View) -> Section:
    """What the numbers were made from; settings as JSON, which the page folds away."""
    comparison, inputs = view.comparison, view.inputs
    made, settings = comparison.provenance, comparison.settings
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    intervals = "none"
    if settings.num_bootstrap:
        drawn = f"{settings.num_bootstrap:,} paired draws of {view.words.units}"
        intervals = f"{view.confidence}, from {drawn}, seed {settings.seed}"
    facts = {
        "Compared": f"{made.created} with {versions}{'' if made.command else '; from Python'}",
        "Protocol": comparison.description,
        "Intervals": intervals,
    }
    if statistics := inputs.statistics:
        named = {"layer": statistics.layer, "population": statistics.population, "activation": statistics.activation}
        named["model"] = statistics.source and f"{statistics.source[:18]}…"
        described = ", ".join(f"{name} {value}" for name, value in named.items() if value)
        facts["Statistics"] = f"{statistics.logits:,} logits of each class; {described}"
    if predictions := inputs.predictions:
        of_each = f"{predictions.proposals:,} proposals, {predictions.columns:,} logits each"
        facts["Predictions"] = f"{predictions.images:,} images, {of_each}"
    if logits := inputs.logits:
        facts["Logits"] = f"{logits.rows:,} rows, {logits.columns:,} logits each"
    raw = {"settings": asdict(settings), "methods": {row.name: dict(row.settings) for row in comparison.rows[1:]}}
    raw_text = json.dumps(raw, ensure_ascii=False, indent=1, default=str)
    return {"facts": facts, "raw": raw_text}


def subject(view: View, folder: Path) -> str:
    """Which model was measured on which data, as far as the comparison knows; else its folder."""
    predictions = view.inputs.predictions or view.inputs.logits
    name = (predictions and predictions.model) or folder.resolve().name
    data = view.inputs.logits.name if view.inputs.logits else None
    if view.inputs.annotations:
        data = Path(view.inputs.annotations).name
    return f"{name} on {data}" if data not in (None, "", "logits") else name
