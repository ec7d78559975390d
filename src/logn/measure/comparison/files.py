"""A comparison as files: `comparison.json` has everything, `comparison.md` the tables; and the first read back.

Fields become keys, arrays become lists, NaN becomes null; reading follows the type hints.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from logn.base.files import check_new, put_files, staging_folder, write_text
from logn.base.strict_json import parse_json, plain_values, typed_values
from logn.errors import InputError, warn
from logn.measure.comparison.comparison import CLASSIFICATION, DETECTION, Comparison, MethodResult
from logn.measure.comparison.method_fitting import UnsavedMap
from logn.measure.comparison.tables import join_words, write_comparison
from logn.measure.detection.tide import ERROR_TYPES, SPECIAL_ERRORS
from logn.methods.affine import ClassAffine
from logn.statistics.head import Head

FORMAT, SCHEMA = "logn.comparison", 6
DOCUMENT, TABLES = "comparison.json", "comparison.md"


def to_document(comparison: Comparison) -> dict[str, Any]:
    """Everything as plain values, for JSON; verdicts in words in addition."""
    verdicts = {row.name: comparison.verdict(row.name) for row in comparison.rows[1:]}
    head = {"format": FORMAT, "schema": SCHEMA, "verdict": comparison.verdict(), "verdicts": verdicts}
    rows = [_values(row) | {"transform": _encode_map(row.transform)} for row in comparison.rows]
    return dict(plain_values(head | _values(comparison) | {"rows": rows}))


def _values(result: Comparison | MethodResult) -> dict[str, Any]:
    return {field.name: getattr(result, field.name) for field in fields(result)}


def _encode_map(transform: Any) -> dict[str, Any] | None:
    """A fitted map; of a Python function only the kind."""
    if isinstance(transform, ClassAffine):
        names = ("scale", "shift", "head", "method", "settings")
        return {"kind": "affine", **{name: getattr(transform, name) for name in names}}
    return None if transform is None else {"kind": "unsaved"}


def _decode_map(content: Mapping[str, Any] | None) -> Any:
    if content is None:
        return None
    if content["kind"] == "affine":
        head = None if content["head"] is None else Head.of_values(content["head"])
        return ClassAffine(content["scale"], content["shift"], head, content["method"], content["settings"])
    return UnsavedMap()


_DECODERS = {"transform": _decode_map}


def _check_rows(comparison: Comparison) -> None:
    """Refuse rows of other metrics or classes than the first, which would fail where they are shown."""
    metrics, width = set(comparison.metric_names), len(comparison.classes)
    if comparison.task not in (DETECTION, CLASSIFICATION):
        raise ValueError(f"`task` is {comparison.task!r:.40}")
    for row in comparison.rows:
        lengths = {len(row.per_class), width if row.predictions_per_class is None else len(row.predictions_per_class)}
        if set(row.values) != metrics or not set(row.differences) <= metrics or lengths != {width}:
            raise ValueError(f"{row.name!r:.40} has other metrics or classes than the first row")
        _check_details(row, comparison.baseline, width)
    if len({frozenset(point.values) for point in comparison.strengths}) > 1:
        raise ValueError("`strengths` have different metrics")


def _check_details(row: MethodResult, baseline: MethodResult, num_classes: int) -> None:
    """Refuse curves of unequal lengths, other kinds of error, and labels of classes that are not there."""
    curve, errors = row.thresholds, row.tide
    labels = [label for pair in row.confused for label in (pair.label, pair.predicted)]
    if curve and not len(curve.thresholds) == len(curve.found) == len(curve.false_alarms):
        raise ValueError(f"the curve of {row.name!r:.40} has unequal lengths")
    if errors and not {*ERROR_TYPES, *SPECIAL_ERRORS} <= {*errors}:
        raise ValueError(f"{row.name!r:.40} lacks a kind of error")
    if row.details:
        labels += [mark.label for image in row.details.gallery for mark in (*image.before, *image.after)]
    if len(row.confused) != len(baseline.confused) or not all(0 <= label < num_classes for label in labels):
        raise ValueError(f"{row.name!r:.40} has pairs or boxes of other classes")


def check_comparison_folder(folder: str | os.PathLike[str], *, overwrite: bool = True) -> list[Path]:
    """Raise InputError if `save_comparison` would replace a file that it did not write, or that is to stay.

    Example:
        >>> [path.name for path in check_comparison_folder("no such folder")]
        ['comparison.json', 'comparison.md']
    """
    paths = [Path(folder) / name for name in (DOCUMENT, TABLES)]
    present = [path for path in paths if path.exists()]
    if present and not _is_comparison(paths[0]):
        raise InputError(
            f"`{present[0]}` would be overwritten, but `logn compare -o` did not write it. Use another folder."
        )
    check_new(*paths, overwrite=overwrite)
    return paths


def _is_comparison(path: Path) -> bool:
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def save_comparison(comparison: Comparison, folder: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Write `comparison.json` and `comparison.md` into `folder`: both or neither, under temporary names first."""
    unsaved = [row.name for row in comparison.rows if (_encode_map(row.transform) or {}).get("kind") == "unsaved"]
    if unsaved:
        warn(f"The map of {join_words(unsaved)} is a Python function, which cannot be saved. Only its numbers are.")
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    with staging_folder(root / DOCUMENT) as staging:
        write_text(staging / TABLES, write_comparison(comparison, "markdown") + "\n")
        write_text(staging / DOCUMENT, json.dumps(to_document(comparison), ensure_ascii=False) + "\n")
        put_files({staging / name: root / name for name in (TABLES, DOCUMENT)}, overwrite=overwrite)


def load_comparison(folder: str | os.PathLike[str]) -> Comparison:
    """Read what `save_comparison` wrote."""
    path = Path(folder) / DOCUMENT
    if not path.is_file():
        raise InputError(f"`{folder}` has no `{DOCUMENT}`. Pass a folder that `logn compare -o` wrote.")
    try:
        content = parse_json(path.read_bytes())
        if (content["format"], content["schema"]) != (FORMAT, SCHEMA):
            raise InputError(
                f"`{path}` is {content['format']} of schema {content['schema']}, but this version of LogN reads "
                f"{FORMAT} of schema {SCHEMA}. Compare again."
            )
        names = {field.name for field in fields(Comparison)}
        comparison: Comparison = typed_values(Comparison, {name: content[name] for name in names}, _DECODERS)
        if not comparison.rows:
            raise InputError(f"`{path}` has no methods. Compare again.")
        _check_rows(comparison)
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, ArithmeticError) as error:
        raise InputError(
            f"`{path}` is not as `logn compare -o` writes it ({type(error).__name__}: {error}). Compare again."
        ) from error
    return comparison
