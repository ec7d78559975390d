"""How good a classifier is on many-shot, medium-shot and few-shot classes, and how honest its scores are.

The metrics are functions of how often each row counts: once each, or as a bootstrap draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray, nan_mean, ratio
from logn.matching.bootstrap_draws import Draws
from logn.measure.classification.rows import RowOutcomes
from logn.measure.classification.truth import ClassificationTruth

# Bins of equal width for the calibration error, as for detections.
BINS = 15
# Weights of one block of draws.
NUMBERS_AT_ONCE = 4_000_000
MOST_CONFUSED = 12


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
    counts = [int(((truth.labels == pair.label) & (predicted == pair.predicted)).sum()) for pair in pairs]
    return tuple(
        ConfusedPair(pair.label, pair.predicted, errors, errors / int(truth.rows_per_class[pair.label]))
        for pair, errors in zip(pairs, counts, strict=True)
    )


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
    return _Prepared.of([outcomes], truth).metrics(weights[:, np.argsort(truth.labels, kind="stable")])[0]


def bootstrap_metrics(
    outcomes: Sequence[RowOutcomes], truth: ClassificationTruth, num_bootstrap: int, seed: int = 0
) -> list[dict[str, FloatArray]]:
    """The metrics of several methods over the same bootstrap samples of rows: `(num_bootstrap,)` each."""
    prepared = _Prepared.of(outcomes, truth)
    rows = len(truth.labels)
    blocks = Draws(rows, num_bootstrap, seed).blocks(max(1, NUMBERS_AT_ONCE // rows))
    parts = [prepared.metrics(counts.astype(np.float64)) for counts in blocks]
    return [
        {name: np.concatenate([part[method][name] for part in parts]) for name in parts[0][method]}
        for method in range(len(outcomes))
    ]


@dataclass(frozen=True, eq=False)
class _Prepared:
    """Outcomes of several methods with the rows sorted by class, so that a class is one run of columns."""

    outcomes: Sequence[RowOutcomes]
    truth: ClassificationTruth

    @classmethod
    def of(cls, outcomes: Sequence[RowOutcomes], truth: ClassificationTruth) -> _Prepared:
        order = np.argsort(truth.labels, kind="stable")
        return cls([outcome.part(order) for outcome in outcomes], truth.part(order))

    @cached_property
    def classes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp]]:
        """The classes that have rows, and where each begins."""
        return np.unique(self.truth.labels, return_index=True)

    @cached_property
    def columns(self) -> list[FloatArray]:
        """What is summed over all rows, per method: right, confidence, NLL."""
        labels = self.truth.labels
        return [
            np.stack([outcome.predicted == labels, outcome.confidence, outcome.nll], axis=1).astype(float)
            for outcome in self.outcomes
        ]

    @cached_property
    def bins(self) -> list[list[tuple[npt.NDArray[np.intp], FloatArray]]]:
        """Per method the rows of each bin of confidence, and how far confidence and success are apart there."""
        binned = []
        for outcome, column in zip(self.outcomes, self.columns, strict=True):
            bin_index = np.minimum((outcome.confidence * BINS).astype(np.int64), BINS - 1)
            rows = [np.flatnonzero(bin_index == number) for number in range(BINS)]
            gap = outcome.confidence - column[:, 0]
            binned.append([(part, gap[part]) for part in rows if len(part)])
        return binned

    def metrics(self, weights: FloatArray) -> list[dict[str, FloatArray]]:
        """The metrics of every method; the columns of `weights` are the rows in the order of their classes."""
        present, start = self.classes
        rows_of_class = np.add.reduceat(weights, start, axis=1)
        groups = {"balanced": np.ones(self.truth.num_classes, bool), **self.truth.groups}
        results = []
        for columns, bins in zip(self.columns, self.bins, strict=True):
            total = weights.sum(axis=1)
            right, confidence, nll = (weights @ columns).T
            accuracy = ratio(np.add.reduceat(weights * columns[:, 0], start, axis=1), rows_of_class)
            result = {"top-1": right / total}
            result |= {name: nan_mean(accuracy[:, members[present]]) for name, members in groups.items()}
            error = np.sum([np.abs(weights[:, rows] @ gap) for rows, gap in bins], axis=0)
            result |= {"ECE": error / total, "confidence": confidence / total, "NLL": nll / total}
            results.append(result)
        return results
