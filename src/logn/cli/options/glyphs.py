"""The options that `logn data glyphs` and `logn data glyph-classes` share, and the drawing itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from logn.cli.console import progress

FolderOption = Annotated[Path, typer.Option("--output", "-o", help="Folder to write; made if it is not there.")]
ClassesOption = Annotated[int, typer.Option(help="Number of classes, up to 1,203.")]
SizeOption = Annotated[int, typer.Option(help="Side of an image in pixels.")]
SeedOption = Annotated[int, typer.Option(help="Everything follows from it.")]
FamiliesOption = Annotated[
    bool, typer.Option("--families/--distinct", help="Families of look-alikes, or glyphs as unlike as possible.")
]
SimilarityOption = Annotated[float, typer.Option(help="Least correlation of two glyphs of a family, 0 to 0.9.")]
WorkersOption = Annotated[int, typer.Option(help="Number of processes; the pictures don't depend on it.")]


def draw(
    generate: Callable[..., object], folder: Path, settings: Any, *, images: int, workers: int, shown: bool | None
) -> dict[str, Any]:
    """Draw the images of `settings` into `folder` with a progress bar, and say where and how long it took."""
    started = time.monotonic()
    with progress("Drawing", total=images, shown=shown) as advance:
        generate(folder, settings, workers=workers, advance=advance)
    return {"folder": folder, "seconds": round(time.monotonic() - started, 1)}
