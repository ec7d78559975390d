"""The parts of the page: each is a function of a comparison and of the method to look at, and gives plain values.

What a function returns goes to the template macro of the same name. It raises `InputError` where its input is missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logn.base.arrays import FloatArray
from logn.base.commands import command
from logn.errors import InputError
from logn.measure.comparison import tables
from logn.measure.comparison.comparison import CLASSIFICATION, DETECTION, Comparison, MethodResult
from logn.measure.comparison.tables import change_text, main_columns, points, small_is_good, tone
from logn.measure.detection.bootstrap import Interval
from logn.measure.detection.metrics import count_name
from logn.measure.detection.threshold_curve import ThresholdCurve, describe_threshold
from logn.measure.detection.tide import ERROR_TYPES, SPECIAL_ERRORS
from logn.methods.affine import ClassAffine
from logn.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, line_path, padded, symbol_path
from logn.statistics.head import foreground_columns
from logn.statistics.summary import spearman

Section = dict[str, Any]

EQUAL_NUMBER = "Recall is measured at an equal number of detections before and after."
UNVERIFIED = (
    "Where nobody looked for a class in an image, its detections there are neither found objects nor false alarms; so "
    "both together are fewer than the detections."
)
UNKNOWN = Interval(math.nan, math.nan, math.nan)
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


@dataclass(frozen=True)
class Words:
    """What a task calls things; `groups` are the metrics of the groups and, last, of all."""

    model: str
    score: str
    data: str
    units: str
    examples: str
    groups: Mapping[str, str]
    class_mean: str

    @property
    def metric(self) -> str:
        """The metric over all classes."""
        return list(self.groups)[-1]


WORDS = {
    DETECTION: Words(
        model="detector",
        score="AP",
        data="proposals",
        units="images",
        examples="boxes",
        groups={"APr": "Rare", "APc": "Common", "APf": "Frequent", "AP": "All"},
        class_mean="Class-mean recall",
    ),
    CLASSIFICATION: Words(
        model="classifier",
        score="accuracy",
        data="logits",
        units="rows",
        examples="rows",
        groups={"few": "Few-shot", "medium": "Medium-shot", "many": "Many-shot", "top-1": "All"},
        class_mean="Class-mean accuracy",
    ),
}


def at_count(comparison: Comparison, name: str, group: str = "") -> str:
    """A metric at an equal number of detections, at the threshold that the user named."""
    return count_name(name, comparison.settings.at, group)


def class_mean(comparison: Comparison) -> str:
    """The metric that counts every class the same."""
    return at_count(comparison, "recall") if comparison.task == DETECTION else "balanced"


def top(comparison: Comparison, focus: MethodResult) -> Section:
    """The headline and the cards below it."""
    settings = comparison.settings
    return {
        "method": focus.name,
        **headline(comparison, focus),
        "cards": cards(comparison, focus),
        "draws": settings.num_bootstrap,
        "confidence": f"{100 * settings.confidence:g} %",
        "words": WORDS[comparison.task],
    }


def headline(comparison: Comparison, focus: MethodResult) -> Section:
    """The rarest and the most frequent group before and after; all classes where there are no groups."""
    words, before = WORDS[comparison.task], comparison.baseline
    groups, score, where = dict(words.groups), words.score, ""
    if comparison.task == DETECTION and _by_recall(comparison, focus):
        letters = {"APr": "r", "APc": "c", "APf": "f", "AP": ""}
        groups = {at_count(comparison, "recall", letters[metric]): title for metric, title in groups.items()}
        score, where = "recall", EQUAL_NUMBER
    grouped = [metric for metric in groups if _measured(before, focus, metric)][:-1]
    if len(grouped) > 1:
        chosen = {grouped[0]: f"{groups[grouped[0]]} classes: {score}", grouped[-1]: f"{groups[grouped[-1]]}:"}
    else:
        chosen = {words.metric: words.score, class_mean(comparison): words.class_mean}
        where = EQUAL_NUMBER if comparison.task == DETECTION else ""
    pieces = [
        {
            "words": text,
            "before": _metric(before, metric),
            "after": _metric(focus, metric),
            "tone": tone(focus.differences.get(metric, UNKNOWN)),
        }
        for metric, text in chosen.items()
        if metric == words.metric or _measured(before, focus, metric)
    ]
    return {"headline": pieces, "where": where}


def _by_recall(comparison: Comparison, focus: MethodResult) -> bool:
    """Whether AP says little: sigmoid heads compete with nobody, so only the threshold decides what is found."""
    if not _measured(comparison.baseline, focus, at_count(comparison, "recall")):
        return False
    inputs = comparison.provenance.inputs
    if "sigmoid" in [(inputs.get(name) or {}).get("activation") for name in ("predictions", "statistics")]:
        return True
    changes = [
        focus.differences[metric].difference for metric in WORDS[DETECTION].groups if metric in focus.differences
    ]
    return all(math.isnan(change) or abs(change) < AP_HARDLY_MOVES for change in changes)


def cards(comparison: Comparison, focus: MethodResult) -> list[Section]:
    """The score of each group, the class means, and what becomes of the user's threshold or of the confidence."""
    words, before = WORDS[comparison.task], comparison.baseline
    score = words.score[0].upper() + words.score[1:]
    titles = {metric: f"{score}, {title.lower()}" for metric, title in words.groups.items()}
    titles[class_mean(comparison)] = words.class_mean
    if comparison.task == CLASSIFICATION:
        titles |= {"ECE": "Calibration error (ECE)"}
    else:
        titles |= {at_count(comparison, name): f"Class-mean {name}" for name in ("precision", "F1")}
    shown = []
    for metric, title in titles.items():
        if not _measured(before, focus, metric):
            continue
        change = focus.differences.get(metric, UNKNOWN)
        remarks = [change_text(change), *(["with as many detections"] if "@n:" in metric else [])]
        values = {"before": points(before[metric]), "after": points(focus[metric])}
        shown.append({"title": title, **values, "remarks": remarks, "tone": tone(change, metric)})
    return [*shown, *_rare_card(comparison, focus), *_threshold_card(before.thresholds, focus.thresholds)]


