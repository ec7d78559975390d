"""SampleDataset: a DetectionDataset whose items are images with boxes, labels and masks, for training."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from logn.errors import InputError
from logn.labels.annotations import IntArray
from logn.labels.dataset import DetectionDataset
from logn.labels.masks import BoolArray, decode_segmentation
from logn.labels.sources import find_labels
from logn_research.datasets.sample import Sample

Stamp = tuple[int, int]


class SampleDataset(DetectionDataset):
    """A data set to train on.

    Polygons stay in the file until `Sample.masks()` asks for them, so the file must not change meanwhile.

    Args:
        annotation_file: As for `DetectionDataset`. Labels of YOLO and VOC have no masks.
        image_root: As for `DetectionDataset`.
    """

    def __init__(
        self, annotation_file: str | os.PathLike[str], image_root: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(annotation_file, image_root)
        source = find_labels(annotation_file)
        #: Whether the annotations can have masks.
        self.has_masks = source.form == "json"
        self._mask_file, self._stamp = source.path, _stamp(source.path)

    def __getitem__(self, index: int) -> Sample:
        rows = self._rows(index)
        size = tuple(self.image_sizes[index].tolist())
        masks = partial(_read_masks, self._mask_file, self._stamp, self._places[rows].copy(), size)
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


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _refuse_masks(path: Path) -> BoolArray:
    raise InputError(f"Expected `{path}` to have masks, but only boxes are read of YOLO and VOC labels.")


def _read_masks(path: Path, stamp: Stamp, places: IntArray, size: tuple[int, int]) -> BoolArray:
    if _stamp(path) != stamp:
        raise InputError(f"Expected `{path}` to be as it was when it was read, but it has changed; read it again.")
    masks = np.zeros((len(places), *size), np.bool_)
    with path.open("rb") as file:
        for row, (start, stop) in enumerate(places.tolist()):
            file.seek(start)
            annotation = json.loads(file.read(stop - start))
            try:
                masks[row] = decode_segmentation(annotation.get("segmentation", []), *size)
            except InputError as error:
                raise InputError(f"{str(error)[:-1]} (annotation {annotation.get('id')} of `{path}`).") from error
    return masks
