"""`logn collect RUN --data train.json`: statistics of a detector that `logn train` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logn.cli.console import JsonOption, ProgressOption, print_json, progress
from logn.cli.paths import check_output


def collect_detector(
    model: Annotated[Path, typer.Argument(help="Folder that `logn train` wrote.")],
    data: Annotated[
        Path, typer.Option("--data", "-d", help="LVIS or COCO annotation file of the training images, or its folder.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The statistics file to write.")],
    images: Annotated[
        Path | None, typer.Option(help="Folder that the image paths start from; by default that of the file.")
    ] = None,
    most: Annotated[int | None, typer.Option(help="How many images, drawn at random; by default all.")] = None,
    batch: Annotated[int, typer.Option(help="Images per forward pass.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    sample_rows: Annotated[int | None, typer.Option(help="Rows to keep for balanced margins; default 4096.")] = None,
    device: Annotated[str, typer.Option(help="`auto`, `cpu` or `cuda`.")] = "auto",
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Run a trained detector over training images and write the statistics of its logits; no label is read.

    **Examples**

    `logn collect runs/a --data glyphs/train.json -o stats.safetensors`

    `logn collect runs/lvis --data lvis_v1_train.json --images coco --most 5000 -o stats.safetensors`
    """
    from logn.datasets.detection_dataset import DetectionDataset
    from logn.evaluate.detector_statistics import collect_detector_statistics
    from logn.training.checkpoint import load_detector
    from logn.training.plan import find_annotations
    from logn.training.processes import choose_device

    check_output(output)
    dataset = DetectionDataset(find_annotations(data), images)
    detector = load_detector(model, num_classes=dataset.num_classes)
    detector.to(choose_device(device))
    total = len(dataset) if most is None else min(most, len(dataset))
    with progress("Collecting", total, shown=show_progress) as advance:
        moments = collect_detector_statistics(
            detector, dataset, images=most, batch=batch, seed=seed, sample_rows=sample_rows, advance=advance
        )
    moments.save(output)
    rows = int(moments.count.max())
    if json:
        print_json({"output": output, "images": total, "rows": rows, "num_classes": moments.num_classes})
    else:
        typer.echo(f"{output}: {rows:,} rows of {moments.num_classes} classes from {total:,} images.")
