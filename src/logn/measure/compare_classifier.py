"""Methods compared on the logits of a classifier: read in one pass, measured, drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from logn.base.arrays import ratio
from logn.data.class_counts import ClassCounts
from logn.errors import InputError
from logn.measure.classification import accuracy
from logn.measure.classification.accuracy import PAPER_BOUNDS, ClassificationTruth, checked_labels, classification_truth
from logn.measure.classification.rows import ClassifierLogits, RowOutcomes, open_logits
from logn.measure.comparison import (
    CompareSettings,
    EvaluatedClass,
    MethodResult,
    describe_statistics,
    with_training,
)
from logn.measure.fitted_methods import LogitMap
from logn.predictions.classifier import ClassifierPredictions, is_classifier_file
from logn.statistics.head import ASSUMED, Head
from logn.statistics.moments import ClassMoments


@dataclass(frozen=True, eq=False)
class ClassifierData:
    """Logits of test rows, and what they are held against.

    Args:
        logits: Of all test rows.
        truth: The labels, and what is known about their classes.
        moments: Statistics of the training logits; None when unknown.
        head: What the logits are; a classifier that was trained with sigmoids says so itself or in statistics.
        model: The model that the file of `logn predict` names.
    """

    logits: ClassifierLogits
    truth: ClassificationTruth
    moments: ClassMoments | None
    head: Head
    model: str | None = None

    def classes(self) -> tuple[EvaluatedClass, ...]:
        """The columns of the logits."""
        classes = [
            EvaluatedClass(label, self.truth.name(label), self.truth.group_of(label), rows)
            for label, rows in enumerate(self.truth.rows_per_class.tolist())
        ]
        return with_training(classes, self.truth.train_counts, self.moments)

    def notes(self) -> tuple[str, ...]:
        """What to know before reading the numbers."""
        notes, rows = [], self.truth.rows_per_class
        if self.moments is not None:
            notes.append(f"Statistics of {int(self.moments.count.max()):,} training rows.")
        present = rows[rows > 0]
        if present.min() != present.max():
            notes.append(f"Classes have {present.min():,} to {present.max():,} rows, so top-1 and balanced differ.")
        if absent := int((rows == 0).sum()):
            notes.append(f"{absent:,} classes have no row and count nowhere.")
        return tuple(notes)

    def inputs(self) -> dict[str, Any]:
        """What is known of the inputs, for the record."""
        logits = {"name": self.logits.name, "rows": len(self.logits), "columns": self.logits.num_classes}
        return {
            "logits": logits | {"model": self.model},
            "statistics": describe_statistics(self.moments),
        }


def open_classifier(
    logits: Any,
    labels: Any,
    settings: CompareSettings,
    moments: Callable[[], ClassMoments | None],
    counts: Any,
    class_names: Sequence[str] | None,
) -> ClassifierData:
    """Open logits and labels, and check that they fit; then the statistics, whose reading may take long."""
    recorded, model = Head(), None
    opened = open_logits(logits)
    if is_classifier_file(logits):
        stored = ClassifierPredictions.load(logits)
        for name, value in (("labels", labels), ("class_names", class_names and stored.head.names)):
            if value is not None:
                raise InputError(f"`{logits}` has `{name}` of its own: leave them out.")
        labels, class_names = stored.labels, class_names or stored.head.names
        recorded, model = stored.head, stored.metadata.get("model")
    classes = checked_labels(labels, opened.num_classes)
    statistics = moments()
    names = class_names or (None if statistics is None else statistics.head.names)
    truth = classification_truth(
        classes, opened.num_classes, train_counts=counts, class_names=names, bounds=settings.bounds or PAPER_BOUNDS
    )
    if names is None and isinstance(counts, ClassCounts):
        truth = replace(truth, class_names=counts.names)
    activation = recorded.activation or (None if statistics is None else statistics.head.activation) or ASSUMED
    head = Head(truth.num_classes, truth.class_names, activation=activation, source=recorded.source)
    return ClassifierData(opened, truth, statistics, head, model)


def measure_rows(
    data: ClassifierData, maps: Mapping[str, LogitMap], outcomes: Sequence[RowOutcomes]
) -> list[MethodResult]:
    """All metrics of each method."""
    truth, rows = data.truth, []
    worst = accuracy.metrics_of_outcomes(outcomes[0], truth).confused
    for (name, transform), outcome in zip(maps.items(), outcomes, strict=True):
        metrics = accuracy.metrics_of_outcomes(outcome, truth)
        row = MethodResult(
            name,
            metrics.values,
            metrics.per_class,
            transform=transform,
            predictions_per_class=metrics.predictions_per_class,
            confused=accuracy.same_confusions(outcome.predicted, truth, worst),
            reliability=accuracy.Reliability.of(outcome, truth.labels),
        )
        rows.append(row)
    return rows


def strength_values(data: ClassifierData, outcome: RowOutcomes) -> dict[str, float]:
    """Accuracies of one strength of the recommendation; on rows with the class mix of the training, too, if known."""
    metrics, counts = accuracy.metrics_of_outcomes(outcome, data.truth), data.truth.train_counts
    values = {name: metrics[name] for name in ("balanced", "top-1", "few") if name in metrics.values}
    if counts is not None:
        has_rows = data.truth.rows_per_class > 0
        values["long-tailed"] = float(ratio((counts * metrics.per_class)[has_rows].sum(), counts[has_rows].sum()))
    return values
