"""Pieces that all sections of the page use: sections, notes, legends, coloured changes."""

from __future__ import annotations

import math
from typing import Any

from logn.evaluate.bootstrap import Interval
from logn.evaluate.comparison import interval_text
from logn.evaluate.tables import points
from logn.report.markup import Markup, join, tag
from logn.report.svg_charts import symbol_path

GROUP_SHAPES = {"r": "triangle", "c": "square", "f": "circle"}
GROUP_TITLES = {"r": "rare", "c": "common", "f": "frequent"}


def section(identifier: str, title: str, lead: Any, *content: Any) -> Markup:
    """A part of the page with its title and a sentence that says how to read it."""
    return tag("section", tag("h2", title), tag("p", lead, class_="lead"), *content, id=identifier)


def note(text: Any) -> Markup:
    """A remark, or what is missing."""
    return tag("p", text, class_="note")


def spec(name: str) -> Markup:
    """The name of a method, set apart from the words around it."""
    return tag("span", name, class_="spec")


def tone(change: Interval) -> str:
    """The class of the style sheet for a change: only what the interval makes sure is coloured.

    Example:
        >>> tone(Interval(0.02, 0.01, 0.03)), tone(Interval(0.02, -0.01, 0.03)), tone(Interval(-0.1, -0.2, -0.05))
        ('up', 'flat', 'down')
    """
    if change.low > 0:
        return "up"
    return "down" if change.high < 0 else "flat"


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


def arrow(before: float, after: float) -> str:
    """Two values in points.

    Example:
        >>> arrow(0.125, float("nan"))
        '12.5 → –'
    """
    return f"{points(before)} → {points(after)}".replace("-", "–")


def legend(*entries: tuple[Markup, str]) -> Markup:
    """What the marks of a chart mean."""
    items = [tag("li", tag("svg", mark, viewBox="0 0 14 14", aria_hidden="true"), text) for mark, text in entries]
    return tag("ul", *items, class_="legend")


def group_legend(groups: list[str]) -> list[tuple[Markup, str]]:
    """Marks of the frequency groups, after the correction."""
    return [
        (tag("path", d=symbol_path(GROUP_SHAPES[group], [(7, 7)], 4.5), class_=f"dot-{group}"), GROUP_TITLES[group])
        for group in ("f", "c", "r")
        if group in groups
    ]


def cell(content: Any, value: float | str | None = None, **attributes: Any) -> Markup:
    """A cell of a sortable table; `value` is what it is sorted by."""
    if isinstance(value, float):
        value = "" if math.isnan(value) else f"{value:.6g}"
    return tag("td", content, data_value=value, **attributes)


def sortable_table(header: list[tuple[str, bool]], rows: list[Markup], **attributes: Any) -> Markup:
    """A table that the script makes sortable; `header` tells each title and whether its column is text."""
    titles = [tag("th", title, scope="col", data_kind="text" if is_text else None) for title, is_text in header]
    return tag(
        "table", tag("thead", tag("tr", join(titles))), tag("tbody", join(rows)), data_sortable=True, **attributes
    )


def swatch(name: str) -> Markup:
    """A filled square of a colour of the style sheet, for a legend."""
    return tag("rect", x=1, y=1, width=12, height=12, rx=2, class_=name)
