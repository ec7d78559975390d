"""The options of verbs that run a detector of any framework, and how it is opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from logn.cli.options.choices import RUNNING

MODEL = (
    "Folder that `logn train` wrote; of detectors also an Ultralytics `.pt` (with --trust), an `.onnx`, a Hugging Face "
    "folder, or `package.module:function`, a function of yours that returns a model."
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


def open_detector(model: Path, *, trust: bool, image_size: int | None, device: str) -> Any:
    """Open a detector and bring it to its device."""
    from logn.evaluate.detectors.detector import detector, move_to
    from logn.training.engine.distributed import choose_device

    opened = detector(os.fspath(model), trust=trust, **({} if image_size is None else {"image_size": image_size}))
    chosen = choose_device(device)
    own = chosen.type == "cuda" and ":" not in device
    return move_to(opened, f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if own else str(chosen))


def is_classifier(model: Path) -> bool:
    """Whether the model is a run of `logn train` that holds an image classifier."""
    from logn.evaluate.detectors.detector import is_run

    if not is_run(model):
        return False
    # Only for runs: it needs torchvision, which models of other frameworks do without.
    from logn.training.engine.checkpoint import stored_kind

    return stored_kind(model) == "classifier"
