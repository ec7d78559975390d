"""Labels: the images, classes and boxes of a detection data set as arrays, read once for all who use them."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from logn.data.coco import Category, CocoReader, LabelledImage, LabelledObject, LabelReader, OutlinedObject
from logn.data.label_sources import find_labels
from logn.data.yolo import YoloReader
from logn.errors import InputError

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
_COLUMNS = ("image_id", "category_id", "area", "iscrowd")
_COLUMN_TYPES = np.dtype([*zip(_COLUMNS, (np.int64, np.int64, np.float64, np.bool_), strict=True)])
_LARGEST_TABLE = 10_000_000


@dataclass(frozen=True, eq=False)
class Labels:
    """The images, classes and objects of a data set; each object has a listed class and, if any are listed, image.

    Args:
        source: Where they came from, for messages.
        categories: The `F` classes in the order of their ids.
        images: The `I` images in their order.
        image_index: `(N,)` image of each object; without a list of images, the place of its id among all ids.
        classes: `(N,)` class of each object.
        boxes: `(N, 4)` as `x, y, width, height`; empty if boxes were not asked for.
        areas: `(N,)` area of each object: of its mask where the labels say it, else of its box.
        crowd: `(N,)` whether it stands for a group of objects.
        outlines: `(N,)` the `segmentation` of each object, as JSON; None unless outlines were asked for.
    """

    source: str
    categories: tuple[Category, ...]
    images: tuple[LabelledImage, ...]
    image_index: IntArray
    classes: IntArray
    boxes: npt.NDArray[np.float64]
    areas: npt.NDArray[np.float64]
    crowd: BoolArray
    outlines: tuple[msgspec.Raw, ...] | None = None

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | Mapping[str, Any],
        *,
        boxes: bool = True,
        outlines: bool = False,
        name: str = "annotations",
    ) -> Labels:
        """Read labels and refuse the first entry that is not as it must be.

        Args:
            source: An LVIS v1 or COCO file, or what `json` made of it; the `data.yaml` of YOLO labels, or its folder.
                The split of the last stands behind a colon, as in `data.yaml:train`; it is "val" by default.
            boxes: Whether objects must have a box; without them the sizes of YOLO's images are not read.
            outlines: Keep the outlines of objects.
            name: What to call content in messages; a file is called by its path.

        Example:
            >>> cup = {"image_id": 7, "category_id": 5, "bbox": [1, 2, 3, 4]}
            >>> content = {"images": [{"id": 7}], "categories": [{"id": 5}], "annotations": [cup]}
            >>> Labels.load(content).boxes.tolist()
            [[1.0, 2.0, 3.0, 4.0]]
            >>> Labels.load({**content, "images": [{"id": "7"}]})
            Traceback (most recent call last):
            ...
            logn.errors.InputError: `annotations` is not as it must be: Expected `int`, got `str` - at `$.images[0].id`.
        """
        source_name = name if isinstance(source, Mapping) else os.fspath(source)
        return cls.of(_reader_of(source, source_name, boxes=boxes, outlines=outlines), source_name, boxes=boxes)

    @classmethod
    def of(cls, reader: LabelReader, source: str, *, boxes: bool = True) -> Labels:
        """The arrays of what a reader gives; ids that come twice or are not listed are refused."""
        categories = tuple(sorted(reader.categories(), key=lambda category: category.id))
        images, objects = tuple(reader.images()), reader.objects()
        columns = _columns_of(objects)
        image_ids = np.array([image.id for image in images], np.int64) if images else np.unique(columns["image_id"])
        category_ids = np.array([category.id for category in categories], np.int64)
        corners = _boxes_of(objects, source) if boxes else np.empty((0, 4))
        areas = columns["area"].copy()
        if boxes:
            areas = np.where(np.isnan(areas), corners[:, 2] * corners[:, 3], areas)
        is_outlined = bool(objects) and isinstance(objects[0], OutlinedObject)
        return cls(
            source,
            categories,
            images,
            _positions(source, "image", image_ids, columns["image_id"]),
            _positions(source, "category", category_ids, columns["category_id"]),
            corners,
            areas,
            columns["iscrowd"].copy(),
            tuple(item.segmentation for item in objects if isinstance(item, OutlinedObject)) if is_outlined else None,
        )

    def __len__(self) -> int:
        return len(self.classes)

    @cached_property
    def image_ids(self) -> IntArray:
        """`(I,)` id of each image."""
        return np.array([image.id for image in self.images], np.int64)

    @cached_property
    def category_ids(self) -> IntArray:
        """`(F,)` id of each class, ascending."""
        return np.array([category.id for category in self.categories], np.int64)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """`(F,)` name of each class; its id where it has none."""
        return tuple(category.title for category in self.categories)

    @property
    def protocol(self) -> str:
        """How they are to be measured: "lvis" where images say which classes were looked for, else "coco".

        COCO and YOLO label every class in every image; LVIS labels are federated. Those of which only some images
        have the fields of LVIS are "lvis" as well, which then refuses the images that lack them.

        Example:
            >>> Labels.load({"images": [{"id": 1, "neg_category_ids": []}]}).protocol
            'lvis'
        """
        return "lvis" if any(image.is_federated for image in self.images) else "coco"

    def require(self, *sections: str) -> None:
        """Refuse labels that list no `images` or no `categories`."""
        for section in sections:
            if not getattr(self, section):
                raise InputError(f"`{self.source}` lists no `{section}`: pass labels in COCO's or LVIS's format.")

    def listed_classes(self, field: str) -> BoolArray:
        """`(I, F)` which classes each image lists in `neg_category_ids` or `not_exhaustive_category_ids`.

        An image without the field is refused; ids that are no category are passed over.
        """
        marks = np.zeros((len(self.images), len(self.categories)), np.bool_)
        column = {category.id: index for index, category in enumerate(self.categories)}
        for index, image in enumerate(self.images):
            ids = image.neg_category_ids if field == "neg_category_ids" else image.not_exhaustive_category_ids
            if ids is None:
                raise InputError(
                    f"Image {image.id} of `{self.source}` has no `{field}`, which the LVIS protocol needs. If every "
                    'class is annotated in every image, leave such fields out everywhere (in Python style="coco" '
                    "passes over them)."
                )
            marks[index, [column[number] for number in ids if number in column]] = True
        return marks


def _reader_of(
    source: str | os.PathLike[str] | Mapping[str, Any], name: str, *, boxes: bool, outlines: bool
) -> LabelReader:
    if isinstance(source, Mapping):
        return CocoReader(source, outlines=outlines, name=name)
    labels = find_labels(source)
    if labels.is_of_classifier:
        what = "a folder without COCO or YOLO labels" if labels.form == "folders" else "a list"
        raise InputError(f"`{labels.path}` is {what}, but boxes are needed: pass LVIS, COCO or YOLO labels.")
    if labels.form == "yolo":
        return YoloReader(labels, sizes=boxes, outlines=outlines)
    return CocoReader(labels.path, outlines=outlines, name=name)


def fingerprint_images(images: Iterable[LabelledImage]) -> str:
    """Digest of the ids and names of images, which tells apart two data sets with the same ids.

    Example:
        >>> fingerprint_images([LabelledImage(1, "a.jpg")]) == fingerprint_images([LabelledImage(1, "b.jpg")])
        False
    """
    listed = sorted((image.id, *image.names) for image in images)
    return hashlib.sha256(repr(listed).encode()).hexdigest()[:32]


def _columns_of(objects: Sequence[LabelledObject]) -> npt.NDArray[Any]:
    """Image, class, area (NaN where there is none) and crowd of each object."""
    rows = map(attrgetter(*_COLUMNS), objects)
    try:
        return np.fromiter(rows, _COLUMN_TYPES, len(objects))
    except TypeError:  # an area is null
        rows = map(attrgetter(*_COLUMNS), objects)
        filled = ((*ids, math.nan if area is None else area, crowd) for *ids, area, crowd in rows)
        return np.fromiter(filled, _COLUMN_TYPES, len(objects))


def _boxes_of(objects: Sequence[LabelledObject], source: str) -> npt.NDArray[np.float64]:
    corners = chain.from_iterable(map(attrgetter("bbox"), objects))
    try:
        boxes = np.fromiter(corners, np.float64, 4 * len(objects)).reshape(-1, 4)
    except TypeError:
        lacking = [item.bbox is None for item in objects].index(True)
        raise InputError(f"Entry {lacking} of `annotations` in `{source}` has no `bbox`.") from None
    negative = np.flatnonzero((boxes[:, 2:] < 0).any(axis=1))
    if len(negative):
        first = int(negative[0])
        raise InputError(
            f"`bbox` of entry {first} of `annotations` in `{source}` must be x, y, width and height, both at least 0, "
            f"but is {boxes[first].tolist()}."
        )
    return boxes


def _positions(source: str, noun: str, listed: IntArray, used: IntArray) -> IntArray:
    """Where each of the `used` ids stands in a list; one that comes twice or is not there is refused."""
    order = np.argsort(listed, kind="stable")
    ids = listed[order]
    if (twice := ids[1:] == ids[:-1]).any():
        raise InputError(f"`{source}` lists {noun} {ids[1:][twice][0]} twice.")
    if not len(used):
        return np.empty(0, np.int64)
    if len(ids) and int(ids[-1]) - int(ids[0]) < _LARGEST_TABLE:  # ten times as fast as a search
        table = np.full(int(ids[-1]) - int(ids[0]) + 3, -1)
        table[ids - ids[0] + 1] = order
        positions: IntArray = table[used.clip(ids[0] - 1, ids[-1] + 1) - ids[0] + 1]
    else:
        nearest = np.searchsorted(ids, used).clip(max=len(ids) - 1)
        positions = np.where(ids[nearest] == used, order[nearest], -1) if len(ids) else np.full(len(used), -1)
    if (positions < 0).any():
        first = int(np.argmax(positions < 0))
        raise InputError(f"`{source}` does not list {noun} {used[first]} of entry {first} of `annotations`.")
    return positions
