"""Images with one class each: what a classifier is trained and measured on, wherever the pixels come from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.labels.image_file import ImageArray, read_image

IntArray = npt.NDArray[np.int64]

_NAMED_AT_MOST = 5  # classes in an error message


class Pixels(Protocol):
    """Where the pixels of a set of images come from."""

    def __len__(self) -> int:
        """How many images there are."""
        ...

    def read(self, index: int) -> ImageArray:
        """One image as RGB of shape `(height, width, 3)`, a copy of its own."""
        ...

    def select(self, rows: IntArray) -> Pixels:
        """The images at these places, without reading any."""
        ...


@dataclass(frozen=True, eq=False)
class FilePixels:
    """One picture file an image, opened when it is asked for.

    Args:
        root: The folder that the paths start from.
        paths: Where each image lies below it.
    """

    root: Path
    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> ImageArray:
        """Decode a file; an error names the one that is missing or broken."""
        return read_image(self.root / self.paths[index])

    def select(self, rows: IntArray) -> FilePixels:
        """The files at these places."""
        return replace(self, paths=tuple(self.paths[row] for row in rows.tolist()))


@dataclass(frozen=True, eq=False)
class ArrayPixels:
    """Images of one size in one array `(N, height, width, 3)`, which may be mapped from a file.

    Args:
        array: All images.
        rows: Which of them these are; None for all. The array is never copied.
    """

    array: npt.NDArray[np.uint8]
    rows: IntArray | None = None

    def __post_init__(self) -> None:
        if self.array.ndim != 4 or self.array.shape[3] != 3 or self.array.dtype != np.uint8:
            raise InputError(
                f"Expected `array` to be uint8 of shape (images, height, width, 3), "
                f"but got {self.array.dtype} of shape {self.array.shape}."
            )

    def __len__(self) -> int:
        return len(self.array) if self.rows is None else len(self.rows)

    def read(self, index: int) -> ImageArray:
        """Copy an image out of the array."""
        return np.array(self.array[index if self.rows is None else self.rows[index]])

    def select(self, rows: IntArray) -> ArrayPixels:
        """The rows at these places; the array stays where it is."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images with one class each.

    Args:
        pixels: Where the images come from.
        labels: The class of each image, int64 `(N,)`.
        class_names: One name a class; also says how many classes there are.
        families: The look-alike family of each class, where the source knows it.
        source: Where all this was read from, for messages.

    Example:
        >>> images = LabelledImages(ArrayPixels(np.zeros((3, 8, 8, 3), np.uint8)), [0, 2, 0], ("a", "b", "c"))
        >>> len(images), images.image_counts.tolist(), images.image(1).shape
        (3, [2, 0, 1], (8, 8, 3))
        >>> images.subset([1]).labels.tolist()
        [2]
    """

    pixels: Pixels
    labels: IntArray
    class_names: tuple[str, ...]
    families: tuple[int, ...] | None = None
    source: str = "images"

    def __post_init__(self) -> None:
        labels: npt.NDArray[Any] = np.asarray(self.labels)
        if labels.shape != (len(self.pixels),) or (labels.size and not np.issubdtype(labels.dtype, np.integer)):
            raise InputError(
                f"Expected `labels` to be {len(self.pixels)} whole numbers, one an image, "
                f"but got {labels.dtype} of shape {labels.shape}."
            )
        outside = np.flatnonzero((labels < 0) | (labels >= len(self.class_names)))
        if len(outside):
            raise InputError(
                f"Expected the labels of `{self.source}` to be from 0 to {len(self.class_names) - 1}, "
                f"but got {labels[outside[0]]} for image {outside[0]}."
            )
        if self.families is not None and len(self.families) != len(self.class_names):
            raise InputError(
                f"Expected `families` to be one number for each of the {len(self.class_names)} classes, "
                f"but got {len(self.families)}."
            )
        labels = labels.astype(np.int64)  # a copy, so that it can be made read-only
        labels.setflags(write=False)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"LabelledImages({self.source!r}: {len(self)} images, {self.num_classes} classes)"

    @property
    def num_classes(self) -> int:
        """How many classes there are, with or without images."""
        return len(self.class_names)

    @cached_property
    def image_counts(self) -> IntArray:
        """How many images each class has here, int64 `(C,)`."""
        return np.bincount(self.labels, minlength=self.num_classes).astype(np.int64)

    def image(self, index: int) -> ImageArray:
        """One image as uint8 RGB of shape `(height, width, 3)`."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"Expected `index` to be within {len(self)} images, but got {index}.")
        return self.pixels.read(int(index) % len(self))

    def stack(self, indices: Iterable[int]) -> ImageArray:
        """Several images of one size as uint8 `(B, height, width, 3)`; quick where they lie in one array."""
        if isinstance(self.pixels, ArrayPixels):
            places = np.fromiter(indices, np.int64)
            return np.asarray(self.pixels.array[places if self.pixels.rows is None else self.pixels.rows[places]])
        images = [self.image(index) for index in indices]
        sizes = {image.shape for image in images}
        if len(sizes) != 1:
            raise InputError(f"Expected the images of `{self.source}` to be of one size, but got {sorted(sizes)}.")
        return np.stack(images)

    def labels_per_image(self) -> list[IntArray]:
        """The one class of each image as an array, as the samplers want them."""
        return list(self.labels[:, None])

    def subset(self, indices: npt.ArrayLike) -> LabelledImages:
        """The images at these places, with all classes; nothing is read."""
        rows: npt.NDArray[Any] = np.asarray(indices)
        if rows.dtype == np.bool_:
            raise InputError("Expected `indices` to be positions of images, but got truth values; use np.flatnonzero.")
        rows = rows.astype(np.int64).ravel()
        if len(rows) and not -len(self) <= rows.min() <= rows.max() < len(self):
            raise InputError(
                f"Expected `indices` to be within {len(self)} images, but got {rows.min()} to {rows.max()}."
            )
        rows = rows % len(self) if len(rows) else rows
        return replace(self, pixels=self.pixels.select(rows), labels=self.labels[rows])


