"""One image with its annotations: what a dataset gives and what transforms take and return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from logn.data.images import ImageArray
from logn.data.masks import BoolArray


@dataclass(frozen=True, eq=False)
class Sample:
    """An image and what is on it.

    Args:
        image: `(H, W, 3)` RGB.
        boxes: `(N, 4)` corners `x1, y1, x2, y2` in pixels of `image`.
        labels: `(N,)` foreground classes, 0 to F-1.
        is_crowd: `(N,)`; a crowd region is not an object to learn from.
        image_id: The image's id in the annotation file.
        mask_source: Makes the masks `(N, H, W)`; called only when `masks()` is.
    """

    image: ImageArray
    boxes: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    is_crowd: BoolArray
    image_id: int
    mask_source: Callable[[], BoolArray] = field(repr=False)

    def masks(self) -> BoolArray:
        """The masks `(N, H, W)`, decoded now; memory is N times the size of the image."""
        return self.mask_source()

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the image."""
        return int(self.image.shape[0]), int(self.image.shape[1])
