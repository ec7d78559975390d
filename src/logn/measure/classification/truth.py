"""What the predictions of a classifier are held against: labels and training counts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray, as_numpy
from logn.data.class_counts import ClassCounts
from logn.data.class_tables import column_of, naming, numbers, read_json, read_npy, read_table
from logn.errors import InputError


def read_labels(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    r"""Read the class of each row: `.npy`, a JSON list, the column `label` of a table, or text with one row a line.

    Of a line of text the last word counts, so the `path label` lists of ImageNet-LT and its like can be given as they
    are; empty lines are passed over.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "test.txt"
        >>> _ = path.write_text("val/a.jpg 3\nval/b.jpg 0\n")
        >>> read_labels(path).tolist()
        [3, 0]
    """
    path = Path(path)
    with naming(path):
        if path.suffix == ".npy":
            return read_npy(path)
        if path.suffix == ".csv":
            values = column_of(read_table(path), ("label",))
        elif path.suffix == ".txt":
            lines = path.read_text(encoding="utf-8-sig").splitlines()
            values = numbers("labels", [line.split()[-1] for line in lines if line.strip()])
        elif path.suffix == ".json":
            values = numbers("labels", read_json(path))
        else:
            raise InputError("Labels are read from .npy, .json, .csv and .txt files.")
        if (values % 1).any():
            row = int(np.flatnonzero(values % 1)[0])
            raise InputError(f"`labels` must be whole numbers, but row {row} has {values[row]:g}.")
    return values.astype(np.int64)


IntArray = npt.NDArray[np.int64]
Shots = npt.NDArray[np.str_]
Labels = npt.ArrayLike | str | os.PathLike[str]

SHOTS = ("many", "medium", "few")
# The last few-shot and the last medium-shot training count.
PAPER_BOUNDS = (19, 100)  # few 1-19, medium 20-100, many above 100: the paper's, and those of Kang et al. (2020)


def shot_groups(train_counts: npt.ArrayLike, bounds: tuple[int, int] = PAPER_BOUNDS) -> Shots:
    """Give each class its group by its number of training samples: many, medium or few.

    Args:
        train_counts: Training samples of each class.
        bounds: The most samples of a few-shot and of a medium-shot class.

    Example:
        >>> shot_groups([19, 20, 100, 101]).tolist()
        ['few', 'medium', 'medium', 'many']
    """
    if bounds[0] >= bounds[1]:
        raise InputError(f"Expected `bounds` to ascend, but got {bounds[0]} and {bounds[1]}.")
    group = np.searchsorted(bounds, np.asarray(train_counts, np.float64), side="left")
    return np.array(["few", "medium", "many"])[group]


@dataclass(frozen=True, eq=False)
class ClassificationTruth:
    """The labels of the test rows, and what is known about their classes.

    Args:
        labels: The class of each row, int64 (N,).
        num_classes: Columns of the logits.
        train_counts: Training samples of each class, for the groups; None when unknown.
        class_names: For tables and messages; None when unknown.
        bounds: The most training samples of a few-shot and of a medium-shot class.
    """

    labels: IntArray
    num_classes: int
    train_counts: FloatArray | None = None
    class_names: tuple[str, ...] | None = None
    bounds: tuple[int, int] = PAPER_BOUNDS

    @cached_property
    def rows_per_class(self) -> IntArray:
        """How many test rows each class has."""
        return np.bincount(self.labels, minlength=self.num_classes).astype(np.int64)

    @cached_property
    def groups(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Which classes are "many", "medium" and "few"; empty without counts."""
        if self.train_counts is None:
            return {}
        shots = shot_groups(self.train_counts, self.bounds)
        return {shot: shots == shot for shot in SHOTS}

    def group_of(self, label: int) -> str | None:
        """The group of a class; None without counts."""
        return next((shot for shot in SHOTS if shot in self.groups and self.groups[shot][label]), None)

    def name(self, label: int) -> str:
        """What to call a class."""
        return str(label) if self.class_names is None else self.class_names[label]

    def part(self, rows: npt.NDArray[Any]) -> ClassificationTruth:
        """Keep the rows that the mask or the positions name."""
        return replace(self, labels=self.labels[rows])

    def describe(self) -> str:
        """Say what was measured on what.

        Example:
            >>> print(classification_truth([0, 1, 1, 0], 2, train_counts=[500, 5]).describe())
            Top-1 on 4 rows of 2 classes; many, medium and few are the mean accuracy of the classes with more than 100,
            20 to 100 and at most 19 training samples (1, 0 and 1 classes)
        """
        text = f"Top-1 on {len(self.labels):,} rows of {self.num_classes:,} classes"
        if not self.groups:
            return text
        few, medium = self.bounds
        sizes = [int(self.groups[shot].sum()) for shot in SHOTS]
        return (
            f"{text}; many, medium and few are the mean accuracy of the classes with more than {medium}, {few + 1} to "
            f"{medium} and at most {few} training samples ({sizes[0]}, {sizes[1]} and {sizes[2]} classes)"
        )


