"""Class names from a file, one per column of the logits."""

from __future__ import annotations

import json
import os
from pathlib import Path

from logn.errors import InputError
from logn.files import require_file
from logn.strict_json import parse_json


def read_class_names(path: str | os.PathLike[str], num_classes: int, background: int | None = None) -> tuple[str, ...]:
    r"""Read a text file with a name per line, or a JSON list; the background gets its name if the file leaves it out.

    Args:
        path: The file.
        num_classes: Columns of the logits, the background included.
        background: Place of the background column: None, 0 or -1.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "names.txt"
        >>> _ = path.write_text("cup\nspoon\n")
        >>> read_class_names(path, 3, background=-1)
        ('cup', 'spoon', 'background')
    """
    names = _read(Path(path))
    if background is not None and len(names) == num_classes - 1:
        names = ["background", *names] if background == 0 else [*names, "background"]
    if len(names) != num_classes:
        raise InputError(f"Expected `{path}` to name {num_classes} classes, but it names {len(names)}.")
    return tuple(names)


def _read(path: Path) -> list[str]:
    if path.suffix in (".csv", ".tsv"):  # its lines would become names, the header among them
        raise InputError(f"Expected `{path}` to be a text file with a name per line or a JSON list, but it is a table.")
    require_file(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # the mark that some editors write is no part of the first name
        content = parse_json(text) if path.suffix == ".json" else text.rstrip().split("\n")
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"Expected `{path}` to be a list of class names, but it cannot be read: {error}.") from error
    if not isinstance(content, list) or not all(isinstance(name, str) for name in content):
        raise InputError(f"Expected `{path}` to be a list of class names, but it holds something else.")
    names = [name.strip() for name in content]
    if "" in names and names != [""]:  # to leave it out would give its column the name of the next class
        raise InputError(f"Expected `{path}` to name every class, but name {names.index('') + 1} is empty.")
    return names if names != [""] else []
