"""`logn train`: train one of the detectors, or go on with a run that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logn.cli.console import JsonOption, ProgressOption, command
from logn.cli.options import training as options
from logn.cli.options.choices import DeviceOption, ImageFolderOption


def train(
    data: Annotated[
        Path, typer.Option("--data", "-d", help="LVIS or COCO annotation file, or a folder with `train.json`.")
    ],
    output: options.RunOption,
    images: ImageFolderOption = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="`small`, `small-one-stage` (sigmoid, no masks), `light` (photographs on a CPU, no masks), "
            "`mask-rcnn-r50`, `mask-rcnn-r101` or `cascade-r101`.",
        ),
    ] = "small",
    classifier: options.ClassifierOption = "linear",
    temperature: options.TemperatureOption = 20.0,
    preset: options.PresetOption = None,
    sampler: Annotated[
        str,
        typer.Option(help="`random`, `repeat-factor-ceil`, `repeat-factor-stochastic` or `class-balanced`."),
    ] = "random",
    repeat_threshold: Annotated[
        float, typer.Option(help="Share of the images below which repeat-factor repeats a class; glyph scenes: 0.04.")
    ] = 0.001,
    iterations: options.IterationsOption = None,
    epochs: options.EpochsOption = None,
    batch: options.BatchOption = None,
    lr: options.RateOption = None,
    seed: Annotated[int, typer.Option(help="Of weights, order, augmentation and sampling.")] = 0,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            "--backbone-weights",
            help="Local file with weights of the backbone (.pth or .safetensors); never downloaded. `light` looks into"
            " installed packages without it; `none` trains it from scratch.",
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="Of `light`: `mobilenet-v2` (the default), `mobilenet-v3-large`, `efficientnet-lite0`, `resnet18` or"
            " `resnet34`."
        ),
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Shorter side of the images.")] = None,
    checkpoint_every: options.CheckpointOption = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="Classification loss, with options: `seesaw`, `eql:threshold=0.005`; see docs/losses.md. By default "
            "`cross-entropy`, for the one-stage detector `focal`."
        ),
    ] = None,
    start: Annotated[Path | None, typer.Option(help="Run of the same detector whose weights to begin with.")] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Train `classifier`, `new-classifier`, `scales` or `heads` of the run at --start and freeze the rest."
        ),
    ] = None,
    feature_memory: Annotated[
        bool, typer.Option("--feature-memory", help="Add features of earlier regions to each batch; for `--loss loce`.")
    ] = False,
    resume: options.ResumeOption = True,
    processes: options.ProcessesOption = 1,
    device: DeviceOption = "auto",
    workers: options.WorkersOption = None,
    progress_bar: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a detector on long-tailed data. A run that was stopped goes on, to the same result.

    Writes `checkpoint.safetensors` and `log.jsonl` to the folder of the run.

    **Examples**

        logn train --data glyphs -o runs/glyphs --processes 2

        logn train --data glyphs -o runs/bags --loss bags --start runs/glyphs --only classifier

        logn train --data lvis_v1_train.json --images coco -m mask-rcnn-r101 --weights resnet101.pth -o runs/lvis

        logn train --data photos.json -m light --classifier cosine --weights mobilenet_v2.pth -o runs/photos

        torchrun --nproc-per-node 8 -m logn.cli.main train --data lvis_v1_train.json -m cascade-r101 -o runs/lvis
    """
    from logn.training.detectors.config import DetectorTrainingConfig
    from logn.training.detectors.train_detector import train_detector

    config = DetectorTrainingConfig(
        data=data,
        output=output,
        images=images,
        model=model,
        classifier=classifier,
        temperature=temperature,
        preset=preset,
        sampler=sampler,
        repeat_threshold=repeat_threshold,
        iterations=iterations,
        epochs=epochs,
        batch=batch,
        learning_rate=lr,
        seed=seed,
        weights=weights,
        image_size=image_size,
        checkpoint_every=checkpoint_every,
        loss=loss,
        start=start,
        only=only,
        feature_memory=feature_memory,
        backbone=backbone,
    )
    result = train_detector(
        config, resume=resume, processes=processes, device=device, workers=workers, progress=progress_bar
    )
    options.print_result(result, as_json=as_json)
    statistics, predictions = output / "statistics.safetensors", output / "predictions"
    test = data if data.is_dir() else "test.json"
    where = () if images is None else ("--images", images)
    options.print_next(
        command("logn", "collect", output, "--data", data, *where, "-o", statistics),
        command("logn", "predict", "--model", output, "--data", test, *where, "-o", predictions),
        as_json=as_json,
    )
