"""`logn train`: train a detector, or go on with a run that was stopped."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from logn.cli.console import echo, print_json, print_note
from logn.cli.options import Device, Json
from logn.errors import InputError
from logn_research.cli.shared import Images, Progress


def train(
    data: Annotated[
        Path,
        typer.Argument(help="Annotations of boxes: LVIS, COCO, YOLO, or a folder with `train.json`."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PATH", help="Folder of the run; made if it is not there.")
    ],
    images: Images = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="small, mask-rcnn-r50, mask-rcnn-r101 or cascade-r101.",
        ),
    ] = "small",
    classifier: Annotated[
        str, typer.Option(metavar="NAME", help="linear, or cosine (normalised, as in the paper).")
    ] = "linear",
    loss: Annotated[str | None, typer.Option(metavar="NAME", help="With options: seesaw, eql:threshold=0.005.")] = None,
    sampler: Annotated[
        str,
        typer.Option(metavar="NAME", help="random, class-balanced, repeat-factor-ceil or repeat-factor-stochastic."),
    ] = "random",
    repeat_threshold: Annotated[
        float | None,
        typer.Option(metavar="N", help="Share of the images below which a class is repeated; glyph scenes: 0.04."),
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(metavar="N", help="Length of the run, instead of the preset's.")
    ] = None,
    epochs: Annotated[float | None, typer.Option(metavar="N", help="Length of the run in epochs.")] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="N", help="Images per iteration, all processes together.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(metavar="N", help="Learning rate; by default scaled with the batch.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of weights, order, augmentation and sampling.")] = 0,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Local file with weights of the backbone."),
    ] = None,
    image_size: Annotated[int | None, typer.Option(metavar="N", help="Shorter side.")] = None,
    start: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Run of the same model whose weights to begin with.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --start: train classifier, new-classifier, scales or heads alone."),
    ] = None,
    feature_memory: Annotated[
        bool, typer.Option("--feature-memory", help="Add features of earlier regions; for --loss loce.")
    ] = False,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other argument of DetectorTrainingConfig: temperature, milestones=3,5, mask_classifier, "
            "batch_norm, precision, preset, checkpoint_every.",
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew instead of going on.")] = False,
    processes: Annotated[int, typer.Option(metavar="N", help="Processes to start; leave it 1 under torchrun.")] = 1,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(metavar="N", help="Processes that read images ahead.")] = None,
    progress: Progress = None,
    json: Json = False,
) -> None:
    """Train a detector on long-tailed data. A run that was stopped goes on, to the same result.

    Writes `checkpoint.safetensors`, `log.jsonl` and `model.py`, by which every verb opens it: `RUN/model.py:load`.

    Examples: `logn train glyphs -o runs/glyphs --processes 2`;
    `logn train glyphs -o runs/bags --loss bags --start runs/glyphs --only classifier`;
    `logn train lvis_v1_train.json --images coco -m mask-rcnn-r101 --weights resnet101.pth -o runs/lvis`.
    """
    from logn_research.training.recipes import DetectorTrainingConfig
    from logn_research.training.train import train_detector

    values: dict[str, Any] = {
        **{"images": images, "model": model, "classifier": classifier, "loss": loss, "sampler": sampler},
        **{"iterations": iterations, "epochs": epochs, "batch": batch, "learning_rate": lr, "seed": seed},
        **{"weights": weights, "image_size": image_size, "start": start, "only": only},
        **{"repeat_threshold": repeat_threshold, "feature_memory": feature_memory or None},
        **parse_settings(more or []),
    }
    given = {name: value for name, value in values.items() if value is not None}
    config = DetectorTrainingConfig(data, output, **given)
    options: dict[str, Any] = {"processes": processes, "device": device, "workers": workers, "progress": progress}
    _print(train_detector(config, resume=not fresh, **options), as_json=json)


def parse_settings(words: list[str]) -> dict[str, Any]:
    """The values of `--set NAME=VALUE`, of the types that the configuration gives them.

    Example:
        >>> parse_settings(["milestones=3,5", "temperature=10", "precision=bfloat16"])
        {'milestones': (3.0, 5.0), 'temperature': 10.0, 'precision': 'bfloat16'}
    """
    from logn_research.training.recipes import DetectorTrainingConfig

    types = {each.name: str(each.type).partition(" |")[0] for each in fields(DetectorTrainingConfig)}
    convert: dict[str, Any] = {
        "int": int,
        "float": float,
        "bool": lambda text: {"true": True, "false": False}[text],
        "tuple[float, ...]": lambda text: tuple(map(float, text.split(","))),
    }
    values = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in types:
            raise InputError(f"Expected `--set` to name one of {', '.join(types)}, but got `{name}`.")
        try:
            values[name] = convert.get(types[name], str)(text)
        except (KeyError, ValueError):
            raise InputError(f"Expected `{name}` to be of type {types[name]}, but got {text!r}.") from None
    return values


def _print(result: Any, *, as_json: bool) -> None:
    """Print what a run did, once: torchrun starts the command in every process."""
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        values = {each.name: getattr(result, each.name) for each in fields(result)}
        print_json({**values, "seconds_per_iteration": result.seconds_per_iteration})
        return
    done = result.iterations - result.resumed_from
    if not done:
        echo(f"Nothing was left to do: {result.output} has all of its {result.iterations} iterations.")
        return
    after = f" after the first {result.resumed_from}" if result.resumed_from else ""
    losses = ", ".join(f"{name} {value:.3f}" for name, value in result.losses.items())
    echo(
        f"Trained for {done} iterations{after} in {result.seconds:.0f} s ({result.seconds_per_iteration:.3f} s each)"
        f" on {result.num_images} images of {result.num_classes} classes; saved in {result.output}.\n{losses}"
    )
    print_note(f"The model for other verbs: {result.output}/model.py:load")
