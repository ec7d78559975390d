"""`logn demo`: correct a detector that comes with LogN, as a user would, and measure what it gains."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import sys
import time
from importlib.metadata import entry_points
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.base.arrays import DEFAULT_AT
from logn.base.files import check_new
from logn.cli import options
from logn.cli.console import BARS, echo, print_json, print_note, print_text, progress, text_style
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.measure.comparison import Comparison, MethodResult

METHODS = ("recommended", "logn", "norcal")
TRAINING_IMAGES, TEST_IMAGES = 600, 240
AT = DEFAULT_AT


def demo(
    folder: Annotated[Path, typer.Argument(help="Folder for all files.")] = Path("runs/demo"),
    train: Annotated[bool, options.option("--train", help="Train the detector first (research package).")] = False,
    json: options.Json = False,
) -> None:
    """Correct a detector that comes with LogN, and measure what it gains.

    Draws scenes with 100 classes, from frequent to rare, and runs the commands
    that you would type: correct an ONNX detector that was trained on such scenes,
    and compare it before and after. No torch, about half a minute.

    Examples:
      logn demo
      logn demo my-folder --json
    """
    from logn.demo.problem import draw_problem, training_counts
    from logn.measure.comparison import Comparison

    start = time.monotonic()
    model, corrected = folder / "glyphs.onnx", folder / "corrected.onnx"
    if not model.exists():  # else the files are of an earlier run, and made anew
        check_new(*(folder / name for name in ("corrected.onnx", "report.html", "data", "predictions", "comparison")))
    folder.mkdir(parents=True, exist_ok=True)
    with progress("Drawing scenes", TRAINING_IMAGES + TEST_IMAGES) as advance:
        data = draw_problem(folder / "data", train=TRAINING_IMAGES, test=TEST_IMAGES, progress=advance)
    counts = training_counts()
    _write_detector(model, folder, train=train)
    if not json:
        print_text(
            f"A detector of {len(counts)} classes, trained on {counts.max()} images of the most frequent and "
            f"{counts.min()} of the rarest:"
        )
    say = (lambda line: None) if json else echo
    statistics, predictions = folder / "corrected.statistics.safetensors", folder / "predictions"
    labels, comparison = data / "test.json", folder / "comparison"
    chosen = ("--methods", ",".join(METHODS), "--counts", data / "counts.csv", "--bootstrap", "200")
    _run(say, "correct", model, "--images", data / "images" / "train", "-o", corrected, "--overwrite")
    _run(say, "predict", model, "-d", labels, "-o", predictions)
    _run(say, "compare", predictions, "-s", statistics, "-d", labels, *chosen, "-o", comparison, "--overwrite")
    _run(say, "report", comparison, "-o", folder / "report.html", "--overwrite")
    result = Comparison.load(comparison)
    if json:
        print_json({"folder": folder, "report": folder / "report.html", **result.to_dict()})
        return
    _print_table(result)
    _print_meaning(result, folder)
    print_note(f"{time.monotonic() - start:.0f} seconds.")


def _write_detector(path: Path, folder: Path, *, train: bool) -> None:
    """The detector of the package, or one that the research package trains."""
    if not train:
        with as_file(files("logn.demo") / "glyphs.onnx") as shipped:
            shutil.copyfile(shipped, path)
        return
    for entry in entry_points(group="logn.demo", name="train"):
        entry.load()(folder / "training", path)
        return
    raise InputError("`--train` needs LogN's research package: run pip install -e research in a clone of LogN.")


def _run(say: Any, *words: str | Path) -> None:
    """Show a command and run it with its bar; what it prints appears only where it fails."""
    from logn.cli.main import execute

    say(_in_lines(shlex.join(["logn", *map(str, words)]), text_style().prose))
    output, shown = io.StringIO(), BARS.set(sys.stderr)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = execute([str(word) for word in words])
    finally:
        BARS.reset(shown)
    if code:
        print_note(output.getvalue())
        raise typer.Exit(code)


def _in_lines(line: str, width: int | None) -> str:
    r"""A command behind a prompt; where it is too long for the terminal, each option has a line of its own.

    Example:
        >>> print(_in_lines("logn report runs -o page.html", 20))
        $ logn report runs \
            -o page.html
    """
    whole = f"$ {line}"
    return whole if width is None or len(whole) <= width else re.sub(r" (?=--?[a-z])", " \\\\\n    ", whole)


def _print_table(comparison: Comparison) -> None:
    """AP, and recall, precision and F1 of each method, in percent."""
    columns = ("AP", "APr", "APc", "APf", *(f"{name}@n:{AT}" for name in ("recall", "recall-r", "precision", "F1")))
    echo("\nPercent on test scenes; from recall on, at an equal number of detections:")
    titles = ("AP", "rare", "common", "frequent", "recall", "rare", "precision", "F1")
    widths = (7, 7, 8, 10, 9, 7, 11, 7)
    echo(" " * 14 + "".join(f"{title:>{width}}" for title, width in zip(titles, widths, strict=True)))
    for row in comparison.rows:
        cells = (f"{100 * row[name]:{width}.1f}" for name, width in zip(columns, widths, strict=True))
        echo(f"{row.name:14}{''.join(cells)}")


def _print_meaning(comparison: Comparison, folder: Path) -> None:
    """What is gained and lost, the new threshold, and where to go from here."""
    from logn.measure.detection.threshold_curve import describe_threshold

    before, after = comparison.rows[0], comparison["recommended"]
    change = after.differences["AP"]
    rare, frequent = (_recalls(before, after, group) for group in "rf")
    found = f"{before.recall[AT].found:,} → {after.recall[AT].found:,}"
    print_text(
        f"\nGained: {rare} of the rare objects are found, {found} objects in all, at as many detections as before."
    )
    print_text(f"Lost: of the frequent objects {frequent} are found. AP changes by {_interval(change)}.")
    right, wrong = (_numbers(before, after, name) for name in ("found-r", "false-alarms-r"))
    f1 = _interval(after.differences[f"F1@n:{AT}"])
    print_text(f"False alarms: rare classes have {right} right and {wrong} wrong; class-mean F1 changes by {f1}.")
    if before.thresholds is not None and after.thresholds is not None:
        print_text(describe_threshold(before.thresholds, after.thresholds))
    print_text(f"The page with charts and pictures: {folder / 'report.html'}")
    print_text("Your model: logn correct best.onnx --images train/ -o corrected.onnx")


def _recalls(before: MethodResult, after: MethodResult, group: str) -> str:
    name = f"recall-{group}@n:{AT}"
    return f"{100 * before[name]:.0f} → {100 * after[name]:.0f} %"


def _numbers(before: MethodResult, after: MethodResult, name: str) -> str:
    return " → ".join(f"{row[f'{name}@n:{AT}']:,.0f}" for row in (before, after))


def _interval(change: Any) -> str:
    return f"{100 * change.difference:+.1f} ({100 * change.low:+.1f} to {100 * change.high:+.1f})"
