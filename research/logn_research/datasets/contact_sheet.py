"""A sheet of some images with their boxes and masks, to see at a glance what a data set is like."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.files import atomic_path
from logn.data.images import ImageArray, import_pillow
from logn.errors import InputError
from logn_research.datasets.sample import Sample
from logn_research.datasets.sample_dataset import SampleDataset

#: Colours that stay apart for the colour-blind: rare vermilion, common yellow, frequent blue, none white.
GROUP_COLOURS = {"r": (213, 94, 0), "c": (240, 228, 66), "f": (86, 180, 233), None: (255, 255, 255)}

_TILE_PIXELS = 192
_GAP_PIXELS = 4


def draw_contact_sheet(dataset: SampleDataset, *, rows: int = 3, columns: int = 4, seed: int = 0) -> ImageArray:
    """Draw a random choice of images that have objects, frames in the colour of each class's frequency group."""
    with_objects = [index for index in range(len(dataset)) if len(dataset.labels_of(index))]
    if not with_objects:
        raise InputError(f"No image of `{dataset.annotation_file}` has objects to show.")
    chosen = np.random.default_rng(seed).permutation(with_objects)[: rows * columns]
    step = _TILE_PIXELS + _GAP_PIXELS
    sheet = np.full((rows * step - _GAP_PIXELS, columns * step - _GAP_PIXELS, 3), 255, np.uint8)
    for place, index in enumerate(chosen.tolist()):
        top, left = (place // columns) * step, (place % columns) * step
        tile = _tile(dataset[index], dataset)
        sheet[top : top + len(tile), left : left + tile.shape[1]] = tile
    return sheet


def _tile(sample: Sample, dataset: SampleDataset) -> ImageArray:
    pillow = import_pillow()
    from PIL import ImageDraw

    colours = [GROUP_COLOURS.get(dataset.categories[label].frequency, GROUP_COLOURS[None]) for label in sample.labels]
    scale = _TILE_PIXELS / max(sample.size)
    size = (max(1, round(sample.size[1] * scale)), max(1, round(sample.size[0] * scale)))
    tinted = _tinted(sample, colours) if dataset.has_masks else sample.image
    picture = pillow.fromarray(tinted).resize(size, pillow.Resampling.BICUBIC)
    pencil: Any = ImageDraw.Draw(picture)
    for box, colour in zip(sample.boxes * scale, colours, strict=True):
        left, top, right, bottom = (float(value) for value in box)
        pencil.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour, width=1)
    return np.asarray(picture, np.uint8)


def _tinted(sample: Sample, colours: list[tuple[int, int, int]]) -> npt.NDArray[np.uint8]:
    """Tint each mask a little in its colour."""
    tinted = sample.image.astype(np.float32)
    for mask, colour in zip(sample.masks(), colours, strict=True):
        tinted[mask] = 0.75 * tinted[mask] + 0.25 * np.array(colour, np.float32)
    return np.asarray(tinted, np.uint8)


def write_image(path: str | os.PathLike[str], image: ImageArray, *, colours: int | None = None) -> None:
    """Write an image atomically; the suffix gives the format, and few `colours` make a small file."""
    pillow = import_pillow()
    picture = pillow.fromarray(image)
    if colours is not None:
        if not 2 <= colours <= 256:
            raise InputError(f"Expected `colours` to be from 2 to 256, but got {colours}.")
        picture = picture.quantize(colours)
    if Path(path).suffix.lower() not in pillow.registered_extensions():
        raise InputError(f"Expected `{path}` to end in .png or the suffix of another picture format, but it does not.")
    with atomic_path(path) as temporary:
        picture.save(temporary, optimize=True)
