"""The demonstration's data: drawn scenes with a hundred classes of glyphs, from frequent to rare.

The shapes of the glyphs and the classes of every image come with the package, so the pictures are the same on every
machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.files import atomic_path, write_text
from logn.data.class_counts import frequency_groups
from logn.data.images import import_pillow
from logn.demo.scene import BoolArray, Glyph, IntArray, draw_scene

#: Images that the shipped detector was trained on; the demonstration draws the first of them.
TRAINING_IMAGES = 2400
TEST_IMAGES = 480
SIDE = 128
_SEED = 0
_SPLITS = ("train", "test")
# As in LVIS, a class is verified absent in a few images only; the others say nothing about it.
_FEWEST_NEGATIVES, _MOST_NEGATIVES = 8, 16


@dataclass(frozen=True, eq=False)
class Alphabet:
    """The glyphs of the problem.

    Args:
        names: Of the classes.
        glyphs: Of each class, in its styles.
        distractors: Glyphs that are drawn, too, and are no class.
    """

    names: tuple[str, ...]
    glyphs: tuple[Glyph, ...]
    distractors: tuple[Glyph, ...]


@cache
def _stored() -> dict[str, npt.NDArray[Any]]:
    """The arrays that come with the package."""
    with (files("logn.demo") / "glyphs.npz").open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        return dict(arrays)


@cache
def alphabet() -> Alphabet:
    """The glyphs that come with the package.

    Example:
        >>> len(alphabet().names), len(alphabet().distractors)
        (100, 60)
    """
    names, sizes, styles = _stored()["names"].tolist(), _stored()["sizes"].astype(int), int(_stored()["styles"])
    ends = np.cumsum(sizes.prod(axis=1))[:-1]
    shapes = [part.reshape(size) for part, size in zip(np.split(_stored()["opacity"], ends), sizes, strict=True)]
    glyphs = [tuple(shapes[start : start + styles]) for start in range(0, len(shapes), styles)]
    return Alphabet(tuple(names), tuple(glyphs[: len(names)]), tuple(glyphs[len(names) :]))


@cache
def plan() -> dict[str, list[IntArray]]:
    """The classes of the objects of every training and test image: a long tail in training, all alike in the test.

    Example:
        >>> {split: len(images) for split, images in plan().items()}
        {'train': 2400, 'test': 480}
    """
    labels = {split: _stored()[f"{split}_labels"].astype(np.int64) for split in _SPLITS}
    return {split: np.split(labels[split], np.cumsum(_stored()[f"{split}_objects"])[:-1]) for split in _SPLITS}


def training_counts() -> IntArray:
    """In how many of all training images each class stands.

    Example:
        >>> int(training_counts().max()), int(training_counts().min())
        (600, 2)
    """
    present = np.concatenate([np.unique(labels) for labels in plan()["train"]])
    return np.bincount(present, minlength=len(alphabet().names))


def draw_problem(
    folder: str | os.PathLike[str],
    *,
    train: int = TRAINING_IMAGES,
    test: int = TEST_IMAGES,
    progress: Callable[[int], object] = lambda count: None,
) -> Path:
    """Draw the first images of both splits and write their labels.

    Writes `images/train` and `images/test`, `train.json` and `test.json` (as LVIS: each class is verified absent in a
    few images only) and `counts.csv`, the training images of each class. Images that are there already are kept.

    Args:
        folder: Where to write.
        train: How many training images.
        test: How many test images.
        progress: Called with the number of images whenever some are drawn.

    Example:
        >>> import tempfile
        >>> root = draw_problem(tempfile.mkdtemp(), train=2, test=1)
        >>> sorted(path.name for path in root.iterdir())
        ['counts.csv', 'images', 'test.json', 'train.json']
    """
    root = Path(folder)
    for split, number in zip(_SPLITS, (train, test), strict=True):
        (root / "images" / split).mkdir(parents=True, exist_ok=True)
        objects = []
        for image in range(number):
            objects.append(_draw(root, split, image))
            progress(1)
        write_text(root / f"{split}.json", json.dumps(_annotations(split, objects)))
    rows = [f"{name},{count}" for name, count in zip(alphabet().names, training_counts(), strict=True)]
    write_text(root / "counts.csv", "\n".join(["name,image_count", *rows]) + "\n")
    return root


def _draw(root: Path, split: str, image: int) -> list[tuple[int, list[int]]]:
    """Draw one image; gives the class and the box of each object."""
    labels = plan()[split][image].tolist()
    glyphs = [alphabet().glyphs[label] for label in labels]
    generator = np.random.default_rng((_SEED, 1 + _SPLITS.index(split), image))
    scene = draw_scene(glyphs, alphabet().distractors, SIDE, generator)
    path = root / _file_name(split, image)
    if not path.exists():
        with atomic_path(path) as temporary:
            import_pillow().fromarray(scene.image).save(temporary, format="png", compress_level=1)
    return [(label, _box(mask)) for label, mask in zip(labels, scene.masks, strict=True)]


def _file_name(split: str, image: int) -> str:
    return f"images/{split}/{image:06d}.png"


def _box(mask: BoolArray) -> list[int]:
    rows, columns = np.flatnonzero(mask.any(axis=1)).tolist(), np.flatnonzero(mask.any(axis=0)).tolist()
    return [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]


def _verified_absent(split: str, objects: Sequence[Sequence[tuple[int, list[int]]]]) -> list[list[int]]:
    """The category ids that are verified absent in each image: each class in some images that do not show it."""
    generator = np.random.default_rng((_SEED, 3 + _SPLITS.index(split)))
    present = [{label for label, _ in drawn} for drawn in objects]
    absent: list[list[int]] = [[] for _ in objects]
    for label in range(len(alphabet().names)):
        number = int(generator.integers(_FEWEST_NEGATIVES, _MOST_NEGATIVES + 1))
        free = [image for image, classes in enumerate(present) if label not in classes]
        for image in generator.permutation(free)[:number].astype(int).tolist():
            absent[image].append(label + 1)
    return absent


def _annotations(split: str, objects: Sequence[Sequence[tuple[int, list[int]]]]) -> dict[str, Any]:
    counts = training_counts()
    entries = zip(alphabet().names, frequency_groups(counts).tolist(), counts.tolist(), strict=True)
    categories = [
        {"id": number, "name": name, "frequency": group, "image_count": count}
        for number, (name, group, count) in enumerate(entries, start=1)
    ]
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    absent_classes = _verified_absent(split, objects)
    for number, (drawn, absent) in enumerate(zip(objects, absent_classes, strict=True)):
        file_name = _file_name(split, number)
        entry = {"id": number + 1, "file_name": file_name, "coco_url": file_name, "height": SIDE, "width": SIDE}
        images.append(entry | {"neg_category_ids": absent, "not_exhaustive_category_ids": []})
        for label, box in drawn:
            annotation = {"id": len(annotations) + 1, "image_id": number + 1, "category_id": label + 1, "bbox": box}
            annotations.append(annotation | {"area": box[2] * box[3], "iscrowd": 0})
    return {"images": images, "annotations": annotations, "categories": categories}