def array_images(
    array: npt.ArrayLike,
    labels: npt.ArrayLike,
    class_names: Sequence[str] | None = None,
    *,
    families: Sequence[int] | None = None,
    source: str = "images",
) -> LabelledImages:
    """Images from an array `(N, height, width, 3)` of uint8 and one label each.

    Args:
        array: The images; a memory map stays one.
        labels: Whole numbers from 0.
        class_names: Names of the classes; by default the numbers up to the largest label.
        families: The look-alike family of each class, if known.
        source: What to call the images in messages.

    Example:
        >>> array_images(np.zeros((2, 4, 4, 3), np.uint8), [0, 1]).class_names
        ('0', '1')
    """
    classes = np.asarray(labels)
    names = numbered_names(int(classes.max()) + 1 if classes.size else 0) if class_names is None else class_names
    return LabelledImages(
        ArrayPixels(cast("npt.NDArray[np.uint8]", np.asanyarray(array))),
        cast(IntArray, classes),
        tuple(names),
        families=None if families is None else tuple(families),
        source=source,
    )


def numbered_names(num_classes: int) -> tuple[str, ...]:
    """Names for classes that have none: their numbers."""
    return tuple(str(number) for number in range(num_classes))


def read_class_names(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Names of classes from a text file, one a line in the order of the labels."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"Expected `{file}` to be a file with one class name a line, but there is none.")
    try:
        names = tuple(line.strip() for line in file.read_text(encoding="utf-8").rstrip().splitlines())
    except UnicodeDecodeError as error:
        raise InputError(f"Expected `{file}` to be text in UTF-8, but it is not ({error.reason}).") from error
    for number, name in enumerate(names, start=1):
        if not name:
            raise InputError(f"Expected a class name on line {number} of `{file}`, but it is empty.")
    if not names:
        raise InputError(f"Expected `{file}` to have one class name a line, but it is empty.")
    return names


def require_every_class(images: LabelledImages) -> None:
    """Refuse images to train on that lack a class, and name it.

    Example:
        >>> require_every_class(array_images(np.zeros((1, 4, 4, 3), np.uint8), [1], ["cat", "dog"]))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `images` to have every class, but there is no image of class 0 (`cat`).
    """
    absent = np.flatnonzero(images.image_counts == 0).tolist()
    if not absent:
        return
    named = ", ".join(f"{label} (`{images.class_names[label]}`)" for label in absent[:_NAMED_AT_MOST])
    more = f" and {len(absent) - _NAMED_AT_MOST} more" if len(absent) > _NAMED_AT_MOST else ""
    noun = "class" if len(absent) == 1 else "classes"
    raise InputError(f"Expected `{images.source}` to have every class, but there is no image of {noun} {named}{more}.")