def _rare_card(comparison: Comparison, focus: MethodResult) -> list[Section]:
    """What rare classes gain, and what they pay for it."""
    right, wrong = (at_count(comparison, name, "r") for name in ("found", "false-alarms"))
    if comparison.task != DETECTION or not _measured(comparison.baseline, focus, wrong):
        return []
    values = [f"{row[right]:,.0f} / {row[wrong]:,.0f}" for row in (comparison.baseline, focus)]
    changes = [focus.differences.get(name, UNKNOWN) for name in (right, wrong)]
    remarks = [f"false alarms {change_text(changes[1], wrong)}", f"right {change_text(changes[0], right)}"]
    title = "Rare classes: right / false alarms"
    return [
        {"title": title, "before": values[0], "after": values[1], "remarks": remarks, "tone": tone(changes[1], wrong)}
    ]


def _threshold_card(before: ThresholdCurve | None, after: ThresholdCurve | None) -> list[Section]:
    if before is None or after is None:
        return []
    found, false_alarms = after.outcome
    remarks = [
        f"{before.found_at:,} → {found:,} of {after.objects:,} found",
        f"{before.false_alarms_at:,} → {false_alarms:,} false alarms",
    ]
    use = "keep it" if after.new.stays else f"use {after.use:.2g}"
    return [{"title": "Score threshold", "before": f"{before.at:g}", "after": use, "remarks": remarks, "tone": "flat"}]


def _metric(row: MethodResult, name: str) -> float:
    return row.values.get(name, math.nan)


def _measured(before: MethodResult, after: MethodResult, metric: str) -> bool:
    return not (math.isnan(_metric(before, metric)) or math.isnan(_metric(after, metric)))


