"""`logn collect model.onnx`: an ONNX file and a folder of images in, statistics out."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, count_of, print_json, progress
from logn.cli.options.choices import (
    BACKGROUND_INDEX,
    Activation,
    Background,
    BackgroundOption,
    ClassNamesOption,
    Nonfinite,
    NonfiniteOption,
    PopulationOption,
    StatisticsFileOption,
)
from logn.cli.paths import check_output
from logn.cli.verbs.statistics_summary import print_next, print_statistics, warn_of_doubts
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.statistics.moments import ClassMoments


class Resize(StrEnum):
    """What to do with the proportions of an image."""

    stretch = "stretch"
    letterbox = "letterbox"
    crop = "crop"


class Layout(StrEnum):
    """Order of the axes of an image."""

    nchw = "NCHW"
    nhwc = "NHWC"


class Channels(StrEnum):
    """Order of the colours."""

    rgb = "RGB"
    bgr = "BGR"


PREPROCESSING = "How an image becomes an input"
SEARCH = "Where the logits are (found by themselves in most models)"


def collect_onnx(
    model: Annotated[Path, typer.Argument(help="The ONNX file.")],
    output: StatisticsFileOption,
    images: Annotated[Path, typer.Option(help="Folder of training images; labels are not needed.")],
    background: BackgroundOption = Background.none,
    class_names: ClassNamesOption = None,
    population: PopulationOption = None,
    max_images: Annotated[int | None, typer.Option(min=1, help="Only so many images, spread evenly.")] = None,
    sample_rows: Annotated[int, typer.Option(help="Rows to keep for balanced margins.")] = 4096,
    nonfinite: NonfiniteOption = Nonfinite.error,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per run, where the model leaves it open.")] = 1,
    provider: Annotated[str, typer.Option(help="Where to run, by onnxruntime's name.")] = "CPUExecutionProvider",
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be read, and say which.")
    ] = False,
    size: Annotated[
        str | None, typer.Option(help="HEIGHTxWIDTH; default: the model's.", rich_help_panel=PREPROCESSING)
    ] = None,
    resize: Annotated[Resize, typer.Option(help="How to get there.", rich_help_panel=PREPROCESSING)] = Resize.stretch,
    mean: Annotated[str, typer.Option(help="One or three numbers.", rich_help_panel=PREPROCESSING)] = "0",
    std: Annotated[str, typer.Option(help="One or three numbers.", rich_help_panel=PREPROCESSING)] = "1",
    max_value: Annotated[
        float, typer.Option(help="White before the mean is subtracted: 1 or 255.", rich_help_panel=PREPROCESSING)
    ] = 1.0,
    layout: Annotated[
        Layout | None,
        typer.Option(case_sensitive=False, help="Default: what the model says.", rich_help_panel=PREPROCESSING),
    ] = None,
    channels: Annotated[
        Channels, typer.Option(case_sensitive=False, help="Order of the colours.", rich_help_panel=PREPROCESSING)
    ] = Channels.rgb,
    dtype: Annotated[
        str | None, typer.Option(help="Default: what the model says.", rich_help_panel=PREPROCESSING)
    ] = None,
    pad_value: Annotated[
        int, typer.Option(min=0, max=255, help="Grey of the letterbox.", rich_help_panel=PREPROCESSING)
    ] = 114,
    tensor: Annotated[
        list[str] | None, typer.Option(help="The logits' name, or their scores'.", rich_help_panel=SEARCH)
    ] = None,
    num_classes: Annotated[
        int | None, typer.Option(min=2, help="Columns, the background included.", rich_help_panel=SEARCH)
    ] = None,
    activation: Annotated[
        Activation | None, typer.Option(help="Search only for logits before this.", rich_help_panel=SEARCH)
    ] = None,
    axis: Annotated[
        int | None, typer.Option(help="The class axis, where it cannot be told.", rich_help_panel=SEARCH)
    ] = None,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Run an ONNX model over images once and write the count, mean and variance of its logits per class.

    The logits are read where `logn fold` will correct them: at the input of the class activation.

    **Examples**

    `logn collect model.onnx --images train/ -o stats.safetensors`

    `logn collect resnet.onnx --images train/ --size 224x224 --resize crop --mean 0.485,0.456,0.406 --std
    0.229,0.224,0.225 -o stats.safetensors`

    `logn collect yolo.onnx --images train/ --size 640x640 --resize letterbox --num-classes 80 -o stats.safetensors`
    """
    from logn.logits.image_folder import Preprocessing, select_images
    from logn.statistics.record_onnx import record_onnx

    check_output(output, model, holds="logn.statistics")
    preprocessing = Preprocessing(
        size=_parse_size(size),
        resize=resize.value,
        mean=_parse_numbers("--mean", mean),
        std=_parse_numbers("--std", std),
        max_value=max_value,
        layout=layout.value if layout else None,
        dtype=dtype,
        channels=channels.value,
        pad_value=pad_value,
    )
    count, unreadable = len(select_images(images, max_images)), list[Path]()
    with progress("Collecting", count, shown=show_progress) as advance:
        moments = record_onnx(
            model,
            images,
            preprocessing,
            tensor=tensor or None,
            num_classes=num_classes,
            activation=activation.value if activation else None,
            axis=axis,
            background=BACKGROUND_INDEX[background],
            class_names=class_names,
            population=population,
            max_images=max_images,
            batch_size=batch_size,
            sample_rows=sample_rows,
            nonfinite=nonfinite.value,
            provider=provider,
            skip_unreadable=skip_unreadable,
            progress=advance,
            skipped=unreadable.extend,
        )
    moments.save(output)
    _report(moments, count - len(unreadable), unreadable, output, as_json=json)


def _parse_size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) == 1:
        parts *= 2
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise InputError(f"Expected `--size` to be like 480x640 or 640, but got {text!r}.")
    return int(parts[0]), int(parts[1])


def _parse_numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"Expected `{option}` to be numbers like 0.485,0.456,0.406, but got {text!r}.") from error


def _report(moments: ClassMoments, images: int, unreadable: list[Path], output: Path, *, as_json: bool) -> None:
    rows = int(moments.count.max())
    result: dict[str, Any] = {
        "output": output,
        "images": images,
        "unreadable": unreadable,
        "rows": rows,
        "num_classes": moments.num_classes,
        "skipped": int(moments.skipped.sum()),
        "layer": moments.metadata.layer,
        "activation": moments.metadata.activation,
        "background": moments.metadata.background,
        "fingerprint": moments.metadata.fingerprint,
        "warnings": warn_of_doubts(moments),
    }
    if as_json:
        print_json(result)
        return
    print_statistics(output, moments, rows, count_of(images, "image"))
    followed = f"before {activation}" if (activation := moments.metadata.activation) else "which no activation follows"
    typer.echo(f"Read at `{moments.metadata.layer}`, {followed}.")
    print_next(output)
