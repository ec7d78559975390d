"""What is done to images before a model sees them; all random numbers are passed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from logn.data.images import ImageArray, import_pillow
from logn.data.masks import BoolArray
from logn.errors import InputError, MissingExtraError
from logn_research.datasets.sample import Sample


@dataclass(frozen=True)
class Augmentation:
    """What is done to a training or test image, in this order: resize, flip, change of colours.

    Args:
        short_sides: The shorter side becomes one of these, drawn at random; empty keeps the size.
        longest_side: The longer side becomes at most this; the shorter one follows.
        flip: Chance of a horizontal flip.
        colour: Largest relative change of contrast and of each channel, and of brightness as a share of
            white.

    Example:
        >>> from logn_research.datasets.sample import Sample
        >>> sample = Sample(
        ...     np.zeros((48, 64, 3), np.uint8), np.array([[0, 0, 32, 24]], np.float32), np.array([0]),
        ...     np.array([False]), 1, lambda: np.ones((1, 48, 64), np.bool_)
        ... )
        >>> larger = Augmentation(short_sides=(96,), longest_side=1333)(sample, np.random.default_rng(0))
        >>> larger.size, larger.boxes.tolist(), larger.masks().shape
        ((96, 128), [[0.0, 0.0, 64.0, 48.0]], (1, 96, 128))
    """

    short_sides: tuple[int, ...] = ()
    longest_side: int = 1333
    flip: float = 0.0
    colour: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.flip <= 1:
            raise InputError(f"Expected `flip` to be a chance from 0 to 1, but got {self.flip}.")
        if not 0 <= self.colour < 1:
            raise InputError(f"Expected `colour` to be from 0 to below 1, but got {self.colour}.")

    def __call__(self, sample: Sample, generator: np.random.Generator) -> Sample:
        """A changed copy; the sample itself stays as it is."""
        if self.short_sides:
            short = self.short_sides[int(generator.integers(len(self.short_sides)))]
            sample = resize(sample, *fitted_size(sample.size, short, self.longest_side))
        if self.flip and generator.random() < self.flip:
            sample = flip_horizontally(sample)
        if self.colour:
            sample = replace(sample, image=change_colours(sample.image, self.colour, generator))
        return sample


#: The paper's training recipe.
PAPER_TRAIN = Augmentation(short_sides=(640, 672, 704, 736, 768, 800), longest_side=1333, flip=0.5)
#: The paper's test size; nothing is drawn.
PAPER_TEST = Augmentation(short_sides=(800,), longest_side=1333)
#: Small images as they are. No flip: the mirror image of a glyph may be another class.
SMALL_TRAIN = Augmentation(colour=0.2)


def fitted_size(size: tuple[int, int], short_side: int, longest_side: int) -> tuple[int, int]:
    """The height and width that have this shorter side, unless the longer one would grow too long.

    Example:
        >>> fitted_size((480, 640), 800, 1333), fitted_size((300, 900), 800, 1333)
        ((800, 1067), (444, 1333))
    """
    scale = min(short_side / min(size), longest_side / max(size))
    height, width = (int(side * scale + 0.5) for side in size)
    return max(1, height), max(1, width)


def resize(sample: Sample, height: int, width: int) -> Sample:
    """Stretch to the given size: the image bilinearly, the masks to the nearest pixel."""
    before = sample.size
    if before == (height, width):
        return sample
    pillow = import_pillow()
    picture = pillow.fromarray(sample.image).resize((width, height), pillow.Resampling.BILINEAR)
    scale = np.array([width / before[1], height / before[0]] * 2, np.float32)
    return replace(
        sample,
        image=np.asarray(picture, np.uint8),
        boxes=sample.boxes * scale,
        mask_source=partial(_resized_masks, sample.mask_source, height, width),
    )


def flip_horizontally(sample: Sample) -> Sample:
    """The mirror image."""
    width = sample.size[1]
    boxes = sample.boxes.copy()
    boxes[:, [0, 2]] = width - sample.boxes[:, [2, 0]]
    return replace(
        sample,
        image=np.ascontiguousarray(sample.image[:, ::-1]),
        boxes=boxes,
        mask_source=partial(_flipped_masks, sample.mask_source),
    )


def change_colours(image: ImageArray, amount: float, generator: np.random.Generator) -> ImageArray:
    """Change contrast, brightness and the three channels at random, each by at most `amount`."""
    contrast, brightness = generator.uniform(-amount, amount, 2)
    channels = generator.uniform(1 - amount, 1 + amount, 3)
    pixels = image.astype(np.float32)
    mean = pixels.mean()
    pixels = ((pixels - mean) * (1 + contrast) + mean + 255 * brightness) * channels.astype(np.float32)
    changed: ImageArray = np.clip(pixels + 0.5, 0, 255).astype(np.uint8)
    return changed


def to_tensors(sample: Sample, *, masks: bool = True, first_label: int = 1) -> tuple[Any, dict[str, Any]]:
    """Image `(3, H, W)` in 0..1 and the target that torchvision's detectors take; crowd regions are left out.

    Args:
        sample: The sample.
        masks: Decode the masks too.
        first_label: Label of foreground class 0; torchvision's heads keep 0 for the background.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", extra="torch") from error
    objects = ~sample.is_crowd
    image = torch.from_numpy(np.ascontiguousarray(sample.image.transpose(2, 0, 1))).float().div_(255)
    target = {
        "boxes": torch.from_numpy(sample.boxes[objects]),
        "labels": torch.from_numpy(sample.labels[objects] + first_label),
        "image_id": sample.image_id,
    }
    if masks:
        target["masks"] = torch.from_numpy(sample.masks()[objects].astype(np.uint8))
    return image, target


def _resized_masks(source: Callable[[], BoolArray], height: int, width: int) -> BoolArray:
    masks = source()
    # Pixel centres, as the image is resized by.
    rows = ((np.arange(height) + 0.5) * masks.shape[1] / height).astype(np.int64)
    columns = ((np.arange(width) + 0.5) * masks.shape[2] / width).astype(np.int64)
    return np.asarray(masks[:, rows[:, None], columns[None, :]], np.bool_)


def _flipped_masks(source: Callable[[], BoolArray]) -> BoolArray:
    return np.ascontiguousarray(source()[:, :, ::-1])
