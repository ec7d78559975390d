"""Comparing methods on the logits of a classifier: what the engine asks of this task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.evaluate.classification.bootstrap import bootstrap_metrics
from logn.evaluate.classification.logits import ClassifierLogits, RowOutcomes, open_logits, row_outcomes
from logn.evaluate.classification.methods import ClassifierFit
from logn.evaluate.classification.metrics import metrics_of_outcomes
from logn.evaluate.classification.reliability import Reliability
from logn.evaluate.classification.truth import ClassificationTruth, Labels, checked_labels
from logn.evaluate.comparison.comparison import EvaluatedClass, classifier_classes
from logn.evaluate.comparison.engine import Mask, Progress
from logn.evaluate.comparison.method_fitting import LogitMap
from logn.evaluate.comparison.method_result import MethodResult
from logn.evaluate.comparison.provenance import Provenance, describe_statistics
from logn.evaluate.comparison.settings import CompareSettings
from logn.logits.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class ClassificationTask:
    """Methods on the logits of test rows, held against their labels.

    Args:
        logits: Of all test rows.
        truth: The labels of the rows that are measured, and what is known about their classes.
        fitter: Fits methods.
        settings: What is measured, and how.
        dev: Logits and labels of other rows, to choose values of sweeps on; None for none.
    """

    logits: ClassifierLogits
    truth: ClassificationTruth
    fitter: ClassifierFit
    settings: CompareSettings
    dev: tuple[Any, Labels | None] | None = None

    unit: ClassVar[str] = "rows"
    reading: ClassVar[str] = "logits"
    default_objective: ClassVar[str] = "top-1"
    least_is_best: ClassVar[tuple[str, ...]] = ("ECE", "NLL")

    @property
    def unit_ids(self) -> npt.NDArray[np.int64]:
        """The places of the rows."""
        return np.arange(len(self.truth.labels))

    def map_of(self, name: str, method: str | LogitMap) -> LogitMap:
        """The map of a method, for these logits."""
        return self.fitter.map_of(name, method)

    def outcomes(self, maps: Mapping[str, LogitMap], progress: Progress | None) -> dict[str, RowOutcomes]:
        """Read the logits once, under all maps."""
        found = row_outcomes(self.logits, self.truth.labels, list(maps.values()), progress or (lambda rows: None))
        return dict(zip(maps, found, strict=True))

    def part(self, units: Mask) -> Self:
        """The task on some rows."""
        return replace(self, truth=self.truth.part(units))

    def outcome_part(self, outcome: RowOutcomes, units: Mask) -> RowOutcomes:
        """The outcome of some rows."""
        return outcome.part(units)

    def other_units(self, maps: Mapping[str, LogitMap]) -> tuple[Self, Mapping[str, RowOutcomes]] | None:
        """The rows of `dev`, where they were given."""
        if self.dev is None:
            return None
        opened = open_logits(self.dev[0], "dev logits")
        if opened.num_classes != self.truth.num_classes:
            raise InputError(
                f"Expected the logits of `dev` to be of {self.truth.num_classes} classes, but got {opened.num_classes}."
            )
        labels = checked_labels(self.dev[1], self.truth.num_classes)
        other = replace(self, logits=opened, truth=replace(self.truth, labels=labels), dev=None)
        return other, other.outcomes(maps, None)

    def metrics(self, outcome: RowOutcomes) -> Mapping[str, float]:
        """The metrics of one method."""
        return metrics_of_outcomes(outcome, self.truth).values

    def measure(
        self, outcomes: Mapping[str, RowOutcomes], maps: Mapping[str, LogitMap]
    ) -> dict[str, tuple[MethodResult, RowOutcomes]]:
        """All metrics of each method."""
        return {
            name: (
                MethodResult(
                    name,
                    metrics_of_outcomes(outcome, self.truth),
                    settings=getattr(maps[name], "settings", {}),
                    transform=maps[name],
                    reliability=Reliability.of(outcome, self.truth.labels),
                ),
                outcome,
            )
            for name, outcome in outcomes.items()
        }

    def bootstrap(self, bases: Sequence[RowOutcomes]) -> list[Mapping[str, FloatArray]]:
        """The metrics of each method over the same bootstrap samples of rows."""
        return list(bootstrap_metrics(bases, self.truth, self.settings.num_bootstrap, self.settings.seed))

    def details(self, outcomes: Mapping[str, RowOutcomes]) -> None:
        """All that the report shows is small enough to be measured at once."""

    def scope(self) -> ClassificationTruth:
        """The labels and what is known about their classes."""
        return self.truth

    def classes(self) -> tuple[EvaluatedClass, ...]:
        """The columns of the logits."""
        return classifier_classes(self.truth, self.fitter.moments)

    def notes(self, specs: Sequence[Any]) -> tuple[str, ...]:
        """What to know before reading the numbers."""
        notes, moments = [], self.fitter.moments
        if moments is not None:
            notes.append(f"Statistics of {int(moments.count.max()):,} training rows.")
        if self.settings.split:
            notes.append("One half of the rows; choices were made on the other.")
        present = self.truth.rows_per_class[self.truth.rows_per_class > 0]
        if present.min() != present.max():
            notes.append(f"Classes have {present.min():,} to {present.max():,} rows, so top-1 and balanced differ.")
        absent = int((self.truth.rows_per_class == 0).sum())
        if absent:
            notes.append(f"{absent:,} classes have no row and count nowhere.")
        return tuple(notes)

    def provenance(self) -> Provenance:
        """When, with what and from what."""
        moments = self.fitter.moments
        return Provenance.now(
            {
                "logits": {"name": self.logits.name, "rows": len(self.logits), "columns": self.logits.num_classes},
                "statistics": None if moments is None else describe_statistics(moments),
                "fitted_from": list(self.fitter.given),
            }
        )
