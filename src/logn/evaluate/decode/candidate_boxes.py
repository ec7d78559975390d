"""The boxes of candidates, whichever way a store keeps them: one of each proposal, one of each class, or of some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.logits.proposals import ClassBoxes, Proposals

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class BorrowedBoxes:
    """Boxes of some pairs of proposal and class; the others borrow that of their proposal's strongest class.

    Args:
        one_each: `(N, 4)` the box of each proposal.
        own: Those of some pairs.
    """

    one_each: Float32
    own: ClassBoxes

    def __len__(self) -> int:
        return len(self.one_each)


Boxes = Float32 | BorrowedBoxes


def boxes_in(proposals: Proposals) -> Boxes:
    """The boxes of an image."""
    boxes: Float32 = proposals.boxes
    return boxes if proposals.class_boxes is None else BorrowedBoxes(boxes, proposals.class_boxes)


def has_one_each(boxes: Boxes) -> bool:
    """Whether all classes of a proposal share its box.

    Example:
        >>> has_one_each(np.zeros((7, 4), np.float32)), has_one_each(np.zeros((7, 3, 4), np.float32))
        (True, False)
    """
    return isinstance(boxes, np.ndarray) and boxes.ndim == 2


def boxes_at(boxes: Boxes, proposals: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Float32:
    """The box of each pair of proposal and class.

    Example:
        >>> boxes_at(np.zeros((7, 3, 4), np.float32), np.array([6]), np.array([2])).shape
        (1, 4)
    """
    if isinstance(boxes, BorrowedBoxes):
        return boxes.own.of(proposals, labels, boxes.one_each)
    if boxes.ndim == 2:
        return boxes.take(proposals, axis=0)
    found: Float32 = boxes[proposals, labels]
    return found


def borrows(boxes: Boxes, proposals: npt.NDArray[Any], labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether each pair of proposal and class should have a box of its own, which the store does not keep.

    Example:
        >>> borrows(np.zeros((7, 3, 4), np.float32), np.array([6]), np.array([2]))
        array([False])
    """
    if isinstance(boxes, BorrowedBoxes):
        return ~boxes.own.has(proposals, labels)
    return np.zeros(len(proposals), np.bool_)
