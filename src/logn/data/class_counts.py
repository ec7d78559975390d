"""ClassCounts: how often each class occurs in training, or where a model is used."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray
from logn.base.files import mapped_bytes
from logn.data.class_names import places_of, warn_of_position
from logn.data.class_tables import Rows, column_of, names_of, naming, numbers, read_json, read_table
from logn.errors import InputError

if TYPE_CHECKING:  # label readers are loaded by those who read labels
    from logn.data.labels import Labels

_COUNT_COLUMNS = ("image_count", "count", "share")


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Counts per foreground class, in the order of the model's foreground columns; shares of a class mix serve too.

    Attributes:
        image_counts: Images that hold the class, float64 (F,).
        instance_counts: Objects of the class; equal to `image_counts` where a file has only one count.
        names: Class names, if the file has them.
        num_images: Images of the training set, if the file says.

    Example:
        >>> counts = ClassCounts(image_counts=[60, 20, 1], names=["cup", "spoon", "saucer"])
        >>> counts.instance_counts.tolist()
        [60.0, 20.0, 1.0]
        >>> counts.aligned_to(["saucer", "cup", "spoon"]).image_counts.tolist()
        [1.0, 60.0, 20.0]
    """

    image_counts: FloatArray
    instance_counts: FloatArray = field(default_factory=lambda: np.empty(0))  # empty: the same as image_counts
    names: tuple[str, ...] | None = None
    num_images: int | None = None

    def __post_init__(self) -> None:
        instances = self.instance_counts if np.size(self.instance_counts) else self.image_counts
        for name, values in (("image_counts", self.image_counts), ("instance_counts", instances)):
            object.__setattr__(self, name, _as_counts(name, values))
        if len(self.image_counts) != len(self.instance_counts):
            raise InputError(
                f"Expected `instance_counts` to have one count per class ({len(self.image_counts)}), "
                f"but got {len(self.instance_counts)}."
            )
        if self.names is not None:
            object.__setattr__(self, "names", tuple(str(name) for name in self.names))
            if len(self.names) != len(self.image_counts):
                raise InputError(f"Expected `names` to be {self.num_classes} names, but got {len(self.names)}.")

    @property
    def num_classes(self) -> int:
        """Number of foreground classes."""
        return len(self.image_counts)

    def aligned_to(self, names: Sequence[str] | None) -> ClassCounts:
        """Put the classes in the order of `names`.

        Counts without names are taken by position; named counts too where `names` is None, with a warning.
        """
        if names is None and self.names is not None:
            warn_of_position("counts", self.names)
        if names is None or self.names is None or self.names == tuple(names):
            return self
        order = places_of(names, self.names)
        return ClassCounts(self.image_counts[order], self.instance_counts[order], tuple(names), self.num_images)

    def fitting(self, names: Sequence[str] | None, num_classes: int, background: int | None) -> ClassCounts:
        """The counts in the order of `names`; those of another number of foreground classes are refused."""
        table = self.aligned_to(names)
        if table.num_classes == num_classes:
            return table
        forgotten = background is None and table.num_classes == num_classes - 1
        hint = "; is one of the columns a `background`, first or last?" if forgotten else "."
        raise InputError(
            f"Expected `counts` to have {num_classes} foreground classes, but got {table.num_classes}{hint}"
        )

    def at_least(self, minimum: float = 1.0) -> ClassCounts:
        """Raise smaller counts to `minimum`: 0 has no logarithm.

        Example:
            >>> ClassCounts(np.array([5.0, 0.0])).at_least(1).image_counts.tolist()
            [5.0, 1.0]
        """
        images, instances = np.maximum(self.image_counts, minimum), np.maximum(self.instance_counts, minimum)
        return ClassCounts(images, instances, self.names, self.num_images)

    @classmethod
    def of(cls, counts: ClassCounts | npt.ArrayLike) -> ClassCounts:
        """Counts as they are, or of plain numbers per class.

        Example:
            >>> ClassCounts.of([60, 20]).image_counts.tolist()
            [60.0, 20.0]
        """
        return counts if isinstance(counts, ClassCounts) else cls(np.asarray(counts, np.float64))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ClassCounts:
        r"""Read labels (of YOLO those of training), a folder or list of images, or counts in a table or in JSON.

        A table has a line per class and a column `count`, `share` or `image_count`, with `instance_count` if they
        differ. JSON is a list of counts, or an object of names and counts.

        Example:
            >>> import tempfile
            >>> path = Path(tempfile.mkdtemp()) / "classes.csv"
            >>> _ = path.write_text("name,count\ncup,60\nspoon,20\n")
            >>> ClassCounts.load(path).image_counts.tolist()
            [60.0, 20.0]
        """
        from logn.data.label_sources import find_labels, with_split
        from logn.data.labels import Labels

        path = Path(path)
        form = find_labels(path).form
        if form == "folders" or (form == "list" and (path.suffix == ".txt" or _lists_images(path))):
            return _count_images(with_split(path, "train"))
        if form == "list":
            with naming(path):
                return _of_table(read_table(path))
        if form == "yolo":
            return _of_labels(Labels.load(with_split(path, "train"), boxes=False))
        if path.suffix != ".json":
            raise InputError(f"`{path}` is not a file of class counts: pass labels, a .csv table or .json.")
        if re.search(rb'"categories"\s*:', mapped_bytes(path)):  # LVIS's are a gigabyte, and read by types
            return _of_labels(Labels.load(path, boxes=False))
        with naming(path):
            content = read_json(path)
            if isinstance(content, dict) and content:
                return cls(numbers("counts", list(content.values())), names=tuple(content))
            if isinstance(content, list):
                return cls(numbers("counts", content))
            raise InputError("The content must be a list of counts, an object of names and counts, or labels.")


