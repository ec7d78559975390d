"""`logn demo`: a long-tailed detection problem from nothing to a table, in minutes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logn.cli.console import JsonOption, ProgressOption, print_json
from logn.cli.steps import step_reporter
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.evaluate.comparison.comparison import Comparison
    from logn.experiments.demo import DemoResult


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
    seed: Annotated[int, typer.Option(help="Of the data, the weights and the training.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds to run, one after another, from --seed on.")] = 1,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Draw long-tailed scenes, train a detector on them, correct it, and measure all methods.

    Takes about four minutes on two cores. Everything is kept in the output folder, and a second call goes on where the
    first one stopped. The same seed gives the same result.

    **Examples**

    `logn demo`

    `logn demo --quick -o quick`

    `logn demo --seeds 3`
    """
    from logn.experiments.demo import LENGTHS, run_demo

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
            _tell(result, number)
            typer.echo(f"Look at it: {page}")
    if json:
        print_json({f"seed {seed + place}": _summary(result) for place, result in enumerate(results)})
    elif seeds > 1:
        _tell_all(results)


def write_page(result: DemoResult) -> Path:
    """Write the report of a run; it looks closely at the label-free form that keeps the detector's scale."""
    from logn.calibrators.logit_normalization import DEFAULT_METHOD
    from logn.report.page import write_report
    from logn.report.run_folder import open_run

    return write_report(open_run(result.folder), result.folder / "report.html", method=DEFAULT_METHOD).path


def _tell(result: DemoResult, seed: int) -> None:
    from logn.evaluate.comparison.tables import metric_table

    typer.echo(f"\nSeed {seed}: test images, boxes and masks\n")
    typer.echo(metric_table(result.comparison).to_text())
    typer.echo("")
    for sentence in sentences(result):
        typer.echo(sentence)
    typer.echo(f"Everything is in {result.folder}.")


def sentences(result: DemoResult) -> list[str]:
    """What happened, in words; nothing here is known before the run."""
    from logn.evaluate.comparison.tables import points

    baseline = result.comparison["none"]
    lines = [
        f"The uncorrected detector reaches AP {points(baseline['AP'])}: {points(baseline['APr'])} on rare classes and "
        f"{points(baseline['APf'])} on frequent ones. From class to class, the correlation of its mean logit with the "
        f"logarithm of the training images is {result.correlation:+.2f}."
    ]
    lines += [result.comparison.verdict(row.name) for row in result.comparison.rows[1:]]
    best = max(result.comparison.rows, key=lambda row: row["AP"])
    lines.append(f"The highest AP here is {points(best['AP'])}, by {best.name}.")
    return lines


def _summary(result: DemoResult) -> dict[str, object]:
    return {
        "folder": result.folder,
        "report": result.folder / "report.html",
        "correlation": result.correlation,
        **result.comparison.to_dict(),
    }


def _tell_all(results: list[DemoResult]) -> None:
    """Mean and range over the seeds of the differences to the uncorrected detector."""
    typer.echo(f"\nDifferences to `none` over {len(results)} seeds: mean (lowest to highest)\n")
    comparisons: list[Comparison] = [result.comparison for result in results]
    for row in comparisons[0].rows[1:]:
        cells = []
        for metric in ("AP", "APr", "APc", "APf"):
            changes = [100 * (found[row.name][metric] - found["none"][metric]) for found in comparisons]
            cells.append(f"{metric} {sum(changes) / len(changes):+.1f} ({min(changes):+.1f} to {max(changes):+.1f})")
        typer.echo(f"{row.name:<16}" + "   ".join(cells))
