"""The options that the training of detectors and of classifiers share, and what is printed of a run."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logn.cli.console import echo, print_json, print_note
from logn.cli.kinds import formerly
from logn.cli.options.choices import ANNOTATIONS, LABELLED_IMAGES
from logn.errors import InputError

if TYPE_CHECKING:
    from logn_research.training.detectors.train_detector import TrainingResult

MODEL, RECIPE = "What is trained", "How it is trained"

DataArgument = Annotated[
    Path,
    typer.Argument(help=f"Detectors: {ANNOTATIONS} Classifiers: {LABELLED_IMAGES}"),
    formerly("--data", "-d"),
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Detectors: `small`, `small-one-stage` (sigmoid, no masks), `light` (photographs on a CPU, no masks), "
        "`mask-rcnn-r50`, `mask-rcnn-r101` or `cascade-r101`. Classifiers: `small`, `resnet10`, `resnet50`, "
        "`resnet152` or `resnext50`.",
        rich_help_panel=MODEL,
    ),
]
SamplerOption = Annotated[
    str,
    typer.Option(
        help="`random`, `class-balanced`, for detectors `repeat-factor-ceil` or `repeat-factor-stochastic`.",
        rich_help_panel=RECIPE,
    ),
]
SeedOption = Annotated[
    int, typer.Option(help="Seed of the weights, the order, augmentation and sampling.", rich_help_panel=RECIPE)
]
WeightsOption = Annotated[
    Path | None,
    typer.Option(
        help="Local file with weights of the backbone (.pth or .safetensors); never downloaded. `light` looks into"
        " installed packages without it; `none` trains it from scratch.",
        rich_help_panel=MODEL,
    ),
    formerly("--backbone-weights"),
]
SizeOption = Annotated[
    int | None, typer.Option(help="Shorter side of the images; of a classifier, of the square.", rich_help_panel=RECIPE)
]
LossOption = Annotated[
    str | None,
    typer.Option(
        help="Classification loss, with options: `seesaw`, `eql:threshold=0.005`; see docs/losses.md. By default "
        "`cross-entropy`, for the one-stage detector `focal`.",
        rich_help_panel=MODEL,
    ),
]
StartOption = Annotated[
    Path | None, typer.Option(help="Run of the same model whose weights to begin with.", rich_help_panel=MODEL)
]
OnlyOption = Annotated[
    str | None,
    typer.Option(
        help="Train `classifier`, `new-classifier`, `scales` or, of a detector, `heads` of the run at --start and "
        "freeze the rest.",
        rich_help_panel=MODEL,
    ),
]
RunOption = Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; made if it is not there.")]
ClassifierOption = Annotated[
    str, typer.Option(help="`linear`, or `cosine` (normalised, as in the paper).", rich_help_panel=MODEL)
]
TemperatureOption = Annotated[float, typer.Option(help="Temperature of the cosine classifier.", rich_help_panel=MODEL)]
PresetOption = Annotated[
    str | None,
    typer.Option(
        help="`paper`, `small` or `light` (detectors); by default the one that fits the model.", rich_help_panel=RECIPE
    ),
]
IterationsOption = Annotated[
    int | None, typer.Option(help="Length of the run, instead of the preset's.", rich_help_panel=RECIPE)
]
EpochsOption = Annotated[float | None, typer.Option(help="Length of the run in epochs.", rich_help_panel=RECIPE)]
MilestonesOption = Annotated[
    str | None,
    typer.Option(
        help="Epochs of this run after which the learning rate drops to a tenth, such as `3,5`.",
        rich_help_panel=RECIPE,
    ),
]
BatchOption = Annotated[
    int | None, typer.Option(help="Images per iteration, all processes together.", rich_help_panel=RECIPE)
]
RateOption = Annotated[
    float | None,
    typer.Option(help="Learning rate; by default the preset's, scaled with the batch.", rich_help_panel=RECIPE),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        help="`full`, `mixed` (float16 on CUDA, bfloat16 on a CPU) or `auto`: mixed on CUDA, full on a CPU.",
        rich_help_panel=RECIPE,
    ),
]
CheckpointOption = Annotated[int | None, typer.Option(help="Iterations between checkpoints.", rich_help_panel=RECIPE)]
ResumeOption = Annotated[
    bool, typer.Option("--resume/--fresh", help="Go on from the checkpoint in the folder, or start anew.")
]
ProcessesOption = Annotated[
    int, typer.Option(help="Processes to start; on a CPU, one per core is best. Leave it 1 under torchrun.")
]
WorkersOption = Annotated[int | None, typer.Option(help="Processes that read images ahead.")]


def parse_milestones(text: str | None) -> tuple[float, ...] | None:
    """The epochs of `--milestones`.

    Example:
        >>> parse_milestones("3,5")
        (3.0, 5.0)
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"Expected `--milestones` to be epochs with commas between them, but got {text!r}.") from None


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
        echo(f"Nothing was left to do: {result.output} has all of its {result.iterations} iterations.")
        return
    after = f" after the first {result.resumed_from}" if result.resumed_from else ""
    losses = ", ".join(f"{name} {value:.3f}" for name, value in result.losses.items())
    echo(
        f"Trained for {done} iterations{after} in {result.seconds:.0f} s ({result.seconds_per_iteration:.3f} s each)"
        f" on {result.num_images} images of {result.num_classes} classes; saved in {result.output}.\n{losses}"
    )


def print_next(*commands: str, as_json: bool) -> None:
    """Tell on stderr what a trained run is good for, once and to people only."""
    if os.environ.get("RANK", "0") == "0" and not as_json:
        for line in commands:
            print_note(f"Next: {line}")
