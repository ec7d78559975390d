"""Options that say how an image becomes the input of an ONNX model; None where the user says nothing."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.options.choices import complete_presets
from logn.errors import InputError
from logn.logits.images import PRESETS

if TYPE_CHECKING:
    from logn.logits.images import Preprocessing
    from logn.logits.onnx.images import Description

PREPROCESSING = "How an image becomes an input"


class Resize(StrEnum):
    """What to do with the proportions of an image."""

    stretch = "stretch"
    letterbox = "letterbox"
    crop = "crop"


class Channels(StrEnum):
    """Order of the colours."""

    rgb = "RGB"
    bgr = "BGR"


def size_option(text: str) -> Any:
    """The option `--size` with another help."""
    return _option(text)


def _option(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=PREPROCESSING, **more)


LikeOption = Annotated[
    str | None,
    _option(
        f"Prepare images as the authors of such models do: {', '.join(PRESETS)}. Default: what the file says of "
        "itself (Ultralytics' metadata, a preprocessor_config.json beside it). The options below override "
        "single settings.",
        metavar="NAME",
        autocompletion=complete_presets,
    ),
]
SizeOption = Annotated[str | None, _option("HEIGHTxWIDTH; default: the model's.")]
ResizeOption = Annotated[Resize | None, _option("How images are brought to that size; default: stretch.")]
MeanOption = Annotated[str | None, _option("One or three numbers; default: 0.")]
StdOption = Annotated[str | None, _option("One or three numbers; default: 1.")]
MaxValueOption = Annotated[float | None, _option("White before the mean is subtracted: 1 (default) or 255.")]
ChannelsOption = Annotated[Channels | None, _option("Order of the colours; default: RGB.", case_sensitive=False)]
PadValueOption = Annotated[int | None, _option("Grey of the letterbox; default: 114.", min=0, max=255)]


def given_preprocessing(
    size: str | None,
    resize: Resize | None,
    mean: str | None,
    std: str | None,
    max_value: float | None,
    channels: Channels | None,
    pad_value: int | None,
) -> dict[str, Any]:
    """The fields of a `Preprocessing` that the user gave, and None for the others."""
    return {
        "size": _parse_size(size),
        "resize": resize.value if resize else None,
        "mean": _parse_numbers("--mean", mean),
        "std": _parse_numbers("--std", std),
        "max_value": max_value,
        "channels": channels.value if channels else None,
        "pad_value": pad_value,
    }


def assumptions(
    model: Path, given: dict[str, Any], settled: Preprocessing, description: Description, *, size_found: bool
) -> list[str]:
    """What is assumed of a model's images because neither the user nor the file says it, with the options that would.

    Args:
        model: The ONNX file.
        given: What the user said of the preprocessing.
        settled: How the images are prepared.
        description: What the file says of itself.
        size_found: Whether its size was found out by a run.
    """
    found = []
    size = None if settled.size is None else f"{settled.size[0]} x {settled.size[1]}"
    if description.preset is None:
        unsaid = {name for name, value in given.items() if value is None}
        if settled.dtype != "uint8" and {"mean", "std", "max_value"} <= unsaid:
            found.append("values from 0 to 1 without a mean (`--mean`, `--std`, `--max-value`)")
        if "channels" in unsaid:
            found.append("RGB (`--channels`)")
        if "resize" in unsaid and size is not None:
            found.append(f"stretched to {size} (`--resize`)")
    if size_found:
        found.append(f"{size}, the nearest common size that it runs at (`--size`)")
    if not found:
        return []
    return [
        f"`{model}` does not say how its images were prepared in training; assumed: {', '.join(found)}. "
        "If that is wrong, so are the results: `--like NAME` or these options say it."
    ]


def _parse_size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) == 1:
        parts *= 2
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise InputError(f"Expected `--size` to be like 480x640 or 640, but got {text!r}.")
    return int(parts[0]), int(parts[1])


def _parse_numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"Expected `{option}` to be numbers like 0.485,0.456,0.406, but got {text!r}.") from error
