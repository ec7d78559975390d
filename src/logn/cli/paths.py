"""Checking where a verb will write, before it works."""

from __future__ import annotations

import os
from pathlib import Path

from logn.errors import InputError
from logn.files import WRITERS, format_of, require_place


def check_output(path: Path, *inputs: Path | None, holds: str | None = None) -> None:
    """Refuse a path that cannot be written, or whose content would be lost by mistake.

    An existing file is fine, it will be replaced in one step: unless it is one of the `inputs`, or holds statistics, a
    correction or a trained model and something else is written there.

    Args:
        path: Where to write.
        inputs: The files that are read.
        holds: The format of the file to write, such as "logn.affine", which then only replaces files of its kind.

    Example:
        >>> check_output(Path("no-such-folder/stats.safetensors"))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected the folder of `no-such-folder/stats.safetensors` to exist, but `no-such-folder`
        does not.
    """
    require_place(path)
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"Expected the folder `{path.parent}` to be writable, but it is not.")
    if not path.exists():
        return
    if any(source is not None and source.exists() and source.samefile(path) for source in inputs):
        raise InputError(f"Expected `--output` to be another file than the inputs, but `{path}` is one of them.")
    kept = _what_would_be_lost(path, holds)
    if kept is not None:
        wanted = f"new or a file that {WRITERS[holds]} wrote" if holds else "new or a file to replace"
        raise InputError(
            f"Expected `{path}` to be {wanted}, but it is {kept}, which would be lost: choose another name, or delete "
            "it first."
        )


def _what_would_be_lost(path: Path, holds: str | None) -> str | None:
    """What is in the file, if it is of use to somebody as it is; a safetensors file that cannot be read is not."""
    found = format_of(path)
    if found in WRITERS and found != holds:
        return f"what {WRITERS[found]} wrote"
    if holds is None or found == holds or (found is None and path.suffix == ".safetensors"):
        return None
    return "another file"
