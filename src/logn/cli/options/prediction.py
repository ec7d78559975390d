"""The options of `logn predict` that all kinds of model share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logn.cli.kinds import formerly
from logn.cli.options.choices import LABELLED_IMAGES
from logn.cli.options.detectors import MODEL

ModelArgument = Annotated[Path, typer.Argument(help=MODEL), formerly("--model", "-m")]
DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        "-d",
        help="Detectors: LVIS or COCO file, folder with `test.json`, YOLO `data.yaml` or VOC folder (its split: "
        "`data.yaml:test`, by default `val`). Classifiers: " + LABELLED_IMAGES,
    ),
]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", help="Folder to write; that of a detector is continued if it is there.")
]
DtypeOption = Annotated[
    str, typer.Option(help="Type of the stored logits: `float16`, or `float32` for twice the size.")
]
BatchOption = Annotated[
    int | None, typer.Option(help="Images per forward pass; default 8 for detectors, 256 for classifiers.")
]
NamesOption = Annotated[
    Path | None,
    typer.Option(help="One class name a line: for list files, and for detectors that do not name their classes."),
    formerly("--classes"),
]