def metric_text(name: str, value: float) -> str:
    """A metric as the page has it.

    Example:
        >>> metric_text("AP", 0.254), metric_text("NLL", 1.5), metric_text("AP", float("nan"))
        ('25.4', '1.500', '–')
    """
    return "–" if math.isnan(value) else tables.metric_text(name, value)


def methods(comparison: Comparison, focus: MethodResult) -> Section:
    """Every method with its main metrics and their differences; the other metrics are folded away."""
    words, task = WORDS[comparison.task], comparison.task
    main = main_columns(comparison)
    of_number = [name for name in main if "@n:" in name]
    by_group = [at_count(comparison, "recall", group) for group in "rf"]
    others = [name for name in (*by_group, *tables.OTHER_COLUMNS[task]) if name in comparison.metric_names]
    main = [name for name in main if "@n:" not in name]
    main += [others.pop(others.index(name)) for name in ("balanced", "ECE") if name in others]
    protocol, number = comparison.description, ""
    if task == DETECTION:
        protocol = f"{protocol}; {comparison.protocol.evaluator}"
        if point := focus.recall.get(comparison.settings.at):
            number = (
                f"The {point.detections:,} highest-scored detections of each method, as many as the uncorrected model "
                f"has above {point.at:g} (IoU 0.5). Recall, precision and F1 are means over classes. "
                f"{UNVERIFIED if comparison.protocol.federated else ''}"
            )
    return {
        "title": f"All methods on the same {words.data}",
        "table": _table(comparison, focus, main),
        "at_number": _table(comparison, focus, of_number) if number else None,
        "number": number,
        "others": _table(comparison, focus, others) if others else None,
        "protocol": protocol,
        "notes": list(comparison.notes),
        "verdicts": [comparison.verdict(row.name) for row in comparison.rows[1:]],
    }


def _table(comparison: Comparison, focus: MethodResult, columns: list[str]) -> Section:
    best = {name: metric_text(name, _best(comparison, name)) for name in columns}
    with_change = main_columns(comparison)

    def cell(row: MethodResult, name: str) -> Section:
        value, change = _metric(row, name), row.differences.get(name, UNKNOWN)
        has_change = (name in with_change or "@n:" in name) and row is not comparison.baseline
        text = metric_text(name, value)
        of_change = {"change": change_text(change, name) if has_change else "", "tone": tone(change, name)}
        return {"value": value, "text": text, **of_change, "is_best": text == best[name] != "–"}

    rows = [
        {"name": row.name, "is_focus": row is focus, "cells": [cell(row, name) for name in columns]}
        for row in comparison.rows
    ]
    short = [name.partition("@")[0] for name in columns]
    return {"columns": [COLUMN_TITLES.get(name, name) for name in short], "rows": rows}


def _best(comparison: Comparison, name: str) -> float:
    values = [_metric(row, name) for row in comparison.rows if not math.isnan(_metric(row, name))]
    if len(values) < 2 or name in tables.NEITHER_IS_GOOD:
        return math.nan
    return min(values) if small_is_good(name) else max(values)


def logit_statistics(comparison: Comparison, focus: MethodResult) -> dict[str, FloatArray]:
    """Training images, and mean and standard deviation of each class's logit before and after an affine correction."""

    def column(name: str, option: str) -> FloatArray:
        values = [getattr(entry, name) for entry in comparison.classes]
        if all(value is None for value in values):
            raise InputError(f"The comparison was made without `{option}`. {_compared_with(comparison, option)}")
        return np.array([math.nan if value is None else value for value in values], np.float64)

    images = column("train_count", "--counts")
    mean, std = (column(name, "--statistics") for name in ("mean", "std"))
    scale, shift, affine = np.ones_like(mean), np.zeros_like(mean), focus.transform
    if isinstance(affine, ClassAffine):
        foreground = foreground_columns(affine.num_columns, affine.background)
        scale, shift = affine.scale[foreground], affine.shift[foreground]
    elif affine is not None:
        raise InputError(f"`{focus.name}` is not a scale and shift per class: the statistics after it are unknown.")
    after = {"mean_after": scale * mean + shift, "std_after": np.abs(scale) * std}
    return {"images": images, "mean_before": mean, "std_before": std, **after}


