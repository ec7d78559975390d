"""SampleDataset: a DetectionDataset whose items are images with boxes, labels and masks, for training."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from logn.data.coco import Category
from logn.data.dataset import DetectionDataset
from logn.data.label_sources import find_labels, with_split
from logn.data.labels import IntArray
from logn.data.masks import BoolArray
from logn.errors import InputError, LogNWarning
from logn_research.datasets.masks import decode_segmentation
from logn_research.datasets.sample import Sample

FloatArray = npt.NDArray[np.float32]
TRAINING_NAMES = ("train.json", "annotations/train.json", "lvis_v1_train.json", "annotations/lvis_v1_train.json")


class SampleDataset(DetectionDataset):
    """A data set to train on.

    Boxes are clipped to the image, and those that are then less than a pixel wide or high are dropped, as MMDetection
    does; a warning counts both. Crowd regions stay, marked by `is_crowd_of`, but do not count in `image_counts` and
    `instance_counts`.

    Polygons stay text until `Sample.masks()` asks for them.

    Args:
        annotation_file: As for `DetectionDataset`. Labels of YOLO have no masks.
        image_root: As for `DetectionDataset`.
    """

    def __init__(
        self, annotation_file: str | os.PathLike[str], image_root: str | os.PathLike[str] | None = None
    ) -> None:
        #: Whether the annotations can have masks.
        self.has_masks = find_labels(annotation_file).form == "json"
        super().__init__(annotation_file, image_root, outlines=self.has_masks)
        self._keep_boxes()

    def _keep_boxes(self) -> None:
        """Clip the boxes, drop the empty ones, and order what is left by image."""
        image_of, corners = self.labels.image_index, self.labels.boxes.copy()
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
        self._labels: npt.NDArray[np.int32] = self.labels.classes[order].astype(np.int32)
        self._is_crowd: BoolArray = self.labels.crowd[order]
        self._order = order
        #: Boxes left out because less than a pixel of them is inside the image.
        self.dropped_boxes = int(np.count_nonzero(~whole))
        #: Boxes that reached more than a pixel over the edge of the image.
        self.clipped_boxes = int(np.count_nonzero(outside))
        if self.dropped_boxes or self.clipped_boxes:
            warnings.warn(
                f"Of the boxes of `{self.annotation_file}`, {self.dropped_boxes} are dropped because they are empty, "
                "less than a pixel wide or high, or outside the image, and "
                f"{self.clipped_boxes} are clipped to the image.",
                LogNWarning,
                stacklevel=4,
            )

    @property
    def categories(self) -> tuple[Category, ...]:
        """The classes in the order of their ids."""
        return self.labels.categories

    @cached_property
    def image_sizes(self) -> IntArray:
        """Height and width of each image, shape `(len(self), 2)`."""
        return np.array([(image.height, image.width) for image in self.labels.images], np.int64)

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

    def _rows(self, index: int) -> slice:
        position = range(len(self))[index]
        return slice(int(self._starts[position]), int(self._starts[position + 1]))

    def __getitem__(self, index: int) -> Sample:
        rows = self._rows(index)
        size = tuple(self.image_sizes[index].tolist())
        outlines = self.labels.outlines or ()
        kept = [outlines[row] for row in self._order[rows].tolist()] if outlines else []
        masks = partial(_read_masks, self.annotation_file, kept, size)
        return Sample(
            image=self.read_image(index),
            boxes=self.boxes_of(index),
            labels=self.labels_of(index),
            is_crowd=self.is_crowd_of(index),
            image_id=int(self.image_ids[index]),
            mask_source=masks if self.has_masks else partial(_refuse_masks, self.annotation_file),
        )

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    def labels_per_image(self) -> list[IntArray]:
        """`labels_of` of every image without crowd regions, as samplers take them."""
        objects = ~self._is_crowd
        counted = np.concatenate([[0], np.cumsum(objects)])[self._starts]
        return np.split(self._labels[objects].astype(np.int64), counted[1:-1])


def _refuse_masks(path: Path) -> BoolArray:
    raise InputError(f"`{path}` gives no masks: only boxes are read of YOLO labels.")


def _read_masks(path: Path, outlines: Sequence[msgspec.Raw], size: tuple[int, int]) -> BoolArray:
    masks = np.zeros((len(outlines), *size), np.bool_)
    for row, outline in enumerate(outlines):
        try:
            masks[row] = decode_segmentation(msgspec.json.decode(outline) if outline else [], *size)
        except InputError as error:
            raise InputError(f"{str(error)[:-1]} (of `{path}`).") from error
    return masks


def find_annotations(data: str | os.PathLike[str]) -> Path:
    """The training annotations that `data` is or holds; of YOLO the split "train".

    A folder with a single JSON file needs no particular name.
    """
    path = Path(data)
    if path.is_dir():
        for name in TRAINING_NAMES:
            if (path / name).is_file():
                return path / name
        files = sorted(path.glob("*.json"))
        if len(files) == 1:
            return files[0]
        if files:
            names = ", ".join(file.name for file in files[:5])
            raise InputError(f"`{path}` has no `train.json`, but {names}: name the file itself.")
    found = find_labels(path)
    if not found.path.exists():
        raise InputError(f"There is no annotation file or folder `{path}`.")
    if found.form != "json":
        return with_split(path, "train")
    if found.path.is_dir():
        raise InputError(f"`{path}` has no `train.json`, but no JSON file at all: name the file itself.")
    return found.path
