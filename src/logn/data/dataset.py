"""DetectionDataset: the images and classes of a data set, from LVIS, COCO, YOLO or Pascal VOC."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from logn.data.annotations import Annotations, IntArray, fingerprint_images, image_names, read_annotations
from logn.data.images import ImageArray, read_rgb
from logn.data.label_sources import find_labels
from logn.errors import InputError


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image; `names` are the paths where it may be, best first."""

    id: int
    names: tuple[str, ...]
    height: int
    width: int


class DetectionDataset:
    """The images and classes of a data set; its annotations are checked and kept as columns.

    Foreground classes are sorted by id; gaps in the ids, as COCO has them, are closed, and `category_ids` leads back.

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
        #: What was read, each object with a listed image and class.
        self.annotations: Annotations = found
        self._images: tuple[ImageRecord, ...] = tuple(found.images)
        classes = sorted(found.categories, key=lambda category: int(category["id"]))
        #: The id in the file of each foreground class.
        self.category_ids: IntArray = np.array([category["id"] for category in classes], np.int64)
        #: The name of each foreground class.
        self.class_names = tuple(str(category.get("name", category["id"])) for category in classes)
        found.positions("category", self.category_ids)

    def _record(self, entry: Mapping[str, Any]) -> ImageRecord:
        number, height, width = entry["id"], entry["height"], entry["width"]
        if min(height, width) < 1:
            raise InputError(
                f"Image {number} of `{self.annotation_file}` has height {height} and width {width}: both must be at "
                "least 1."
            )
        names = image_names(entry)
        if not names:
            raise InputError(f"Image {number} of `{self.annotation_file}` has neither `file_name` nor `coco_url`.")
        return ImageRecord(number, names, height, width)

    def __len__(self) -> int:
        return len(self._images)

    def __repr__(self) -> str:
        counts = f"{len(self)} images, {self.num_classes} classes, {len(self.annotations)} annotations"
        return f"{type(self).__name__}({str(self.annotation_file)!r}: {counts})"

    @property
    def num_classes(self) -> int:
        """Number of foreground classes."""
        return len(self.class_names)

    @cached_property
    def image_ids(self) -> IntArray:
        """The id in the file of each image."""
        return np.array([image.id for image in self._images], np.int64)

    @property
    def images_fingerprint(self) -> str:
        """Digest of the ids and file names of all images, which differs for two data sets with the same ids."""
        return fingerprint_images((image.id, image.names) for image in self._images)

    def image_path(self, index: int) -> Path:
        """Path of an image; an error that names the places tried if there is none."""
        record = self._images[self._position(index)]
        tried = [self.image_root / name for name in record.names]
        for path in tried:
            if path.is_file():
                return path
        places = " or ".join(f"`{path}`" for path in tried)
        raise InputError(
            f"Image {record.id} of `{self.annotation_file}` is not at {places}: put it there, or pass the "
            "folder that paths start from, `image_root`."
        )

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
                f"`{path}` has height and width {image.shape[:2]}, but `{self.annotation_file}` says "
                f"{(record.height, record.width)}: pass the images that were annotated."
            )
        return image

    def _position(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"Expected `index` to be within {len(self)} images, but got {index}.")
        return int(index) % len(self)