def _compared_with(comparison: Comparison, option: str) -> str:
    """How to compare again with an option that was left out; the name of its file is an example."""
    typed = comparison.provenance.command
    if not typed:
        return "Compare again with it."
    counts = "train.json" if comparison.task == DETECTION else "counts.csv"
    example = {"--counts": counts, "--statistics": "statistics.safetensors"}[option]
    replacing = () if "--overwrite" in typed else ("--overwrite",)
    return f"Compare again with it: {command(*typed, option, example, *replacing)}"


def follows_count(values: FloatArray, images: FloatArray) -> float:
    """Rank correlation of the classes' values with their training images; NaN where the values do not vary."""
    finite = np.isfinite(values)
    return spearman(values[finite], images[finite])


def statistics(comparison: Comparison, focus: MethodResult) -> Section:
    """Mean and standard deviation of every class's logit against its training images, before and after."""
    values, words = logit_statistics(comparison, focus), WORDS[comparison.task]
    present = {entry.group for entry in comparison.classes}
    groups = [GROUPS.get(entry.group or "", ("", "x"))[1] for entry in comparison.classes]
    shown = [style_of for group, style_of in GROUPS.items() if group in present] or [("after", "x")]
    marks = [("before", "dot-before", "circle"), *((title, f"dot-{style}", SHAPES[style]) for title, style in shown)]
    scatters = [
        _scatter(key, title, values["images"], values[f"{key}_before"], values[f"{key}_after"], groups)
        for key, title in (("mean", "Mean logit"), ("std", "Standard deviation of the logit"))
    ]
    follows = follows_count(values["mean_before"], values["images"]) >= CLEARLY_FOLLOWS
    tips = []
    for label, entry in enumerate(comparison.classes):
        scores = [points(float(row.per_class[label])) for row in (comparison.baseline, focus)]
        tip = [entry.name, _about(entry.group, values["images"][label], f"{entry.examples:,} {words.examples}")]
        tip.append(f"{words.score} {scores[0]} → {scores[1]}")
        tip += [
            f"{key} {values[f'{key}_before'][label]:.2f} → {values[f'{key}_after'][label]:.2f}"
            for key in ("mean", "std")
        ]
        tips.append(tip)
    return {
        "title": "Why: logits follow the training frequency" if follows else "Do logits follow the training frequency?",
        "model": words.model,
        "legend": [(style, symbol_path(shape, [(7, 7)], 4.5), text) for text, style, shape in marks],
        "charts": scatters,
        "script": {"points": {chart["key"]: chart["places"] for chart in scatters}, "classes": tips},
    }


def _scatter(
    key: str, title: str, images: FloatArray, before: FloatArray, after: FloatArray, groups: list[str]
) -> Section:
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
    caption = f"Rank correlation with the training images: {follows_count(before, images):+.2f} before, "
    # Where only rounding is left, ranks mean nothing.
    is_flat = finite.any() and np.ptp(after[finite]) < 0.01 * np.ptp(before[finite])
    caption += "none after: all classes are equal." if is_flat else f"{follows_count(after, images):+.2f} after."
    drawn = {"x": x, "y": y, "symbols": [symbols for symbols in (*outlines, *marks) if symbols[1]]}
    return {"key": key, "title": title, "places": places, "known": int(finite.sum()), "caption": caption, **drawn}


def _about(group: str | None, images: float | None, examples: str) -> str:
    """What to know of a class before believing its numbers."""
    trained = "" if images is None or math.isnan(images) else f"{images:,.0f} training images"
    return ", ".join(text for text in (GROUPS.get(group or "", ("", ""))[0], trained, examples) if text)


