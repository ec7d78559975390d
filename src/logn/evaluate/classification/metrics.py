"""How good a classifier is on many-shot, medium-shot and few-shot classes, and how honest its scores are."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.classes.counts import ClassCounts
from logn.evaluate.classification.bootstrap import weighted_metrics
from logn.evaluate.classification.logits import RowOutcomes, open_logits, row_outcomes
from logn.evaluate.classification.truth import PAPER_BOUNDS, ClassificationTruth, Labels, classification_truth
from logn.logits.arrays import FloatArray

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

    def worst(self, max_pairs: int = MOST_CONFUSED) -> tuple[ConfusedPair, ...]:
        """The pairs with the most errors; equals by share, then by class."""
        order = np.lexsort((-self.share, -self.errors))[:max_pairs]
        columns = (column[order].tolist() for column in (self.label, self.predicted, self.errors, self.share))
        return tuple(ConfusedPair(*pair) for pair in zip(*columns, strict=True))

    def errors_of(self, label: int, predicted: int) -> int:
        """How often `label` was taken for `predicted`."""
        return int(self.errors[(self.label == label) & (self.predicted == predicted)].sum())


@dataclass(frozen=True, eq=False)
class ClassificationMetrics:
    """What a classifier reaches on the test rows.

    Args:
        values: Metric by name: "top-1", "balanced", "many", "medium", "few", "many-OLTR", "medium-OLTR", "few-OLTR",
            "ECE", "confidence", "NLL" and "within-family", as far as counts and families are known; NaN where no row
            can tell.
        per_class: Accuracy of each class (C,); NaN for a class without a test row.
        rows_per_class: Test rows of each class.
        predictions_per_class: How often each class was predicted.
        confusions: Which classes were taken for which others.
        truth: What it was held against.
    """

    values: Mapping[str, float]
    per_class: FloatArray
    rows_per_class: npt.NDArray[np.int64]
    predictions_per_class: npt.NDArray[np.int64]
    confusions: Confusions
    truth: ClassificationTruth

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    @property
    def confused(self) -> tuple[ConfusedPair, ...]:
        """The most confused pairs of classes, the worst first."""
        return self.confusions.worst()

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values, for JSON."""
        truth = self.truth
        return {
            "protocol": truth.describe(),
            "metrics": dict(self.values),
            "classes": [
                {
                    "class": place,
                    "name": truth.name(place),
                    "group": truth.group_of(place),
                    "train_count": None if truth.train_counts is None else float(truth.train_counts[place]),
                    "rows": int(self.rows_per_class[place]),
                    "predicted": int(self.predictions_per_class[place]),
                    "accuracy": float(self.per_class[place]),
                }
                for place in range(truth.num_classes)
            ],
            "confused": [
                {
                    "label": truth.name(pair.label),
                    "predicted": truth.name(pair.predicted),
                    "errors": pair.errors,
                    "share": pair.share,
                }
                for pair in self.confused
            ],
        }


def classification_metrics(
    logits: Any,
    labels: Labels,
    train_counts: ClassCounts | npt.ArrayLike | None = None,
    *,
    families: Sequence[Hashable] | npt.ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    bounds: tuple[int, int] = PAPER_BOUNDS,
) -> ClassificationMetrics:
    """Measure a softmax classifier from its logits and the true classes.

    The groups are the mean accuracy of the classes with that many training samples. By the paper's bounds "few" is 1 to
    19, "medium" 20 to 100 and "many" more than 100; the code of OLTR counts 20 as few and 100 as many, and these
    numbers are given in addition to the others as "few-OLTR", "medium-OLTR" and "many-OLTR".

    Args:
        logits: `(rows, classes)`: an array, a tensor, or the path of a `.npy`, `.npz` or `.safetensors` file.
            It is read in blocks, so a mapped file may be larger than the memory.
        labels: The class of each row, from 0; or a `.npy`, `.json`, `.csv` or `.txt` file with them.
        train_counts: Training samples of each class, for the groups.
        families: One look-alike family for each class, to say how many errors stay within one.
        class_names: One name for each class; puts counts with names in order.
        bounds: The most training samples of a few-shot and of a medium-shot class.

    Example:
        >>> logits = np.array([[2.0, 0.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> found = classification_metrics(logits, [0, 1, 2], [900, 40, 5])
        >>> [found[group] for group in ("many", "medium", "few")], round(found["top-1"], 3)
        ([1.0, 0.0, 1.0], 0.667)
        >>> found.confused
        (ConfusedPair(label=1, predicted=0, errors=1, share=1.0),)
    """
    opened = open_logits(logits)
    truth = classification_truth(
        labels,
        opened.num_classes,
        train_counts=train_counts,
        families=families,
        class_names=class_names,
        bounds=bounds,
    )
    (outcomes,) = row_outcomes(opened, truth.labels)
    return metrics_of_outcomes(outcomes, truth)


def metrics_of_outcomes(outcomes: RowOutcomes, truth: ClassificationTruth) -> ClassificationMetrics:
    """The metrics of one method, every row counting once."""
    once = weighted_metrics(outcomes, truth, np.ones((1, len(truth.labels))))
    hits = np.bincount(truth.labels[outcomes.predicted == truth.labels], minlength=truth.num_classes)
    rows = truth.rows_per_class
    return ClassificationMetrics(
        values={name: float(values[0]) for name, values in once.items()},
        per_class=np.divide(hits, rows, out=np.full(len(rows), np.nan), where=rows > 0),
        rows_per_class=rows,
        predictions_per_class=np.bincount(outcomes.predicted, minlength=truth.num_classes),
        confusions=Confusions.of(outcomes.predicted, truth),
        truth=truth,
    )
