"""The options that `logn train` and `logn train-classifier` share, and what they print of a run."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logn.cli.console import print_json, print_note

if TYPE_CHECKING:
    from logn.training.detectors.train_detector import TrainingResult

RunOption = Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; made if it is not there.")]
ClassifierOption = Annotated[str, typer.Option(help="`linear`, or `cosine` (normalised, as in the paper).")]
TemperatureOption = Annotated[float, typer.Option(help="Of the cosine classifier.")]
PresetOption = Annotated[
    str | None, typer.Option(help="`paper`, `small` or `light` (detectors); by default the one that fits the model.")
]
IterationsOption = Annotated[int | None, typer.Option(help="Length of the run, instead of the preset's.")]
EpochsOption = Annotated[float | None, typer.Option(help="Length of the run in epochs.")]
BatchOption = Annotated[int | None, typer.Option(help="Images per iteration, all processes together.")]
RateOption = Annotated[
    float | None, typer.Option(help="Learning rate; by default the preset's, scaled with the batch.")
]
CheckpointOption = Annotated[int | None, typer.Option(help="Iterations between checkpoints.")]
ResumeOption = Annotated[
    bool, typer.Option("--resume/--fresh", help="Go on from the checkpoint in the folder, or start anew.")
]
ProcessesOption = Annotated[
    int, typer.Option(help="Processes to start; on a CPU, one per core is best. Leave it 1 under torchrun.")
]
WorkersOption = Annotated[int | None, typer.Option(help="Processes that read images ahead.")]


def print_result(result: TrainingResult, *, as_json: bool) -> None:
    """Print what a run did, once: torchrun starts the command in every process."""
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        values = {field.name: getattr(result, field.name) for field in fields(result)}
        print_json({**values, "seconds_per_iteration": result.seconds_per_iteration})
        return
    done = result.iterations - result.resumed_from
    if not done:
        typer.echo(f"Nothing was left to do: {result.output} has all of its {result.iterations} iterations.")
        return
    after = f" after the first {result.resumed_from}" if result.resumed_from else ""
    losses = ", ".join(f"{name} {value:.3f}" for name, value in result.losses.items())
    typer.echo(
        f"Trained for {done} iterations{after} in {result.seconds:.0f} s ({result.seconds_per_iteration:.3f} s each)"
        f" on {result.num_images} images of {result.num_classes} classes; saved in {result.output}.\n{losses}"
    )


def print_next(*commands: str, as_json: bool) -> None:
    """Tell on stderr what a trained run is good for, once and to people only."""
    if os.environ.get("RANK", "0") == "0" and not as_json:
        for line in commands:
            print_note(f"Next: {line}")
