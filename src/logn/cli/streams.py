"""Standard streams that can always be written: whatever the terminal speaks, and whoever closed them."""

from __future__ import annotations

import io
import os
import sys


def prepare_streams() -> None:
    """Make stdin, stdout and stderr safe to use, for the whole process.

    A stream that was closed before the start (`logn … 2>&-`) is opened on the null device: else the next file that is
    opened gets its number, and what a library prints there would end up inside that file. A character that the
    terminal has no code for is printed as an escape: a class name must not be the end of a run.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    # A process without a terminal has None here, and so has one whose stream was closed.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8", newline="")  # noqa: SIM115 - open as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8", newline="")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
