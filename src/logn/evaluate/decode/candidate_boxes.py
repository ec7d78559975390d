"""The box of a pair of proposal and class: one per proposal, one per class, or those of the top classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logn.logits.proposals import Proposals

Float32 = npt.NDArray[np.float32]


class TopBoxes:
    """The boxes of each proposal's top K classes; another class uses the box of the top one.

    Args:
        boxes: `(N, K, 4)`, those of the top class first.
        classes: `(N, K)` the class of each.
        num_classes: Number of foreground classes.
    """

    def __init__(self, boxes: Float32, classes: npt.NDArray[Any], num_classes: int) -> None:
        self.boxes = boxes
        self._rank = np.zeros((len(boxes), num_classes), np.uint16)
        np.put_along_axis(self._rank, classes.astype(np.intp), np.arange(classes.shape[1], dtype=np.uint16)[None], 1)

    def __len__(self) -> int:
        return len(self.boxes)

    def at(self, proposals: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Float32:
        """The box of each pair."""
        found: Float32 = self.boxes[proposals, self._rank[proposals, labels]]
        return found


Boxes = Float32 | TopBoxes


def boxes_in(proposals: Proposals, num_classes: int) -> Boxes:
    """The boxes of an image."""
    boxes: Float32 = proposals.boxes
    return boxes if proposals.box_classes is None else TopBoxes(boxes, proposals.box_classes, num_classes)


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
    if isinstance(boxes, TopBoxes):
        return boxes.at(proposals, labels)
    if boxes.ndim == 2:
        return boxes.take(proposals, axis=0)
    found: Float32 = boxes[proposals, labels]
    return found
