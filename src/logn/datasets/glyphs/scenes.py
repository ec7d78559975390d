"""Glyph scenes: a long-tailed detection problem that is drawn, not downloaded.

The work is cut into shards. A shard writes its images and then one small file with their objects, each in one atomic
step, so a run that was stopped goes on from the last whole shard, and the annotation files appear only at the end.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from logn.datasets.glyphs.annotations import DrawnObject, annotation_file, image_name
from logn.datasets.glyphs.drawn_folder import claim_folder, write_json
from logn.datasets.glyphs.scene import draw_scene
from logn.datasets.glyphs.settings import SPLITS, VERSION, GlyphPlan, GlyphSettings, plan_scenes
from logn.datasets.glyphs.shards import PARTS, GlyphShard, check_drawing, cut_into_shards, draw_shards
from logn.datasets.image_file import import_pillow
from logn.datasets.masks import BoolArray, encode_mask, outline_mask
from logn.files import atomic_path

_SHARD_IMAGES = 32
# What folders drawn before a setting existed were drawn with.
_LATER_SETTINGS = {"clutter": 1.0}

# An image shows several classes.
_Shard = GlyphShard[GlyphSettings, list[int]]


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
    check_drawing(workers)
    root = Path(folder)
    claim_folder(root, "glyph scenes", VERSION, asdict(settings), later_settings=_LATER_SETTINGS)
    for split in SPLITS:
        (root / "images" / split).mkdir(parents=True, exist_ok=True)
    if _is_complete(root, settings):
        advance(settings.train + settings.dev + settings.test)
        return root
    plan = plan_scenes(settings)
    (root / PARTS).mkdir(exist_ok=True)
    labels = {split: [entry.tolist() for entry in plan.labels[split]] for split in SPLITS}
    shards = cut_into_shards(root, settings, labels, plan.alphabet, images=_SHARD_IMAGES, suffix=".json")
    draw_shards(_draw_shard, shards, _is_drawn, workers, advance)
    for split in SPLITS:
        _write_annotations(root, split, settings, plan)
    shutil.rmtree(root / PARTS)
    return root


def _annotation_names(split: str) -> dict[str, bool]:
    """The annotation files of a split, and whether each is exhaustive."""
    return {"train.json": False} if split == "train" else {f"{split}.json": False, f"{split}_exhaustive.json": True}


def _is_complete(root: Path, settings: GlyphSettings) -> bool:
    files = [name for split in SPLITS for name in _annotation_names(split)]
    images = [image_name(split, image) for split in SPLITS for image in range(settings.image_count(split))]
    return all((root / name).is_file() for name in files + images)


def _is_drawn(shard: _Shard) -> bool:
    return shard.part.is_file() and all((shard.root / image_name(shard.split, n)).is_file() for n in shard.numbers)


def _draw_shard(shard: _Shard) -> int:
    pillow = import_pillow()
    objects = []
    settings, alphabet = shard.settings, shard.alphabet
    for number, labels, generator in shard.images():
        characters = [alphabet.characters[label] for label in labels]
        scene = draw_scene(characters, alphabet.distractors, settings.size, generator, clutter=settings.clutter)
        with atomic_path(shard.root / image_name(shard.split, number)) as temporary:
            pillow.fromarray(scene.image).save(temporary, compress_level=1)
        as_polygon = settings.masks == "polygon"
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
    parts = sorted((root / PARTS).glob(f"{split}-*.json"))
    objects = [image for part in parts for image in json.loads(part.read_text())]
    for name, exhaustive in _annotation_names(split).items():
        write_json(root / name, annotation_file(split, settings, plan, objects, exhaustive=exhaustive))
