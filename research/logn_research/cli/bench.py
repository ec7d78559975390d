"""`logn bench`: the paper's tables on detectors that are trained here."""

from __future__ import annotations

import json as json_module
import shlex
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.base.files import write_text
from logn.cli.console import echo, print_json, print_note
from logn.cli.options import Device, Json
from logn.errors import InputError
from logn_research.cli.shared import Images, Progress, step_reporter

if TYPE_CHECKING:
    from logn_research.experiments.specs import Problem


class Name(StrEnum):
    """The tables."""

    table1 = "table1"
    components = "components"
    margins = "margins"
    online = "online"


def bench(
    table: Annotated[
        Name,
        typer.Argument(
            show_choices=False,
            help="table1: every rival, with and without repeat factor sampling. components (table 2): mean, std and "
            "margin of LogN. margins (table 3). online: LogN during training or after it.",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option("--data", "-d", metavar="PATH", help="Training annotations, in place of glyphs."),
    ] = None,
    test: Annotated[Path | None, typer.Option(metavar="PATH", help="Annotations to test on, with --data.")] = None,
    images: Images = None,
    model: Annotated[str | None, typer.Option("--model", "-m", metavar="NAME", help="As `logn train --model`.")] = None,
    weights: Annotated[Path | None, typer.Option(metavar="PATH", help="Weights of the backbone, with --data.")] = None,
    iterations: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of a whole training, default 800; second stages: a quarter."),
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(metavar="N", help="Of a whole training; default: the preset's.")
    ] = None,
    precision: Annotated[str, typer.Option(metavar="NAME", help="Of the training: auto, full or mixed.")] = "auto",
    threshold: Annotated[
        float, typer.Option(metavar="N", help="Detections need a higher score; LVIS's usual one is 1e-4.")
    ] = 0.0,
    stages: Annotated[
        str,
        typer.Option(metavar="NAME", help="Of a cascade: correct each stage by its own statistics, or the average."),
    ] = "each",
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many seeds; the table then has mean and range.")
    ] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes: does everything run? Not for numbers.")] = False,
    train: Annotated[
        bool, typer.Option("--train/--measure-only", help="Train what is missing, or report those rows as not trained.")
    ] = True,
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Models to train side by side, each with one thread.")
    ] = 2,
    root: Annotated[
        Path, typer.Option(metavar="PATH", help="Folder where trained models and all else is kept.")
    ] = Path("runs/bench"),
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PATH", help="Folder for the table, as JSON.")
    ] = Path("bench-results"),
    device: Device = "auto",
    progress: Progress = None,
    json: Json = False,
) -> None:
    """Run a table of the paper on detectors that are trained here, with the paper's numbers beside ours.

    Prints the table and writes it as JSON. Trained models, statistics, predictions and measurements stay in the folder
    of `--root`; a second call goes on where the first one stopped.

    Examples: `logn bench table1 --quick`; `logn bench margins --seeds 2 --jobs 2 -o research/results`;
    `logn bench table1 -d lvis_v1_train.json --test lvis_v1_val.json --images coco -m mask-rcnn-r101 --weights
    resnet101.pth --device cuda --jobs 1`.
    """
    from logn_research.experiments.cache import ArtifactCache
    from logn_research.experiments.measure import Protocol, run_table
    from logn_research.pages import table_text

    problem = choose_problem(data, test, quick=quick)
    given: dict[str, Any] = {"images": images, "weights": weights, "model": model}
    given |= {"iterations": iterations, "epochs": epochs}
    if data is None and (images is not None or weights is not None):
        raise InputError("`--images` and `--weights` need `--data`: pass the training annotations too.")
    if iterations is not None and epochs is not None:
        raise InputError("Expected one of `--iterations` and `--epochs`, but got both.")
    problem = replace(problem, **{name: value for name, value in given.items() if value is not None})
    if epochs is not None:
        problem = replace(problem, iterations=None)
    problem = replace(problem, device=device, precision=precision)
    cache = ArtifactCache(root / "quick" if quick else root, jobs=jobs, step=step_reporter(progress))
    told = {"--seeds": seeds, "--model": model, "--iterations": iterations, "--epochs": epochs, "--data": data}
    told |= {"--threshold": threshold or None, "--stages": stages}
    usual = ("each", None)
    words = [f"{option} {_word(value)}" for option, value in told.items() if value not in usual]
    command = " ".join(["logn bench", table, *(["--quick"] if quick else []), *words])
    content = run_table(
        table,
        cache,
        problem,
        range(seeds),
        protocol=Protocol(threshold, stages),
        train=train,
        command=command,
    )
    output.mkdir(parents=True, exist_ok=True)
    file = output / f"{table}.json"
    write_text(file, json_module.dumps(content, indent=1, ensure_ascii=False) + "\n")
    rows = [row for section in content["sections"] for row in section["rows"]]
    for reason in dict.fromkeys(failure for row in rows for failure in row["failures"].values()):
        print_note(f"Failed: {reason}")
    if json:
        print_json({**content, "file": file})
    else:
        echo(table_text(content))
        echo(f"\nWritten to {file}; everything else is in {root}.")
    if not any(row["metrics"] for row in rows):
        raise typer.Exit(1)


def _word(value: Any) -> str:
    """A value as a command has it, without folders that mean something on this machine only."""
    return (
        shlex.quote(value.name) if isinstance(value, Path) else f"{value:g}" if isinstance(value, float) else str(value)
    )


def choose_problem(data: Path | None, test: Path | None, *, quick: bool) -> Problem:
    """What is learnt: drawn scenes, or data that is read."""
    from logn_research.experiments.specs import QUICK_SCENES, SCENES, Problem

    if data is None:
        if test is not None:
            raise InputError("`--test` needs `--data`: pass the training annotations too.")
        return QUICK_SCENES if quick else SCENES
    if quick:
        raise InputError("`--quick` is for drawn data: with `--data`, shorten the training by `--epochs`.")
    if test is None:
        raise InputError("Pass the annotations to test on: `--test FILE`.")
    for path in (data, test):
        if not path.is_file():
            raise InputError(f"There is no file `{path}`.")
    return Problem(data.stem, train=data, test=test, model="small")
