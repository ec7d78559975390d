"""Checking where a verb will write, before it works."""

from __future__ import annotations

import os
from pathlib import Path

from logn.errors import InputError
from logn.files import WRITERS, format_of


def check_output(path: Path, *inputs: Path | None, holds: str | None = None) -> None:
    """Refuse a path that cannot be written, or whose content would be lost by mistake.

    An existing file is fine, it will be replaced in one step: unless it is one of the `inputs`, or holds something else
    than what is written there (a trained model, say).

    Args:
        path: Where to write.
        inputs: The files that are read.
        holds: The format of the file to write, such as "logn.affine".

    Example:
        >>> check_output(Path("no-such-folder/stats.safetensors"))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected the folder of `no-such-folder/stats.safetensors` to exist, but `no-such-folder`
        does not.
    """
    if path.is_dir():
        raise InputError(f"Expected `{path}` to be a file to write, but it is a folder.")
    if not path.parent.is_dir():
        raise InputError(f"Expected the folder of `{path}` to exist, but `{path.parent}` does not.")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"Expected the folder `{path.parent}` to be writable, but it is not.")
    if not path.exists():
        return
    if any(source is not None and source.exists() and source.samefile(path) for source in inputs):
        raise InputError(f"Expected `--output` to be another file than the inputs, but `{path}` is one of them.")
    if holds is not None and _is_something_else(path, holds):
        raise InputError(
            f"Expected `{path}` to be new or a file that {WRITERS[holds]} wrote, but it is another file, which would "
            "be lost: choose another name, or delete it first."
        )


def _is_something_else(path: Path, holds: str) -> bool:
    """Whether the file is of use to somebody as it is; a safetensors file that cannot be read is not."""
    found = format_of(path)
    return path.suffix != ".safetensors" if found is None else found != holds
