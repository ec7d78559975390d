"""Glyph classes: a long-tailed classification problem that is drawn, not downloaded.

A folder holds one array of images and one of labels for each split, and `classes.json`, which is written last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.files import atomic_path
from logn.data.images import ImageArray
from logn.demo.scene import FloatArray, blur_and_add_noise, draw_background, paint_glyph, turned_glyph
from logn.errors import InputError
from logn_research.datasets.glyphs.alphabet import glyph_styles
from logn_research.datasets.glyphs.drawing import Images, claim_folder, draw_split, read_settings, write_json
from logn_research.datasets.glyphs.settings import (
    CLASSES_VERSION,
    SPLITS,
    GlyphClassPlan,
    GlyphClassSettings,
    plan_classes,
)
from logn_research.datasets.labelled_images import LabelledImages, array_images

# Longer side of the glyph and of what stands around it, as shares of the picture's side.
_SMALLEST_GLYPH, _LARGEST_GLYPH = 0.65, 0.85
_SMALLEST_DISTRACTOR, _LARGEST_DISTRACTOR = 0.25, 0.6
_MARGIN = 0.5  # of the picture's side, on each side, where distractors may begin or end
_DISTRACTOR_CHANCE = 0.5
_CLUTTER = 0.25  # times the lines and arcs of a scene, since the picture is small
_LEAST_CONTRAST = 120.0  # distance in RGB between the glyph and what is under it


def draw_picture(character: str, distractors: Sequence[str], size: int, generator: np.random.Generator) -> ImageArray:
    """Draw a character in a picture, half of the time on top of a smaller one that the edges may cut off.

    Args:
        character: What the picture shows.
        distractors: Characters of no class.
        size: Side of the picture in pixels.
        generator: The random state; the same state draws the same picture.

    Example:
        >>> draw_picture("a", "xyz", 32, np.random.default_rng(0)).shape
        (32, 32, 3)
    """
    margin = round(_MARGIN * size)
    canvas = np.zeros((size + 2 * margin, size + 2 * margin, 3), np.float32)
    inside = canvas[margin : margin + size, margin : margin + size]
    inside += draw_background(size, generator, _CLUTTER)
    side = float(generator.uniform(_SMALLEST_GLYPH, _LARGEST_GLYPH)) * size
    glyph = turned_glyph(glyph_styles(character), side, generator)
    if len(distractors) and generator.random() < _DISTRACTOR_CHANCE:
        _draw_distractor(canvas, distractors, size, generator)
    height, width = glyph.shape
    top, left = (margin + int(generator.integers(0, max(1, size - side + 1))) for side in (height, width))
    paint_glyph(canvas, glyph, top, left, generator, least_contrast=_LEAST_CONTRAST)
    return blur_and_add_noise(inside, generator)


def _draw_distractor(canvas: FloatArray, distractors: Sequence[str], size: int, generator: np.random.Generator) -> None:
    character = distractors[int(generator.integers(len(distractors)))]
    side = float(generator.uniform(_SMALLEST_DISTRACTOR, _LARGEST_DISTRACTOR)) * size
    other = turned_glyph(glyph_styles(character), side, generator)
    highest = np.maximum(1, len(canvas) - np.array(other.shape) + 1)
    top, left = generator.integers(0, highest).tolist()
    paint_glyph(canvas, other, top, left, generator)


CLASSES_FILE = "classes.json"
_WHAT = "glyph classes"


def generate_glyph_classes(
    folder: str | os.PathLike[str],
    settings: GlyphClassSettings | None = None,
    *,
    workers: int = 1,
    progress: Callable[[int], object] = lambda count: None,
) -> Path:
    """Draw the images of all splits; what is complete is not drawn again.

    Writes `{train,dev,test}_images.npy`, `{train,dev,test}_labels.npy` and `classes.json`. The pictures don't depend
    on the number of workers.

    Args:
        folder: Where to write; made if it is not there. It must be empty or hold glyph classes of the same settings.
        settings: What to draw.
        workers: Number of processes; 1 draws in this process.
        progress: Called with the number of images whenever some are finished.

    Example:
        >>> import tempfile
        >>> settings = GlyphClassSettings(classes=4, most=6, fewest=2, dev=1, test=1)
        >>> folder = generate_glyph_classes(tempfile.mkdtemp(), settings)
        >>> images = read_glyph_classes(folder, "train")
        >>> len(images), images.image(0).shape, sorted(images.image_counts.tolist())
        (15, (32, 32, 3), [2, 3, 4, 6])
    """
    settings = settings or GlyphClassSettings()
    root = Path(folder)
    claim_folder(root, _WHAT, CLASSES_VERSION, asdict(settings), workers)
    if is_complete(root):
        progress(settings.images)
        return root
    plan = plan_classes(settings)
    for split in SPLITS:
        everything = Images(root, settings, split, 0, plan.labels[split].tolist(), plan.alphabet)
        pictures: list[ImageArray] = draw_split(_draw, everything, workers, progress)
        _write_array(_images_file(root, split), np.stack(pictures))
        _write_array(_labels_file(root, split), plan.labels[split])
    write_json(root / CLASSES_FILE, _class_table(plan))
    return root


def is_glyph_classes(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder was written, or begun, by `generate_glyph_classes`."""
    return read_settings(Path(folder), _WHAT) is not None


def read_glyph_classes(folder: str | os.PathLike[str], split: str = "train") -> LabelledImages:
    """The images of a split; the pixels stay in the file until they are asked for."""
    root = Path(folder)
    if split not in SPLITS:
        raise InputError(f"Expected `split` to be one of {SPLITS}, but got {split!r}.")
    if not is_glyph_classes(root):
        raise InputError(f"`{root}` holds no glyph classes: draw some by `logn data glyph-classes`.")
    if not is_complete(root):
        raise InputError(f"The drawing of `{root}` was interrupted: run the same command again to finish it.")
    classes = json.loads((root / CLASSES_FILE).read_text(encoding="utf-8"))["categories"]
    return array_images(
        np.load(_images_file(root, split), mmap_mode="r"),
        np.load(_labels_file(root, split)),
        [entry["name"] for entry in classes],
        families=[entry["family"] for entry in classes],
        source=str(_images_file(root, split)),
    )


def _draw(images: Images) -> list[ImageArray]:
    alphabet, size = images.alphabet, images.settings.size
    return [
        draw_picture(alphabet.characters[label], alphabet.distractors, size, generator)
        for _, label, generator in images
    ]


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
