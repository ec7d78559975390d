"""How good a classifier is on many-shot, medium-shot and few-shot classes, and how honest its scores are.

The metrics are functions of how often each row counts: once each, or as a bootstrap draws them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray, as_numpy, nan_mean, ratio
from logn.data.class_counts import ClassCounts
from logn.data.class_tables import column_of, naming, numbers, read_json, read_npy, read_table
from logn.errors import InputError
from logn.matching.bootstrap_draws import Draws
from logn.measure.classification.rows import RowOutcomes

IntArray = npt.NDArray[np.int64]
Shots = npt.NDArray[np.str_]
Labels = npt.ArrayLike | str | os.PathLike[str]

SHOTS = ("many", "medium", "few")
# The last few-shot and the last medium-shot training count.
PAPER_BOUNDS = (19, 100)  # few 1-19, medium 20-100, many above 100: the paper's, and those of Kang et al. (2020)
# Bins of equal width for the calibration error, as for detections.
BINS = 15
# Weights of one block of draws.
NUMBERS_AT_ONCE = 4_000_000
MOST_CONFUSED = 12


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


@dataclass(frozen=True)
class ConfusedPair:
    """A class and what it is taken for.

    Args:
        label: The true class.
        predicted: The class that was predicted.
        errors: How many rows of the true class were.
        share: Of all rows of the true class.
    """

    label: int
    predicted: int
    errors: int
    share: float


@dataclass(frozen=True, eq=False)
class Reliability:
    """Rows in bins of equal width by the probability of the predicted class; the bins of the calibration error.

    Args:
        rows: Rows of each bin, int64 (B,).
        confidence: Their mean probability; NaN for an empty bin.
        accuracy: The share that is right; NaN for an empty bin.
    """

    rows: npt.NDArray[np.int64]
    confidence: FloatArray
    accuracy: FloatArray

    @classmethod
    def of(cls, outcomes: RowOutcomes, labels: npt.NDArray[np.int64]) -> Reliability:
        """Count the rows of one method.

        Example:
            >>> sure = RowOutcomes(np.array([0, 0]), np.array([0.99, 0.97]), np.zeros(2))
            >>> reliability = Reliability.of(sure, np.array([0, 1]))
            >>> int(reliability.rows[-1]), float(reliability.confidence[-1].round(2)), float(reliability.accuracy[-1])
            (2, 0.98, 0.5)
        """
        bin_index = np.minimum((outcomes.confidence * BINS).astype(np.int64), BINS - 1)
        rows = np.bincount(bin_index, minlength=BINS)
        sums = [np.bincount(bin_index, column, BINS) for column in (outcomes.confidence, outcomes.predicted == labels)]
        return cls(rows.astype(np.int64), *(ratio(total, rows) for total in sums))


@dataclass(frozen=True, eq=False)
class ClassificationMetrics:
    """What a classifier reaches on the test rows.

    Args:
        values: Metric by name: "top-1", "balanced", "many", "medium", "few", "ECE", "confidence" and "NLL", as far as
            counts are known; NaN where no row can tell.
        per_class: Accuracy of each class (C,); NaN for a class without a test row.
        predictions_per_class: How often each class was predicted.
        confused: The most confused pairs of classes, the worst first.
    """

    values: Mapping[str, float]
    per_class: FloatArray
    predictions_per_class: npt.NDArray[np.int64]
    confused: tuple[ConfusedPair, ...]

    def __getitem__(self, name: str) -> float:
        return self.values[name]


def metrics_of_outcomes(outcomes: RowOutcomes, truth: ClassificationTruth) -> ClassificationMetrics:
    """The metrics of one method, every row counting once."""
    once = weighted_metrics(outcomes, truth, np.ones((1, len(truth.labels))))
    hits = np.bincount(truth.labels[outcomes.predicted == truth.labels], minlength=truth.num_classes)
    return ClassificationMetrics(
        values={name: float(values[0]) for name, values in once.items()},
        per_class=ratio(hits, truth.rows_per_class),
        predictions_per_class=np.bincount(outcomes.predicted, minlength=truth.num_classes),
        confused=most_confused(outcomes.predicted, truth),
    )


def most_confused(
    predicted: npt.NDArray[np.int64], truth: ClassificationTruth, max_pairs: int = MOST_CONFUSED
) -> tuple[ConfusedPair, ...]:
    """The pairs of true and predicted class with the most errors; ties: by share, then by class.

    Example:
        >>> most_confused(np.array([1, 1, 0, 1]), classification_truth([0, 0, 0, 1], 2))
        (ConfusedPair(label=0, predicted=1, errors=2, share=0.6666666666666666),)
    """
    wrong = predicted != truth.labels
    pairs, errors = np.unique(truth.labels[wrong] * truth.num_classes + predicted[wrong], return_counts=True)
    label, taken_for = np.divmod(pairs, truth.num_classes)
    share = errors / truth.rows_per_class[label]
    order = np.lexsort((-share, -errors))[:max_pairs]
    columns = (column[order].tolist() for column in (label, taken_for, errors, share))
    return tuple(ConfusedPair(*pair) for pair in zip(*columns, strict=True))


def same_confusions(
    predicted: npt.NDArray[np.int64], truth: ClassificationTruth, pairs: Sequence[ConfusedPair]
) -> tuple[ConfusedPair, ...]:
    """How often a method makes errors of another."""
    same = []
    for pair in pairs:
        errors = int(((truth.labels == pair.label) & (predicted == pair.predicted)).sum())
        same.append(ConfusedPair(pair.label, pair.predicted, errors, errors / int(truth.rows_per_class[pair.label])))
    return tuple(same)


def weighted_metrics(outcomes: RowOutcomes, truth: ClassificationTruth, weights: FloatArray) -> dict[str, FloatArray]:
    """All metrics for each row of `weights`, `(num_bootstrap,)` each; NaN where nothing is left to measure.

    "top-1" is the share of right rows, "balanced" the mean accuracy of the classes, "many", "medium" and "few" that of
    the classes of a group; "ECE" the expected calibration error over 15 bins, "confidence" the mean probability of the
    predicted class, "NLL" the mean negative log-likelihood.

    Args:
        outcomes: Of one method.
        truth: The labels and the groups of the classes.
        weights: `(num_bootstrap, N)` how often each row counts.

    Example:
        >>> outcomes = RowOutcomes(np.array([0, 0, 1]), np.array([0.9, 0.6, 0.8]), np.array([0.1, 0.9, 0.2]))
        >>> metrics = weighted_metrics(outcomes, classification_truth([0, 1, 1], 2), np.array([[1.0, 1, 1], [0, 2, 2]]))
        >>> metrics["top-1"].round(3).tolist(), metrics["balanced"].tolist()
        ([0.667, 0.5], [0.75, 0.5])
    """
    return _RowsByClass.of(outcomes, truth).metrics(weights[:, np.argsort(truth.labels, kind="stable")])


def bootstrap_metrics(
    outcomes: Sequence[RowOutcomes], truth: ClassificationTruth, num_bootstrap: int, seed: int = 0
) -> list[dict[str, FloatArray]]:
    """The metrics of several methods over the same bootstrap samples of rows: `(num_bootstrap,)` each."""
    methods, rows = [_RowsByClass.of(outcome, truth) for outcome in outcomes], len(truth.labels)
    blocks = Draws(rows, num_bootstrap, seed).blocks(max(1, NUMBERS_AT_ONCE // rows))
    parts = [[method.metrics(counts.astype(np.float64)) for method in methods] for counts in blocks]
    return [
        {name: np.concatenate([part[name] for part in of_method]) for name in of_method[0]}
        for of_method in zip(*parts, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class _RowsByClass:
    """Outcomes of one method with the rows sorted by class, so that a class is one run of columns of the weights.

    Args:
        columns: `(N, 3)` what is summed over all rows: right, confidence, NLL.
        starts: Where each class that has rows begins.
        members: Of each group which of these classes are in it.
        gaps: Of each bin of confidence its rows, and how far confidence and success are apart there.
    """

    columns: FloatArray
    starts: npt.NDArray[np.intp]
    members: Mapping[str, npt.NDArray[np.bool_]]
    gaps: Sequence[tuple[npt.NDArray[np.intp], FloatArray]]

    @classmethod
    def of(cls, outcomes: RowOutcomes, truth: ClassificationTruth) -> _RowsByClass:
        order = np.argsort(truth.labels, kind="stable")
        right, confidence = (outcomes.predicted == truth.labels)[order], outcomes.confidence[order]
        present, starts = np.unique(truth.labels[order], return_index=True)
        groups = {"balanced": np.ones(truth.num_classes, bool), **truth.groups}
        bin_index = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
        bins = [np.flatnonzero(bin_index == number) for number in range(BINS)]
        return cls(
            np.stack([right, confidence, outcomes.nll[order]], axis=1).astype(float),
            starts,
            {name: members[present] for name, members in groups.items()},
            [(rows, (confidence - right)[rows]) for rows in bins if len(rows)],
        )

    def metrics(self, weights: FloatArray) -> dict[str, FloatArray]:
        """The metrics for each row of weights, whose columns are the rows in the order of their classes."""
        total = weights.sum(axis=1)
        right, confidence, nll = (weights @ self.columns).T
        hits = np.add.reduceat(weights * self.columns[:, 0], self.starts, axis=1)
        accuracy = ratio(hits, np.add.reduceat(weights, self.starts, axis=1))
        error = np.sum([np.abs(weights[:, rows] @ gap) for rows, gap in self.gaps], axis=0)
        return {
            "top-1": right / total,
            **{name: nan_mean(accuracy[:, members]) for name, members in self.members.items()},
            "ECE": error / total,
            "confidence": confidence / total,
            "NLL": nll / total,
        }
