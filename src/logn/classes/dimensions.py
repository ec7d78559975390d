"""The fractal dimension of each class, for FRACAL: from a file that has it, or from the boxes of annotations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from logn.classes.fractal_dimension import fractal_dimension
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
from logn.logits.arrays import FloatArray

COLUMN = "fractal_dimension"


def read_dimensions(path: str | os.PathLike[str], class_names: Sequence[str] | None = None) -> FloatArray:
    r"""Read one dimension per foreground class; those of LVIS or COCO annotations are computed from their boxes.

    Args:
        path: Annotations or a list (`.json`), a table with a column `fractal_dimension`, or a `.npy` array.
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