def classes(comparison: Comparison, focus: MethodResult) -> Section:
    """The classes that gained most and those that lost most, and all classes."""
    words = WORDS[comparison.task]
    rows: list[Section] = []
    for entry, before, after in zip(comparison.classes, comparison.baseline.per_class, focus.per_class, strict=True):
        title, style = GROUPS.get(entry.group or "", ("", ""))
        change = float(after - before)
        about = {"name": entry.name, "group": title, "style": style, "examples": entry.examples}
        rows.append(
            {
                **about,
                "about": _about(entry.group, entry.train_count, f"{entry.examples:,} {words.examples}"),
                "images": entry.train_count,
                "before": float(before),
                "after": float(after),
                "change": change,
                "tone": "up" if change > 0 else "down" if change < 0 else "flat",
            }
        )
    gained = sorted((row for row in rows if row["change"] > 0), key=lambda row: -row["change"])
    lost = sorted((row for row in rows if row["change"] < 0), key=lambda row: row["change"])
    return {
        "words": words,
        "counts": (len(gained), len(lost)),
        "sides": [("Gained most", gained[:SHOWN_CLASSES]), ("Lost most", lost[:SHOWN_CLASSES])],
        "rows": rows,
        "x": Axis(0, 1, 6, 114),
    }


def errors(comparison: Comparison, focus: MethodResult) -> Section:
    """What each kind of error costs before and after, by TIDE."""
    before, after = comparison.baseline.tide, focus.tide
    if before is None or after is None:
        raise InputError(
            "The comparison has no kinds of error. Compare again (in Python with `report_images` above 0)."
        )
    kinds = (*ERROR_TYPES, *SPECIAL_ERRORS)
    largest = max((value for side in (before, after) for kind in kinds if (value := side[kind]) > 0), default=1.0)

    def bar(side: Mapping[str, float], kind: str) -> tuple[float, float]:
        value = side[kind]
        return value, 0.0 if math.isnan(value) else 100 * max(value, 0.0) / largest

    scope = "Over all images and classes of the comparison."
    if focus.errors is None and focus.details is not None:
        scope = f"Over {focus.details.images:,} of the {focus.details.of_images:,} images."
    return {
        "bases": (before["AP50"], after["AP50"]),
        "rows": [(kind, ERROR_MEANINGS[kind], bar(before, kind), bar(after, kind)) for kind in kinds],
        "sums": SPECIAL_ERRORS,
        "scope": scope,
    }


def thresholds(comparison: Comparison, focus: MethodResult) -> Section:
    """Precision, recall and F1 over the score threshold, and which threshold to use now."""
    before, after = comparison.baseline.thresholds, focus.thresholds
    if before is None or after is None:
        raise InputError("The comparison has no threshold curves. Compare again.")
    x, y = Axis(0, 1, LEFT, WIDTH - RIGHT), Axis(0, 1, HEIGHT - BOTTOM, TOP + 8)

    def line(curve: ThresholdCurve, values: Sequence[float | None], at: float) -> Section:
        places = [(x(t), y(value)) for t, value in zip(curve.thresholds, values, strict=True) if value is not None]
        nearest = int(np.abs(np.array(curve.thresholds) - at).argmin())
        chosen = values[nearest]
        mark = [] if chosen is None else [(x(at), y(chosen))]
        return {"line": line_path(places), "mark": symbol_path("circle", mark, 4.5)}

    sides, charts = (before.measures(), after.measures()), []
    for title in sides[0]:
        lines = {"before": line(before, sides[0][title], before.at), "after": line(after, sides[1][title], after.use)}
        charts.append({"title": title, "x": x, "y": y, **lines})
    sentence, note = describe_threshold(before, after), UNVERIFIED if comparison.protocol.federated else ""
    return {"sentence": sentence, "charts": charts, "best": (before.best, after.best), "note": note}


