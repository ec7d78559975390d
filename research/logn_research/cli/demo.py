"""`logn demo`: a long-tailed detection problem from nothing to a table, in minutes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logn.cli import options
from logn.cli.console import command, echo, print_json, print_note, text_style
from logn.errors import InputError
from logn.text_table import write_table
from logn_research.cli.shared import Progress, step_reporter

if TYPE_CHECKING:
    from logn.evaluate.comparison.comparison import Comparison
    from logn_research.experiments.demo import DemoResult


class Length(StrEnum):
    """How long the demonstration takes."""

    quick = "quick"
    standard = "standard"
    full = "full"


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for everything that is made.")] = Path(
        "runs/demo"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="90 seconds: does everything run?")] = False,
    full: Annotated[bool, typer.Option("--full", help="A longer training: 2,000 iterations instead of 800.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the data, the weights and the training.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds to run, one after another, from --seed on.")] = 1,
    wide: Annotated[bool, typer.Option("--wide", help="Tables of one line a row, however long.")] = False,
    show_progress: Progress = None,
    json: options.Json = False,
) -> None:
    """Draw long-tailed scenes, train a detector on them, correct it, and measure all methods.

    The tables have what `logn correct` would do to such a detector, LogN's own forms and rivals: by federated labels,
    by exhaustive ones, and at a fixed score threshold.

    Takes about four minutes on two cores. Everything is kept in the output folder, and a second call goes on where the
    first one stopped. The same seed gives the same result.

    Examples:
      logn demo
      logn demo --quick -o quick
      logn demo --seeds 3
    """
    from logn_research.experiments.demo import LENGTHS, run_demo

    if quick and full:
        raise InputError("Expected one of `--quick` and `--full`, but got both.")
    if seeds < 1:
        raise InputError(f"Expected `--seeds` to be at least 1, but got {seeds}.")
    length = Length.quick if quick else Length.full if full else Length.standard
    results = []
    for number in range(seed, seed + seeds):
        folder = output / length.value / f"seed-{number}"
        result = run_demo(folder, LENGTHS[length.value], seed=number, step=step_reporter(show_progress))
        results.append(result)
        page = write_page(result)
        if not json:
            _tell(result, number, quick=quick, wide=wide)
            echo(f"Look at it: {page}")
            print_note(f"To correct this very detector: {_correct(result.folder)}")
    if json:
        print_json({f"seed {seed + place}": _summary(result) for place, result in enumerate(results)})
    elif seeds > 1:
        _tell_all(results, wide=wide)


def _correct(folder: Path) -> str:
    """The command that does to the detector what the table says."""
    model, data = folder / "model", folder / "data" / "train.json"
    return command("logn", "correct", model, "--data", data, "-o", folder / "corrected")


def write_page(result: DemoResult) -> Path:
    """Write the report of a run; it looks closely at what `logn correct` would do."""
    from logn.report.page import write_report
    from logn.report.run_folder import open_run

    return write_report(open_run(result.folder), result.folder / "report.html", method="recommended").path


def _tell(result: DemoResult, seed: int, *, quick: bool, wide: bool) -> None:
    from logn.evaluate.comparison.tables import MAIN_COLUMNS, metric_cells, metric_tones

    style = text_style(wide=wide)
    measured = {
        "By federated labels, as LVIS has them: a class counts where it was looked for.": result.comparison,
        "By exhaustive labels, as COCO has them: every class counts in every image.": result.exhaustive,
    }
    for title, comparison in measured.items():
        header, rows = metric_cells(comparison, MAIN_COLUMNS, ())
        table = write_table(header, rows, style, tones=metric_tones(comparison, header, MAIN_COLUMNS))
        echo(f"\n{style.wrap(f'Seed {seed}. {title}')}\n\n{table}", colours=style.colours)
    title = (
        "At a fixed threshold, by exhaustive labels: what is found at the old one, and at the one that keeps as many "
        "detections as the uncorrected detector has."
    )
    echo(f"\n{style.wrap(title)}\n\n{write_table(*threshold_cells(result.exhaustive), style)}\n")
    for sentence in sentences(result):
        echo(style.wrap(sentence, indent="  "))
    if quick:
        told = "This was the quick form: everything runs, but nothing is learnt of rare classes. For numbers: logn demo"
        echo(style.wrap(told, indent="  "))
    echo(f"Everything is in {result.folder}.")


def threshold_cells(comparison: Comparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What each method finds at a fixed score threshold, and at the threshold that keeps as many detections."""
    rows: list[tuple[str, ...]] = []
    for row in comparison.rows:
        curve = row.thresholds
        if curve is None:
            continue
        old = f"{curve.found_at:,}", f"{curve.false_alarms_at:,}"
        point = row.recall.get(curve.at)
        new = ("–",) * 3
        if point is not None:
            new = f"{point.threshold:.3g}", f"{point.found:,}", f"{100 * point.recall:.1f}"
        rows.append((row.name, *old, *new))
    first = comparison.baseline.thresholds
    at = "it" if first is None else f"{first.at:g}"
    return ("method", f"found at {at}", "false alarms", "as many at", "found", "class-mean recall"), rows


def sentences(result: DemoResult) -> list[str]:
    """What happened, in words; nothing here is known before the run."""
    from logn.evaluate.comparison.tables import points

    baseline = result.comparison["none"]
    lines = [
        f"The uncorrected detector reaches AP {points(baseline['AP'])}: {points(baseline['APr'])} on rare classes and "
        f"{points(baseline['APf'])} on frequent ones. From class to class, the correlation of its mean logit with the "
        f"logarithm of the training images is {result.correlation:+.2f}.",
        f"What LogN recommends changes AP by {_both(result, 'recommended')}.",
        result.comparison.verdict("recommended"),
    ]
    return lines


def _both(result: DemoResult, method: str) -> str:
    """The change of AP by both kinds of labels."""
    from logn.evaluate.comparison.tables import change_text

    federated, exhaustive = (found[method].differences["AP"] for found in (result.comparison, result.exhaustive))
    return f"{change_text(federated)} by federated labels, {change_text(exhaustive)} by exhaustive ones"


def _summary(result: DemoResult) -> dict[str, object]:
    return {
        "folder": result.folder,
        "report": result.folder / "report.html",
        "correlation": result.correlation,
        **result.comparison.to_dict(),
        "exhaustive": result.exhaustive.to_dict(),
    }


def _tell_all(results: list[DemoResult], *, wide: bool) -> None:
    """Mean and range over the seeds of the differences to the uncorrected detector, by both kinds of labels."""
    from logn.evaluate.comparison.tables import MAIN_COLUMNS

    style = text_style(wide=wide)
    for kind in ("federated", "exhaustive"):
        found = [result.comparison if kind == "federated" else result.exhaustive for result in results]
        rows = []
        for row in found[0].rows[1:]:
            changes = [
                [100 * (each[row.name][metric] - each["none"][metric]) for each in found] for metric in MAIN_COLUMNS
            ]
            cells = [f"{sum(seen) / len(seen):+.1f}\n{min(seen):+.1f} to {max(seen):+.1f}" for seen in changes]
            rows.append((row.name, *cells))
        title = f"Differences to `none` over {len(results)} seeds by {kind} labels: mean, lowest to highest."
        echo(f"\n{style.wrap(title)}\n\n{write_table(('method', *MAIN_COLUMNS), rows, style)}")
