"""The options that the verbs share which run a model over images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LABELLED_IMAGES = "Folder of `logn data glyph-classes`, class folders, CIFAR's folder, or a list of `path label` lines."

ImageFolderOption = Annotated[
    Path | None, typer.Option(help="Folder that the image paths start from; by default that of the file.")
]
LabelledImagesOption = Annotated[Path, typer.Option("--data", "-d", help=LABELLED_IMAGES)]
ListRootOption = Annotated[Path | None, typer.Option(help="Folder that the paths of a list start from.")]
ListNamesOption = Annotated[Path | None, typer.Option(help="One class name a line, for list files.")]
ForwardBatchOption = Annotated[int, typer.Option(help="Images per forward pass.")]
DeviceOption = Annotated[str, typer.Option(help="`auto`, `cpu` or `cuda`.")]
