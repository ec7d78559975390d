"""Checking where a verb will write, before it works."""

from __future__ import annotations

import os
from pathlib import Path

from logn.errors import InputError


def check_output(path: Path) -> None:
    """Refuse a path that cannot be written; an existing file is fine, it will be replaced in one step.

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
