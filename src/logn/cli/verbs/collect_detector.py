"""`logn collect RUN --data DATA`: statistics of a detector or an image classifier that was trained here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logn.cli.console import JsonOption, ProgressOption, count_of, print_json, progress
from logn.cli.options.choices import (
    DeviceOption,
    ForwardBatchOption,
    ImageFolderOption,
    SampleRowsOption,
    StatisticsFileOption,
)
from logn.cli.paths import check_output
from logn.cli.verbs.statistics_summary import print_next, print_statistics, warn_of_doubts

if TYPE_CHECKING:
    from logn.statistics.moments import ClassMoments

    Collect = Callable[..., ClassMoments]


def collect_detector(
    model: Annotated[Path, typer.Argument(help="Folder that `logn train` or `train-classifier` wrote.")],
    data: Annotated[
        Path,
        typer.Option("--data", "-d", help="Annotations of the training images, or what the classifier was trained on."),
    ],
    output: StatisticsFileOption,
    images: ImageFolderOption = None,
    most: Annotated[int | None, typer.Option(help="How many images, drawn at random; by default all.")] = None,
    batch: ForwardBatchOption = 8,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 0,
    sample_rows: SampleRowsOption = None,
    device: DeviceOption = "auto",
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Run a detector or image classifier over training images and write the statistics of its logits.

    No label is read. Images of a classifier are held out and thinned as they were in its training.

    **Examples**

    `logn collect runs/a --data glyphs/train.json -o stats.safetensors`

    `logn collect runs/lvis --data lvis_v1_train.json --images coco --most 5000 -o stats.safetensors`

    `logn collect runs/softmax --data classes -o stats.safetensors`
    """
    from logn.training.engine.checkpoint import stored_kind

    check_output(output, holds="logn.statistics")
    prepare = _prepare_classifier if stored_kind(model) == "classifier" else _prepare_detector
    run, available = prepare(model, data, images, device)
    total = available if most is None else min(most, available)
    with progress("Collecting", total, shown=show_progress) as advance:
        moments = run(max_images=most, batch=batch, seed=seed, sample_rows=sample_rows, progress=advance)
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


def _prepare_detector(model: Path, data: Path, images: Path | None, device: str) -> tuple[Collect, int]:
    from logn.datasets.detection_dataset import DetectionDataset
    from logn.evaluate.store.detector_statistics import collect_detector_statistics
    from logn.training.detectors.config import find_annotations
    from logn.training.engine.checkpoint import load_detector
    from logn.training.engine.distributed import choose_device

    dataset = DetectionDataset(find_annotations(data), images)
    detector = load_detector(model, num_classes=dataset.num_classes)
    detector.to(choose_device(device))
    return partial(collect_detector_statistics, detector, dataset), len(dataset)


def _prepare_classifier(model: Path, data: Path, images: Path | None, device: str) -> tuple[Collect, int]:
    from logn.datasets.open_images import open_images
    from logn.evaluate.classification.classifier_logits import classifier_statistics
    from logn.training.classifiers.train_classifier import load_classifier
    from logn.training.engine.distributed import choose_device

    classifier = load_classifier(model).to(choose_device(device))
    dataset = open_images(data, "train", root=images, **(classifier.data_options or {}))
    return partial(classifier_statistics, classifier, dataset), len(dataset)
