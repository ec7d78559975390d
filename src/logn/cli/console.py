"""What all verbs of the command line share: JSON on stdout, errors in one sentence, progress on stderr."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TextIO

from logn.base.commands import COMMAND_LINE as COMMAND_LINE
from logn.base.commands import command as command
from logn.base.strict_json import plain_values
from logn.base.text_table import USUAL_WIDTH, TextStyle, printable, printable_json, printable_table

# Where bars are drawn; None for stderr. `logn demo` keeps what its steps print, but shows their bars.
BARS: ContextVar[TextIO | None] = ContextVar("bars", default=None)


def echo(text: str, *, err: bool = False) -> None:
    """Print a text, on stderr for `err`; what could steer a terminal, such as a name from a file, becomes visible."""
    # Not typer.echo: it writes UTF-8 to a terminal that reads ASCII.
    print(printable(text), file=sys.stderr if err else None, flush=True)


def print_tables(write: Callable[[TextStyle], str]) -> None:
    """Print what `write` makes of the style of stdout: as `echo` does, but the colours of `write_table` stay.

    Example:
        >>> from logn.base.text_table import write_table
        >>> print_tables(lambda style: write_table(("class", "mean"), [("cup", "0.5")], style))
        class  mean
        ───────────
        cup     0.5
    """
    style = text_style()
    text = write(style)
    print(printable_table(text) if style.colours else printable(text), flush=True)


def print_json(result: Mapping[str, Any]) -> None:
    """Print `result` as JSON; what is not a finite number becomes null, since strict readers refuse NaN.

    Example:
        >>> from pathlib import Path
        >>> print_json({"mean": [0.5, float("nan")], "file": Path("x.npy")})
        {
          "mean": [0.5, null],
          "file": "x.npy"
        }
    """
    plain = plain_values(result)
    text = _json_lines(plain, ascii_only=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # a terminal without these letters, or a file name that is no text
        text = _json_lines(plain, ascii_only=True)
    echo(printable_json(text))


def _json_lines(plain: Mapping[str, Any], *, ascii_only: bool) -> str:
    lines = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=ascii_only)}" for key, value in plain.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def print_error(message: str, *, as_json: bool) -> None:
    """Print one sentence: on stderr, or as `{"error": …}` on stdout for a program that reads JSON."""
    sentence = " ".join(message.split())
    if as_json:
        try:
            return print_json({"error": sentence})
        except OSError:
            pass  # stdout may be what is wrong: then the sentence goes where people look
    with contextlib.suppress(OSError):
        echo(f"Error: {sentence}", err=True)


def print_note(message: str) -> None:
    """Print a remark on stderr, where it does not mix with the data on stdout."""
    echo(message, err=True)


def text_style(*, wide: bool = False) -> TextStyle:
    """What text on stdout must fit: the terminal, or what COLUMNS says; sentences stay whole where nobody sees them.

    Args:
        wide: Put no limit to tables.
    """
    from rich.console import Console

    console = Console()
    is_known = console.is_terminal or os.environ.get("COLUMNS", "").isdecimal()
    return TextStyle(
        width=None if wide else console.width if is_known else USUAL_WIDTH,
        prose=min(console.width, USUAL_WIDTH) if is_known else None,
        colours=console.color_system is not None and not console.no_color,
        rule="-" if console.options.ascii_only else "─",
    )


def print_text(*sentences: str, indent: str = "") -> None:
    """Print sentences on stdout, broken where the terminal ends; `indent` stands before the lines after the first."""
    style = text_style()
    for sentence in sentences:
        echo(style.wrap(sentence, indent))


def count_of(number: int, thing: str) -> str:
    """A number with its noun: with `s`, or `es` after an s, for more than one.

    Example:
        >>> count_of(1, "file"), count_of(4980, "class")
        ('1 file', '4,980 classes')
    """
    plural = "" if number == 1 else ("es" if thing.endswith("s") else "s")
    return f"{number:,} {thing}{plural}"


@contextlib.contextmanager
def progress(description: str, total: float | None, *, shown: bool | None = None) -> Iterator[Callable[[float], None]]:
    """Draw a bar on stderr while the block runs; yields the function that advances it.

    Args:
        description: What is being done.
        total: How much there is to do, in any unit; None when unknown.
        shown: True or False; None shows the bar only when stderr is a terminal.

    Example:
        >>> with progress("Reading", total=2, shown=False) as advance:
        ...     advance(1)
    """
    stream = BARS.get() or sys.stderr
    if shown is False or (shown is None and not stream.isatty()):
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    clock = (TimeElapsedColumn(), TextColumn("elapsed,"), TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, *clock, console=Console(file=stream)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)
        # All is done, however much was announced: a bar that stays below its end would look like a failure.
        bar.update(task, total=total or 1, completed=total or 1)


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
