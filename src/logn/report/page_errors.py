"""Which kinds of error there are before and after, by TIDE."""

from __future__ import annotations

from collections.abc import Mapping

from logn.evaluate.error_types import ERROR_TYPES, SPECIAL_ERRORS
from logn.evaluate.tables import points
from logn.report.markup import Markup, tag
from logn.report.page_parts import legend, section, swatch
from logn.report.svg_charts import Axis, chart, donut

MEANINGS = {
    "Cls": "right place, wrong class",
    "Loc": "right class, poor place",
    "Both": "wrong class and poor place",
    "Dupe": "found once more",
    "Bkg": "nothing there",
    "Miss": "not found at all",
    "FP": "all false positives",
    "FN": "all false negatives",
}


_SIDES = legend((swatch("bar-before"), "before"), (swatch("bar-after"), "after"))


def error_section(before: Mapping[str, float], after: Mapping[str, float], scope: str) -> Markup:
    """Two rings and bars; `before` and `after` have "AP50" and the AP50 that mending each kind would add."""
    rings = [
        tag("figure", tag("h3", title), _ring(title, errors), tag("figcaption", f"AP50 {points(errors['AP50'])}"))
        for title, errors in (("Before", before), ("After", after))
    ]
    return section(
        "errors",
        "Which errors it mends, and which it makes",
        "What mending all errors of one kind would add to AP50 (TIDE). The rings show how the six kinds share the "
        "loss, the bars how large each is; FP and FN are sums that overlap with the six.",
        legend(*((swatch(kind), f"{kind}: {MEANINGS[kind]}") for kind in ERROR_TYPES)),
        tag("div", *rings, tag("figure", _SIDES, _bars(before, after)), class_="tide"),
        tag("p", scope, class_="note"),
    )


def _ring(title: str, errors: Mapping[str, float]) -> Markup:
    total = sum(errors[kind] for kind in ERROR_TYPES)
    words = ", ".join(f"{kind} {points(errors[kind])}" for kind in ERROR_TYPES)
    largest = max(ERROR_TYPES, key=lambda kind: errors[kind])
    share = f"{100 * errors[largest] / total:.0f} %" if total else "–"
    return tag(
        "svg",
        donut([(kind, errors[kind]) for kind in ERROR_TYPES]),
        tag("text", largest, x=0, y=-2, text_anchor="middle", class_="strong"),
        tag("text", share, x=0, y=16, text_anchor="middle", class_="tick"),
        viewBox="-80 -74 160 148",
        role="img",
        aria_label=f"{title}: {words}",
        class_="chart ring-chart",
        style="max-width:240px",
    )


def _bars(before: Mapping[str, float], after: Mapping[str, float]) -> Markup:
    width, step, start = 300, 31, 40
    kinds = (*ERROR_TYPES, *SPECIAL_ERRORS)
    largest = max(errors[kind] for errors in (before, after) for kind in kinds)
    x = Axis(0, max(largest, 1e-9), start, width - 44)
    content = []
    for place, kind in enumerate(kinds):
        y = place * step + (8 if kind in SPECIAL_ERRORS else 0)
        content.append(tag("text", kind, x=start - 8, y=y + 17, text_anchor="end", class_="label"))
        for side, (name, errors) in enumerate((("before", before), ("after", after))):
            end, top = x(max(errors[kind], 0.0)), y + 2 + 12 * side
            content.append(
                tag("rect", x=start, y=top, width=max(end - start, 1.0), height=10, rx=2, class_=f"bar-{name}")
            )
            content.append(tag("text", points(errors[kind]), x=end + 5, y=top + 9, class_="tick"))
    words = ", ".join(f"{kind} {points(before[kind])} to {points(after[kind])}" for kind in kinds)
    return chart(*content, label=f"Before to after: {words}", width=width, height=len(kinds) * step + 10)
