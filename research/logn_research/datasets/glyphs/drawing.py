"""What drawing scenes and drawing classes share: a folder that knows its settings, and images drawn side by side."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from logn.base.files import write_text
from logn.data.images import import_pillow
from logn.errors import InputError
from logn_research.datasets.glyphs.alphabet import Alphabet, font_folder
from logn_research.datasets.glyphs.settings import SPLITS

SETTINGS_FILE = "settings.json"
_IMAGES = 32  # that a process draws at a time
Result = TypeVar("Result")


def write_json(path: Path, content: Any) -> None:
    """Write a value as compact JSON, in one atomic step."""
    write_text(path, json.dumps(content, separators=(",", ":")))


def read_settings(root: Path, what: str) -> dict[str, Any] | None:
    """The settings of a drawing, with its version; None where a folder holds something else."""
    try:
        record = json.loads((root / SETTINGS_FILE).read_text(encoding="utf-8"))
    except (ValueError, FileNotFoundError, NotADirectoryError):
        return None
    if not isinstance(record, dict) or record.get("format") != f"logn {what}":
        return None
    return {"version": record.get("version"), **record.get("settings", {})}


def claim_folder(root: Path, what: str, version: int, settings: Mapping[str, Any], workers: int) -> None:
    """Make a folder ours by a settings file, or check that it holds the same problem.

    Args:
        root: The folder; made if it is not there.
        what: What it is to hold, such as `glyph scenes`.
        version: Of the drawing.
        settings: As they go into the file.
        workers: How many processes are to draw.
    """
    if workers < 1:
        raise InputError(f"Expected `workers` to be one or more, but got {workers}.")
    import_pillow()  # says what is missing before any file is written
    font_folder()
    root.mkdir(parents=True, exist_ok=True)
    if not any(root.iterdir()):
        write_json(root / SETTINGS_FILE, {"format": f"logn {what}", "version": version, "settings": dict(settings)})
        return
    before, now = read_settings(root, what), {"version": version, **settings}
    if before is None:
        raise InputError(f"`{root}` holds other files than {what}: choose an empty folder.")
    other = [
        f"{name} is {before.get(name)} and not {value}" for name, value in now.items() if before.get(name) != value
    ]
    if other:
        raise InputError(
            f"`{root}` holds {what} of other settings (there {' and '.join(other)}): choose an empty folder."
        )
    for leftover in list(root.rglob(".*.partial")):  # of a run that was killed
        shutil.rmtree(leftover, ignore_errors=True)


@dataclass(frozen=True)
class Images:
    """Some images of a split, with all that a process needs to draw them.

    Args:
        root: Folder of the drawing.
        settings: Of the drawing, with its seed.
        split: `train`, `dev` or `test`.
        first: Number of the first image.
        labels: What each image shows: a class, or a list of them.
        alphabet: The characters of the classes, and the distractors.
    """

    root: Path
    settings: Any
    split: str
    first: int
    labels: Sequence[Any]
    alphabet: Alphabet

    def __iter__(self) -> Any:
        """Number, content and random state of each image; the state does not depend on which process draws it."""
        for number, label in enumerate(self.labels, self.first):
            yield number, label, np.random.default_rng((self.settings.seed, 1 + SPLITS.index(self.split), number))


def draw_split(
    draw: Callable[[Images], list[Result]],
    everything: Images,
    workers: int,
    progress: Callable[[int], object],
) -> list[Result]:
    """What `draw` gives for each image of a split, in order; 1 worker draws in this process."""
    labels = everything.labels
    parts = [
        Images(
            everything.root,
            everything.settings,
            everything.split,
            first,
            labels[first : first + _IMAGES],
            everything.alphabet,
        )
        for first in range(0, len(labels), _IMAGES)
    ]
    drawn: list[Result] = []
    try:
        with ProcessPoolExecutor(workers, get_context("spawn")) if workers > 1 else _here() as pool:
            for results in pool.map(draw, parts):
                drawn += results
                progress(len(results))
    except BrokenProcessPool as error:
        raise InputError(f"One of the {workers} drawing processes was killed: try `workers` = 1.") from error
    return drawn


class _here:  # noqa: N801 - stands for a pool of processes
    """Draws in this process."""

    map = staticmethod(map)

    def __enter__(self) -> _here:
        return self

    def __exit__(self, *problem: object) -> None:
        pass
