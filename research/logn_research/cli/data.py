"""`logn data`: draw the embedded benchmark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from logn.cli.console import print_note, progress
from logn.cli.options import Json
from logn_research.cli.shared import Progress, show

data = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@data.callback(help="Draw long-tailed data.")
def _group() -> None:
    """A callback, so that the one verb keeps its name."""


@data.command()
def glyphs(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PATH", help="Folder to write; made if it is not there.")
    ],
    classes: Annotated[int, typer.Option(metavar="N", help="Number of classes, up to 1,203.")] = 100,
    train: Annotated[int, typer.Option(metavar="N", help="Number of training images.")] = 2400,
    dev: Annotated[int, typer.Option(metavar="N", help="Number of images to choose settings on.")] = 480,
    test: Annotated[int, typer.Option(metavar="N", help="Number of images to report on.")] = 480,
    size: Annotated[int, typer.Option(metavar="N", help="Side of an image in pixels.")] = 128,
    seed: Annotated[int, typer.Option(metavar="N", help="Everything follows from it.")] = 0,
    workers: Annotated[
        int, typer.Option(metavar="N", help="Number of processes; the pictures don't depend on it.")
    ] = 2,
    shown: Progress = None,
    json: Json = False,
) -> None:
    """Draw glyph scenes: a long-tailed detection problem with masks, in LVIS's format.

    Writes images, `train.json`, `dev.json` and `test.json` (federated, as LVIS) and an exhaustive twin of the last two.
    Example: `logn data glyphs -o glyphs`.
    """
    from logn_research.datasets.glyphs.scenes import generate_glyph_scenes
    from logn_research.datasets.glyphs.settings import GlyphSettings

    settings, images = GlyphSettings(classes, train, dev, test, size, seed), train + dev + test
    started = time.monotonic()
    with progress("Drawing", total=images, shown=shown) as advance:
        generate_glyph_scenes(output, settings, workers=workers, progress=advance)
    seconds = round(time.monotonic() - started, 1)
    show({"folder": output, "images": images, "classes": classes, "seconds": seconds}, as_json=json)
    print_note(f"To train a detector on it: logn train {output} -o run")
