"""Labels and look-alike families, read from the files in which people keep them."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.classes.tables import column_of, names_of, naming, place_of, read_json, read_table
from logn.errors import InputError


def read_labels(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    r"""Read the class of each row: `.npy`, a JSON list, the column `label` of a table, or text with one row a line.

    Of a line of text the last word counts, so the `path label` lists of ImageNet-LT and its like can be given as they
    are; empty lines are passed over.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "test.txt"
        >>> _ = path.write_text("val/a.jpg 3\nval/b.jpg 0\n")
        >>> read_labels(path).tolist()
        [3, 0]
    """
    path = Path(path)
    readers = {".npy": _read_npy, ".json": _read_list, ".csv": _read_column, ".tsv": _read_column, ".txt": _read_lines}
    if path.suffix not in readers:
        raise InputError(f"Expected `{path}` to be labels as {', '.join(readers)}, but it is not.")
    with naming(path):
        return readers[path.suffix](path)


def read_families(path: str | os.PathLike[str], class_names: Sequence[str] | None = None) -> list[Hashable]:
    r"""Read the family of each class: `.npy`, a JSON list, the column `family` of a table, or categories with one each.

    Categories are those of `classes.json`, which `logn data glyph-classes` writes. Where the file and the classes have
    names, the families are put in the order of the classes.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "classes.csv"
        >>> _ = path.write_text("name,family\ncat,pets\ncar,vehicles\ndog,pets\n")
        >>> read_families(path, ["dog", "cat", "car"])
        ['pets', 'pets', 'vehicles']
    """
    path = Path(path)
    with naming(path):
        if path.suffix == ".npy":
            return list(_read_npy(path).tolist())
        content = read_json(path) if path.suffix == ".json" else None
        if isinstance(content, list):
            return list(content)
        rows = read_table(path) if content is None else _categories(content)
        if "family" not in rows[0]:
            raise InputError(f"Expected a column `family`, but the columns are: {', '.join(rows[0])}.")
        known = names_of(rows)
        order = place_of(class_names, known) if class_names is not None and known else range(len(rows))
        return [rows[place]["family"] for place in order]


def _categories(content: Any) -> list[dict[str, Any]]:
    try:
        return sorted(content["categories"], key=lambda category: category["id"])
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            "Expected a list of families, or categories with an `id` and a `family`, but got neither."
        ) from error


def _read_npy(path: Path) -> npt.NDArray[Any]:
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise InputError(f"Expected `{path}` to be a .npy file of numbers, but it cannot be read.") from error


def _read_list(path: Path) -> npt.NDArray[Any]:
    content = read_json(path)
    if not isinstance(content, list):
        raise InputError(f"Expected a list of labels, but got {type(content).__name__}.")
    try:
        return np.array(content)
    except ValueError as error:  # lists of several lengths
        raise InputError("Expected a list of labels, one whole number each, but got lists in it.") from error


def _read_column(path: Path) -> npt.NDArray[Any]:
    values = column_of(read_table(path), ("label",))
    if (values % 1).any():
        row = int(np.flatnonzero(values % 1)[0])
        raise InputError(f"Expected `label` to be a whole number, but got {values[row]:g} in row {row}.")
    return values.astype(np.int64)


def _read_lines(path: Path) -> npt.NDArray[Any]:
    labels = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            words = line.split()
            if not words:
                continue
            try:
                labels.append(int(words[-1]))
            except ValueError:
                raise InputError(
                    f"Expected line {number} to end in the number of a class, but got {line.strip()[:80]!r}."
                ) from None
    return np.array(labels, np.int64)
