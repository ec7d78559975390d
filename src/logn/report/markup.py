"""HTML and SVG built from elements: text is escaped unless it was made here, so that no name can become code."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Any

# Elements that have no content, and so no end tag.
_VOID = frozenset({"meta", "link", "img", "br", "input", "hr"})


class Markup(str):
    """Text that is markup already; everything else is escaped when it is put into an element."""

    __slots__ = ()


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """Make one element. Children that are not markup are escaped; None and False leave a child or attribute out.

    Underscores in the names of attributes stand for hyphens, one at the end is dropped.

    Example:
        >>> tag("p", "1 < 2 & ", tag("b", "bold"), class_="note", data_value=0.5)
        '<p class="note" data-value="0.5">1 &lt; 2 &amp; <b>bold</b></p>'
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    start = f"<{name}{written}>"
    return Markup(start if name in _VOID else f"{start}{join(children)}</{name}>")


def join(children: Iterable[Any], between: str = "") -> Markup:
    """Put children one after another, escaped where they are not markup.

    Example:
        >>> join(["a<b", Markup("<br>"), None, ["c"]])
        'a&lt;b<br>c'
    """
    return Markup(between.join(_content(child) for child in children if child is not None and child is not False))


def _content(child: Any) -> str:
    if isinstance(child, Markup):
        return str(child)
    if isinstance(child, list | tuple):
        return join(child)
    return escape(str(child))


def _attribute(key: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = key.removesuffix("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = number(value) if isinstance(value, float) else str(value)
    return f' {name}="{escape(text)}"'


def number(value: float) -> str:
    """Write a coordinate with two decimals at most: more cannot be seen.

    Example:
        >>> number(3.14159), number(2.0), number(-0.001)
        ('3.14', '2', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def data_script(identifier: str, content: Any) -> Markup:
    """Data for the script of the page; nothing in it can end the element.

    Example:
        >>> print(data_script("sizes", [1, "a"]))
        <script type="application/json" id="sizes">[1,"a"]</script>
    """
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="{escape(identifier)}">{text}</script>')
