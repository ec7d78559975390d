"""The fixed choices and the options that several verbs offer."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from logn.cli.console import progress
from logn.cli.kinds import formerly
from logn.errors import InputError


class Background(StrEnum):
    """Where the background column is."""

    first = "first"
    last = "last"
    none = "none"


# The group of options on how a model is run.
RUNNING = "How it is run"
BACKGROUND_INDEX = {Background.first: 0, Background.last: -1, Background.none: None}


class Nonfinite(StrEnum):
    """What to do with NaN and infinity."""

    error = "error"
    skip = "skip"


class Task(StrEnum):
    """What a model does."""

    detection = "detection"
    classification = "classification"


class Activation(StrEnum):
    """What the model applies to the logits."""

    softmax = "softmax"
    sigmoid = "sigmoid"


StatisticsFileOption = Annotated[Path, typer.Option("--output", "-o", help="The statistics file to write.")]
BackgroundOption = Annotated[Background, typer.Option(help="Place of the background column.")]
ClassNamesOption = Annotated[Path | None, typer.Option(help="Text file (a name per line) or JSON list.")]
ActivationOption = Annotated[
    Activation | None,
    typer.Option(help="What the model applies to the logits; in an ONNX file only those before it are searched for."),
]
PopulationOption = Annotated[
    str | None,
    typer.Option(help="Which samples these are, e.g. 'test proposals', for the record."),
]
SampleRowsOption = Annotated[
    int | None, typer.Option(help="Rows that the statistics keep, for matching thresholds; default 4096.")
]
MeanProbabilityOption = Annotated[
    bool | None,
    typer.Option("--prior/--no-prior", help="Keep the mean probability of each class, for p2p; on by default."),
]
NonfiniteOption = Annotated[Nonfinite, typer.Option(help="NaN and infinity: refuse or skip.")]


LABELLED_IMAGES = "Folder of `logn data glyph-classes`, class folders, CIFAR's folder, or a list of `path label` lines."

ANNOTATIONS = "LVIS or COCO file, YOLO `data.yaml`, or a folder of one of them or of Pascal VOC."

ImageFolderOption = Annotated[
    Path | None,
    typer.Option(help="Folder that the image paths start from; by default that of the annotations or the list."),
    formerly("--root"),
]
TaskOption = Annotated[Task | None, typer.Option(help="Told from the input; needed only where that leaves it open.")]
ListNamesOption = Annotated[Path | None, typer.Option(help="One class name a line, for list files.")]
DeviceOption = Annotated[str, typer.Option(help="`auto`, `cpu` or `cuda`.", rich_help_panel=RUNNING)]


def complete_methods(incomplete: str) -> list[str]:
    """What the shell may put in the place of a method that is half typed, or of the last of several.

    Example:
        >>> complete_methods("nor"), complete_methods("loga,p")
        (['norcal'], ['loga,p2p'])
    """
    from logn.calibrators.methods import METHODS

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in METHODS if name.startswith(last)]


def complete_presets(incomplete: str) -> list[str]:
    """What the shell may put in the place of a preset that is half typed.

    Example:
        >>> complete_presets("yolo")
        ['yolov5', 'yolox']
    """
    from logn.logits.images import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def at_least_one(**counts: int | None) -> None:
    """Refuse a number of images below 1, by the name of its option.

    Example:
        >>> at_least_one(max_images=0)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `--max-images` to be at least 1, but got 0.
    """
    for name, count in counts.items():
        if count is not None and count < 1:
            raise InputError(f"Expected `--{name.replace('_', '-')}` to be at least 1, but got {count}.")


# Of `logn data glyphs` and `logn data glyph-classes`
FolderOption = Annotated[Path, typer.Option("--output", "-o", help="Folder to write; made if it is not there.")]
ClassesOption = Annotated[int, typer.Option(help="Number of classes, up to 1,203.")]
SizeOption = Annotated[int, typer.Option(help="Side of an image in pixels.")]
SeedOption = Annotated[int, typer.Option(help="Everything follows from it.")]
FamiliesOption = Annotated[
    bool, typer.Option("--families/--distinct", help="Families of look-alikes, or glyphs as unlike as possible.")
]
SimilarityOption = Annotated[float, typer.Option(help="Least correlation of two glyphs of a family, 0 to 0.9.")]
WorkersOption = Annotated[int, typer.Option(help="Number of processes; the pictures don't depend on it.")]


def draw(
    generate: Callable[..., object], folder: Path, settings: Any, *, images: int, workers: int, shown: bool | None
) -> dict[str, Any]:
    """Draw the images of `settings` into `folder` with a progress bar, and say where and how long it took."""
    started = time.monotonic()
    with progress("Drawing", total=images, shown=shown) as advance:
        generate(folder, settings, workers=workers, progress=advance)
    return {"folder": folder, "seconds": round(time.monotonic() - started, 1)}
