"""Which classes a classifier takes for which others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.evaluate.classification.truth import ClassificationTruth

MOST_CONFUSED = 10


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
class Confusions:
    """Every pair of true and predicted class that occurs, right ones left out: the matrix without its zeros.

    Args:
        label: The true classes, int64 (P,).
        predicted: What they were taken for; together with `label` in ascending order.
        errors: How often.
        share: Of the rows of the true class.
    """

    label: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]
    errors: npt.NDArray[np.int64]
    share: npt.NDArray[np.float64]

    @classmethod
    def of(cls, predicted: npt.NDArray[np.int64], truth: ClassificationTruth) -> Confusions:
        """Count the errors of one method.

        Example:
            >>> from logn.evaluate.classification.truth import classification_truth
            >>> found = Confusions.of(np.array([1, 1, 0, 1]), classification_truth([0, 0, 0, 1], 2))
            >>> found.worst()
            (ConfusedPair(label=0, predicted=1, errors=2, share=0.6666666666666666),)
            >>> found.errors_of(1, 0)
            0
        """
        wrong = predicted != truth.labels
        pairs, errors = np.unique(truth.labels[wrong] * truth.num_classes + predicted[wrong], return_counts=True)
        label, taken_for = np.divmod(pairs, truth.num_classes)
        return cls(label, taken_for, errors.astype(np.int64), errors / truth.rows_per_class[label])

    def worst(self, most: int = MOST_CONFUSED) -> tuple[ConfusedPair, ...]:
        """The pairs with the most errors; equals by share, then by class."""
        order = np.lexsort((-self.share, -self.errors))[:most]
        columns = (column[order].tolist() for column in (self.label, self.predicted, self.errors, self.share))
        return tuple(ConfusedPair(*pair) for pair in zip(*columns, strict=True))

    def errors_of(self, label: int, predicted: int) -> int:
        """How often `label` was taken for `predicted`."""
        return int(self.errors[(self.label == label) & (self.predicted == predicted)].sum())
