"""`logn train-classifier`: train an image classifier, or go on with a run that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logn.cli.console import JsonOption, ProgressOption, command
from logn.cli.options import training as options
from logn.cli.options.choices import DeviceOption, LabelledImagesOption, ListNamesOption, ListRootOption


def train_classifier(
    data: LabelledImagesOption,
    output: options.RunOption,
    root: ListRootOption = None,
    class_names: ListNamesOption = None,
    imbalance: Annotated[
        float | None, typer.Option(help="Thin CIFAR or class folders: the first class has so many times the last's.")
    ] = None,
    dev_each: Annotated[
        int | None, typer.Option(help="Hold out so many training images of each class (CIFAR, class folders).")
    ] = None,
    data_seed: Annotated[int, typer.Option(help="Which images are held out and thinned away.")] = 0,
    model: Annotated[
        str, typer.Option("--model", "-m", help="`small`, `resnet10`, `resnet50`, `resnet152` or `resnext50`.")
    ] = "small",
    classifier: options.ClassifierOption = "linear",
    temperature: options.TemperatureOption = 20.0,
    preset: options.PresetOption = None,
    sampler: Annotated[str, typer.Option(help="`random` or `class-balanced`.")] = "random",
    iterations: options.IterationsOption = None,
    epochs: options.EpochsOption = None,
    batch: options.BatchOption = None,
    lr: options.RateOption = None,
    seed: Annotated[int, typer.Option(help="Of weights, order and augmentation.")] = 0,
    weights: Annotated[
        Path | None, typer.Option(help="Local file with torchvision's weights (.pth, .safetensors); never downloaded.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the square that the network sees.")] = None,
    flip: Annotated[
        bool | None, typer.Option("--flip/--no-flip", help="Mirror half of the training images; default: preset's.")
    ] = None,
    checkpoint_every: options.CheckpointOption = None,
    loss: Annotated[
        str, typer.Option(help="With options: `seesaw`, `eql-softmax:threshold=0.005`; see docs/losses.md.")
    ] = "cross-entropy",
    start: Annotated[Path | None, typer.Option(help="Run of the same classifier whose weights to begin with.")] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Train `classifier`, `new-classifier` or `scales` of the run at --start, freeze the rest."),
    ] = None,
    resume: options.ResumeOption = True,
    processes: options.ProcessesOption = 1,
    device: DeviceOption = "auto",
    workers: options.WorkersOption = None,
    progress_bar: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train an image classifier on long-tailed data. A run that was stopped goes on, to the same result.

    Writes `checkpoint.safetensors` and `log.jsonl` to the folder of the run.

    **Examples**

        logn train-classifier --data classes -o runs/softmax

        logn train-classifier --data classes -o runs/crt --start runs/softmax --only new-classifier
        --sampler class-balanced

        logn train-classifier --data ImageNet_LT_train.txt --root imagenet -m resnext50 --classifier cosine -o runs/lt
    """
    from logn.training.classifiers.config import ClassifierTrainingConfig
    from logn.training.classifiers.train_classifier import train_classifier as run_training

    config = ClassifierTrainingConfig(
        data=data,
        output=output,
        root=root,
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
        batch=batch,
        learning_rate=lr,
        seed=seed,
        weights=weights,
        image_size=image_size,
        flip=flip,
        checkpoint_every=checkpoint_every,
        loss=loss,
        start=start,
        only=only,
    )
    result = run_training(
        config, resume=resume, processes=processes, device=device, workers=workers, progress=progress_bar
    )
    options.print_result(result, as_json=as_json)
    compare = command("logn", "compare", "--task", "classification", "--model", output, "--data", data)
    options.print_next(f"{compare} --methods logn,logn:balanced,loga", as_json=as_json)
