"""The metrics of a classifier as functions of how often each row counts: once each, or as a bootstrap draws them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from logn.evaluate.classification.logits import RowOutcomes
from logn.evaluate.classification.truth import ClassificationTruth
from logn.logits.arrays import FloatArray

# Bins of equal width for the calibration error, as for detections.
BINS = 15
# Weights of one block of draws.
NUMBERS_AT_ONCE = 4_000_000


def weighted_metrics(outcomes: RowOutcomes, truth: ClassificationTruth, weights: FloatArray) -> dict[str, FloatArray]:
    """All metrics for each row of `weights`, `(num_bootstrap,)` each; NaN where nothing is left to measure.

    "top-1" is the share of right rows, "balanced" the mean accuracy of the classes, "many", "medium" and "few" that of
    the classes of a group (and "many-OLTR" and so on by the bounds of OLTR); "ECE" the expected calibration error over
    15 bins, "confidence" the mean probability of the predicted class, "NLL" the mean negative log-likelihood;
    "within-family" the share of the errors that stay in the family of the true class.

    Args:
        outcomes: Of one method.
        truth: The labels and the groups of the classes.
        weights: `(num_bootstrap, N)` how often each row counts.

    Example:
        >>> from logn.evaluate.classification.truth import classification_truth
        >>> outcomes = RowOutcomes(np.array([0, 0, 1]), np.array([0.9, 0.6, 0.8]), np.array([0.1, 0.9, 0.2]))
        >>> found = weighted_metrics(outcomes, classification_truth([0, 1, 1], 2), np.array([[1.0, 1, 1], [0, 2, 2]]))
        >>> found["top-1"].round(3).tolist(), found["balanced"].tolist()
        ([0.667, 0.5], [0.75, 0.5])
    """
    return _Prepared.of([outcomes], truth).metrics(weights[:, np.argsort(truth.labels, kind="stable")])[0]


def bootstrap_metrics(
    outcomes: Sequence[RowOutcomes], truth: ClassificationTruth, num_bootstrap: int, seed: int = 0
) -> list[dict[str, FloatArray]]:
    """The metrics of several methods over the same bootstrap samples of rows: `(num_bootstrap,)` each."""
    prepared = _Prepared.of(outcomes, truth)
    parts = [prepared.metrics(weights) for weights in draw_blocks(len(truth.labels), num_bootstrap, seed)]
    return [
        {name: np.concatenate([part[place][name] for part in parts]) for name in parts[0][place]}
        for place in range(len(outcomes))
    ]


def draw_blocks(
    num_rows: int, num_bootstrap: int, seed: int = 0, at_once: int = NUMBERS_AT_ONCE
) -> Iterator[FloatArray]:
    """How often each row is drawn, some draws at a time: `(some, N)`, every draw of `N` rows.

    Example:
        >>> [block.sum(axis=1).tolist() for block in draw_blocks(5, 3, at_once=10)]
        [[5.0, 5.0], [5.0]]
    """
    generator = np.random.default_rng(seed)
    size = max(1, at_once // num_rows)
    for start in range(0, num_bootstrap, size):
        weights = np.empty((min(size, num_bootstrap - start), num_rows))
        for row in weights:
            row[:] = np.bincount(generator.integers(0, num_rows, num_rows), minlength=num_rows)
        yield weights


@dataclass(frozen=True, eq=False)
class _Prepared:
    """Outcomes of several methods with the rows sorted by class, so that a class is one run of columns."""

    outcomes: Sequence[RowOutcomes]
    truth: ClassificationTruth

    @classmethod
    def of(cls, outcomes: Sequence[RowOutcomes], truth: ClassificationTruth) -> _Prepared:
        order = np.argsort(truth.labels, kind="stable")
        return cls([found.part(order) for found in outcomes], truth.part(order))

    @cached_property
    def classes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp]]:
        """The classes that have rows, and where each begins."""
        return np.unique(self.truth.labels, return_index=True)

    @cached_property
    def columns(self) -> list[FloatArray]:
        """What is summed over all rows, per method: right, confidence, NLL, wrong, wrong within the family."""
        families, labels = self.truth.families, self.truth.labels
        columns = []
        for found in self.outcomes:
            wrong = found.predicted != labels
            within = wrong & False if families is None else wrong & (families[found.predicted] == families[labels])
            columns.append(np.stack([~wrong, found.confidence, found.nll, wrong, within], axis=1).astype(float))
        return columns

    @cached_property
    def bins(self) -> list[list[tuple[npt.NDArray[np.intp], FloatArray]]]:
        """Per method the rows of each bin of confidence, and how far confidence and success are apart there."""
        binned = []
        for found, column in zip(self.outcomes, self.columns, strict=True):
            place = np.minimum((found.confidence * BINS).astype(np.int64), BINS - 1)
            rows = [np.flatnonzero(place == number) for number in range(BINS)]
            gap = found.confidence - column[:, 0]
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
            right, confidence, nll, wrong, within = (weights @ columns).T
            accuracy = _share(np.add.reduceat(weights * columns[:, 0], start, axis=1), rows_of_class)
            result = {"top-1": right / total}
            result |= {name: _mean_of_present(accuracy[:, members[present]]) for name, members in groups.items()}
            error = np.sum([np.abs(weights[:, rows] @ gap) for rows, gap in bins], axis=0)
            result |= {"ECE": error / total, "confidence": confidence / total, "NLL": nll / total}
            if self.truth.families is not None:
                result["within-family"] = _share(within, wrong)
            results.append(result)
        return results


def _share(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Part of the whole; NaN where the whole is 0."""
    result: FloatArray = np.full(whole.shape, np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result


def _mean_of_present(values: FloatArray) -> FloatArray:
    """Mean over the last axis of what is not NaN; NaN when nothing is left."""
    missing = np.isnan(values)
    return _share(np.where(missing, 0.0, values).sum(axis=1), (~missing).sum(axis=1).astype(float))
