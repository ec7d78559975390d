"""An LVIS or COCO annotation file as NumPy columns, with the polygons left on disk."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.json_stream import Element, stream_elements

IntArray = npt.NDArray[np.int64]


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
    """Parse an LVIS v1 or COCO file.

    Boxes are clipped to the image. What is then less than a pixel wide or high is dropped, as MMDetection's
    reader does, and both are counted.
    """
    draft = _Draft(str(path))
    takers = {
        "images": draft.add_image,
        "categories": draft.add_category,
        "annotations": draft.add_annotation,
    }
    for element in stream_elements(path, skip="segmentation"):
        if element.section in takers:
            takers[element.section](element)
    return draft.finish()


@dataclass
class _Draft:
    path: str
    images: dict[int, ImageRecord] = field(default_factory=dict)
    categories: dict[int, Category] = field(default_factory=dict)
    ids: array[int] = field(default_factory=lambda: array("q"))
    image_ids: array[int] = field(default_factory=lambda: array("q"))
    category_ids: array[int] = field(default_factory=lambda: array("q"))
    corners: array[float] = field(default_factory=lambda: array("d"))
    crowds: array[int] = field(default_factory=lambda: array("b"))
    places: array[int] = field(default_factory=lambda: array("q"))

    def add_image(self, element: Element) -> None:
        entry = self._entry(element, ("id", "height", "width"))
        if entry["id"] in self.images:
            raise InputError(f"Expected `{self.path}` to list each image once, but image {entry['id']} comes twice.")
        if min(entry["height"], entry["width"]) < 1:
            raise InputError(
                f"Expected image {entry['id']} of `{self.path}` to have a height and a width of a pixel or more, "
                f"but got {entry['height']} and {entry['width']}."
            )
        names = image_names(entry)
        if not names:
            raise InputError(
                f"Expected image {entry['id']} of `{self.path}` to have a `file_name` or a `coco_url`, but it has none."
            )
        self.images[entry["id"]] = ImageRecord(entry["id"], names, entry["height"], entry["width"])

    def add_category(self, element: Element) -> None:
        entry = self._entry(element, ("id",))
        if entry["id"] in self.categories:
            raise InputError(
                f"Expected `{self.path}` to list each category once, but category {entry['id']} comes twice."
            )
        name = str(entry.get("name", entry["id"]))
        frequency = entry.get("frequency")
        self.categories[entry["id"]] = Category(entry["id"], name, frequency if frequency in ("r", "c", "f") else None)

    def add_annotation(self, element: Element) -> None:
        entry = self._entry(element, ("image_id", "category_id"))
        box: Any = entry.get("bbox")
        if not _is_box(box):
            raise InputError(
                f"Expected `bbox` of annotation {entry.get('id')} of `{self.path}` to be four finite "
                f"numbers, "
                f"but got {box}."
            )
        self.ids.append(entry["id"] if _is_integer(entry.get("id")) else -1)  # only for messages
        self.image_ids.append(entry["image_id"])
        self.category_ids.append(entry["category_id"])
        self.corners.extend(box)
        self.crowds.append(bool(entry.get("iscrowd", 0)))
        self.places.extend((element.start, element.stop))

    def _entry(self, element: Element, integer_fields: Sequence[str]) -> Mapping[str, Any]:
        entry = element.value
        if not isinstance(entry, dict):
            raise InputError(
                f"Expected `{element.section}` of `{self.path}` to hold objects, "
                f"but got {entry!r:.40} at byte {element.start}."
            )
        for name in integer_fields:
            if not _is_integer(entry.get(name)):
                raise InputError(
                    f"Expected `{name}` of {element.section} entry {entry.get('id', '')} at byte "
                    f"{element.start} "
                    f"of `{self.path}` to be an integer, but got {entry.get(name)!r:.40}."
                )
        return entry

    def finish(self) -> AnnotationColumns:
        for name, found in (("image", self.images), ("category", self.categories)):
            if not found:
                raise InputError(f"Expected `{self.path}` to list at least one {name}, but it lists none.")
        images = tuple(self.images.values())
        categories = tuple(self.categories[key] for key in sorted(self.categories))
        image_of = self._positions(self.image_ids, [image.id for image in images], "image")
        label_of = self._positions(self.category_ids, [category.id for category in categories], "category")
        corners = np.frombuffer(self.corners, np.float64).reshape(-1, 4).copy()
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
            is_crowd=np.frombuffer(self.crowds, np.int8)[order].astype(np.bool_),
            places=np.frombuffer(self.places, np.int64).reshape(-1, 2)[order],
            dropped_boxes=int(np.count_nonzero(~whole)),
            clipped_boxes=int(np.count_nonzero(outside)),
        )

    def _positions(self, used: array[int], listed: Sequence[int], noun: str) -> IntArray:
        """Where each used id stands in the list of ids."""
        wanted = np.frombuffer(used, np.int64)
        ids = np.array(listed, np.int64)
        order = np.argsort(ids)
        nearest: IntArray = order[np.searchsorted(ids[order], wanted).clip(max=len(ids) - 1)]
        unknown = np.flatnonzero(ids[nearest] != wanted)
        if len(unknown):
            raise InputError(
                f"Expected `{self.path}` to list every {noun} that an annotation names, but {noun} "
                f"{wanted[unknown[0]]} of annotation {self.ids[unknown[0]]} is not listed "
                f"({len(unknown)} such annotations)."
            )
        return nearest


def _is_integer(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_box(box: object) -> bool:
    if not isinstance(box, list) or len(box) != 4:
        return False
    return all(type(value) in (int, float) and isfinite(value) for value in box)


def image_names(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Paths under which the image may lie, best first: LVIS tells the folder only in `coco_url`."""
    names = []
    if isinstance(entry.get("coco_url"), str):
        parts = entry["coco_url"].split("/")
        names += ["/".join(parts[-2:]), parts[-1]]
    if isinstance(entry.get("file_name"), str):
        names.insert(0, entry["file_name"])
    return tuple(dict.fromkeys(name for name in names if name))


def fingerprint_images(images: Iterable[tuple[int, tuple[str, ...]]]) -> str:
    """Digest of ids and names of images, by which two data sets with the same ids are told apart.

    Example:
        >>> fingerprint_images([(1, ("a.jpg",))]) == fingerprint_images([(1, ("b.jpg",))])
        False
    """
    listed = sorted((number, *names) for number, names in images)
    return hashlib.sha256(repr(listed).encode()).hexdigest()[:32]
