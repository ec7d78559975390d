"""Fractal dimensions of classes (FRACAL, CVPR 2025): how evenly the boxes of each class cover the image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray
from logn.data.class_names import places_of
from logn.data.class_tables import column_of, names_of, naming, read_table
from logn.data.label_sources import with_split
from logn.data.labels import Labels
from logn.errors import InputError

DIMENSION = "fractal_dimension"
MAX_GRID = 64


def read_dimensions(path: str | os.PathLike[str], class_names: Sequence[str] | None = None) -> FloatArray:
    r"""Read one fractal dimension per foreground class, or compute it from the boxes of annotations.

    Args:
        path: Annotations (of YOLO those of training), or a table with a column `fractal_dimension`.
        class_names: Names of the foreground classes; where the file has names too, its classes are put in that order.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "classes.csv"
        >>> _ = path.write_text("name,fractal_dimension\ncup,1.8\nspoon,1.2\n")
        >>> read_dimensions(path, ["spoon", "cup"]).tolist()
        [1.2, 1.8]
    """
    path = Path(path)
    if path.suffix == ".csv":
        with naming(path):
            rows = read_table(path)
            names, dimensions = names_of(rows), column_of(rows, (DIMENSION,))
    else:
        names, dimensions = _dimensions(Labels.load(with_split(path, "train")))
    if names is None or class_names is None:
        return dimensions
    return dimensions[places_of(class_names, names)]


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
    if classes.shape != (len(points),):
        raise InputError(f"Expected `labels` to have one label per centre ({len(points)}), but got {classes.shape}.")
    if len(classes) and (classes.min() < 0 or classes.max() >= num_classes):
        raise InputError(
            f"Expected `labels` to be in 0..{num_classes - 1}, but got {classes.min()} to {classes.max()}."
        )
    if not ((points >= 0) & (points <= 1)).all():
        raise InputError("Expected `centres` to be shares of the image between 0 and 1, but got some outside.")
    counts = np.bincount(classes, minlength=num_classes)
    grids = np.arange(1, MAX_GRID + 1)
    occupied = np.stack([_occupied_cells(points, classes, num_classes, int(grid)) for grid in grids])
    dimensions = np.ones(num_classes)
    for label in np.flatnonzero(counts >= 4):
        # All cells are empty where every centre is exactly 1; such grids say nothing.
        use = (grids**2 <= counts[label]) & (occupied[:, label] > 0)
        if use.sum() >= 2:
            slope = np.polyfit(np.log(grids[use]), np.log(occupied[use, label]), 1)[0]
            dimensions[label] = max(1.0, float(slope))
    return dimensions


def _occupied_cells(
    points: FloatArray, classes: npt.NDArray[np.int64], num_classes: int, grid: int
) -> npt.NDArray[np.int64]:
    """How many of the grid's cells hold a box centre, per class."""
    cells = np.floor(points * grid).astype(np.int64)
    keys = (classes * grid + cells[:, 0]) * grid + cells[:, 1]
    occupied = np.unique(keys[(points < 1).all(axis=1)])
    return np.bincount(occupied // (grid * grid), minlength=num_classes)


def _dimensions(labels: Labels) -> tuple[tuple[str, ...], FloatArray]:
    """Names and dimensions of the classes; groups of objects (`iscrowd`) are left out."""
    labels.require("images", "categories")
    objects = ~labels.crowd
    all_sizes = np.array([(image.width or 0, image.height or 0) for image in labels.images], np.float64)
    sizes = all_sizes[labels.image_index[objects]]
    if not (sizes > 0).all():
        raise InputError(f"An image of `{labels.source}` has no `width` or `height`, which its boxes need.")
    boxes = labels.boxes[objects]
    centres = np.clip((boxes[:, :2] + boxes[:, 2:] / 2) / sizes, 0.0, 1.0)
    return labels.class_names, fractal_dimension(centres, labels.classes[objects], len(labels.categories))
