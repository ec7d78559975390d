"""Reading numbers and names of classes from tables, arrays and lists, with errors that name the file."""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray
from logn.base.files import require_file
from logn.base.strict_json import parse_json
from logn.errors import InputError

Rows = list[dict[str, str]]


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors about the content of a file say which file it is; refuse one that is not there."""
    require_file(path)
    try:
        yield
    except InputError as error:
        raise InputError(f"In `{path}`: {error}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise InputError(f"`{path}` is not a valid {path.suffix} file: {error}.") from error


def read_json(path: Path) -> Any:
    """Parse a JSON file."""
    return parse_json(path.read_bytes())


def read_npy(path: Path) -> npt.NDArray[Any]:
    """Read a `.npy` file; what is none is refused."""
    try:
        return np.array(np.lib.format.open_memmap(path, mode="r"))
    except (ValueError, EOFError) as error:
        raise InputError(f"The content is not an array of numbers: {str(error).rstrip('.')}.") from error


def numbers(field: str, values: Any) -> FloatArray:
    """A list of numbers, one per class, as float64."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"Expected `{field}` to be a list of numbers, but got {type(values).__name__}.") from error
    if array.ndim != 1 or not array.size:
        raise InputError(f"Expected `{field}` to be one number per class, but got shape {array.shape}.")
    return array


def read_table(path: Path) -> Rows:
    """Read a table with a header line; sorted by its `id` column when there is one."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, skipinitialspace=True)
        lines = [(reader.line_num, line) for line in reader if line]
    header = [name.strip().lower() for name in lines[0][1]] if lines else []
    if len(lines) < 2:
        raise InputError("The table has no classes: write a header line, then one line per class.")
    names = [name for name in header if name]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"The first line names the column `{twice}` twice: remove one of them.")
    for number, line in lines[1:]:
        if any(line[len(header) :]):
            raise InputError(
                f"Line {number} has {len(line)} fields ({','.join(line)!r}), the first line has {len(header)}: write "
                "1000, not 1,000, and put names with a comma in quotes."
            )
    rows = [dict(zip_longest(header, line[: len(header)], fillvalue="")) for _, line in lines[1:]]
    if all(row.get("id", "").strip().isdecimal() for row in rows):
        rows.sort(key=lambda row: int(row["id"]))
    return rows


def column_of(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> FloatArray:
    """The first column that the table has of `names`, as numbers."""
    column = next((name for name in names if name in rows[0]), None)
    if column is None:
        raise InputError(f"There is no column `{names[0]}`; the first line names {', '.join(rows[0])}.")
    values = []
    for index, row in enumerate(rows):
        try:
            values.append(float(row[column]))
        except ValueError:
            raise InputError(f"`{column}` of class {index} must be a number, but is {row[column]!r}.") from None
    return np.array(values)


def names_of(rows: Rows) -> tuple[str, ...] | None:
    """The class names of a table, if it has a column of them."""
    column = next((name for name in ("name", "class") if name in rows[0]), None)
    return tuple(row[column] for row in rows) if column else None


def read_class_names(path: str | os.PathLike[str], num_columns: int, background: int | None = None) -> tuple[str, ...]:
    r"""Read a text file with a name per line, or a JSON list; the background gets its name if the file leaves it out.

    Args:
        path: The file.
        num_columns: Columns of the logits, the background included.
        background: Index of the background column: None, 0 or -1.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "names.txt"
        >>> _ = path.write_text("cup\nspoon\n")
        >>> read_class_names(path, 3, background=-1)
        ('cup', 'spoon', 'background')
    """
    path = Path(path)
    with naming(path):
        if path.suffix == ".csv":  # its lines would become names, the header among them
            raise InputError("This is a table: pass a text file with one class name per line, or a JSON list.")
        text = path.read_text(encoding="utf-8-sig")  # the mark that some editors write is no part of the first name
        content = parse_json(text) if path.suffix == ".json" else text.rstrip().split("\n")
        if not isinstance(content, list) or not all(isinstance(name, str) for name in content):
            raise InputError("The content is not a list of class names.")
        names = [name.strip() for name in content if content != [""]]
        if "" in names:  # to leave it out would give its column the name of the next class
            raise InputError(f"Name {names.index('') + 1} is empty: name every class.")
        if background is not None and len(names) == num_columns - 1:
            names = ["background", *names] if background == 0 else [*names, "background"]
        if len(names) != num_columns:
            raise InputError(f"It names {len(names)} classes, but the logits have {num_columns} columns.")
    return tuple(names)
