"""Thresholds that exist already, as LogN, other tools or people write them: JSON, CSV or a mapping."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Collection, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from logn.base.files import require_file
from logn.base.strict_json import parse_json
from logn.errors import InputError

DEFAULT_KEY = "default"
# What a spreadsheet takes for the start of a formula, and the apostrophe that tells it not to.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
# Where other tools keep the thresholds by class name, and beside them the common one: LibreYOLO's validation, the
# recommended parameters of Roboflow ("best" confidence), and its Per-Class Confidence Filter.
_TOOLS = {
    "best_conf_per_class": "best_conf",
    "per_class_confidence": "confidence",
    "perClassConfidence": "confidence",
    "class_thresholds": "default_threshold",
}
_CLASS_COLUMNS = ("class", "class_name", "name", "label", "category")
_THRESHOLD_COLUMNS = ("threshold", "conf", "confidence", "score", "best_conf")


def check_threshold(what: str, value: Any) -> float:
    """Accept a number between 0 and 1, both excluded.

    Example:
        >>> check_threshold("at", 1.0)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected the at to lie between 0 and 1, both excluded, but got 1.0.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1:
        raise InputError(f"Expected the {what} to lie between 0 and 1, both excluded, but got {value!r}.")
    return float(value)


def read_given(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """The object that a JSON file or text holds, or the thresholds of a CSV file or a mapping by class name."""
    if isinstance(source, Mapping):
        return dict(source)
    text: str | bytes = os.fspath(source)
    if not str(text).lstrip().startswith("{"):
        require_file(source)
        if Path(source).suffix.lower() == ".csv":
            return _csv_thresholds(source)
        text = Path(source).read_bytes()
    try:
        content = parse_json(text)
    except ValueError as error:
        raise InputError(f'`{source}` is not JSON such as {{"car": 0.5}}: {error}.') from error
    if not isinstance(content, dict):
        raise InputError(f'`{source}` is not a JSON object such as {{"car": 0.5}}.')
    return content


def by_class(
    content: Mapping[str, Any], class_names: Collection[str] = ()
) -> tuple[dict[str, float | None], float | None]:
    """Thresholds by class name, None for a class that has the common one, and the common one if it is given.

    The key "default" is the common one unless it is one of `class_names`.

    Example:
        >>> by_class({"metrics/best_conf": 0.4, "metrics/best_conf_per_class": {"car": 0.7, "bus": float("nan")}})
        ({'car': 0.7, 'bus': None}, 0.4)
        >>> by_class({"car": 0.5, "default": 0.3})
        ({'car': 0.5}, 0.3)
    """
    for holder in (content, *(value for value in content.values() if isinstance(value, Mapping))):
        names = {str(key).rpartition("/")[2]: key for key in holder}
        for key, beside in _TOOLS.items():
            if isinstance(values := holder.get(names.get(key)), Mapping):
                number = holder.get(names.get(beside))
                is_known = isinstance(number, Real) and float(number) > 0  # 0 and NaN: the tool found none
                return _named(values), check_threshold(f"threshold `{beside}`", number) if is_known else None
    given = dict(content)
    is_common = DEFAULT_KEY in given and DEFAULT_KEY not in class_names
    common = check_threshold(f"threshold `{DEFAULT_KEY}`", given.pop(DEFAULT_KEY)) if is_common else None
    return _named(given), common


def _named(values: Mapping[str, Any]) -> dict[str, float | None]:
    """Checked thresholds; null, NaN and 0, by which tools tell that they found none, mean the common one."""
    thresholds: dict[str, float | None] = {}
    for name, value in values.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_absent = value is None or (is_number and (value == 0 or math.isnan(value)))
        thresholds[str(name)] = None if is_absent else check_threshold(f"threshold of `{name}`", value)
    return thresholds


def _csv_thresholds(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Thresholds of the columns that the first line names, else of the first two; an empty cell: the common one."""
    rows = [row for row in csv.reader(io.StringIO(Path(path).read_text(encoding="utf-8-sig"), newline="")) if row]
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    named = [next((name for name in names if name in header), "") for names in (_CLASS_COLUMNS, _THRESHOLD_COLUMNS)]
    name_place, value_place = (header.index(name) for name in named) if all(named) else (0, 1)
    thresholds: dict[str, Any] = {}
    for number, row in enumerate(rows):
        try:
            name, cell = row[name_place].strip(), row[value_place].strip()
            value = float(cell) if cell else None
        except (IndexError, ValueError):
            if number == 0:
                continue  # the header
            raise InputError(f"`{path}` has a line without a class and a threshold: {row}.") from None
        name = name[1:] if name[:1] == "'" and name[1:2] in FORMULA else name
        if name in thresholds:
            raise InputError(f"`{path}` names the class `{name}` twice.")
        thresholds[name] = value
    return thresholds
