"""`logn collect` of models: an ONNX file or a trained run, and images, in; statistics out."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, command, count_of, print_json, progress
from logn.cli.kinds import formerly
from logn.cli.options.choices import (
    ANNOTATIONS,
    BACKGROUND_INDEX,
    LABELLED_IMAGES,
    ActivationOption,
    Background,
    BackgroundOption,
    ClassNamesOption,
    DeviceOption,
    Nonfinite,
    NonfiniteOption,
    PopulationOption,
    SampleRowsOption,
    StatisticsFileOption,
    at_least_one,
)
from logn.cli.options.detectors import (
    ImageSizeOption,
    RayOption,
    RaySettings,
    TrustOption,
    WorkersOption,
    is_classifier,
    open_detector,
    ray_settings,
)
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
    given_preprocessing,
)
from logn.cli.paths import check_output
from logn.cli.statistics_summary import print_next, print_statistics, warn_of_doubts
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.datasets.detection_dataset import DetectionDataset
    from logn.statistics.moments import ClassMoments

    Collect = Callable[..., ClassMoments]


class Layout(StrEnum):
    """Order of the axes of an image."""

    nchw = "NCHW"
    nhwc = "NHWC"


SEARCH = "Where the logits are, if they are not found"

SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        help="Files of logits, folders of them or quoted globs (.npy, .npz, .safetensors); or an ONNX file; or the "
        "folder that `logn train` wrote; or a detector, as `logn predict` takes it."
    ),
]
IMAGES = typer.Option(
    help="ONNX: folder of training images, required. Run: folder that the image paths start from, by default that of "
    "the annotations or the list."
)
MaxImagesOption = Annotated[
    int | None,
    typer.Option(help="Only so many images: spread evenly over the folder of an ONNX file, drawn at random for a run."),
    formerly("--most"),
]
BatchOption = Annotated[
    int | None,
    typer.Option(help="Images per forward pass; default 1 for ONNX files, 8 for runs."),
    formerly("--batch-size"),
]


def collect_onnx(
    sources: SourcesArgument,
    output: StatisticsFileOption,
    images: Annotated[Path, IMAGES],
    background: BackgroundOption = Background.none,
    class_names: ClassNamesOption = None,
    population: PopulationOption = None,
    max_images: MaxImagesOption = None,
    sample_rows: SampleRowsOption = None,
    nonfinite: NonfiniteOption = Nonfinite.error,
    batch: BatchOption = None,
    provider: Annotated[str, typer.Option(help="Where to run, by onnxruntime's name.")] = "CPUExecutionProvider",
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be read, and say which.")
    ] = False,
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
    from logn.logits.image_folder import select_images
    from logn.logits.onnx.file import read_onnx
    from logn.logits.onnx.image_input import settle
    from logn.statistics.record_onnx import record_onnx

    (model,) = map(Path, sources)
    at_least_one(max_images=max_images, batch=batch)
    check_output(output, model, holds="logn.statistics")
    given = given_preprocessing(size, resize, mean, std, max_value, channels, pad_value)
    preprocessing, _ = settle(read_onnx(model), like, **given, layout=layout.value if layout else None, dtype=dtype)
    count, unreadable = len(select_images(images, max_images)), list[Path]()
    with progress("Collecting", count, shown=show_progress) as advance:
        moments = record_onnx(
            model,
            images,
            preprocessing,
            like=like,
            tensor=tensor or None,
            num_classes=num_classes,
            activation=activation.value if activation else None,
            axis=axis,
            background=BACKGROUND_INDEX[background],
            class_names=class_names,
            population=population,
            max_images=max_images,
            batch_size=batch or 1,
            sample_rows=4096 if sample_rows is None else sample_rows,
            nonfinite=nonfinite.value,
            provider=provider,
            skip_unreadable=skip_unreadable,
            progress=advance,
            skipped=unreadable.extend,
        )
    moments.save(output)
    _report_onnx(moments, count - len(unreadable), unreadable, output, as_json=json)


def _report_onnx(moments: ClassMoments, images: int, unreadable: list[Path], output: Path, *, as_json: bool) -> None:
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


def collect_run(
    sources: SourcesArgument,
    output: StatisticsFileOption,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            "-d",
            help=f"Training images, required. Detectors: {ANNOTATIONS} Classifiers: {LABELLED_IMAGES}",
        ),
    ] = None,
    images: Annotated[Path | None, IMAGES] = None,
    max_images: MaxImagesOption = None,
    batch: BatchOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 0,
    sample_rows: SampleRowsOption = None,
    device: DeviceOption = "auto",
    trust: TrustOption = False,
    image_size: ImageSizeOption = None,
    use_ray: RayOption = False,
    workers: WorkersOption = None,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Run a detector or image classifier over training images, held out and thinned as they were in its training."""
    (model,) = map(Path, sources)
    at_least_one(max_images=max_images, batch=batch)
    if data is None:
        raise _without_data(model, images, trust=trust)
    check_output(output, holds="logn.statistics")
    if is_classifier(model):
        if use_ray:
            raise InputError(
                f"Expected `--ray` with a detector, but `{model}` is an image classifier; `logn.ray.collect` takes one."
            )
        prepare = _prepare_classifier
    else:
        cluster = ray_settings(use_ray, workers, model, trust=trust, image_size=image_size, device=device)
        prepare = partial(_prepare_detector, trust, image_size, cluster)
    run, available = prepare(model, data, images, device)
    total = available if max_images is None else min(max_images, available)
    with progress("Collecting", total, shown=show_progress) as advance:
        moments = run(max_images=max_images, batch=batch or 8, seed=seed, sample_rows=sample_rows, progress=advance)
    moments.save(output)
    rows, warnings = int(moments.count.max()), warn_of_doubts(moments)
    if json:
        print_json(
            {
                "output": output,
                "images": total,
                "rows": rows,
                "num_classes": moments.num_classes,
                "warnings": warnings,
            }
        )
    else:
        print_statistics(output, moments, rows, count_of(total, "image"))
        print_next(output)


