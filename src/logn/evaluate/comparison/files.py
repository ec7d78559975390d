"""A comparison as files: for programs, for a README, for a spreadsheet and for a paper; and read back.

`comparison.json` has everything that can be said in words and numbers, `comparison.safetensors` the fitted maps and the
other arrays. The first names the digest of the second, so that files of two comparisons are never taken for one.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError, LogNWarning
from logn.evaluate.classification.metrics import ClassificationMetrics
from logn.evaluate.comparison.comparison import CLASSIFICATION, DETECTION, Comparison, DetectionScope
from logn.evaluate.comparison.method_fitting import describe_map, map_arrays
from logn.evaluate.comparison.reading import comparison_from_parts
from logn.evaluate.comparison.tables import per_class_table, write_comparison
from logn.evaluate.comparison.verdict import join_words
from logn.files import format_of, read_safetensors, write_safetensors, write_text
from logn.strict_json import parse_json, plain_values

FORMAT, SCHEMA = "logn.comparison", 2
DOCUMENT, ARRAYS = "comparison.json", "comparison.safetensors"
TABLES = ("comparison.md", "comparison.csv", "comparison.tex", "per_class.csv")
Arrays = dict[str, npt.NDArray[Any]]


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Everything but the arrays as plain values, for JSON."""
    rows, verdicts = comparison.rows, {row.name: comparison.verdict(row.name) for row in comparison.rows[1:]}
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "task": comparison.task,
        "verdict": comparison.verdict(),
        "verdicts": verdicts,
        **_scope(comparison),
        "draws": comparison.num_bootstrap,
        "confidence": comparison.confidence,
        "methods": [row.to_dict() for row in rows],
        "classes": [_class(comparison, place) for place in range(len(comparison.classes))],
        "curves": [curve.to_dict() for curve in comparison.curves],
        "seconds": dict(comparison.seconds),
        "notes": list(comparison.notes),
        "settings": comparison.settings.to_dict(),
        "provenance": comparison.provenance.to_dict(),
    }


def _scope(comparison: Comparison) -> dict[str, Any]:
    if isinstance(comparison.scope, DetectionScope):
        protocol, protocols = comparison.scope.protocol, comparison.scope.protocols
        return {
            "protocol": {**protocol.to_dict(), "description": protocol.describe()},
            "protocols": {name: own.to_dict() for name, own in protocols.items()},
        }
    truth = comparison.scope
    return {
        "protocol": truth.describe(),
        "bounds": list(truth.bounds),
        "class_names": None if truth.class_names is None else list(truth.class_names),
        "families": None if truth.families is None else truth.families.tolist(),
    }


def _class(comparison: Comparison, place: int) -> dict[str, Any]:
    known = asdict(comparison.classes[place])
    examples, number = known.pop("examples"), known.pop("id")
    measured = {row.name: float(row.metrics.per_class[place]) for row in comparison.rows}
    if comparison.task == DETECTION:
        named = {"id": number, "name": known.pop("name"), "group": known.pop("group")}
        return {**named, "boxes": examples, "AP": measured, **known}
    predicted = {
        row.name: int(row.metrics.predictions_per_class[place])
        for row in comparison.rows
        if isinstance(row.metrics, ClassificationMetrics)
    }
    return {"class": number, **known, "rows": examples, "predicted": predicted, "accuracy": measured}


def comparison_arrays(comparison: Comparison) -> Arrays:
    """The fitted maps, what the report draws, and what else is too much for JSON; methods go by their place."""
    arrays: Arrays = {}
    for place, row in enumerate(comparison.rows):
        parts: Arrays = {f"map.{name}": array for name, array in map_arrays(row.transform).items()}
        if row.details is not None:
            parts |= row.details.arrays()
        if row.reliability is not None:
            parts |= {f"reliability.{name}": array for name, array in vars(row.reliability).items()}
        if isinstance(row.metrics, ClassificationMetrics):
            parts |= {f"confusions.{name}": array for name, array in vars(row.metrics.confusions).items()}
        arrays |= {f"{place}.{name}": np.ascontiguousarray(array) for name, array in parts.items()}
    if comparison.task == CLASSIFICATION:
        arrays["labels"] = comparison.truth.labels
    return arrays


