"""The options of verbs that run a detector of any framework, and how it is opened."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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

RayOption = Annotated[
    bool,
    typer.Option("--ray", help="Run on the machines of a Ray cluster (RAY_ADDRESS), or on the cores of this one."),
]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Of --ray; default: one per GPU, or one per core but one.")
]


@dataclass(frozen=True)
class RaySettings:
    """How a detector runs over Ray.

    Args:
        make_detector: Opens it on a worker.
        resources: How many `workers`, and the `gpus_per_worker`.
    """

    make_detector: Callable[[], Any]
    resources: dict[str, Any]


def ray_settings(
    use_ray: bool,
    workers: int | None,
    model: Path,
    *,
    trust: bool,
    image_size: int | None,
    device: str,
    class_names: Path | None = None,
) -> RaySettings | None:
    """What `--ray` and its companions say; None without it."""
    if not use_ray:
        if workers is not None:
            raise InputError("Expected `--workers` with `--ray` only, but there is no `--ray`.")
        return None
    from logn.evaluate.ray_data.engine import connect

    gpus = 0 if device == "cpu" else int(connect().cluster_resources().get("GPU", 0) > 0)
    if device.startswith("cuda") and not gpus:
        raise InputError("Expected the Ray cluster to have GPUs for `--device cuda`, but it has none.")
    # Workers may start in another folder.
    place = model.absolute() if model.exists() else model
    make = partial(open_detector, place, trust=trust, image_size=image_size, device="cpu", class_names=class_names)
    return RaySettings(make, {"workers": workers, "gpus_per_worker": gpus})


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
