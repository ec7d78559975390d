"""`logn train`: train one of the detectors, or go on with a run that was stopped."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logn.cli.console import JsonOption, ProgressOption, print_json

if TYPE_CHECKING:
    from logn.training.loop import TrainingResult


def train(
    data: Annotated[
        Path, typer.Option("--data", "-d", help="LVIS or COCO annotation file, or a folder with `train.json`.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; made if it is not there.")],
    images: Annotated[
        Path | None, typer.Option(help="Folder that the image paths start from; by default that of the file.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="`small`, `small-one-stage` (sigmoid, no masks), `mask-rcnn-r50`, `mask-rcnn-r101` or `cascade-r101`.",
        ),
    ] = "small",
    classifier: Annotated[str, typer.Option(help="`linear`, or `cosine` (normalised, as in the paper).")] = "linear",
    temperature: Annotated[float, typer.Option(help="Of the cosine classifier.")] = 20.0,
    preset: Annotated[
        str | None, typer.Option(help="`paper` or `small`; by default the one that fits the model.")
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(help="`random`, `repeat-factor-ceil`, `repeat-factor-stochastic` or `class-balanced`."),
    ] = "random",
    repeat_threshold: Annotated[
        float, typer.Option(help="Share of the images below which repeat-factor repeats a class; glyph scenes: 0.04.")
    ] = 0.001,
    iterations: Annotated[int | None, typer.Option(help="Length of the run, instead of the preset's.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Length of the run in epochs.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images per iteration, all processes together.")] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate; by default the preset's, scaled with the batch.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights, order, augmentation and sampling.")] = 0,
    weights: Annotated[
        Path | None, typer.Option(help="Local file with ResNet weights (.pth or .safetensors); never downloaded.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Shorter side of the images.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Iterations between checkpoints.")] = None,
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
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Go on from the checkpoint in the folder, or start anew.")
    ] = True,
    processes: Annotated[
        int, typer.Option(help="Processes to start; on a CPU, one per core is best. Leave it 1 under torchrun.")
    ] = 1,
    device: Annotated[str, typer.Option(help="`auto`, `cpu` or `cuda`.")] = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that read images ahead.")] = None,
    progress_bar: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a detector on long-tailed data. A run that was stopped goes on, to the same result.

    Writes `checkpoint.safetensors` and `log.jsonl` to the folder of the run.

    **Examples**

        logn train --data glyphs -o runs/glyphs --processes 2

        logn train --data glyphs -o runs/bags --loss bags --start runs/glyphs --only classifier

        logn train --data lvis_v1_train.json --images coco -m mask-rcnn-r101 --weights resnet101.pth -o runs/lvis

        torchrun --nproc-per-node 8 -m logn.cli.main train --data lvis_v1_train.json -m cascade-r101 -o runs/lvis
    """
    from logn.training.loop import train as run_training
    from logn.training.plan import TrainingPlan

    plan = TrainingPlan(
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
    )
    result = run_training(
        plan, resume=resume, processes=processes, device=device, workers=workers, progress=progress_bar
    )
    if os.environ.get("RANK", "0") == "0":  # torchrun starts this command once per process
        print_result(result, as_json=as_json)


def print_result(result: TrainingResult, *, as_json: bool) -> None:
    """Print what a run did, of a detector as of an image classifier."""
    if as_json:
        values = {field.name: getattr(result, field.name) for field in fields(result)}
        print_json({**values, "seconds_per_iteration": result.seconds_per_iteration})
        return
    done = result.iterations - result.resumed_from
    if not done:
        typer.echo(f"Nothing was left to do: {result.output} has all of its {result.iterations} iterations.")
        return
    after = f" after the first {result.resumed_from}" if result.resumed_from else ""
    losses = ", ".join(f"{name} {value:.3f}" for name, value in result.losses.items())
    typer.echo(
        f"Trained for {done} iterations{after} in {result.seconds:.0f} s ({result.seconds_per_iteration:.3f} s each)"
        f" on {result.num_images} images of {result.num_classes} classes; saved in {result.output}.\n{losses}"
    )
