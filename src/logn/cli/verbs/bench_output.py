"""The options that all tables of `logn bench` share, and how a table is shown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from logn.cli.console import print_json, print_note

OutputOption = Annotated[Path, typer.Option("--output", "-o", help="Folder for the table, as Markdown and JSON.")]
TrainOption = Annotated[
    bool, typer.Option("--train/--measure-only", help="Train what is missing, or report those rows as not trained.")
]


def output_words(output: Path) -> list[str]:
    """The option for the folder, as a page tells it, where the path means the same on other machines.

    Example:
        >>> output_words(Path("docs/results")), output_words(Path("/home/me/results"))
        (['-o', 'docs/results'], [])
    """
    return [] if output.is_absolute() else ["-o", shlex.quote(output.as_posix())]


def show_table(
    text: str,
    result: Mapping[str, Any],
    files: Mapping[str, Any],
    *,
    failures: Sequence[str],
    folder: Path,
    measured: bool,
    as_json: bool,
) -> None:
    """Print a table, and leave with an error where nothing of it was measured.

    Args:
        text: The table.
        result: The same as plain values.
        files: The pages that were written, by their form.
        failures: What could not be trained, in sentences.
        folder: Where everything else is.
        measured: Whether any row has numbers.
        as_json: Print `result` in place of `text`.
    """
    for sentence in failures:
        print_note(f"Failed: {sentence}")
    if as_json:
        print_json({**result, "files": files})
    else:
        typer.echo(text)
        typer.echo(f"\nWritten to {files['markdown']} and {files['json']}; everything else is in {folder}.")
    if not measured:
        raise typer.Exit(1)
