"""Detections of a whole split, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError


@dataclass(frozen=True, eq=False)
class Detections:
    """What is left of the proposals of all images: sorted by image, then by descending score.

    Equal scores of one image stand in the order of proposal, then of class.

    Args:
        image_index: `(D,)` int32, position of the image in the image list of the store.
        labels: `(D,)` int32, foreground class 0..F-1.
        scores: `(D,)` float32.
        boxes: `(D, 4)` float32, corners `x1, y1, x2, y2` in pixels of the original image.
        proposal: `(D,)` int32, which proposal of its image a detection came from.

    Example:
        >>> none = Detections.empty()
        >>> len(none), none.boxes.shape
        (0, (0, 4))
    """

    image_index: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    boxes: npt.NDArray[np.float32]
    proposal: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        lengths = {field.name: len(getattr(self, field.name)) for field in fields(self)}
        if len(set(lengths.values())) != 1:
            raise InputError(f"Expected all columns of the detections to be as long, but got {lengths}.")
        if self.boxes.ndim != 2 or self.boxes.shape[1] != 4:
            raise InputError(f"Expected `boxes` to have shape (D, 4), but got {self.boxes.shape}.")

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, rows: npt.NDArray[Any] | slice) -> Detections:
        """Keep the rows that an index array, a mask or a slice names, in its order.

        Example:
            >>> Detections.empty().take(slice(0, 1)).labels
            array([], dtype=int32)
        """
        return Detections(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def of_image(self, image_index: int) -> Detections:
        """Give the detections of one image, best first, as views."""
        first, last = np.searchsorted(self.image_index, [image_index, image_index + 1])
        return self.take(slice(int(first), int(last)))

    @staticmethod
    def empty() -> Detections:
        """No detection at all."""
        return Detections(
            image_index=np.empty(0, np.int32),
            labels=np.empty(0, np.int32),
            scores=np.empty(0, np.float32),
            boxes=np.empty((0, 4), np.float32),
            proposal=np.empty(0, np.int32),
        )

    @staticmethod
    def concatenate(parts: Sequence[Detections]) -> Detections:
        """Join parts whose images follow each other.

        Example:
            >>> len(Detections.concatenate([Detections.empty(), Detections.empty()]))
            0
        """
        if not parts:
            return Detections.empty()
        return Detections(
            **{
                field.name: np.concatenate([getattr(part, field.name) for part in parts])
                for field in fields(Detections)
            }
        )
