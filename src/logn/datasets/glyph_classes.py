"""Glyph classes: a long-tailed classification problem that is drawn, not downloaded.

A folder holds one array of images and one of labels for each split, and `classes.json`. Shards of a split are drawn
first and joined at the end, each in one atomic step, so a run that was stopped goes on from the last whole shard.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.datasets.drawn_folder import claim_folder, draw_in_processes, read_settings_record, write_json
from logn.datasets.glyph_class_settings import (
    VERSION,
    GlyphClassPlan,
    GlyphClassSettings,
    picture_generator,
    plan_classes,
)
from logn.datasets.glyph_fonts import font_folder
from logn.datasets.glyph_picture import draw_picture
from logn.datasets.glyph_settings import SPLITS
from logn.datasets.image_file import import_pillow
from logn.datasets.labelled_images import LabelledImages, array_images
from logn.errors import InputError
from logn.files import atomic_path

CLASSES_FILE = "classes.json"
_WHAT = "glyph classes"
_PARTS = ".parts"
_SHARD_IMAGES = 256


def generate_glyph_classes(
    folder: str | os.PathLike[str],
    settings: GlyphClassSettings | None = None,
    *,
    workers: int = 1,
    advance: Callable[[float], None] = lambda images: None,
) -> Path:
    """Draw the images of all splits, or finish what an earlier call began.

    Writes `{train,dev,test}_images.npy`, `{train,dev,test}_labels.npy` and `classes.json`. The pictures don't depend
    on the number of workers.

    Args:
        folder: Where to write; made if it is not there. It must be empty or hold glyph classes of the same settings.
        settings: What to draw.
        workers: Number of processes; 1 draws in this process.
        advance: Called with the number of images whenever some are finished.

    Example:
        >>> import tempfile
        >>> settings = GlyphClassSettings(classes=4, most=6, fewest=2, dev=1, test=1)
        >>> folder = generate_glyph_classes(tempfile.mkdtemp(), settings)
        >>> images = read_glyph_classes(folder, "train")
        >>> len(images), images.image(0).shape, sorted(images.image_counts.tolist())
        (15, (32, 32, 3), [2, 3, 4, 6])
    """
    settings = settings or GlyphClassSettings()
    if workers < 1:
        raise InputError(f"Expected `workers` to be one or more, but got {workers}.")
    import_pillow()
    font_folder()  # what is missing should be said before any file is written
    root = Path(folder)
    claim_folder(root, _WHAT, VERSION, asdict(settings))
    if is_complete(root):
        advance(settings.images)
        return root
    plan = plan_classes(settings)
    (root / _PARTS).mkdir(exist_ok=True)
    shards = list(_shards(root, settings, plan))
    waiting = [shard for shard in shards if not shard.part.is_file()]
    advance(sum(len(shard.labels) for shard in shards) - sum(len(shard.labels) for shard in waiting))
    draw_in_processes(_draw_shard, waiting, workers, advance)
    for split in SPLITS:
        _write_array(_images_file(root, split), _joined([shard.part for shard in shards if shard.split == split]))
        _write_array(_labels_file(root, split), plan.labels[split])
    write_json(root / CLASSES_FILE, _class_table(plan))
    shutil.rmtree(root / _PARTS)
    return root


def is_glyph_classes(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder was written, or begun, by `generate_glyph_classes`."""
    return read_settings_record(Path(folder), _WHAT) is not None


def read_glyph_classes(folder: str | os.PathLike[str], split: str = "train") -> LabelledImages:
    """The images of a split; the pixels stay in the file until they are asked for."""
    root = Path(folder)
    if split not in SPLITS:
        raise InputError(f"Expected `split` to be one of {SPLITS}, but got {split!r}.")
    if not is_glyph_classes(root):
        raise InputError(
            f"Expected `{root}` to hold glyph classes, but it does not; draw some by logn data glyph-classes."
        )
    if not is_complete(root):
        raise InputError(f"Expected `{root}` to be drawn to the end, but it is not; start the drawing again.")
    classes = json.loads((root / CLASSES_FILE).read_text())["categories"]
    return array_images(
        np.load(_images_file(root, split), mmap_mode="r"),
        np.load(_labels_file(root, split)),
        [entry["name"] for entry in classes],
        families=[entry["family"] for entry in classes],
        source=str(_images_file(root, split)),
    )


@dataclass(frozen=True)
class _Shard:
    """Some images of a split, with all that a process needs to draw them."""

    root: Path
    settings: GlyphClassSettings
    split: str
    first: int
    labels: list[int]
    characters: tuple[str, ...]
    distractors: tuple[str, ...]

    @property
    def part(self) -> Path:
        return self.root / _PARTS / f"{self.split}-{self.first:08d}.npy"


def _shards(root: Path, settings: GlyphClassSettings, plan: GlyphClassPlan) -> Iterator[_Shard]:
    for split in SPLITS:
        labels = plan.labels[split].tolist()
        for first in range(0, len(labels), _SHARD_IMAGES):
            mine = labels[first : first + _SHARD_IMAGES]
            yield _Shard(root, settings, split, first, mine, plan.alphabet.characters, plan.alphabet.distractors)


def _draw_shard(shard: _Shard) -> int:
    pictures = [
        draw_picture(
            shard.characters[label],
            shard.distractors,
            shard.settings.size,
            picture_generator(shard.settings, shard.split, number),
        )
        for number, label in enumerate(shard.labels, start=shard.first)
    ]
    _write_array(shard.part, np.stack(pictures))
    return len(pictures)


def _joined(parts: list[Path]) -> npt.NDArray[np.uint8]:
    return np.concatenate([np.load(part) for part in parts])


def _class_table(plan: GlyphClassPlan) -> dict[str, Any]:
    """As COCO lists categories, so that whatever reads class counts reads them from here."""
    counts = np.bincount(plan.labels["train"], minlength=len(plan.alphabet.characters)).tolist()
    entries = zip(plan.alphabet.names, plan.alphabet.characters, plan.alphabet.families, counts, strict=True)
    return {
        "categories": [
            {"id": label, "name": name, "character": character, "family": family, "image_count": count}
            for label, (name, character, family, count) in enumerate(entries)
        ]
    }


def _images_file(root: Path, split: str) -> Path:
    return root / f"{split}_images.npy"


def _labels_file(root: Path, split: str) -> Path:
    return root / f"{split}_labels.npy"


def is_complete(folder: str | os.PathLike[str]) -> bool:
    """Whether all files of a drawing are there."""
    root = Path(folder)
    files = [_images_file(root, split) for split in SPLITS] + [_labels_file(root, split) for split in SPLITS]
    return all(file.is_file() for file in [*files, root / CLASSES_FILE])


def _write_array(path: Path, array: npt.NDArray[Any]) -> None:
    with atomic_path(path) as temporary:
        np.save(temporary, array)
