"""The fractal dimension of each class, for FRACAL: from a file that has it, or from the boxes of annotations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.classes.tables import (
    column_of,
    names_of,
    naming,
    numbers,
    place_of,
    read_json,
    read_table,
    read_vector,
)
from logn.errors import InputError
from logn.labels.annotations import read_annotations
from logn.labels.sources import are_labels, with_split
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


COLUMN = "fractal_dimension"


def read_dimensions(path: str | os.PathLike[str], class_names: Sequence[str] | None = None) -> FloatArray:
    r"""Read one dimension per foreground class; those of LVIS or COCO annotations are computed from their boxes.

    Args:
        path: Annotations (of YOLO and VOC those of training) or a list (`.json`), a table with a column
            `fractal_dimension`, or a `.npy` array.
        class_names: Names of the foreground classes; where the file has names too, its classes are put in that order.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "classes.csv"
        >>> _ = path.write_text("name,fractal_dimension\ncup,1.8\nspoon,1.2\n")
        >>> read_dimensions(path, ["spoon", "cup"]).tolist()
        [1.2, 1.8]
    """
    path = Path(path)
    names: Sequence[str] | None = None
    if are_labels(path):
        found = read_annotations(with_split(path, "train"), entries=True)
        names, dimensions = _of_annotations(
            {"categories": found.categories, "images": found.images, "annotations": found.entries}
        )
        return dimensions if class_names is None else dimensions[place_of(class_names, names)]
    with naming(path):
        if path.suffix == ".npy":
            dimensions = read_vector(COLUMN, path)
        elif path.suffix == ".json":
            content = read_json(path)
            if isinstance(content, dict):
                names, dimensions = _of_annotations(content)
            else:
                dimensions = numbers(COLUMN, content)
        else:
            rows = read_table(path)
            names, dimensions = names_of(rows), column_of(rows, (COLUMN,))
        if names is None or class_names is None:
            return dimensions
        return dimensions[place_of(class_names, names)]


def _of_annotations(content: Mapping[str, Any]) -> tuple[tuple[str, ...], FloatArray]:
    """Names and dimensions of the classes in the order of their ids; groups of objects (`iscrowd`) are left out."""
    try:
        categories = sorted(content["categories"], key=lambda category: category["id"])
        label = {category["id"]: index for index, category in enumerate(categories)}
        size = {image["id"]: (image["width"], image["height"]) for image in content["images"]}
        objects = [item for item in content["annotations"] if not item.get("iscrowd")]
        labels = [label[item["category_id"]] for item in objects]
        boxes = np.array([item["bbox"] for item in objects], dtype=np.float64).reshape(-1, 4)
        sizes = np.array([size[item["image_id"]] for item in objects], dtype=np.float64).reshape(-1, 2)
        names = tuple(str(category["name"]) for category in categories)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"Expected COCO or LVIS annotations, but an entry is not complete ({error}).") from error
    centres = np.clip((boxes[:, :2] + boxes[:, 2:] / 2) / sizes, 0.0, 1.0)
    return names, fractal_dimension(centres, labels, len(categories))
