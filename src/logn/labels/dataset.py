"""Images with boxes, labels and masks from annotations of LVIS, COCO, YOLO or Pascal VOC."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from logn.errors import InputError, LogNWarning
from logn.labels.annotation_columns import Category, fingerprint_images, read_annotation_columns
from logn.labels.annotations import IntArray
from logn.labels.image_file import ImageArray, read_image
from logn.labels.json_stream import read_element
from logn.labels.masks import BoolArray, decode_segmentation
from logn.labels.sample import Sample
from logn.labels.sources import find_labels

FloatArray = npt.NDArray[np.float32]


class DetectionDataset:
    """The images and annotations of a data set, held in a few dozen bytes an annotation.

    Foreground class `f` is position `f` of `categories`, which are sorted by id; gaps in the ids, as COCO
    has them, are closed that way and `category_ids` leads back. Boxes are clipped to the image, and those
    that are then less than a pixel wide or high are dropped; a warning counts both. Crowd regions stay,
    marked by `is_crowd`, but don't count in `image_counts` and `instance_counts`.

    Polygons stay in the file until `Sample.masks()` asks for them, so the file must not change meanwhile.

    Args:
        annotation_file: An LVIS v1 or COCO JSON file; the `data.yaml` of YOLO labels, or its folder; a folder of Pascal
            VOC. The split of the last two stands behind a colon, as in `data.yaml:train`; it is "val" else. They have
            no masks.
        image_root: The folder that the paths in the file start from; by default the folder of the file. LVIS
            tells paths only as `coco_url`: its last two parts (`train2017/000000391895.jpg`) and its last
            part are looked for.
    """

    def __init__(
        self, annotation_file: str | os.PathLike[str], image_root: str | os.PathLike[str] | None = None
    ) -> None:
        self.annotation_file = Path(annotation_file)
        source = find_labels(self.annotation_file)
        self.image_root = source.root if image_root is None else Path(image_root)
        self._columns = read_annotation_columns(self.annotation_file)
        #: Whether the annotations can have masks; those of YOLO and VOC are read as boxes.
        self.has_masks = source.form == "json"
        self._mask_file = source.path
        self._stamp = _stamp(self._mask_file)
        self._warn()

    def _warn(self) -> None:
        dropped, clipped = self._columns.dropped_boxes, self._columns.clipped_boxes
        if dropped or clipped:
            warnings.warn(
                f"Of the boxes of `{self.annotation_file}`, {dropped} are dropped because they are empty, "
                f"less than a "
                f"pixel wide or high, or outside the image, and {clipped} are clipped to the image.",
                LogNWarning,
                stacklevel=3,
            )

    def __len__(self) -> int:
        return len(self._columns.images)

    def __getitem__(self, index: int) -> Sample:
        position = self._position(index)
        record = self._columns.images[position]
        rows = self._rows(position)
        image = self.read_image(position)
        return Sample(
            image=image,
            boxes=self._columns.boxes[rows].copy(),
            labels=self._columns.labels[rows].astype(np.int64),
            is_crowd=self._columns.is_crowd[rows].copy(),
            image_id=record.id,
            mask_source=partial(
                _read_masks,
                self._mask_file,
                self._stamp,
                self._columns.places[rows].copy(),
                (record.height, record.width),
            )
            if self.has_masks
            else partial(_refuse_masks, self.annotation_file),
        )

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"DetectionDataset({str(self.annotation_file)!r}: {len(self)} images, {self.num_classes} "
            f"classes, "
            f"{len(self._columns.labels)} annotations)"
        )

    @property
    def categories(self) -> tuple[Category, ...]:
        """The classes in the order of their ids."""
        return self._columns.categories

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
        """How many foreground classes there are."""
        return len(self.categories)

    @cached_property
    def image_ids(self) -> IntArray:
        """The id in the file of each image."""
        return np.array([image.id for image in self._columns.images], np.int64)

    @cached_property
    def image_sizes(self) -> IntArray:
        """Height and width of each image, shape `(len(self), 2)`."""
        return np.array([(image.height, image.width) for image in self._columns.images], np.int64)

    @property
    def images_fingerprint(self) -> str:
        """Digest of the ids and file names of all images, which differs for two data sets with the same ids."""
        return fingerprint_images((image.id, image.names) for image in self._columns.images)

    @cached_property
    def instance_counts(self) -> IntArray:
        """How many objects each class has in this file, crowd regions left out."""
        labels = self._columns.labels[~self._columns.is_crowd]
        return np.bincount(labels, minlength=self.num_classes).astype(np.int64)

    @cached_property
    def image_counts(self) -> IntArray:
        """In how many images of this file each class occurs, crowd regions left out."""
        columns = self._columns
        image_of = np.repeat(np.arange(len(self)), np.diff(columns.starts))
        pairs = np.unique((image_of * self.num_classes + columns.labels)[~columns.is_crowd])
        return np.bincount(pairs % self.num_classes, minlength=self.num_classes).astype(np.int64)

    @property
    def dropped_boxes(self) -> int:
        """How many boxes of the file were left out because nothing of them lies inside the image."""
        return self._columns.dropped_boxes

    @property
    def clipped_boxes(self) -> int:
        """How many boxes reached more than a pixel over the edge of the image."""
        return self._columns.clipped_boxes

    def boxes_of(self, index: int) -> FloatArray:
        """Boxes `(N, 4)` of an image as corners `x1, y1, x2, y2`, without opening it."""
        return self._columns.boxes[self._rows(self._position(index))].copy()

    def labels_of(self, index: int) -> IntArray:
        """Foreground classes `(N,)` of the boxes of an image, without opening it."""
        return self._columns.labels[self._rows(self._position(index))].astype(np.int64)

    def is_crowd_of(self, index: int) -> BoolArray:
        """Which annotations `(N,)` of an image are crowd regions, without opening it."""
        return self._columns.is_crowd[self._rows(self._position(index))].copy()

    def labels_per_image(self) -> list[IntArray]:
        """`labels_of` of every image with crowd regions left out, as the samplers want them."""
        objects = ~self._columns.is_crowd
        counted = np.concatenate([[0], np.cumsum(objects)])[self._columns.starts]
        return np.split(self._columns.labels[objects].astype(np.int64), counted[1:-1])

    def image_path(self, index: int) -> Path:
        """Where the image lies; an error that names the places tried where there is none."""
        record = self._columns.images[self._position(index)]
        tried = [self.image_root / name for name in record.names]
        for path in tried:
            if path.is_file():
                return path
        places = " or ".join(f"`{path}`" for path in tried)
        raise InputError(f"Expected image {record.id} of `{self.annotation_file}` at {places}, but there is no file.")

    def image_paths(self) -> list[Path]:
        """Where each image lies; an error that names the first that is missing."""
        return [self.image_path(index) for index in range(len(self))]

    def read_image(self, index: int) -> ImageArray:
        """Only the picture of an image."""
        record = self._columns.images[self._position(index)]
        path = self.image_path(index)
        image = read_image(path)
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

    def _rows(self, position: int) -> slice:
        return slice(int(self._columns.starts[position]), int(self._columns.starts[position + 1]))


@dataclass(frozen=True)
class _Stamp:
    bytes: int
    modified: int


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return _Stamp(status.st_size, status.st_mtime_ns)


def _refuse_masks(path: Path) -> BoolArray:
    raise InputError(f"Expected `{path}` to have masks, but only boxes are read of YOLO and VOC labels.")


def _read_masks(path: Path, stamp: _Stamp, places: IntArray, size: tuple[int, int]) -> BoolArray:
    if _stamp(path) != stamp:
        raise InputError(f"Expected `{path}` to be as it was when it was read, but it has changed; read it again.")
    masks = np.zeros((len(places), *size), np.bool_)
    with path.open("rb") as file:
        for row, (start, stop) in enumerate(places.tolist()):
            annotation = read_element(file, start, stop)
            try:
                masks[row] = decode_segmentation(annotation.get("segmentation", []), *size)
            except InputError as error:
                raise InputError(f"{str(error)[:-1]} (annotation {annotation.get('id')} of `{path}`).") from error
    return masks
