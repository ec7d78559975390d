"""Glyph scenes: a long-tailed detection problem that is drawn, not downloaded.

The work is cut into shards. A shard writes its images and then one small file with their objects, each in one atomic
step, so a run that was stopped goes on from the last whole shard, and the annotation files appear only at the end.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from logn.datasets.drawn_folder import claim_folder, draw_in_processes, write_json
from logn.datasets.glyph_annotations import DrawnObject, annotation_file, image_name
from logn.datasets.glyph_fonts import font_folder
from logn.datasets.glyph_scene import draw_scene
from logn.datasets.glyph_settings import SPLITS, VERSION, GlyphPlan, GlyphSettings, plan_scenes, scene_generator
from logn.datasets.image_file import import_pillow
from logn.datasets.masks import BoolArray, encode_mask, outline_mask
from logn.errors import InputError
from logn.files import atomic_path

_PARTS = ".parts"
_SHARD_IMAGES = 32
# What folders drawn before a setting existed were drawn with.
_LATER_SETTINGS = {"clutter": 1.0}


def generate_glyph_scenes(
    folder: str | os.PathLike[str],
    settings: GlyphSettings | None = None,
    *,
    workers: int = 1,
    advance: Callable[[float], None] = lambda images: None,
) -> Path:
    """Draw the images and write the annotation files, or finish what an earlier call began.

    Writes `images/{train,dev,test}/*.png`, `train.json`, `dev.json`, `test.json` (federated, as LVIS) and
    `dev_exhaustive.json`, `test_exhaustive.json`. The pictures don't depend on the number of workers.

    Args:
        folder: Where to write; made if it is not there. It must be empty or hold glyph scenes of the same settings.
        settings: What to draw.
        workers: Number of processes; 1 draws in this process.
        advance: Called with the number of images whenever some are finished.

    Example:
        >>> import tempfile
        >>> folder = generate_glyph_scenes(tempfile.mkdtemp(), GlyphSettings(classes=3, train=4, dev=2, test=2))
        >>> sorted(path.name for path in folder.glob("*.json"))
        ['dev.json', 'dev_exhaustive.json', 'settings.json', 'test.json', 'test_exhaustive.json', 'train.json']
    """
    settings = settings or GlyphSettings()
    if workers < 1:
        raise InputError(f"Expected `workers` to be one or more, but got {workers}.")
    import_pillow()
    font_folder()  # what is missing should be said before any file is written
    root = Path(folder)
    claim_folder(root, "glyph scenes", VERSION, asdict(settings), later_settings=_LATER_SETTINGS)
    for split in SPLITS:
        (root / "images" / split).mkdir(parents=True, exist_ok=True)
    if _is_complete(root, settings):
        advance(settings.train + settings.dev + settings.test)
        return root
    plan = plan_scenes(settings)
    (root / _PARTS).mkdir(exist_ok=True)
    _draw_all(list(_shards(root, settings, plan)), workers, advance)
    for split in SPLITS:
        _write_annotations(root, split, settings, plan)
    shutil.rmtree(root / _PARTS)
    return root


def _annotation_names(split: str) -> dict[str, bool]:
    """The annotation files of a split, and whether each is exhaustive."""
    return {"train.json": False} if split == "train" else {f"{split}.json": False, f"{split}_exhaustive.json": True}


def _is_complete(root: Path, settings: GlyphSettings) -> bool:
    files = [name for split in SPLITS for name in _annotation_names(split)]
    images = [image_name(split, image) for split in SPLITS for image in range(settings.image_count(split))]
    return all((root / name).is_file() for name in files + images)


@dataclass(frozen=True)
class _Shard:
    """A run of images of one split that one process draws."""

    root: Path
    settings: GlyphSettings
    split: str
    first: int
    labels: list[list[int]]
    characters: tuple[str, ...]
    distractors: tuple[str, ...]

    @property
    def part(self) -> Path:
        return self.root / _PARTS / f"{self.split}-{self.first:08d}.json"

    def is_done(self) -> bool:
        numbers = range(self.first, self.first + len(self.labels))
        return self.part.is_file() and all((self.root / image_name(self.split, n)).is_file() for n in numbers)


def _shards(root: Path, settings: GlyphSettings, plan: GlyphPlan) -> Iterator[_Shard]:
    for split in SPLITS:
        labels = [entry.tolist() for entry in plan.labels[split]]
        for first in range(0, len(labels), _SHARD_IMAGES):
            mine = labels[first : first + _SHARD_IMAGES]
            alphabet = plan.alphabet
            yield _Shard(root, settings, split, first, mine, alphabet.characters, alphabet.distractors)


def _draw_all(shards: list[_Shard], workers: int, advance: Callable[[float], None]) -> None:
    waiting = [shard for shard in shards if not shard.is_done()]
    advance(sum(len(shard.labels) for shard in shards) - sum(len(shard.labels) for shard in waiting))
    draw_in_processes(_draw_shard, waiting, workers, advance)


def _draw_shard(shard: _Shard) -> int:
    pillow = import_pillow()
    objects = []
    for number, labels in enumerate(shard.labels, start=shard.first):
        generator = scene_generator(shard.settings, shard.split, number)
        characters = [shard.characters[label] for label in labels]
        scene = draw_scene(
            characters, shard.distractors, shard.settings.size, generator, clutter=shard.settings.clutter
        )
        with atomic_path(shard.root / image_name(shard.split, number)) as temporary:
            pillow.fromarray(scene.image).save(temporary, compress_level=1)
        as_polygon = shard.settings.masks == "polygon"
        objects.append([_object(label, mask, as_polygon) for label, mask in zip(labels, scene.masks, strict=True)])
    write_json(shard.part, objects)
    return len(objects)


def _object(label: int, mask: BoolArray, as_polygon: bool) -> DrawnObject:
    rows, columns = np.flatnonzero(mask.any(axis=1)).tolist(), np.flatnonzero(mask.any(axis=0)).tolist()
    return {
        "label": label,
        "bbox": [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1],
        "area": int(mask.sum()),
        "segmentation": outline_mask(mask) if as_polygon else encode_mask(mask),
    }


def _write_annotations(root: Path, split: str, settings: GlyphSettings, plan: GlyphPlan) -> None:
    parts = sorted((root / _PARTS).glob(f"{split}-*.json"))
    objects = [image for part in parts for image in json.loads(part.read_text())]
    for name, exhaustive in _annotation_names(split).items():
        write_json(root / name, annotation_file(split, settings, plan, objects, exhaustive=exhaustive))
