"""What the research verbs share: options, and the steps of a long command on stderr."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from logn.cli.console import echo, print_json, print_note, progress

Progress = Annotated[
    bool | None,
    typer.Option("--progress/--no-progress", help="Draw a progress bar on stderr; by default on a terminal."),
]
Images = Annotated[
    Path | None,
    typer.Option(
        "--images",
        metavar="PATH",
        help="Folder that image paths start from; by default that of the annotations.",
    ),
]


def show(result: dict[str, Any], *, as_json: bool) -> None:
    """Print a result, a line for each value, or as JSON."""
    if as_json:
        print_json({key.replace(" ", "_"): value for key, value in result.items()})
        return
    for key, value in result.items():
        echo(f"{key}: {value}")


def step_reporter(shown: bool | None) -> Any:
    """Say on stderr what is being done and how long it took; with a bar where it is counted.

    Args:
        shown: True or False; None shows bars only when stderr is a terminal.
    """

    @contextlib.contextmanager
    def step(name: str, total: float | None) -> Iterator[Callable[[float], None]]:
        print_note(f"{name} …")
        start = time.perf_counter()
        bar = progress(name, total, shown=shown) if total else contextlib.nullcontext(lambda amount: None)
        with bar as advance:
            yield advance
        print_note(f"{name}: {time.perf_counter() - start:.0f} s")

    return step
