"""Checking where a verb will write, before it works."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from logn.errors import InputError
from logn.files import WRITERS, check_new, format_of, require_place

OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the output where it exists.")]


def check_output(path: Path, *inputs: Path | None, holds: str | None = None, overwrite: bool = False) -> None:
    """Refuse a path that cannot be written, and one where a file exists that is not to be replaced.

    A file of the format to write is what an earlier call of the same command wrote, and is replaced in one step. Any
    other file is kept, unless `overwrite`. An input is never replaced.

    Args:
        path: Where to write.
        inputs: The files that are read.
        holds: The format of the file to write, such as "logn.affine".
        overwrite: Whether the user wants an existing file to be replaced.

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
    if path.exists() and any(source is not None and source.exists() and source.samefile(path) for source in inputs):
        raise InputError(f"Expected `--output` to be another file than the inputs, but `{path}` is one of them.")
    if holds is None:
        check_new(path, overwrite=overwrite)
    elif path.exists() and format_of(path) != holds and not overwrite:
        raise InputError(
            f"Expected `{path}` to be new or a file that {WRITERS[holds]} wrote, but it is another file, which would "
            "be lost: choose another name, or delete it first."
        )
