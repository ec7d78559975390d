"""Shards of drawn glyphs: runs of images of one split, each of which one process draws and keeps in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from logn.errors import InputError
from logn.files import write_text
from logn.labels.image_file import import_pillow
from logn.processes import fresh_processes
from logn_research.datasets.glyphs.alphabet import Alphabet, font_folder
from logn_research.datasets.glyphs.settings import SPLITS

SETTINGS_FILE = "settings.json"

Shard = TypeVar("Shard")


def claim_folder(
    root: Path,
    what: str,
    version: int,
    settings: Mapping[str, Any],
    *,
    later_settings: Mapping[str, Any] | None = None,
) -> None:
    """Make a folder ours by a settings file, or check that it holds the same problem; remove leftovers of a killed run.

    Args:
        root: The folder; made if it is not there.
        what: What it is to hold, such as `glyph scenes`.
        version: Of the drawing.
        settings: As they go into the file.
        later_settings: What folders drawn before a setting existed were drawn with.
    """
    defaults = later_settings or {}
    record = {"format": f"logn {what}", "version": version, "settings": dict(settings)}
    path = root / SETTINGS_FILE
    root.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        found = read_settings_record(root, what)
        if found is None or {**found, "settings": {**defaults, **found["settings"]}} != record:
            raise InputError(
                f"Expected `{root}` to be empty or to hold {what} of the same settings, "
                f"but {_difference(found, record, defaults)}."
            )
    elif any(root.iterdir()):
        raise InputError(f"Expected `{root}` to be empty or to hold {what}, but it holds other files.")
    else:
        write_json(path, record)
    for leftover in root.rglob(".*.partial.*"):  # of a run that was killed
        leftover.unlink(missing_ok=True)


def read_settings_record(root: Path, what: str) -> dict[str, Any] | None:
    """The settings file of a folder with its format, version and settings; None where it is of something else."""
    try:
        found = json.loads((root / SETTINGS_FILE).read_text(encoding="utf-8"))
    except (ValueError, FileNotFoundError, NotADirectoryError):
        return None
    if not isinstance(found, dict) or found.get("format") != f"logn {what}":
        return None
    return found if isinstance(found.get("settings"), dict) else None


def _difference(found: dict[str, Any] | None, wanted: dict[str, Any], defaults: Mapping[str, Any]) -> str:
    if found is None:
        return f"its {SETTINGS_FILE} is of something else"
    if found.get("version") != wanted["version"]:
        return f"they are of version {found.get('version')} and this is version {wanted['version']}"
    before, now = {**defaults, **found["settings"]}, wanted["settings"]
    other = [f"{key} is {before.get(key)} and not {value}" for key, value in now.items() if before.get(key) != value]
    return "there " + " and ".join(other)


def draw_in_processes(
    draw: Callable[[Shard], int], shards: Sequence[Shard], workers: int, progress: Callable[[int], object]
) -> None:
    """Call `draw`, which returns how many images it drew, for every shard; 1 worker draws in this process."""
    if workers == 1:
        for shard in shards:
            progress(draw(shard))
        return
    try:
        with fresh_processes(min(workers, max(1, len(shards)))) as pool:
            for finished in as_completed([pool.submit(draw, shard) for shard in shards]):
                progress(finished.result())
    except BrokenProcessPool as error:
        raise InputError(
            f"Expected `workers` = {workers} processes to draw, but one of them ended; try `workers` = 1, and in a "
            'script of your own put the call under `if __name__ == "__main__":`.'
        ) from error


def write_json(path: Path, content: Any) -> None:
    """Write a value as compact JSON, in one atomic step."""
    write_text(path, json.dumps(content, separators=(",", ":")))


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
    """Cut the images of all splits, whose content is `labels`, into shards of `images` images."""
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
    progress: Callable[[int], object],
) -> None:
    """Draw the shards that an earlier call has not drawn."""
    waiting = [shard for shard in shards if not is_done(shard)]
    progress(sum(len(shard.labels) for shard in shards) - sum(len(shard.labels) for shard in waiting))
    draw_in_processes(draw, waiting, workers, progress)
