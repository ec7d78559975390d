"""ClassBoxes: of a detector that has a box for each class, those of some pairs of proposal and class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError

Float32 = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]
# What pairs are numbered in: an image of 1,000 proposals and 1,203 classes needs 21 of its bits.
PAIR_DTYPE = np.dtype("<u4")


@dataclass(frozen=True, eq=False)
class ClassBoxes:
    """Boxes of some pairs of proposal and class of one image; a pair without one borrows the box of its proposal.

    Args:
        pairs: `(P,)` uint32, `proposal * num_classes + class`, strictly ascending.
        boxes: `(P, 4)` float32, corners `x1, y1, x2, y2`.
        num_classes: How many foreground classes there are.

    Example:
        >>> some = ClassBoxes(np.array([1, 5], np.uint32), np.array([[0, 0, 1, 1], [0, 0, 2, 2]], np.float32), 3)
        >>> one_each = np.array([[0, 0, 8, 8], [0, 0, 9, 9]], np.float32)
        >>> some.of(np.array([0, 1]), np.array([1, 1]), one_each).tolist()
        [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 9.0, 9.0]]
        >>> some.has(np.array([0, 1]), np.array([1, 1]))
        array([ True, False])
    """

    pairs: npt.NDArray[np.uint32]
    boxes: Float32
    num_classes: int

    def __post_init__(self) -> None:
        if self.boxes.shape != (len(self.pairs), 4):
            raise InputError(f"Expected a box for each of the {len(self.pairs)} pairs, but got {self.boxes.shape}.")

    def _places(self, proposals: npt.NDArray[Any], labels: npt.NDArray[Any]) -> tuple[Indices, npt.NDArray[np.bool_]]:
        """Where the box of each pair would be, and whether it is there."""
        wanted = (proposals.astype(np.int64) * self.num_classes + labels).astype(PAIR_DTYPE)
        places = np.searchsorted(self.pairs, wanted)
        if not len(self.pairs):
            return places, np.zeros(len(wanted), np.bool_)
        return places, self.pairs.take(places, mode="clip") == wanted

    def has(self, proposals: npt.NDArray[Any], labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether each pair of proposal and class has a box of its own."""
        return self._places(proposals, labels)[1]

    def of(self, proposals: npt.NDArray[Any], labels: npt.NDArray[Any], otherwise: Float32) -> Float32:
        """The box of each pair; that of its proposal, from `otherwise` of shape `(N, 4)`, where it has none."""
        places, there = self._places(proposals, labels)
        found: Float32 = otherwise.take(proposals, axis=0)
        found[there] = self.boxes.take(places[there], axis=0)
        return found