def confusions(comparison: Comparison, focus: MethodResult) -> Section:
    """The pairs of classes that the uncorrected classifier confuses most, and how often each method does."""
    if not comparison.baseline.confused:
        raise InputError("The uncorrected model confuses no classes.")
    named = comparison.classes
    pairs = [
        (
            named[pair.label].name,
            named[pair.predicted].name,
            [named[pair.label].examples, *(row.confused[index].errors for row in comparison.rows)],
        )
        for index, pair in enumerate(comparison.baseline.confused)
    ]
    return {"columns": ["rows", *(row.name for row in comparison.rows)], "pairs": pairs}


def reliability(comparison: Comparison, focus: MethodResult) -> Section:
    """How often a classifier is right, by how sure it says it is, before and after."""
    x, y = Axis(0, 1, LEFT, WIDTH - RIGHT), Axis(0, 1, HEIGHT - BOTTOM, TOP + 8)
    charts = []
    for title, row in (("Before", comparison.baseline), ("After", focus)):
        if row.reliability is None:
            raise InputError("The comparison has no accuracy by confidence. Compare again.")
        columns = zip(row.reliability.confidence.tolist(), row.reliability.accuracy.tolist(), strict=True)
        places = [(x(sure), y(right)) for sure, right in columns if not math.isnan(sure)]
        named = {"ECE": "ECE", "confidence": "mean confidence", "top-1": "accuracy"}
        caption = ", ".join(f"{words} {metric_text(name, _metric(row, name))}" for name, words in named.items())
        drawn = {"line": line_path(places), "marks": symbol_path("circle", places, 3.2)}
        charts.append({"title": title, "x": x, "y": y, "caption": caption, **drawn})
    return {"charts": charts}


def provenance(comparison: Comparison, focus: MethodResult) -> Section:
    """What the numbers were made from; settings as JSON, which the page folds away."""
    made, settings, inputs = comparison.provenance, comparison.settings, comparison.provenance.inputs
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    intervals = "none"
    if settings.num_bootstrap:
        drawn = f"{settings.num_bootstrap:,} paired draws of {WORDS[comparison.task].units}"
        intervals = f"{100 * settings.confidence:g} %, from {drawn}, seed {settings.seed}"
    facts = {
        "Compared": f"{made.created} with {versions}{'' if made.command else '; from Python'}",
        "Protocol": comparison.description,
        "Intervals": intervals,
    }
    if statistics := inputs.get("statistics"):
        named = {name: statistics.get(name) for name in ("layer", "population", "activation")}
        named["model"] = statistics.get("source") and f"{statistics['source'][:18]}…"
        described = ", ".join(f"{name} {value}" for name, value in named.items() if value)
        facts["Statistics"] = f"{statistics['logits']:,} logits of each class; {described}"
    if predictions := inputs.get("predictions"):
        of_each = f"{predictions['proposals']:,} proposals, {predictions['columns']:,} logits each"
        facts["Predictions"] = f"{predictions['images']:,} images, {of_each}"
    if logits := inputs.get("logits"):
        facts["Logits"] = f"{logits['rows']:,} rows, {logits['columns']:,} logits each"
    raw = {"settings": asdict(settings), "methods": {row.name: dict(row.settings) for row in comparison.rows[1:]}}
    return {"facts": facts, "raw": json.dumps(raw, ensure_ascii=False, indent=1, default=str)}


def subject(comparison: Comparison, folder: Path) -> str:
    """Which model was measured on which data, as far as the comparison knows; else its folder."""
    inputs = comparison.provenance.inputs
    model = (inputs.get("predictions") or inputs.get("logits") or {}).get("model")
    labels = inputs.get("annotations")
    data = Path(str(labels)).name if labels else (inputs.get("logits") or {}).get("name")
    name = str(model or folder.resolve().name)
    return f"{name} on {data}" if data not in (None, "", "logits") else name
