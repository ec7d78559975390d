"""`logn train`: train a detector or an image classifier, or go on with a run that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logn.cli.console import JsonOption, ProgressOption, command
from logn.cli.kinds import Kind, verb_of, with_old_spellings
from logn.cli.options.choices import DeviceOption, ImageFolderOption, ListNamesOption, Task, TaskOption
from logn.errors import InputError
from logn.labels.sources import are_labels
from logn_research.cli import training_options as options


def train_detector(
    data: options.DataArgument,
    output: options.RunOption,
    images: ImageFolderOption = None,
    model: options.ModelOption = "small",
    classifier: options.ClassifierOption = "linear",
    temperature: options.TemperatureOption = 20.0,
    mask_classifier: Annotated[
        str | None,
        typer.Option(
            help="Last layer of the masks of the paper's detectors: `linear` or `cosine`; by default as --classifier.",
            rich_help_panel=options.MODEL,
        ),
    ] = None,
    batch_norm: Annotated[
        str | None,
        typer.Option(
            help="For the paper's detectors with --weights: `affine` trains scale and shift of the normalisation, as"
            " MMDetection does (default); `frozen` does not.",
            rich_help_panel=options.MODEL,
        ),
    ] = None,
    preset: options.PresetOption = None,
    sampler: options.SamplerOption = "random",
    repeat_threshold: Annotated[
        float, typer.Option(help="Share of the images below which repeat-factor repeats a class; glyph scenes: 0.04.")
    ] = 0.001,
    iterations: options.IterationsOption = None,
    epochs: options.EpochsOption = None,
    milestones: options.MilestonesOption = None,
    batch: options.BatchOption = None,
    lr: options.RateOption = None,
    seed: options.SeedOption = 0,
    weights: options.WeightsOption = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="For `light`: `mobilenet-v2` (the default), `mobilenet-v3-large`, `efficientnet-lite0`, `resnet18` or"
            " `resnet34`."
        ),
    ] = None,
    image_size: options.SizeOption = None,
    checkpoint_every: options.CheckpointOption = None,
    loss: options.LossOption = None,
    start: options.StartOption = None,
    only: options.OnlyOption = None,
    precision: options.PrecisionOption = "auto",
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
    """Train a detector, as `logn train` does."""
    from logn_research.training.detectors.config import DetectorTrainingConfig
    from logn_research.training.detectors.train_detector import train_detector as run_training

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
        milestones=options.parse_milestones(milestones),
        batch=batch,
        learning_rate=lr,
        seed=seed,
        weights=weights,
        image_size=image_size,
        checkpoint_every=checkpoint_every,
        loss=loss,
        start=start,
        only=only,
        precision=precision,
        feature_memory=feature_memory,
        backbone=backbone,
        mask_classifier=mask_classifier,
        batch_norm=batch_norm,
    )
    result = run_training(
        config, resume=resume, processes=processes, device=device, workers=workers, progress=progress_bar
    )
    options.print_result(result, as_json=as_json)
    statistics, predictions = output / "statistics.safetensors", output / "predictions"
    test = data if data.is_dir() or are_labels(data) else "test.json"
    options.print_next(
        command("logn", "collect", output, "--data", data, "-o", statistics, keep=["--images"]),
        command("logn", "predict", output, "--data", test, "-o", predictions, keep=["--images"]),
        as_json=as_json,
    )


def run_classifier(
    data: options.DataArgument,
    output: options.RunOption,
    images: ImageFolderOption = None,
    class_names: ListNamesOption = None,
    imbalance: Annotated[
        float | None, typer.Option(help="Thin CIFAR or class folders: the first class has so many times the last's.")
    ] = None,
    dev_each: Annotated[
        int | None, typer.Option(help="Hold out so many training images of each class (CIFAR, class folders).")
    ] = None,
    data_seed: Annotated[int, typer.Option(help="Which images are held out and thinned away.")] = 0,
    model: options.ModelOption = "small",
    classifier: options.ClassifierOption = "linear",
    temperature: options.TemperatureOption = 20.0,
    preset: options.PresetOption = None,
    sampler: options.SamplerOption = "random",
    iterations: options.IterationsOption = None,
    epochs: options.EpochsOption = None,
    milestones: options.MilestonesOption = None,
    batch: options.BatchOption = None,
    lr: options.RateOption = None,
    seed: options.SeedOption = 0,
    weights: options.WeightsOption = None,
    image_size: options.SizeOption = None,
    flip: Annotated[
        bool | None, typer.Option("--flip/--no-flip", help="Mirror half of the training images; default: preset's.")
    ] = None,
    checkpoint_every: options.CheckpointOption = None,
    loss: options.LossOption = None,
    start: options.StartOption = None,
    only: options.OnlyOption = None,
    precision: options.PrecisionOption = "auto",
    resume: options.ResumeOption = True,
    processes: options.ProcessesOption = 1,
    device: DeviceOption = "auto",
    workers: options.WorkersOption = None,
    progress_bar: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train an image classifier, as `logn train` does."""
    from logn_research.losses.loss_factory import DEFAULT_LOSS
    from logn_research.training.classifiers.config import ClassifierTrainingConfig
    from logn_research.training.classifiers.train_classifier import train_classifier as run_training

    config = ClassifierTrainingConfig(
        data=data,
        output=output,
        root=images,
        class_names=class_names,
        imbalance=imbalance,
        dev_each=dev_each,
        data_seed=data_seed,
        model=model,
        classifier=classifier,
        temperature=temperature,
        preset=preset,
        sampler=sampler,
        iterations=iterations,
        epochs=epochs,
        milestones=options.parse_milestones(milestones),
        batch=batch,
        learning_rate=lr,
        seed=seed,
        weights=weights,
        image_size=image_size,
        flip=flip,
        checkpoint_every=checkpoint_every,
        loss=DEFAULT_LOSS if loss is None else loss,
        start=start,
        only=only,
        precision=precision,
    )
    result = run_training(
        config, resume=resume, processes=processes, device=device, workers=workers, progress=progress_bar
    )
    options.print_result(result, as_json=as_json)
    options.print_next(
        command("logn", "compare", output, "--data", data, keep=("--images", "--class-names")), as_json=as_json
    )


