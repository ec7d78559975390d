"""The top of the page: the verdict, the table of methods, AP by group."""

from __future__ import annotations

import math

from logn.evaluate.bootstrap import Interval
from logn.evaluate.tables import MAIN_COLUMNS, OTHER_COLUMNS, points
from logn.report.comparison_record import ComparisonRecord, MethodRecord
from logn.report.markup import Markup, join, tag
from logn.report.page_parts import cell, change_words, legend, note, section, sortable_table, spec, swatch, tone
from logn.report.svg_charts import Axis, chart

GROUP_METRICS = {"APr": "Rare classes", "APc": "Common classes", "APf": "Frequent classes", "AP": "All classes"}
# Of these the smallest value is the best.
SMALL_IS_GOOD = ("ECE",)


def verdict(comparison: ComparisonRecord, focus: MethodRecord) -> Markup:
    """What the method changes: a headline, the whole sentence, one tile per group."""
    share = f"{100 * comparison.confidence:g} %"
    tiles = [
        _tile(title, comparison.baseline[metric], focus[metric], focus.differences[metric])
        for metric, title in GROUP_METRICS.items()
        if metric in focus.differences and not math.isnan(focus[metric])
    ]
    how = (
        f"In points of AP; in brackets the {share} interval from {comparison.draws:,} paired draws of images."
        if comparison.draws
        else "In points of AP; no intervals were computed, so small differences may be chance."
    )
    return join(
        [
            tag("h1", _headline(focus)),
            tag("p", focus.verdict, id="verdict"),
            tag("div", *tiles, class_="tiles"),
            tag("p", how, class_="lead"),
            _other_verdicts(comparison, focus),
        ]
    )


def _headline(focus: MethodRecord) -> Markup:
    change = focus.differences.get("AP", Interval(math.nan, math.nan, math.nan))
    amount = f"{abs(100 * change.difference):.1f}"
    if math.isnan(change.difference):
        return join([spec(focus.name), " was compared with the uncorrected model"])
    if math.isnan(change.low):
        return join([spec(focus.name), " changes AP by ", tag("b", f"{100 * change.difference:+.1f} points")])
    if not change.is_clear:
        ends = f"{100 * change.low:.1f} to {100 * change.high:.1f}"
        return join([spec(focus.name), " makes no clear difference to AP ", tag("span", f"({ends})", class_="flat")])
    verb = "raises" if change.low > 0 else "lowers"
    low, high = sorted((abs(100 * change.low), abs(100 * change.high)))
    ends = f"{low:.1f} to {high:.1f}"
    return join([spec(focus.name), f" {verb} AP by ", tag("b", f"{amount} points", class_=tone(change)), f" ({ends})"])


def _tile(title: str, before: float, after: float, change: Interval) -> Markup:
    return tag(
        "div",
        tag("div", title, class_="name"),
        tag("div", tag("small", f"{points(before)} → "), points(after), class_="value"),
        tag("div", change_words(change), class_=f"change {tone(change)}"),
        class_="tile",
    )


def _other_verdicts(comparison: ComparisonRecord, focus: MethodRecord) -> Markup | None:
    others = [method for method in comparison.methods[1:] if method.name != focus.name]
    if not others:
        return None
    items = [tag("li", method.verdict) for method in others]
    return tag("div", tag("ul", *items), class_="others")


def method_table(comparison: ComparisonRecord, focus: MethodRecord) -> Markup:
    """Every method with its main metrics, their differences and the other metrics."""
    main = [name for name in MAIN_COLUMNS if name in comparison.metric_names]
    others = [name for name in OTHER_COLUMNS if name in comparison.metric_names]
    best = {name: _best(comparison, name) for name in (*main, *others)}
    rows = []
    for place, method in enumerate(comparison.methods):
        cells = [cell(spec(method.name), method.name, class_="name")]
        for name in (*main, *others):
            change = method.differences[name] if place and name in main and name in method.differences else None
            cells.append(_metric_cell(method[name], change, is_best=points(method[name]) == points(best[name]) != "-"))
        rows.append(tag("tr", join(cells), class_="focus" if method is focus else None))
    header = [("method", True), *((name, False) for name in (*main, *others))]
    notes = [*comparison.notes, *(f"{method.name}: {text}" for method in comparison.methods for text in method.notes)]
    return section(
        "methods",
        "All methods on the same proposals",
        "Best of each column in bold. A difference is coloured only where its whole interval lies on one side of zero.",
        tag("div", sortable_table(header, rows, id="method-table"), class_="scroll"),
        note(f"Protocol: {comparison.protocol['description']}; {comparison.protocol['evaluator']}."),
        *(note(text) for text in dict.fromkeys(notes)),
    )


def _best(comparison: ComparisonRecord, name: str) -> float:
    values = [method[name] for method in comparison.methods if not math.isnan(method[name])]
    if len(values) < 2:
        return math.nan
    return min(values) if name in SMALL_IS_GOOD else max(values)


def _metric_cell(value: float, change: Interval | None, *, is_best: bool) -> Markup:
    delta = None
    if change is not None:
        delta = tag("span", change_words(change), class_=f"delta {tone(change)}")
    return cell(join([points(value), delta]), value, class_="best" if is_best else None)


def group_bars(comparison: ComparisonRecord, focus: MethodRecord) -> Markup | None:
    """AP of each frequency group: one small chart per group, the same scale in all."""
    metrics = [metric for metric in GROUP_METRICS if not math.isnan(comparison.baseline[metric])]
    if len(metrics) < 2:
        return None
    top = max(method[metric] for method in comparison.methods for metric in metrics if not math.isnan(method[metric]))
    panels = [
        tag("figure", tag("h3", GROUP_METRICS[metric]), _bars(comparison, focus, metric, top)) for metric in metrics
    ]
    return section(
        "groups",
        "AP by group",
        "Where the gain comes from, and what it costs. All charts have the same scale.",
        legend(
            (swatch("bar-before"), "uncorrected"), (swatch("bar-after"), focus.name), (swatch("bar-other"), "others")
        ),
        tag("div", *panels, class_="charts small"),
    )


def _bars(comparison: ComparisonRecord, focus: MethodRecord, metric: str, top: float) -> Markup:
    width, step = 250, 36
    x = Axis(0, top or 1.0, 0, width - 44)
    content = []
    for place, method in enumerate(comparison.methods):
        y, value = place * step, method[metric]
        kind = "before" if place == 0 else "after" if method is focus else "other"
        end = 0.0 if math.isnan(value) else x(value)
        name = method.name if len(method.name) <= 38 else f"{method.name[:36]}…"
        content += [
            tag("text", name, x=0, y=y + 12, class_="tick" if kind == "other" else "label"),
            tag("rect", x=0, y=y + 17, width=max(end, 1.0), height=11, rx=2, class_=f"bar-{kind}"),
            tag("text", points(value), x=max(end, 1.0) + 6, y=y + 27, class_="strong" if method is focus else None),
        ]
    words = ", ".join(f"{method.name} {points(method[metric])}" for method in comparison.methods)
    return chart(
        *content, label=f"{GROUP_METRICS[metric]}: {words}", width=width, height=len(comparison.methods) * step
    )