def same_content(one: Comparison, two: Comparison) -> bool:
    """Whether two comparisons have the same content, NaN equal to itself."""
    one, two = one.with_details(), two.with_details()
    if plain_values(comparison_document(one)) != plain_values(comparison_document(two)):
        return False
    first, second = comparison_arrays(one), comparison_arrays(two)
    return first.keys() == second.keys() and all(
        array.dtype == second[name].dtype and np.array_equal(array, second[name], equal_nan=array.dtype.kind == "f")
        for name, array in first.items()
    )


def check_comparison_folder(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder with files of somebody else's under the names that `save_comparison` writes.

    Example:
        >>> check_comparison_folder("no such folder")
    """
    root = Path(folder)
    if format_of(root / ARRAYS) == FORMAT:
        return  # an earlier comparison, which the new one replaces
    for name in (DOCUMENT, ARRAYS, *TABLES):
        if (root / name).exists():
            raise InputError(
                f"Expected `{root}` to be new or a folder that `logn compare -o` wrote, but its `{name}` is another "
                "file, which would be lost: choose another folder."
            )


def save_comparison(comparison: Comparison, folder: str | os.PathLike[str]) -> None:
    """Write `comparison.json`, `.safetensors`, `.md`, `.csv`, `.tex` and `per_class.csv` into `folder`.

    Each file gets a temporary name and is renamed; `comparison.json`, which vouches for the arrays, comes last.
    """
    comparison = comparison.with_details()
    unsaved = [row.name for row in comparison.rows if (describe_map(row.transform) or {}).get("kind") == "unsaved"]
    if unsaved:
        warnings.warn(
            f"The map of {join_words(unsaved)} is a function that no file can hold: its numbers are saved, it is not.",
            LogNWarning,
            stacklevel=3,
        )
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    write_safetensors(root / ARRAYS, comparison_arrays(comparison), {"format": FORMAT, "schema": str(SCHEMA)})
    write_text(root / "comparison.md", write_comparison(comparison, "markdown") + "\n")
    write_text(root / "comparison.csv", write_comparison(comparison, "csv"))
    write_text(root / "comparison.tex", write_comparison(comparison, "latex") + "\n")
    write_text(root / "per_class.csv", per_class_table(comparison).to_csv())
    document = {**comparison_document(comparison), "arrays": _digest(root / ARRAYS)}
    write_text(root / DOCUMENT, json.dumps(plain_values(document), indent=1, ensure_ascii=False) + "\n")


def load_comparison(folder: str | os.PathLike[str]) -> Comparison:
    """Read what `save_comparison` wrote, in this version or before there were arrays next to the JSON.

    Where the arrays are missing, the metrics are all there; the maps and what the report draws are not, and a warning
    says so.
    """
    root = Path(folder)
    path = root / DOCUMENT
    if not path.is_file():
        raise InputError(f"Expected `{folder}` to hold `{DOCUMENT}`, which `logn compare -o` writes, but it does not.")
    try:
        content = parse_json(path.read_bytes())
        arrays = _arrays(root, content)
        return comparison_from_parts(content, arrays)
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise InputError(
            f"Expected `{path}` to be what `logn compare -o` writes, but it is not ({type(error).__name__}: {error})."
        ) from error


def _arrays(root: Path, content: Mapping[str, Any]) -> Arrays | None:
    """The arrays that belong to the document; None for a document of before, or one that was moved alone."""
    if content.get("format", FORMAT) != FORMAT or content.get("schema", 1) > SCHEMA:
        found = f"{content.get('format')} of schema {content.get('schema')}"
        raise InputError(f"Expected `{root / DOCUMENT}` to be {FORMAT} of schema {SCHEMA}, but it is {found}.")
    if "arrays" not in content:
        return None
    path = root / ARRAYS
    if not path.is_file():
        warnings.warn(
            f"`{path}` is not next to `{DOCUMENT}`: the metrics are read, the fitted maps and pictures are not there.",
            LogNWarning,
            stacklevel=4,
        )
        return None
    if _digest(path) != content["arrays"]:
        raise InputError(
            f"Expected `{path}` to be of the same comparison as `{DOCUMENT}`, but it is of another; compare again."
        )
    return read_safetensors(path, expected_format=FORMAT, schema=SCHEMA)[0]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
