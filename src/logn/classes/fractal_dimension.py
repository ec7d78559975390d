"""Fractal dimension of where the boxes of a class lie in the image, by box counting (for FRACAL)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import FloatArray

MAX_GRID = 64


def fractal_dimension(centres: npt.ArrayLike, labels: npt.ArrayLike, num_classes: int) -> FloatArray:
    """Least-squares slope of `ln(occupied cells)` against `ln(G)` over grids of G x G cells, G up to 64.

    Only grids with at most as many cells as the class has boxes count (`G² <= n`). A class with fewer than four boxes,
    or with a slope below 1, gets dimension 1.

    Args:
        centres: Box centres (N, 2) as shares of the image's width and height. A centre of exactly 1 lies in no cell.
        labels: Foreground class of each box, 0..F-1.
        num_classes: Number of foreground classes.

    Example:
        >>> spread = [(0.1, 0.1), (0.9, 0.1), (0.1, 0.9), (0.9, 0.9)]
        >>> corner = [(0.10, 0.10), (0.12, 0.12), (0.14, 0.10), (0.60, 0.12)]
        >>> fractal_dimension(spread + corner, [0] * 4 + [1] * 4, num_classes=3)
        array([2., 1., 1.])
    """
    points = np.asarray(centres, dtype=np.float64).reshape(-1, 2)
    classes = np.asarray(labels, dtype=np.int64)
    _check(points, classes, num_classes)
    counts = np.bincount(classes, minlength=num_classes)
    grids = np.arange(1, MAX_GRID + 1)
    occupied = np.stack([_occupied_cells(points, classes, num_classes, int(grid)) for grid in grids])
    dimensions = np.ones(num_classes)
    for label in np.flatnonzero(counts >= 4):
        # Cells can all be empty where every centre is exactly 1; such grids say nothing.
        use = (grids**2 <= counts[label]) & (occupied[:, label] > 0)
        if use.sum() >= 2:
            slope = np.polyfit(np.log(grids[use]), np.log(occupied[use, label]), 1)[0]
            dimensions[label] = max(1.0, float(slope))
    return dimensions


def _check(points: FloatArray, classes: npt.NDArray[np.int64], num_classes: int) -> None:
    if classes.shape != (len(points),):
        raise InputError(f"Expected `labels` to have one label per centre ({len(points)}), but got {classes.shape}.")
    if len(classes) and (classes.min() < 0 or classes.max() >= num_classes):
        raise InputError(
            f"Expected `labels` to be in 0..{num_classes - 1}, but got {classes.min()} to {classes.max()}."
        )
    if not ((points >= 0) & (points <= 1)).all():
        raise InputError("Expected `centres` to be shares of the image between 0 and 1, but got some outside.")


def _occupied_cells(
    points: FloatArray, classes: npt.NDArray[np.int64], num_classes: int, grid: int
) -> npt.NDArray[np.int64]:
    """How many of the grid's cells hold a box centre, per class."""
    cells = np.floor(points * grid).astype(np.int64)
    inside = (points < 1).all(axis=1)
    keys = (classes * grid + cells[:, 0]) * grid + cells[:, 1]
    found = np.unique(keys[inside])
    return np.bincount(found // (grid * grid), minlength=num_classes)
