"""The options of verbs that run a detector of any framework, and how it is opened."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.options.choices import RUNNING
from logn.errors import InputError, LogNWarning

if TYPE_CHECKING:
    from logn.evaluate.models.correct import ImageSource

MODEL = (
    "An Ultralytics `.pt` (with --trust), an `.onnx`, a Hugging Face folder, or a function of yours that returns a "
    "model: `package.module:function` or `file.py:function`."
)
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Open a `.pt` file: it is a pickle, which runs whatever code its author put there.",
        rich_help_panel=RUNNING,
    ),
]
ImageSizeOption = Annotated[
    int | None, typer.Option(help="Side that images are scaled to, for models of Ultralytics; default: the model's.")
]


def open_detector(
    model: Path, *, trust: bool, image_size: int | None, device: str, class_names: Path | None = None
) -> Any:
    """Open a detector and bring it to its device; a file may name the classes of one that does not name them."""
    from logn.classes.names import read_class_names
    from logn.evaluate.models.open import choose_device, detector, move_to

    opened: Any = detector(os.fspath(model), trust=trust, **({} if image_size is None else {"image_size": image_size}))
    if class_names is not None:
        if getattr(opened, "class_names", None) is not None:
            raise InputError(f"Expected no `--class-names` for `{model}`, which names its classes itself.")
        opened.class_names = read_class_names(class_names, opened.num_classes)
    chosen = choose_device(device)
    own = chosen.type == "cuda" and ":" not in device
    return move_to(opened, f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if own else str(chosen))


def training_images(folder: Path | None, data: Path | None) -> ImageSource:
    """A folder, or what labels list; nothing else of the labels is used."""
    if data is None:
        if folder is None:
            raise InputError("Expected `--images`, a folder of training images, or `--data`, but got neither.")
        return folder
    from logn.labels.dataset import DetectionDataset
    from logn.labels.training_annotations import find_annotations

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogNWarning)  # of boxes, which do not count here
        listed = DetectionDataset(find_annotations(data), folder)
    return listed.image_paths()
