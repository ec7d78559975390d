"""Shards of drawn glyphs: runs of images of one split, each of which one process draws and keeps in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np

from logn.datasets.glyphs.alphabet import Alphabet
from logn.datasets.glyphs.drawn_folder import draw_in_processes
from logn.datasets.glyphs.fonts import font_folder
from logn.datasets.glyphs.settings import SPLITS
from logn.datasets.image_file import import_pillow
from logn.errors import InputError

#: Where the files of the shards lie until all of them are there.
PARTS = ".parts"


class Seeded(Protocol):
    """Settings of a drawing."""

    @property
    def seed(self) -> int:
        """Everything follows from it."""


Settings = TypeVar("Settings", bound=Seeded)
Label = TypeVar("Label")  # what an image shows: a class, or a list of them


@dataclass(frozen=True)
class GlyphShard(Generic[Settings, Label]):
    """Some images of a split, with all that a process needs to draw them.

    Args:
        root: Folder of the drawing.
        settings: Of the drawing.
        split: `train`, `dev` or `test`.
        first: Number of the first image.
        labels: What each image shows.
        alphabet: The characters of the classes, and the distractors.
        suffix: Of the file of the shard.
    """

    root: Path
    settings: Settings
    split: str
    first: int
    labels: Sequence[Label]
    alphabet: Alphabet
    suffix: str

    @property
    def part(self) -> Path:
        """The file of the shard, written when all of its images are drawn."""
        return self.root / PARTS / f"{self.split}-{self.first:08d}{self.suffix}"

    @property
    def numbers(self) -> range:
        """The numbers of the images."""
        return range(self.first, self.first + len(self.labels))

    def images(self) -> Iterator[tuple[int, Label, np.random.Generator]]:
        """Number, content and random state of each image; the state does not depend on which process draws it."""
        for number, label in zip(self.numbers, self.labels, strict=True):
            yield number, label, np.random.default_rng((self.settings.seed, 1 + SPLITS.index(self.split), number))


def cut_into_shards(
    root: Path,
    settings: Settings,
    labels: Mapping[str, Sequence[Label]],
    alphabet: Alphabet,
    *,
    images: int,
    suffix: str,
) -> list[GlyphShard[Settings, Label]]:
    """Cut the images of all splits, whose content is `labels`, into shards of so many `images`."""
    return [
        GlyphShard(root, settings, split, first, labels[split][first : first + images], alphabet, suffix)
        for split in SPLITS
        for first in range(0, len(labels[split]), images)
    ]


def check_drawing(workers: int) -> None:
    """Say what is missing before any file is written."""
    if workers < 1:
        raise InputError(f"Expected `workers` to be one or more, but got {workers}.")
    import_pillow()
    font_folder()


def draw_shards(
    draw: Callable[[GlyphShard[Settings, Label]], int],
    shards: Sequence[GlyphShard[Settings, Label]],
    is_done: Callable[[GlyphShard[Settings, Label]], bool],
    workers: int,
    advance: Callable[[float], None],
) -> None:
    """Draw the shards that an earlier call has not drawn."""
    waiting = [shard for shard in shards if not is_done(shard)]
    advance(sum(len(shard.labels) for shard in shards) - sum(len(shard.labels) for shard in waiting))
    draw_in_processes(draw, waiting, workers, advance)
