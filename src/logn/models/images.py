"""The images that a model runs over, and the forms in which detectors take them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import as_numpy, is_torch_tensor
from logn.data.images import read_rgb, select_images, spread_evenly
from logn.errors import InputError, MissingExtraError, warn

Rgb = npt.NDArray[np.uint8]
Images = Sequence[Rgb]
# A file, or a function that returns an RGB image.
ImageItem = Path | Callable[[], Rgb]
ImageSource = str | os.PathLike[str] | Sequence[str | os.PathLike[str] | Callable[[], Rgb]]


def choose_images(source: ImageSource, count: int | None = None) -> list[ImageItem]:
    """The images of a folder or list, at most `count` of them, spread evenly.

    Example:
        >>> [path.name for path in choose_images(["a.png", "b.png", "c.png", "d.png"], 2)]
        ['a.png', 'c.png']
    """
    if isinstance(source, str | os.PathLike):
        return [*select_images(source, count)]
    items: list[ImageItem] = [item if callable(item) else Path(item) for item in source]
    return spread_evenly(items, count)


@dataclass
class ImageFiles:
    """The images that a model runs over.

    Args:
        items: Their files, or functions that return them.
        unreadable: Those that could not be read and were left out, with the reason.
    """

    items: Sequence[ImageItem]
    unreadable: dict[ImageItem, str] = field(default_factory=dict)

    @classmethod
    def noise(cls, side: int = 320) -> ImageFiles:
        """Two images of noise, to prove a fold on where there are no others."""
        drawn = np.random.default_rng(0).integers(0, 256, (2, side, side, 3), np.uint8)
        return cls([lambda: drawn[0], lambda: drawn[1]])

    def read(self) -> Iterator[Rgb]:
        """The images that can be read, as RGB arrays."""
        for item in self.items:
            try:
                yield read_rgb(item) if isinstance(item, Path) else item()
            except InputError as error:
                self.unreadable[item] = str(error)

    def batches(self, size: int) -> Iterator[list[Rgb]]:
        """The images as RGB arrays, `size` at a time."""
        batch: list[Rgb] = []
        for image in self.read():
            batch.append(image)
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch

    def first(self, count: int) -> ImageFiles:
        """The first images that can be read."""
        return ImageFiles([item for item in self.items if item not in self.unreadable][:count])

    def finish(self) -> None:
        """Warn of images that were left out; refuse if all were."""
        left_out = list(self.unreadable)
        if left_out and len(left_out) == len(self.items):
            reason = self.unreadable[left_out[0]]
            raise InputError(f"None of the {len(left_out):,} images can be read: {reason}")
        if left_out:
            named = ", ".join(f"`{path}`" for path in left_out[:3]) + (", …" if len(left_out) > 3 else "")
            warn(f"{len(left_out):,} of {len(self.items):,} images could not be read and were left out: {named}.")


def as_tensor(image: Any) -> Any:
    """An RGB image `(H, W, 3)` as a float tensor `(3, H, W)` in 0..1; a tensor as it is.

    Example:
        >>> tuple(as_tensor(np.zeros((4, 5, 3), np.uint8)).shape)
        (3, 4, 5)
    """
    if is_torch_tensor(image):
        return image
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", extra="torch") from error
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float().div_(255)


def as_rgb(image: Any) -> Rgb:
    """An RGB array of 0 to 255 as it is; a float tensor `(3, H, W)` of 0 to 1 as one.

    Example:
        >>> as_rgb(np.ones((3, 4, 5), np.float32)).shape
        (4, 5, 3)
    """
    array = as_numpy(image)
    if array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3:
        return array
    if array.ndim != 3 or array.shape[0] != 3 or array.dtype.kind != "f":
        raise InputError(
            f"Expected an image of shape (3, H, W), 0 to 1, or (H, W, 3) of uint8, but got {array.shape} of "
            f"{array.dtype}."
        )
    return np.asarray(np.rint(array.transpose(1, 2, 0) * 255).clip(0, 255), np.uint8)
