"""How good a classifier is on many-shot, medium-shot and few-shot classes, and how honest its scores are."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.classes.counts import ClassCounts
from logn.evaluate.classification.confusion import ConfusedPair, Confusions
from logn.evaluate.classification.draws import weighted_metrics
from logn.evaluate.classification.logits import RowOutcomes, open_logits, row_outcomes
from logn.evaluate.classification.truth import PAPER_BOUNDS, ClassificationTruth, Labels, classification_truth
from logn.logits.arrays import FloatArray


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

    The groups are the mean accuracy of the classes with so many training samples. By the paper's bounds "few" is 1 to
    19, "medium" 20 to 100 and "many" more than 100; the code of OLTR counts 20 as few and 100 as many, and these
    numbers are given beside the others as "few-OLTR", "medium-OLTR" and "many-OLTR".

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
