"""Detections of a whole split, column by column, and the settings that make proposals into detections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.checks import checked
from logn.errors import InputError
from logn.models.proposals import Nms, Overlap, Postprocessing
from logn.predictions.store import StoreHeader

LVIS_CAP = 300
# AP is measured over every score above this, as the paper's authors test: with a higher threshold, a method that lowers
# all scores loses detections that others keep.
SCORE_THRESHOLD = 0.0


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
            raise InputError(f"Expected all columns of the detections to have one length, but got {lengths}.")
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


@dataclass(frozen=True)
@checked
class DecodeSettings:
    """What decides, apart from the scores, which proposals become detections.

    Args:
        score_threshold: Scores strictly greater than this are kept.
        nms_iou: Boxes that overlap a better one by more than this are dropped; None takes what the store says, 0.5
            where it says nothing.
        max_detections: How many detections an image may have, over all classes; None or -1 for all.
        min_box_size: Boxes with a side shorter than this, in pixels, are dropped, 0 drops none; None takes what the
            store says, 0.01 as torchvision where it says nothing.
        nms: "class-wise", "class-agnostic" or "none"; None takes what the store says, "class-wise" where it says
            nothing.
        multi_label: Whether a proposal may be detected as several classes, or as its best one alone; None takes what
            the store says, True where it says nothing.

    Example:
        >>> DecodeSettings(max_detections=-1).max_detections is None
        True
    """

    score_threshold: float = SCORE_THRESHOLD
    nms_iou: Overlap | None = None
    max_detections: int | None = LVIS_CAP
    min_box_size: float | None = None
    nms: Nms | None = None
    multi_label: bool | None = None

    def __post_init__(self) -> None:
        if self.max_detections == -1:
            object.__setattr__(self, "max_detections", None)
        elif self.max_detections is not None and self.max_detections < 1:
            raise InputError(
                f"Expected `max_detections` to be at least 1, or -1 for all, but got {self.max_detections}."
            )
        if not self.score_threshold < 1:
            raise InputError(f"Expected `score_threshold` to be below 1, but got {self.score_threshold}.")

    @classmethod
    def of_framework(cls, postprocessing: Postprocessing) -> DecodeSettings:
        """The settings with which decoding gives what the framework of the model itself gives.

        Example:
            >>> DecodeSettings.of_framework(Postprocessing(score_threshold=0.25)).score_threshold
            0.25
        """
        names = ("nms", "nms_iou", "multi_label", "score_threshold", "max_detections", "min_box_size")
        return cls(**{name: getattr(postprocessing, name) for name in names})

    def resolved(self, header: StoreHeader) -> DecodeSettings:
        """Put what the store says of its model in the place of what is None.

        Only how boxes suppress each other and become classes: the threshold and the limits say what is measured.

        Example:
            >>> from logn.statistics.head import Head
            >>> DecodeSettings(nms_iou=0.7).resolved(StoreHeader(Head(2, activation="softmax"))).nms
            'class-wise'
        """
        said = header.postprocessing or Postprocessing()
        names = ("nms", "nms_iou", "multi_label", "min_box_size")
        return replace(self, **{name: getattr(said, name) for name in names if getattr(self, name) is None})