def _without_data(model: Path, images: Path | None, *, trust: bool) -> InputError:
    """What to type for a model that is to see a folder of images."""
    pickle = model.suffix.lower() in (".pt", ".pth")
    more = ("--trust",) if trust or pickle else ()
    output = "corrected.pt" if pickle else "corrected"
    typed = command("logn", "correct", model, "--images", images or "train/", "-o", output, *more)
    return InputError(
        f"Expected `--data` with a trained run (`{model}`), but got none; `{typed}` takes a folder of "
        "images, corrects the model in one step and keeps its statistics."
    )


def _prepare_detector(
    trust: bool,
    image_size: int | None,
    cluster: RaySettings | None,
    model: Path,
    data: Path,
    images: Path | None,
    device: str,
) -> tuple[Collect, int]:
    from logn.datasets.detection_dataset import DetectionDataset
    from logn.datasets.training_annotations import find_annotations
    from logn.evaluate.store.detector_statistics import collect_detector_statistics
    from logn.evaluate.store.predict import match_detector

    dataset = DetectionDataset(find_annotations(data), images)
    detector = open_detector(model, trust=trust, image_size=image_size, device="cpu" if cluster else device)
    if cluster is not None:
        names = match_detector(detector, dataset.class_names).model_names
        return partial(_collect_over_ray, dataset, names, cluster), len(dataset)
    return partial(collect_detector_statistics, detector, dataset), len(dataset)


def _collect_over_ray(
    dataset: DetectionDataset,
    class_names: tuple[str, ...],
    cluster: RaySettings,
    *,
    max_images: int | None,
    seed: int,
    **options: Any,
) -> ClassMoments:
    """The same images as in one process, run over Ray."""
    from logn.evaluate.ray_data.collect import collect
    from logn.evaluate.ray_data.predict import image_rows
    from logn.evaluate.store.detector_statistics import drawn_images

    return collect(
        image_rows(dataset, drawn_images(dataset, max_images, seed)),
        cluster.make_detector,
        class_names=class_names,
        workers=cluster.workers,
        gpus_per_worker=cluster.gpus_per_worker,
        **options,
    )


def _prepare_classifier(model: Path, data: Path, images: Path | None, device: str) -> tuple[Collect, int]:
    from logn.datasets.open_images import open_images
    from logn.evaluate.classification.classifier_logits import classifier_statistics
    from logn.training.classifiers.train_classifier import load_classifier
    from logn.training.engine.distributed import choose_device

    classifier = load_classifier(model).to(choose_device(device))
    dataset = open_images(data, "train", root=images, **(classifier.data_options or {}))
    return partial(classifier_statistics, classifier, dataset), len(dataset)