def frequency_groups(image_counts: npt.ArrayLike, bounds: tuple[int, int] = (10, 100)) -> npt.NDArray[np.str_]:
    """Give each class its LVIS group by its number of training images: rare, common or frequent.

    Args:
        image_counts: Images per class.
        bounds: The most images of a rare and of a common class.

    Example:
        >>> frequency_groups([1, 10, 11, 100, 101]).tolist()
        ['r', 'r', 'c', 'c', 'f']
    """
    return np.array(["r", "c", "f"])[np.searchsorted(bounds, _as_counts("image_counts", image_counts), side="left")]


def _as_counts(field: str, values: npt.ArrayLike) -> FloatArray:
    counts = numbers(field, values).copy()
    if not np.isfinite(counts).all() or (counts < 0).any():
        index = int(np.flatnonzero(~(np.isfinite(counts) & (counts >= 0)))[0])
        raise InputError(f"Expected `{field}` to be at least 0, but got {counts[index]:g} for class {index}.")
    counts.setflags(write=False)
    return counts


def _lists_images(path: Path) -> bool:
    """Whether a table has a row per image, not per class."""
    with naming(path):
        return "path" in read_table(path)[0]


def _count_images(source: Path) -> ClassCounts:
    """Count the images of each class of a folder per class or a list; numbered classes have no names."""
    from logn.data.dataset import ClassificationDataset

    data = ClassificationDataset(source)
    counts, numbers = np.bincount(data.labels).astype(np.float64), data.numbers
    if numbers is None or not (data.is_list or numbers == sorted(numbers)):
        return ClassCounts(counts, names=data.classes, num_images=len(data))
    by_number = np.zeros(max(numbers) + 1)
    np.add.at(by_number, numbers, counts)
    return ClassCounts(by_number, num_images=len(data))


def _of_table(rows: Rows) -> ClassCounts:
    images = column_of(rows, (*_COUNT_COLUMNS, "instance_count"))
    return ClassCounts(images, column_of(rows, ("instance_count", *_COUNT_COLUMNS)), names_of(rows))


def _of_labels(labels: Labels) -> ClassCounts:
    """Count objects and the images that hold them; groups of objects (`iscrowd`) are left out."""
    labels.require("categories")
    if any(category.name is None for category in labels.categories):
        raise InputError(f"A category of `{labels.source}` has no `name`.")
    num_images, width = len(labels.images) or None, len(labels.categories)
    objects = ~labels.crowd
    if objects.any():
        image, classes = labels.image_index[objects], labels.classes[objects]
        images = np.bincount(np.unique(image * width + classes) % width, minlength=width).astype(np.float64)
        instances = np.bincount(classes, minlength=width).astype(np.float64)
        return ClassCounts(images, instances, labels.class_names, num_images)
    listed = [category.image_count for category in labels.categories]  # LVIS writes counts with each category
    if None in listed:
        raise InputError(f"`{labels.source}` has no objects to count.")
    per_object = [
        category.image_count if category.instance_count is None else category.instance_count
        for category in labels.categories
    ]
    images, instances = numbers("image_count", listed), numbers("instance_count", per_object)
    return ClassCounts(images, instances, labels.class_names, num_images)
