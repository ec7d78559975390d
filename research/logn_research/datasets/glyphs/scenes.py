"""Glyph scenes: a long-tailed detection problem that is drawn, not downloaded.

Images are written in one atomic step each, and the annotation files appear only when all images are there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from logn.base.files import atomic_path
from logn.data.class_counts import frequency_groups
from logn.data.images import import_pillow
from logn.data.masks import BoolArray, encode_mask
from logn.demo.scene import draw_scene
from logn_research.datasets.glyphs.alphabet import glyph_styles
from logn_research.datasets.glyphs.drawing import Images, claim_folder, draw_split, write_json
from logn_research.datasets.glyphs.plan import IntArray
from logn_research.datasets.glyphs.settings import SPLITS, VERSION, GlyphPlan, GlyphSettings, plan_scenes
from logn_research.datasets.outlines import outline_mask

# As in LVIS, a class is verified absent in a few images only; the others say nothing about it.
_FEWEST_NEGATIVES, _MOST_NEGATIVES = 8, 16
# The chance that a class with three or more objects on an image is not marked exhaustively.
_NOT_EXHAUSTIVE = 0.15
_MANY_OBJECTS = 3

#: One drawn object: label, box, area and segmentation, as it goes into the file.
DrawnObject = dict[str, Any]


def image_name(split: str, image: int) -> str:
    """Where an image lies, from the folder of the annotation files.

    Example:
        >>> image_name("dev", 7)
        'images/dev/000007.png'
    """
    return f"images/{split}/{image:06d}.png"


def annotation_file(
    split: str,
    settings: GlyphSettings,
    plan: GlyphPlan,
    objects: Sequence[Sequence[DrawnObject]],
    *,
    exhaustive: bool,
) -> dict[str, Any]:
    """The content of an LVIS v1 file.

    Args:
        split: `train`, `dev` or `test`.
        settings: The settings of the scenes.
        plan: The plan of the scenes.
        objects: The drawn objects of each image.
        exhaustive: Every class is verified on every image, and every object is marked.
    """
    labels = plan.labels[split]
    unfinished: list[list[int]] = [[] for _ in labels]
    if exhaustive:
        negatives = [np.setdiff1d(np.arange(settings.classes), present).tolist() for present in labels]
    else:
        generator = np.random.default_rng((settings.seed, 10 + SPLITS.index(split)))
        negatives = _verified_absent(labels, settings.classes, generator)
        if split != "train":  # a training file marks every object
            unfinished = _not_exhaustive(labels, generator)
    annotations: list[dict[str, Any]] = []
    for image, drawn in enumerate(objects):
        for entry in _marked(drawn, unfinished[image]):
            segmentation = {key: value for key, value in entry.items() if key != "label"}
            annotations.append(
                {"id": len(annotations) + 1, "image_id": image + 1, "category_id": entry["label"] + 1, **segmentation}
            )
    return {
        "info": {"description": "LogN glyph scenes", "split": split, "exhaustive": exhaustive},
        "licenses": [],
        "categories": _categories(plan, settings.classes),
        "images": _images(split, settings.size, negatives, unfinished),
        "annotations": annotations,
    }


def _images(
    split: str, size: int, negatives: Sequence[Sequence[int]], unfinished: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    return [
        {
            "id": image + 1,
            "file_name": image_name(split, image),
            "coco_url": image_name(split, image),
            "height": size,
            "width": size,
            "license": 0,
            "neg_category_ids": [label + 1 for label in absent],
            "not_exhaustive_category_ids": [label + 1 for label in partly],
        }
        for image, (absent, partly) in enumerate(zip(negatives, unfinished, strict=True))
    ]


def _categories(plan: GlyphPlan, num_classes: int) -> list[dict[str, Any]]:
    training = plan.labels["train"]
    instances = np.bincount(np.concatenate(training), minlength=num_classes).tolist()
    images = np.bincount(np.concatenate([np.unique(labels) for labels in training]), minlength=num_classes).tolist()
    groups = frequency_groups(images).tolist()
    entries = zip(plan.alphabet.names, plan.alphabet.characters, plan.alphabet.families, strict=True)
    return [
        {
            "id": label + 1,
            "name": name,
            "synset": f"{name}.n.01",
            "synonyms": [name],
            "def": f"the character {character} (U+{ord(character):04X}) of look-alike family {family}",
            "family": family,
            "frequency": groups[label],
            "image_count": images[label],
            "instance_count": instances[label],
        }
        for label, (name, character, family) in enumerate(entries)
    ]


def _verified_absent(labels: Sequence[IntArray], num_classes: int, generator: np.random.Generator) -> list[list[int]]:
    """The classes that are verified absent on each image: each class on 8 to 16 images that don't have it."""
    present = np.zeros((num_classes, len(labels)), np.bool_)
    for image, classes in enumerate(labels):
        present[classes, image] = True
    negatives: list[list[int]] = [[] for _ in labels]
    for label in range(num_classes):
        wanted = int(generator.integers(_FEWEST_NEGATIVES, _MOST_NEGATIVES + 1))
        for image in generator.permutation(np.flatnonzero(~present[label]))[:wanted].tolist():
            negatives[image].append(label)
    return negatives


