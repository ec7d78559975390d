"""`logn collect` of models: an ONNX file or a trained run, and images, in; statistics out."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, count_of, echo, print_json, print_note, progress
from logn.cli.kinds import formerly
from logn.cli.options.choices import (
    ANNOTATIONS,
    BACKGROUND_INDEX,
    LABELLED_IMAGES,
    ActivationOption,
    Background,
    BackgroundOption,
    ClassNamesOption,
    Nonfinite,
    NonfiniteOption,
    PopulationOption,
    SampleRowsOption,
    StatisticsFileOption,
    at_least_one,
)
from logn.cli.options.detectors import training_images
from logn.cli.options.preprocessing import (
    PREPROCESSING,
    ChannelsOption,
    LikeOption,
    MaxValueOption,
    MeanOption,
    PadValueOption,
    ResizeOption,
    SizeOption,
    StdOption,
    assumptions,
    given_preprocessing,
)
from logn.cli.paths import check_output
from logn.cli.statistics_summary import print_next, print_statistics, warn_of_doubts
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.statistics.moments import ClassMoments


class Layout(StrEnum):
    """Order of the axes of an image."""

    nchw = "NCHW"
    nhwc = "NHWC"


SEARCH = "Where the logits are, if they are not found"


SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        help="Files of logits, folders of them or quoted globs (.npy, .npz, .safetensors); or an ONNX file; or "
        "another model, as `logn correct` takes it."
    ),
]
IMAGES = typer.Option(
    help="Folder of training images, all of them; with --data the folder that its image paths start from, by default "
    "that of the annotations or the list."
)
DATA = typer.Option(
    "--data",
    "-d",
    help=f"Instead of a folder, the image list of labels; required for a trained classifier. Detectors: {ANNOTATIONS} "
    f"Classifiers: {LABELLED_IMAGES}",
)
MaxImagesOption = Annotated[
    int | None,
    typer.Option(help="Only so many images, spread evenly."),
    formerly("--most"),
]
BatchOption = Annotated[
    int | None,
    typer.Option(help="Images per forward pass; default 1 for ONNX files, 8 for runs."),
    formerly("--batch-size"),
]
SkipUnreadableOption = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be read, and say which.")
]


def collect_onnx(
    sources: SourcesArgument,
    output: StatisticsFileOption,
    images: Annotated[Path | None, IMAGES] = None,
    data: Annotated[Path | None, DATA] = None,
    background: BackgroundOption = Background.none,
    class_names: ClassNamesOption = None,
    population: PopulationOption = None,
    max_images: MaxImagesOption = None,
    sample_rows: SampleRowsOption = None,
    nonfinite: NonfiniteOption = Nonfinite.error,
    batch: BatchOption = None,
    provider: Annotated[str, typer.Option(help="Where to run, by onnxruntime's name.")] = "CPUExecutionProvider",
    skip_unreadable: SkipUnreadableOption = False,
    size: SizeOption = None,
    like: LikeOption = None,
    resize: ResizeOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    max_value: MaxValueOption = None,
    layout: Annotated[
        Layout | None,
        typer.Option(case_sensitive=False, help="Default: what the model says.", rich_help_panel=PREPROCESSING),
    ] = None,
    channels: ChannelsOption = None,
    dtype: Annotated[
        str | None, typer.Option(help="Default: what the model says.", rich_help_panel=PREPROCESSING)
    ] = None,
    pad_value: PadValueOption = None,
    tensor: Annotated[
        list[str] | None, typer.Option(help="The logits' name, or their scores'.", rich_help_panel=SEARCH)
    ] = None,
    num_classes: Annotated[
        int | None, typer.Option(min=2, help="Columns, the background included.", rich_help_panel=SEARCH)
    ] = None,
    activation: ActivationOption = None,
    axis: Annotated[
        int | None, typer.Option(help="The class axis, where it cannot be told.", rich_help_panel=SEARCH)
    ] = None,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Run an ONNX model over images once; the logits are read where `logn fold` will correct them."""
    from logn.evaluate.models.correct import choose_images
    from logn.evaluate.models.model_kinds import ImageFiles
    from logn.logits.onnx.file import read_onnx
    from logn.logits.onnx.images import settle, size_for_images
    from logn.statistics.record_onnx import record_onnx

    (model,) = map(Path, sources)
    at_least_one(max_images=max_images, batch=batch)
    if images is None and data is None:
        raise InputError(
            f"Expected `--images` with an ONNX model (`{model}`), but got none; or `--data`, whose images are taken."
        )
    check_output(output, model, holds="logn.statistics")
    given = given_preprocessing(size, resize, mean, std, max_value, channels, pad_value)
    file = read_onnx(model)
    settled, description = settle(file, like, **given, layout=layout.value if layout else None, dtype=dtype)
    paths = ImageFiles(choose_images(training_images(images, data), max_images)).paths
    unreadable = list[Path]()
    preprocessing = size_for_images(file, settled, paths)
    assumed = assumptions(model, given, preprocessing, description, size_found=preprocessing != settled)
    with progress("Collecting", len(paths), shown=show_progress) as advance:
        moments = record_onnx(
            model,
            paths,
            preprocessing,
            like=like,
            tensor=tensor or None,
            num_classes=num_classes,
            activation=activation.value if activation else None,
            axis=axis,
            background=BACKGROUND_INDEX[background],
            class_names=class_names,
            population=population,
            batch_size=batch or 1,
            sample_rows=4096 if sample_rows is None else sample_rows,
            nonfinite=nonfinite.value,
            provider=provider,
            skip_unreadable=skip_unreadable,
            progress=advance,
            skipped=unreadable.extend,
        )
    moments.save(output)
    if _lacks_background(moments, file.model):
        assumed.append(
            f"`{model}` has a softmax and suppresses boxes: such detectors have a background, but none was said, and "
            "all columns are taken for classes; collect anew with `--background first` or `last`."
        )
    for sentence in assumed:  # at the end: a refusal is one sentence
        print_note(f"Warning: {sentence}")
    _report_onnx(moments, len(paths) - len(unreadable), unreadable, assumed, output, as_json=json)


def _lacks_background(moments: ClassMoments, model: Any) -> bool:
    from logn.logits.onnx.file import SUPPRESSION, operators

    found = moments.metadata
    return found.activation == "softmax" and found.background is None and SUPPRESSION in operators(model.graph.node)


def _report_onnx(
    moments: ClassMoments, images: int, unreadable: list[Path], assumed: list[str], output: Path, *, as_json: bool
) -> None:
    rows = int(moments.count.max())
    result: dict[str, Any] = {
        "output": output,
        "images": images,
        "unreadable": unreadable,
        "assumed": assumed,
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
    echo(f"Read at `{moments.metadata.layer}`, {followed}.")
    print_next(output)
