"""DetectionDataset: the images of a data set with boxes and labels, from LVIS, COCO, YOLO or Pascal VOC."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError, LogNWarning
from logn.labels.annotations import IntArray, fingerprint_images, image_names, read_annotations
from logn.labels.sources import find_labels
from logn.logits.images import ImageArray, read_rgb

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Category:
    """One class; `frequency` is LVIS's group (`r`, `c`, `f`), None if the file has none."""

    id: int
    name: str
    frequency: str | None = None


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image; `names` are the paths where it may be, best first."""

    id: int
    names: tuple[str, ...]
    height: int
    width: int


class DetectionDataset:
    """The images and annotations of a data set, in a few dozen bytes per annotation.

    Foreground class `f` is position `f` of `categories`, which are sorted by id; gaps in the ids, as COCO has them, are
    closed, and `category_ids` leads back. Boxes are clipped to the image, and those that are then less than a pixel
    wide or high are dropped, as MMDetection does; a warning counts both. Crowd regions stay, marked by `is_crowd_of`,
    but do not count in `image_counts` and `instance_counts`.

    Args:
        annotation_file: An LVIS v1 or COCO JSON file; the `data.yaml` of YOLO labels, or its folder; a folder of Pascal
            VOC. The split of the last two follows a colon, as in `data.yaml:train`; it is "val" by default.
        image_root: The folder that the paths in the file start from; by default the folder of the file. LVIS gives
            paths only as `coco_url`: its last two parts (`train2017/000000391895.jpg`) and its last part are tried.
    """

    def __init__(
        self, annotation_file: str | os.PathLike[str], image_root: str | os.PathLike[str] | None = None
    ) -> None:
        self.annotation_file = Path(annotation_file)
        self.image_root = find_labels(annotation_file).root if image_root is None else Path(image_root)
        found = read_annotations(annotation_file, integers={"images": ("height", "width")}, image=self._record)
        found.require("images", "categories")
        self._images: tuple[ImageRecord, ...] = tuple(found.images)
        #: The classes in the order of their ids.
        self.categories = tuple(sorted(map(_category, found.categories), key=lambda category: category.id))
        image_of = found.positions("image", (image.id for image in self._images))
        label_of = found.positions("category", (category.id for category in self.categories))
        corners = found.boxes.copy()
        corners[:, 2:] += corners[:, :2]
        clipped = corners.clip(0.0, np.tile(self.image_sizes[:, ::-1].astype(np.float64)[image_of], 2))
        whole = ((clipped[:, 2:] - clipped[:, :2]) >= 1.0).all(axis=1)
        # Rounded coordinates often end a fraction of a pixel outside.
        outside = (np.abs(clipped - corners) > 1.0).any(axis=1) & whole
        order = np.argsort(image_of, kind="stable")
        order = order[whole[order]]
        # The annotations of image `i` are `starts[i]:starts[i + 1]`.
        self._starts = np.searchsorted(image_of[order], np.arange(len(self) + 1))
        self._boxes: FloatArray = clipped[order].astype(np.float32)
        self._labels: npt.NDArray[np.int32] = label_of[order].astype(np.int32)
        self._is_crowd: BoolArray = found.crowd[order]
        self._places: IntArray = found.places[order]  # in the file, for who reads more of the annotations
        #: Boxes left out because less than a pixel of them is inside the image.
        self.dropped_boxes = int(np.count_nonzero(~whole))
        #: Boxes that reached more than a pixel over the edge of the image.
        self.clipped_boxes = int(np.count_nonzero(outside))
        if self.dropped_boxes or self.clipped_boxes:
            warnings.warn(
                f"Of the boxes of `{annotation_file}`, {self.dropped_boxes} are dropped because they are empty, less "
                f"than a pixel wide or high, or outside the image, and {self.clipped_boxes} are clipped to the image.",
                LogNWarning,
                stacklevel=2,
            )

    def _record(self, entry: Mapping[str, Any]) -> ImageRecord:
        number, height, width = entry["id"], entry["height"], entry["width"]
        if min(height, width) < 1:
            raise InputError(
                f"Expected image {number} of `{self.annotation_file}` to have a height and a width of a pixel or more, "
                f"but got {height} and {width}."
            )
        names = image_names(entry)
        if not names:
            raise InputError(
                f"Expected image {number} of `{self.annotation_file}` to have a `file_name` or a `coco_url`, but it "
                "has none."
            )
        return ImageRecord(number, names, height, width)

    def __len__(self) -> int:
        return len(self._images)

    def __repr__(self) -> str:
        counts = f"{len(self)} images, {self.num_classes} classes, {len(self._labels)} annotations"
        return f"{type(self).__name__}({str(self.annotation_file)!r}: {counts})"

    @cached_property
    def category_ids(self) -> IntArray:
        """The id in the file of each foreground class."""
        return np.array([category.id for category in self.categories], np.int64)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each foreground class."""
        return tuple(category.name for category in self.categories)

    @property
    def num_classes(self) -> int:
        """Number of foreground classes."""
        return len(self.categories)

    @cached_property
    def image_ids(self) -> IntArray:
        """The id in the file of each image."""
        return np.array([image.id for image in self._images], np.int64)

    @cached_property
    def image_sizes(self) -> IntArray:
        """Height and width of each image, shape `(len(self), 2)`."""
        return np.array([(image.height, image.width) for image in self._images], np.int64)

    @property
    def images_fingerprint(self) -> str:
        """Digest of the ids and file names of all images, which differs for two data sets with the same ids."""
        return fingerprint_images((image.id, image.names) for image in self._images)

    @cached_property
    def instance_counts(self) -> IntArray:
        """Number of objects of each class, without crowd regions."""
        return np.bincount(self._labels[~self._is_crowd], minlength=self.num_classes).astype(np.int64)

    @cached_property
    def image_counts(self) -> IntArray:
        """Number of images that have each class, without crowd regions."""
        image_of = np.repeat(np.arange(len(self)), np.diff(self._starts))
        pairs = np.unique((image_of * self.num_classes + self._labels)[~self._is_crowd])
        return np.bincount(pairs % self.num_classes, minlength=self.num_classes).astype(np.int64)

    def boxes_of(self, index: int) -> FloatArray:
        """Boxes `(N, 4)` of an image as corners `x1, y1, x2, y2`."""
        return np.array(self._boxes[self._rows(index)])

    def labels_of(self, index: int) -> IntArray:
        """Foreground classes `(N,)` of the boxes of an image."""
        return np.array(self._labels[self._rows(index)], np.int64)

    def is_crowd_of(self, index: int) -> BoolArray:
        """Which annotations `(N,)` of an image are crowd regions."""
        return np.array(self._is_crowd[self._rows(index)])

    def image_path(self, index: int) -> Path:
        """Path of an image; an error that names the places tried if there is none."""
        record = self._images[self._position(index)]
        tried = [self.image_root / name for name in record.names]
        for path in tried:
            if path.is_file():
                return path
        places = " or ".join(f"`{path}`" for path in tried)
        raise InputError(f"Expected image {record.id} of `{self.annotation_file}` at {places}, but there is no file.")

    def image_paths(self) -> list[Path]:
        """Path of each image; an error that names the first that is missing."""
        return [self.image_path(index) for index in range(len(self))]

    def read_image(self, index: int) -> ImageArray:
        """An image as RGB, `(height, width, 3)`."""
        record = self._images[self._position(index)]
        path = self.image_path(index)
        image = read_rgb(path)
        if image.shape[:2] != (record.height, record.width):
            raise InputError(
                f"Expected `{path}` to have height and width {(record.height, record.width)} as "
                f"`{self.annotation_file}` says, but it has {image.shape[:2]}."
            )
        return image

    def _position(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"Expected `index` to be within {len(self)} images, but got {index}.")
        return int(index) % len(self)

    def _rows(self, index: int) -> slice:
        position = self._position(index)
        return slice(int(self._starts[position]), int(self._starts[position + 1]))


def _category(entry: Mapping[str, Any]) -> Category:
    frequency = entry.get("frequency")
    name = str(entry.get("name", entry["id"]))
    return Category(entry["id"], name, frequency if frequency in ("r", "c", "f") else None)