def classification_truth(
    labels: Labels,
    num_classes: int,
    *,
    train_counts: ClassCounts | npt.ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    bounds: tuple[int, int] = PAPER_BOUNDS,
) -> ClassificationTruth:
    """Check labels and counts against the classes of the logits.

    Args:
        labels: The class of each row, or a file that `read_labels` reads.
        num_classes: Columns of the logits.
        train_counts: Training samples of each class; every class needs at least one.
        class_names: One name for each class.
        bounds: The most training samples of a few-shot and of a medium-shot class.

    Example:
        >>> classification_truth([0, 5], 3)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `labels` to be from 0 to 2, but row 1 has class 5.
    """
    names = None if class_names is None else tuple(map(str, class_names))
    if names is not None and len(names) != num_classes:
        raise InputError(
            f"Expected `class_names` to have one name for each of {num_classes} classes, but got {len(names)}."
        )
    counts = None if train_counts is None else _checked_counts(train_counts, num_classes, names)
    shot_groups([], bounds)
    return ClassificationTruth(checked_labels(labels, num_classes), num_classes, counts, names, bounds)


def checked_labels(labels: Any, num_classes: int) -> IntArray:
    """Labels as int64, one per row, within the classes; from an array, a tensor or a file."""
    if isinstance(labels, str | os.PathLike):
        content = read_labels(labels)
        with naming(Path(labels)):
            return checked_labels(content, num_classes)
    array = as_numpy(labels)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"Expected `labels` to be one whole number per row, but got {array.dtype} of shape {array.shape}."
        )
    if len(array) == 0:
        raise InputError("Expected `labels` to have at least one row, but got none.")
    outside = np.flatnonzero((array < 0) | (array >= num_classes))
    if len(outside):
        row = int(outside[0])
        raise InputError(f"Expected `labels` to be from 0 to {num_classes - 1}, but row {row} has class {array[row]}.")
    return array.astype(np.int64)


def _checked_counts(
    counts: ClassCounts | npt.ArrayLike, num_classes: int, class_names: tuple[str, ...] | None
) -> FloatArray:
    table = ClassCounts.of(counts)
    table = table.aligned_to(class_names)
    if table.num_classes != num_classes:
        raise InputError(
            f"`counts` has {table.num_classes} classes, but the logits have {num_classes}. Pass one count per class."
        )
    absent = np.flatnonzero(table.image_counts <= 0)
    if len(absent):
        label, names = int(absent[0]), class_names or table.names
        called = f"class {label}" + (f" ({names[label]})" if names else "")
        others = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise InputError(
            f"`counts` has no training sample of {called}{others}, and a class without one is in no group. Leave out "
            "its column and its rows."
        )
    return table.image_counts
