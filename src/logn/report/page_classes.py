"""Class by class: the logit statistics against the training frequency, who gained and who lost, and the whole list."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from logn.evaluate.tables import points
from logn.report.class_changes_data import ClassChanges, FloatArray
from logn.report.comparison_record import ClassRecord, ComparisonRecord, MethodRecord, most_changed
from logn.report.markup import Markup, data_script, tag
from logn.report.page_parts import (
    GROUP_SHAPES,
    GROUP_TITLES,
    arrow,
    cell,
    group_legend,
    legend,
    section,
    sortable_table,
    swatch,
)
from logn.report.svg_charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, axes, chart, padded, symbol_path

SHOWN = 8
# Below this rank correlation the page does not claim that the mean logits follow the counts.
CLEARLY_FOLLOWS = 0.5


def statistics_section(comparison: ComparisonRecord, focus: MethodRecord, changes: ClassChanges) -> Markup:
    """Mean and standard deviation of every class's logit against its training images, before and after."""
    groups = [entry.group or "x" for entry in comparison.classes]
    panels = {
        "mean": ("Mean logit", changes.mean_before, changes.mean_after),
        "std": ("Standard deviation of the logit", changes.std_before, changes.std_after),
    }
    drawn = {
        key: _scatter(key, title, changes, before, after, groups) for key, (title, before, after) in panels.items()
    }
    figures = [tag("figure", tag("h3", panels[key][0]), svg, caption) for key, (svg, caption, _) in drawn.items()]
    data = {
        "points": {key: places for key, (_, _, places) in drawn.items()},
        "classes": [_tip(place, entry, focus, changes) for place, entry in enumerate(comparison.classes)],
    }
    entries = [(tag("circle", cx=7, cy=7, r=4.5, class_="dot-before"), "before (all classes)")]
    entries += group_legend(groups) or [(tag("circle", cx=7, cy=7, r=4.5, class_="dot-x"), "after")]
    return section(
        "statistics",
        _title(changes.follows_count(changes.mean_before)),
        "One mark per class. A detector that judged only the image would give a flat cloud; a slope is the long "
        "tail in the logits. Grey outlines are the uncorrected model, colours the corrected one. Point at or tap a "
        "mark to see its class.",
        legend(*entries),
        tag("div", *figures, class_="charts"),
        data_script("class-data", data),
    )


def _title(correlation: float) -> str:
    if correlation >= CLEARLY_FOLLOWS:
        return "Why: the logits follow the training frequency"
    return "Do the logits follow the training frequency?"


Places = list[list[float] | None]


def _scatter(
    key: str, title: str, changes: ClassChanges, before: FloatArray, after: FloatArray, groups: list[str]
) -> tuple[Markup, Markup, Places]:
    known = np.isfinite(before) & np.isfinite(after)
    values = np.concatenate([before[known], after[known]])
    images = np.maximum(changes.images, 1.0)
    x = Axis(float(images.min()) * 0.85, float(images.max()) * 1.15, LEFT, WIDTH - RIGHT, logarithmic=True)
    y = Axis(*padded(values.tolist() or [0.0, 1.0]), HEIGHT - BOTTOM, TOP + 8)
    places: Places = [
        [round(x(images[i]), 1), round(y(before[i]), 1), round(y(after[i]), 1)] if known[i] else None
        for i in range(len(before))
    ]
    size = float(np.clip(60 / math.sqrt(max(len(places), 1)), 1.7, 3.6))
    marks = [_marks(places, groups, group, size) for group in ("f", "c", "r", "x")]
    outlines = [tag("path", d=_path(places, groups, group, 1, size), class_="dot-before") for group in "fcrx"]
    caption = tag("figcaption", _correlations(changes, before, after))
    svg = chart(
        axes(x, y, "training images (logarithmic)", ""),
        *outlines,
        *marks,
        label=f"{title} of {int(known.sum())} classes against training images, before and after",
        data_points=key,
    )
    return svg, caption, places


def _marks(places: Places, groups: list[str], group: str, size: float) -> Markup:
    return tag("path", d=_path(places, groups, group, 2, 0.85 * size), class_=f"dot-{group}")


def _path(places: Places, groups: list[str], group: str, side: int, size: float) -> str:
    chosen = [(place[0], place[side]) for place, known in zip(places, groups, strict=True) if place and known == group]
    return symbol_path(GROUP_SHAPES.get(group, "circle"), chosen, size)


def _correlations(changes: ClassChanges, before: FloatArray, after: FloatArray) -> str:
    text = f"Rank correlation with the training images: {changes.follows_count(before):+.2f} before, "
    # Where nothing but rounding and the smallest term of the formula is left, ranks say nothing.
    if np.nanmax(after) - np.nanmin(after) < 0.01 * (np.nanmax(before) - np.nanmin(before)):
        return f"{text}none after: all classes are equal."
    return f"{text}{changes.follows_count(after):+.2f} after."


