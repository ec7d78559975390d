"""The steps as commands: `python -m logn_research.cifar --help`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from logn.errors import InputError
from logn_research.cifar import keep as kept
from logn_research.cifar.table import as_markdown

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
    loss: Annotated[str, typer.Option(help="cross_entropy or balanced_softmax.")] = "cross_entropy",
    seed: int = 0,
    precision: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    epochs: Annotated[int, typer.Option(help="Fewer for a trial.")] = 200,
) -> None:
    """Train one run to its end; an unfinished one goes on."""
    from logn_research.cifar.train import train as train_run

    train_run(data, run, imbalance, loss, seed, precision, epochs)


@app.command()
def keep(run: Path, output: Path) -> None:
    """Keep what the table needs of a finished run."""
    kept.keep(run, output)


@app.command()
def table(runs: list[Path]) -> None:
    """Print the tables of kept runs, in percent."""
    for run in runs:
        print(as_markdown(run))


if __name__ == "__main__":
    try:
        app()
    except InputError as error:
        sys.exit(f"Error: {error}")