DETECTOR = Kind("Detector", "data of a detector", train_detector)
CLASSIFIER = Kind("Image classifier", "data of an image classifier", run_classifier)


@verb_of(DETECTOR, CLASSIFIER, common="Any model")
def train(data: options.DataArgument, task: TaskOption = None) -> Kind:
    """Train a detector or an image classifier on long-tailed data. A run that was stopped goes on, to the same result.

    Which of them it is, is seen from DATA: annotations are for a detector; class folders, lists and glyph classes for a
    classifier. Writes `checkpoint.safetensors` and `log.jsonl` to the folder of the run.

    **Examples**

        logn train glyphs -o runs/glyphs --processes 2

        logn train glyphs -o runs/bags --loss bags --start runs/glyphs --only classifier

        logn train lvis_v1_train.json --images coco -m mask-rcnn-r101 --weights resnet101.pth -o runs/lvis

        logn train photos.json -m light --classifier cosine --weights mobilenet_v2.pth -o runs/photos

        logn train classes -o runs/softmax

        logn train ImageNet_LT_train.txt --images imagenet -m resnext50 --classifier cosine -o runs/lt

        torchrun --nproc-per-node 8 -m logn.cli.main train lvis_v1_train.json -m cascade-r101 -o runs/lvis
    """
    if task is not None:
        return DETECTOR if task is Task.detection else CLASSIFIER
    if data.is_file():
        return CLASSIFIER if data.suffix.lower() == ".txt" else DETECTOR
    if are_labels(data):
        return DETECTOR
    return _kind_of_folder(data)


train_classifier = with_old_spellings(run_classifier)


def _kind_of_folder(data: Path) -> Kind:
    from logn_research.datasets.cifar import is_cifar
    from logn_research.datasets.glyphs.classes import is_glyph_classes

    if not data.is_dir():
        raise InputError(f"Expected `{data}` to be annotations, or a list or a folder of images, but there is none.")
    if is_glyph_classes(data) or is_cifar(data):
        return CLASSIFIER
    # The folders of COCO are no classes: where there are annotations, it is they that count.
    if any(data.glob("*.json")) or any(data.glob("annotations/*.json")):
        return DETECTOR
    if any(data.glob("*.txt")) or any(path.is_dir() for path in data.iterdir()):
        return CLASSIFIER
    raise InputError(
        f"Expected `{data}` to hold annotations (`train.json`), class folders or lists of images, but it holds none."
    )