def _tip(place: int, entry: ClassRecord, focus: MethodRecord, changes: ClassChanges) -> list[str]:
    group = f"{GROUP_TITLES[entry.group]}, " if entry.group in GROUP_TITLES else ""
    return [
        entry.name,
        f"{group}{changes.images[place]:,.0f} training images, {entry.boxes:,} boxes here",
        f"AP {arrow(entry.precision['none'], entry.precision[focus.name])}",
        f"mean {changes.mean_before[place]:.2f} → {changes.mean_after[place]:.2f}",
        f"std {changes.std_before[place]:.2f} → {changes.std_after[place]:.2f}",
    ]


def changed_section(comparison: ComparisonRecord, focus: MethodRecord, images: FloatArray | None) -> Markup:
    """The classes that gained most and those that lost most, and all classes in a list to open."""
    gained, lost = most_changed(comparison.classes, comparison.baseline.name, focus.name, SHOWN)
    counts = None if images is None else {e.id: float(n) for e, n in zip(comparison.classes, images, strict=True)}
    fewer = sum(_change(entry, focus) < 0 for entry in comparison.classes)
    more = sum(_change(entry, focus) > 0 for entry in comparison.classes)
    sides = [
        tag("figure", tag("h3", title), _dumbbells(entries, focus, counts))
        for title, entries in (("Gained most", gained), ("Lost most", lost))
        if entries
    ]
    return section(
        "classes",
        "Which classes gained and lost most",
        f"{more:,} classes gained AP and {fewer:,} lost some. A class with few boxes here moves far by chance: "
        "look at the boxes before you believe a row.",
        legend((swatch("bar-before"), "AP before"), (swatch("bar-after"), "AP after")),
        tag("div", *sides, class_="charts"),
        tag(
            "details",
            tag("summary", f"All {len(comparison.classes):,} classes"),
            tag(
                "div",
                tag("input", type="search", placeholder="Find a class", aria_label="Find a class", data_filter="all"),
                class_="controls",
                hidden=True,
            ),
            tag("div", _class_table(comparison, focus, counts), class_="scroll classes"),
        ),
    )


def _change(entry: ClassRecord, focus: MethodRecord) -> float:
    return entry.precision[focus.name] - entry.precision["none"]


def _dumbbells(entries: list[ClassRecord], focus: MethodRecord, counts: dict[int, float] | None) -> Markup:
    return tag("ul", *(_dumbbell(entry, focus, counts) for entry in entries), class_="changes")


def _dumbbell(entry: ClassRecord, focus: MethodRecord, counts: dict[int, float] | None) -> Markup:
    """A class with its AP before and after on a line from 0 to 100."""
    before, after = entry.precision["none"], entry.precision[focus.name]
    known = [GROUP_TITLES.get(entry.group or ""), counts and f"{counts[entry.id]:,.0f} training images"]
    meta = ", ".join(text for text in (*known, f"{entry.boxes:,} boxes") if text)
    x = Axis(0, 1, 6, 114)
    track = tag(
        "svg",
        tag("line", x1=6, x2=114, y1=8, y2=8, class_="grid"),
        tag("line", x1=x(before), x2=x(after), y1=8, y2=8, class_="interval"),
        tag("circle", cx=x(before), cy=8, r=4.5, class_="bar-before"),
        tag("circle", cx=x(after), cy=8, r=4.5, class_="bar-after"),
        viewBox="0 0 120 16",
        aria_hidden="true",
    )
    return tag(
        "li",
        tag("span", entry.name, tag("small", meta)),
        tag("div", track, tag("b", arrow(before, after))),
        class_="up" if after > before else "down",
    )


def _class_table(comparison: ComparisonRecord, focus: MethodRecord, counts: dict[int, float] | None) -> Markup:
    header = [("class", True), ("group", True), ("training images", False), ("boxes", False)]
    header += [("AP before", False), ("AP after", False), ("change", False)]
    return sortable_table(header, [_class_row(entry, focus, counts) for entry in comparison.classes], id="all")


def _class_row(entry: ClassRecord, focus: MethodRecord, counts: dict[int, float] | None) -> Markup:
    before, after, change = entry.precision["none"], entry.precision[focus.name], _change(entry, focus)
    number: Any = "" if counts is None else f"{counts[entry.id]:,.0f}"
    kind = "up" if change > 0 else "down" if change < 0 else None
    return tag(
        "tr",
        tag("td", entry.name, class_="name"),
        tag("td", GROUP_TITLES.get(entry.group or "", ""), class_=f"group-{entry.group}" if entry.group else None),
        cell(number, "" if counts is None else f"{counts[entry.id]:g}"),
        tag("td", entry.boxes),
        cell(points(before), before),
        cell(points(after), after),
        cell("–" if math.isnan(change) else f"{100 * change:+.1f}", change, class_=kind),
    )
