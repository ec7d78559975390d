"""ClassCounts: how often each class occurs in the training set, read from the files in which people keep it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.classes.matching import warn_of_position
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
from logn.classes.tables import read_column as read_column
from logn.errors import InputError
from logn.labels.annotations import read_annotations
from logn.labels.sources import are_labels, with_split
from logn.logits.arrays import FloatArray

IntArray = npt.NDArray[np.int64]

# Names under which tables keep the same thing; the first is ours.
_IMAGE_COLUMNS = ("image_count", "image_counts", "images", "count", "counts")
_INSTANCE_COLUMNS = ("instance_count", "instance_counts", "instances", "count", "counts")


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Training counts per foreground class, in the order of the model's foreground columns.

    Attributes:
        image_counts: Images that hold the class, float64 (F,).
        instance_counts: Objects of the class; equal to `image_counts` where a file knows only one count.
        names: Class names, if the file has them.
        num_images: Images of the training set, if the file knows.

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
        order = place_of(names, self.names)
        return ClassCounts(self.image_counts[order], self.instance_counts[order], tuple(names), self.num_images)

    def fitting(self, names: Sequence[str] | None, num_classes: int, background: int | None) -> ClassCounts:
        """The counts in the order of `names`; those of another number of foreground classes are refused."""
        table = self.aligned_to(names)
        if table.num_classes == num_classes:
            return table
        forgotten = background is None and table.num_classes == num_classes - 1
        hint = "; is one of the columns a background (`--background first` or `last`)?" if forgotten else "."
        raise InputError(
            f"Expected `counts` to have {num_classes} foreground classes, but got {table.num_classes}{hint}"
        )

    def at_least(self, minimum: float = 1.0) -> ClassCounts:
        """Raise smaller counts to `minimum`: a class without a training sample has no logarithm.

        Example:
            >>> ClassCounts(np.array([5.0, 0.0])).at_least(1).image_counts.tolist()
            [5.0, 1.0]
        """
        images, instances = np.maximum(self.image_counts, minimum), np.maximum(self.instance_counts, minimum)
        return ClassCounts(images, instances, self.names, self.num_images)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ClassCounts:
        """Read annotations, a table, an array or a list; see `docs/command-line.md` for the forms."""
        path = Path(path)
        if are_labels(path):
            return _count_labels(path)
        readers = {".json": _read_json, ".csv": _read_table, ".tsv": _read_table, ".npy": _read_npy}
        if path.suffix not in readers:
            raise InputError(f"Expected `{path}` to be class counts as {', '.join(readers)}, but it is not.")
        with naming(path):
            return readers[path.suffix](path)


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


def _read_npy(path: Path) -> ClassCounts:
    return ClassCounts(read_vector("counts", path))


def _read_json(path: Path) -> ClassCounts:
    streamed = _stream_annotations(path)
    if streamed is not None:
        return _count_annotations(*streamed)
    content = read_json(path)
    if isinstance(content, list):
        return ClassCounts(numbers("counts", content))
    if not isinstance(content, dict) or not content:
        raise InputError("Expected a list of counts, a name-to-count object or COCO annotations, but got neither.")
    if "categories" in content:
        return _count_annotations(content)
    if "image_counts" in content or "instance_counts" in content:
        images = numbers("image_counts", content.get("image_counts", content.get("instance_counts")))
        instances = numbers("instance_counts", content.get("instance_counts", images))
        names = content.get("names")
        if names is not None and not isinstance(names, list):  # a text would be taken letter by letter
            raise InputError(f"Expected `names` to be a list of names, but got {names!r}.")
        return ClassCounts(images, instances, None if names is None else tuple(names), content.get("num_images"))
    return ClassCounts(numbers("counts", list(content.values())), names=tuple(content))


def _count_labels(path: Path) -> ClassCounts:
    """Count YOLO or VOC labels, those of training where the path names no split."""
    found = read_annotations(with_split(path, "train"), boxes=False, image=lambda entry: None)
    objects = ~found.crowd
    pairs = np.stack([found.category_ids[objects], found.image_ids[objects]], axis=1)
    if not len(pairs):
        raise InputError(f"Expected `{found.source}` to have objects to count, but it has none.")
    return _count_annotations({"categories": found.categories, "images": found.images}, pairs)


def _stream_annotations(path: Path) -> tuple[Mapping[str, Any], IntArray] | None:
    """Read annotations one by one: what `_count_annotations` needs of them, or None where they must be read whole.

    LVIS's training annotations are a gigabyte, nearly all of it outlines; here 16 bytes of each object stay. None
    stands for files of another form, which are small, and for those with a fault, which then gets its sentence.
    """
    try:
        found = read_annotations(path, boxes=False, image=lambda entry: None)
    except InputError:
        return None  # not told from here: the words would differ, and of two faults the first in the file would win
    if not found.categories or not len(found):  # such a section may be there and be no list
        return None
    objects = ~found.crowd
    pairs = np.stack([found.category_ids[objects], found.image_ids[objects]], axis=1)
    return {"categories": found.categories, "images": found.images}, pairs


def _count_annotations(content: Mapping[str, Any], pairs: IntArray | None = None) -> ClassCounts:
    """Count LVIS or COCO annotations; classes in the order of their ids, groups of objects (`iscrowd`) left out.

    `pairs` holds the category and the image of each object `(N, 2)`; None takes them from the content.
    """
    try:
        categories = sorted(content["categories"], key=lambda category: category["id"])
        names = tuple(str(category["name"]) for category in categories)
        ids = _whole_numbers([category["id"] for category in categories])
        if pairs is None:
            objects = [item for item in content.get("annotations") or () if not item.get("iscrowd")]
            found = [(item["category_id"], item["image_id"]) for item in objects]
            pairs = _whole_numbers(found).reshape(-1, 2)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"Expected COCO or LVIS annotations, but an entry is not complete ({error}).") from error
    if (np.diff(ids) == 0).any():
        twice = int(ids[:-1][np.diff(ids) == 0][0])
        raise InputError(f"Expected every category to have an id of its own, but two have {twice}.")
    num_images = len(content["images"]) if content.get("images") else None
    if not len(pairs):
        return _counts_of_categories(categories, names, num_images)
    labels = np.searchsorted(ids, pairs[:, 0])
    if (labels == len(ids)).any() or (ids[np.minimum(labels, len(ids) - 1)] != pairs[:, 0]).any():
        raise InputError("Expected every annotation to be of a listed category, but one has another `category_id`.")
    width, image = len(ids), np.unique(pairs[:, 1], return_inverse=True)[1]
    class_of_pair = np.unique(image * width + labels) % width
    images, instances = np.bincount(class_of_pair, minlength=width), np.bincount(labels, minlength=width)
    return ClassCounts(images.astype(np.float64), instances.astype(np.float64), names, num_images)


def _whole_numbers(ids: Sequence[Any]) -> IntArray:
    """Ids as int64; one with a fraction would be counted as another id."""
    whole = np.array(ids, dtype=np.int64)
    given = np.array(ids)
    if given.dtype.kind == "f" and (given != whole).any():
        raise ValueError(f"the id {given[given != whole][0]:g} is no whole number")
    return whole


def _counts_of_categories(
    categories: Sequence[Mapping[str, Any]], names: tuple[str, ...], num_images: int | None
) -> ClassCounts:
    """Take the counts that LVIS writes with each category, for a file without its annotations."""
    if not categories or not all("image_count" in category for category in categories):
        raise InputError("Expected annotations, or an `image_count` in each category, but got neither.")
    images = [category["image_count"] for category in categories]
    instances = [category.get("instance_count", category["image_count"]) for category in categories]
    return ClassCounts(numbers("image_count", images), numbers("instance_count", instances), names, num_images)


def _read_table(path: Path) -> ClassCounts:
    rows = read_table(path)
    images = column_of(rows, _IMAGE_COLUMNS + _INSTANCE_COLUMNS)
    has_instances = any(column in rows[0] for column in _INSTANCE_COLUMNS)
    instances = column_of(rows, _INSTANCE_COLUMNS) if has_instances else images
    return ClassCounts(images, instances, names_of(rows))