def _not_exhaustive(labels: Sequence[IntArray], generator: np.random.Generator) -> list[list[int]]:
    """The classes of which one object on the image is not marked."""
    result = []
    for classes in labels:
        values, counts = np.unique(classes, return_counts=True)
        crowded = values[counts >= _MANY_OBJECTS]
        result.append(crowded[generator.random(len(crowded)) < _NOT_EXHAUSTIVE].tolist())
    return result


def _marked(objects: Sequence[DrawnObject], unfinished: Sequence[int]) -> list[DrawnObject]:
    """The objects that the file has: without the last one of every class that is not exhaustive."""
    left_out = {label: max(i for i, entry in enumerate(objects) if entry["label"] == label) for label in unfinished}
    return [entry for i, entry in enumerate(objects) if left_out.get(entry["label"]) != i]


def generate_glyph_scenes(
    folder: str | os.PathLike[str],
    settings: GlyphSettings | None = None,
    *,
    workers: int = 1,
    progress: Callable[[int], object] = lambda count: None,
) -> Path:
    """Draw the images and write the annotation files; what is complete is not drawn again.

    Writes `images/{train,dev,test}/*.png`, `train.json`, `dev.json`, `test.json` (federated, as LVIS) and
    `dev_exhaustive.json`, `test_exhaustive.json`. The pictures don't depend on the number of workers.

    Args:
        folder: Where to write; made if it is not there. It must be empty or hold glyph scenes of the same settings.
        settings: What to draw.
        workers: Number of processes; 1 draws in this process.
        progress: Called with the number of images whenever some are finished.

    Example:
        >>> import tempfile
        >>> folder = generate_glyph_scenes(tempfile.mkdtemp(), GlyphSettings(classes=3, train=4, dev=2, test=2))
        >>> sorted(path.name for path in folder.glob("*.json"))
        ['dev.json', 'dev_exhaustive.json', 'settings.json', 'test.json', 'test_exhaustive.json', 'train.json']
    """
    settings = settings or GlyphSettings()
    root = Path(folder)
    claim_folder(root, "glyph scenes", VERSION, asdict(settings), workers)
    if all((root / name).is_file() for split in SPLITS for name in _annotation_names(split)):
        progress(settings.train + settings.dev + settings.test)
        return root
    plan = plan_scenes(settings)
    objects: dict[str, list[list[DrawnObject]]] = {}
    for split in SPLITS:
        (root / "images" / split).mkdir(parents=True, exist_ok=True)
        labels = [entry.tolist() for entry in plan.labels[split]]
        everything = Images(root, settings, split, 0, labels, plan.alphabet)
        objects[split] = draw_split(_draw, everything, workers, progress)
    for split in SPLITS:
        for name, exhaustive in _annotation_names(split).items():
            write_json(root / name, annotation_file(split, settings, plan, objects[split], exhaustive=exhaustive))
    return root


def _annotation_names(split: str) -> dict[str, bool]:
    """The annotation files of a split, and whether each is exhaustive."""
    return {"train.json": False} if split == "train" else {f"{split}.json": False, f"{split}_exhaustive.json": True}


def _draw(images: Images) -> list[list[DrawnObject]]:
    pillow = import_pillow()
    objects = []
    settings, alphabet = images.settings, images.alphabet
    distractors = [glyph_styles(character) for character in alphabet.distractors]
    for number, labels, generator in images:
        glyphs = [glyph_styles(alphabet.characters[label]) for label in labels]
        scene = draw_scene(glyphs, distractors, settings.size, generator)
        with atomic_path(images.root / image_name(images.split, number)) as temporary:
            pillow.fromarray(scene.image).save(temporary, compress_level=1)
        as_polygon = settings.masks == "polygon"
        objects.append([_object(label, mask, as_polygon) for label, mask in zip(labels, scene.masks, strict=True)])
    return objects


def _object(label: int, mask: BoolArray, as_polygon: bool) -> DrawnObject:
    rows, columns = np.flatnonzero(mask.any(axis=1)).tolist(), np.flatnonzero(mask.any(axis=0)).tolist()
    return {
        "label": label,
        "bbox": [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1],
        "area": int(mask.sum()),
        "segmentation": outline_mask(mask) if as_polygon else encode_mask(mask),
    }
