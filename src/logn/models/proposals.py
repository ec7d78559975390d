"""Proposals: what a detector says about an image before any activation, threshold or suppression."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import as_numpy
from logn.base.checks import Between, OneOf, checked
from logn.errors import InputError


@dataclass(frozen=True)
class Proposals:
    """Boxes of one image with the full logit vector of each.

    A calibrator acts on the logits before the activation, so the normaliser of the softmax has to be there: the final
    detections of a model are not enough.

    Args:
        boxes: `(N, 4)` for class-agnostic boxes, or `(N, F, 4)` with one box per foreground class; corners
            `x1, y1, x2, y2` in pixels of the original image.
        logits: `(N, C)`, every column, the background included where there is one. Tensors and lists become arrays.
        height: Height of the original image in pixels.
        width: Width of the original image in pixels.
        objectness: `(N,)` logits of whether there is any object, where the model says so beside the classes (YOLOv5,
            YOLOX, centerness of FCOS): its sigmoid multiplies the score of each class, unless the `Postprocessing`
            says otherwise. A correction of classes leaves it alone. None where there is none.
        box_classes: `(N, K)` the foreground class of each box, where a store kept those of each proposal's top K
            classes only, best first: `boxes` is then `(N, K, 4)`. None otherwise.

    Example:
        >>> Proposals(np.zeros((2, 4)), np.zeros((2, 3)), height=10, width=20).num_columns
        3
        >>> Proposals(np.zeros((2, 4)), np.zeros((1, 3)), height=10, width=20)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `boxes` and `logits` to have the same number of rows, but got (2, 4) and
        (1, 3).
    """

    boxes: npt.NDArray[np.floating[Any]]
    logits: npt.NDArray[np.floating[Any]]
    height: int
    width: int
    objectness: npt.NDArray[np.floating[Any]] | None = None
    box_classes: npt.NDArray[np.integer[Any]] | None = None

    def __post_init__(self) -> None:
        for name in ("boxes", "logits", "objectness"):
            if name != "objectness" or self.objectness is not None:
                object.__setattr__(self, name, _as_numbers(name, getattr(self, name)))
        if self.boxes.ndim not in (2, 3) or self.boxes.shape[-1] != 4:
            raise InputError(f"Expected `boxes` to have shape (N, 4) or (N, F, 4), but got {self.boxes.shape}.")
        if self.box_classes is not None and self.boxes.shape[:-1] != self.box_classes.shape:
            raise InputError(
                f"Expected a box for each of `box_classes` {self.box_classes.shape}, but got {self.boxes.shape}."
            )
        if self.logits.ndim != 2:
            raise InputError(f"Expected `logits` to have shape (N, C), but got {self.logits.shape}.")
        if len(self.boxes) != len(self.logits):
            raise InputError(
                f"Expected `boxes` and `logits` to have the same number of rows, but got {self.boxes.shape} and "
                f"{self.logits.shape}."
            )
        if self.objectness is not None and self.objectness.shape != (len(self.logits),):
            raise InputError(
                f"Expected `objectness` to have shape ({len(self.logits)},), one logit per row, but got "
                f"{self.objectness.shape}."
            )
        if self.height < 1 or self.width < 1:
            raise InputError(f"Expected `height` and `width` to be at least 1, but got {self.height} and {self.width}.")

    @property
    def num_columns(self) -> int:
        """How many columns the logits have."""
        return int(self.logits.shape[1])


# How detections suppress each other, and by which overlap.
Nms = Annotated[str, OneOf("class-wise", "class-agnostic", "none")]
Overlap = Annotated[float, Between(0, 1)]


@dataclass(frozen=True)
@checked
class Postprocessing:
    """How the framework of a model makes detections of its proposals, as far as the scores do not decide it.

    Args:
        nms: "class-wise" where boxes of one class suppress each other, "class-agnostic" where those of all classes do,
            "none" where the model needs no suppression: then the best pairs of proposal and class are kept.
        nms_iou: Boxes that overlap a better one by more than this are suppressed.
        multi_label: Whether a proposal may become a detection of several classes; else of its best one alone.
        score_threshold: Scores strictly greater than this are kept.
        max_detections: How many detections an image may have, over all classes; None for all.
        min_box_size: Boxes with a side shorter than this, in pixels, are dropped.
        clip_boxes: Whether boxes are clipped to the image after suppression; else they stay as the model gives them.
        score_power: The score is the product of class score and objectness to this power: 0.5 where a framework takes
            the square root, as torchvision's FCOS does.
        objectness: What becomes of the objectness of a proposal. "factor": its sigmoid multiplies the scores of the
            classes. "late factor": the same, but the threshold is held against the class scores alone, as MMDetection
            does with a centerness. "added": it is added to the logits of the classes, behind any correction, as the
            quality of a query in D-FINE.

    Example:
        >>> Postprocessing(nms="none", max_detections=300).nms
        'none'
    """

    nms: Nms = "class-wise"
    nms_iou: Overlap = 0.5
    multi_label: bool = True
    score_threshold: float = 1e-4
    max_detections: int | None = 300
    min_box_size: float = 1e-2
    score_power: Annotated[float, Between(0, above=True)] = 1.0
    clip_boxes: bool = False
    objectness: Annotated[str, OneOf("factor", "late factor", "added")] = "factor"


def _as_numbers(name: str, values: Any) -> npt.NDArray[Any]:
    """An array as it is; lists and tensors, wherever they are, become arrays."""
    try:
        array = as_numpy(values) if hasattr(values, "dtype") else np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"Expected `{name}` to be an array of numbers, but got {type(values).__name__}.") from error
    if array.dtype.kind not in "fiu":
        raise InputError(f"Expected `{name}` to be an array of numbers, but got {array.dtype}.")
    return array


# From an image and its detections (boxes, classes, rows) to their masks.
MaskFunction = Callable[[Any, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]], Iterable[npt.NDArray[np.bool_]]]


def check_rows(proposals: Proposals, boxes: npt.NDArray[Any], rows: npt.NDArray[Any]) -> None:
    """Refuse detections that are not those proposals of a model, which was opened in another way than they were made.

    Example:
        >>> made = Proposals([[0, 0, 10, 10]], [[1.5]], height=10, width=20)
        >>> check_rows(made, np.array([[5.0, 0.0, 20.0, 10.0]]), np.array([0]))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: The model gives other boxes than the predictions hold. Open it as `logn predict` did:
        the same `size` and `like`.
    """
    size = np.array([proposals.width, proposals.height] * 2)
    in_range = rows < len(proposals.boxes)
    own = proposals.boxes[rows[in_range]].clip(0, size)
    if not in_range.all() or (np.abs(own - boxes.clip(0, size)) > 0.01 * size.max() + 1).any():
        raise InputError(
            "The model gives other boxes than the predictions hold. Open it as `logn predict` did: the same `size` and "
            "`like`."
        )
