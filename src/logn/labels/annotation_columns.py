"""Annotations as NumPy columns, with the polygons left on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.labels.annotations import IntArray, read_annotations


@dataclass(frozen=True)
class Category:
    """One class; `frequency` is LVIS's group (`r`, `c`, `f`), None where the file has none."""

    id: int
    name: str
    frequency: str | None = None


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image; `names` are the paths under which it may lie, best first."""

    id: int
    names: tuple[str, ...]
    height: int
    width: int


@dataclass(frozen=True)
class AnnotationColumns:
    """The content of an annotation file, annotations sorted by image (in file order within an image).

    `starts[i]:starts[i + 1]` are the annotations of image `i`; `places` holds the bytes of the file where
    each annotation begins and ends; `labels` are positions in `categories`, which are sorted by id.
    """

    categories: tuple[Category, ...]
    images: tuple[ImageRecord, ...]
    starts: IntArray
    boxes: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int32]
    is_crowd: npt.NDArray[np.bool_]
    places: IntArray
    dropped_boxes: int
    clipped_boxes: int


def read_annotation_columns(path: str | os.PathLike[str]) -> AnnotationColumns:
    """Read annotations in any form that `read_annotations` takes.

    Boxes are clipped to the image. What is then less than a pixel wide or high is dropped, as MMDetection's
    reader does, and both are counted.
    """
    source = os.fspath(path)
    found = read_annotations(path, integers={"images": ("height", "width")}, image=partial(_image_record, source))
    found.require("images", "categories")
    images = tuple(found.images)
    categories = tuple(sorted(map(_category, found.categories), key=lambda category: category.id))
    image_of = found.positions("image", (image.id for image in images))
    label_of = found.positions("category", (category.id for category in categories))
    corners = found.boxes.copy()
    corners[:, 2:] += corners[:, :2]
    sizes = np.array([(image.width, image.height) for image in images], np.float64)
    clipped = corners.clip(0.0, np.tile(sizes[image_of], 2))
    whole = ((clipped[:, 2:] - clipped[:, :2]) >= 1.0).all(axis=1)
    # Rounded coordinates often end a fraction of a pixel outside; only more than that is worth a word.
    outside = (np.abs(clipped - corners) > 1.0).any(axis=1) & whole
    order = np.argsort(image_of, kind="stable")
    order = order[whole[order]]
    return AnnotationColumns(
        categories=categories,
        images=images,
        starts=np.searchsorted(image_of[order], np.arange(len(images) + 1)),
        boxes=clipped[order].astype(np.float32),
        labels=label_of[order].astype(np.int32),
        is_crowd=found.crowd[order],
        places=found.places[order],
        dropped_boxes=int(np.count_nonzero(~whole)),
        clipped_boxes=int(np.count_nonzero(outside)),
    )


def _image_record(source: str, entry: Mapping[str, Any]) -> ImageRecord:
    number, height, width = entry["id"], entry["height"], entry["width"]
    if min(height, width) < 1:
        raise InputError(
            f"Expected image {number} of `{source}` to have a height and a width of a pixel or more, "
            f"but got {height} and {width}."
        )
    names = image_names(entry)
    if not names:
        raise InputError(
            f"Expected image {number} of `{source}` to have a `file_name` or a `coco_url`, but it has none."
        )
    return ImageRecord(number, names, height, width)


def _category(entry: Mapping[str, Any]) -> Category:
    frequency = entry.get("frequency")
    name = str(entry.get("name", entry["id"]))
    return Category(entry["id"], name, frequency if frequency in ("r", "c", "f") else None)


def image_names(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Paths under which the image may lie, best first: LVIS states the folder only in `coco_url`."""
    names = []
    if isinstance(entry.get("coco_url"), str):
        parts = entry["coco_url"].split("/")
        names += ["/".join(parts[-2:]), parts[-1]]
    if isinstance(entry.get("file_name"), str):
        names.insert(0, entry["file_name"])
    return tuple(dict.fromkeys(name for name in names if name))


def fingerprint_images(images: Iterable[tuple[int, tuple[str, ...]]]) -> str:
    """Digest of ids and names of images, by which two data sets with the same ids are distinguished.

    Example:
        >>> fingerprint_images([(1, ("a.jpg",))]) == fingerprint_images([(1, ("b.jpg",))])
        False
    """
    listed = sorted((number, *names) for number, names in images)
    return hashlib.sha256(repr(listed).encode()).hexdigest()[:32]
