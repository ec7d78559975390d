"""What a comparison found, of a detector or of a classifier: the methods, the curves of sweeps, a verdict in words."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np

from logn.errors import InputError
from logn.evaluate.classification.truth import ClassificationTruth
from logn.evaluate.comparison.method_result import MethodResult
from logn.evaluate.comparison.provenance import Provenance
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.comparison.sweep import Curve
from logn.evaluate.comparison.verdict import describe_calibration, describe_changes, describe_classifier
from logn.evaluate.detection.class_groups import Groups
from logn.evaluate.detection.ground_truth import GroundTruth
from logn.evaluate.detection.protocol import EvaluationProtocol
from logn.evaluate.detection.threshold_curve import describe_threshold
from logn.logits.arrays import FloatArray, foreground_columns
from logn.statistics.moments import ClassMoments
from logn.strict_json import plain_values

# Adds to the rows of a comparison what the report shows in addition to their metrics.
AddDetails = Callable[[Sequence[MethodResult]], Sequence[MethodResult]]
DETECTION, CLASSIFICATION = "detection", "classification"


@dataclass(frozen=True)
class EvaluatedClass:
    """A class, and what is known of it in the training and in the evaluated data.

    Args:
        id: Its id in the annotations; of a classifier its column.
        name: Its name.
        group: "r", "c" or "f"; of a classifier "many", "medium" or "few"; None when unknown.
        examples: Boxes in the evaluated images, or evaluated rows.
        train_count: Training images; None when unknown.
        mean: Mean logit over the training data; None where no value was seen, or without statistics.
        std: Its standard deviation; None where fewer than two values were seen, or without statistics.
    """

    id: int
    name: str
    group: str | None
    examples: int
    train_count: float | None = None
    mean: float | None = None
    std: float | None = None


@dataclass(frozen=True)
class DetectionScope:
    """What the metrics of a detector were measured under.

    Args:
        protocol: Of AP.
        protocols: Of the metrics that have one of their own: "AP-Fixed", "AP-Pool", "mask".
    """

    protocol: EvaluationProtocol
    protocols: Mapping[str, EvaluationProtocol] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods measured on the same data, of a detector or of a classifier; the first row is the uncorrected model.

    `print(comparison)` gives the table, `comparison["logn"]` a row, `comparison.verdict("logn")` a sentence.

    Args:
        rows: One per method.
        scope: What is particular to the task: the protocols of a detector, the labels of a classifier.
        classes: In the order of `rows[0].metrics.per_class`.
        curves: Of the sweeps.
        settings: What was measured, and how.
        seconds: Time by step.
        notes: What to know before reading the numbers.
        provenance: How it was made.
        add_details: Adds what the report shows in addition to the metrics; None where that is there or impossible.

    Example:
        >>> import logn, tempfile
        >>> from logn.evaluate.comparison.settings import CompareSettings
        >>> labels = np.repeat([0, 1, 2], 20)
        >>> logits = 2 * np.eye(3)[labels] + [3.0, 1.0, 0.0]
        >>> settings = CompareSettings(num_bootstrap=0)
        >>> comparison = logn.compare(logits, labels, ["logn"], train_logits=logits, settings=settings)
        >>> [(row.name, round(row["top-1"], 2)) for row in comparison.rows]
        [('none', 0.33), ('logn', 1.0)]
        >>> folder = tempfile.mkdtemp()
        >>> comparison.save(folder)
        >>> bool(logn.Comparison.load(folder)["logn"]["top-1"] == comparison["logn"]["top-1"])
        True
    """

    rows: tuple[MethodResult, ...]
    scope: DetectionScope | ClassificationTruth
    _: KW_ONLY
    classes: tuple[EvaluatedClass, ...] = ()
    curves: tuple[Curve, ...] = ()
    settings: CompareSettings = field(default_factory=CompareSettings)
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)
    add_details: AddDetails | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> MethodResult:
        return self._row("name", name)

    def _row(self, parameter: str, name: str) -> MethodResult:
        for row in self.rows:
            if row.name == name:
                return row
        known = ", ".join(row.name for row in self.rows)
        raise InputError(f"Expected `{parameter}` to be one of {known}, but got {name!r}.")

    def __str__(self) -> str:
        from logn.evaluate.comparison.tables import write_comparison

        return write_comparison(self)

    def __eq__(self, other: object) -> bool:
        """Whether both have the same content: everything that `save` keeps."""
        from logn.evaluate.comparison.files import same_content

        return isinstance(other, Comparison) and same_content(self, other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def task(self) -> str:
        """What was compared: "detection" or "classification"."""
        return DETECTION if isinstance(self.scope, DetectionScope) else CLASSIFICATION

    @property
    def detection(self) -> DetectionScope:
        """The protocols of a detector's metrics."""
        if not isinstance(self.scope, DetectionScope):
            raise InputError("Expected a comparison on a detector, but this one is on a classifier.")
        return self.scope

    @property
    def protocol(self) -> EvaluationProtocol:
        """The protocol of a detector's AP."""
        return self.detection.protocol

    @property
    def protocols(self) -> Mapping[str, EvaluationProtocol]:
        """Of a detector's metrics that have a protocol of their own: "AP-Fixed", "AP-Pool", "mask"."""
        return self.detection.protocols

    @property
    def truth(self) -> ClassificationTruth:
        """The labels of a classifier's rows, and what is known about their classes."""
        if isinstance(self.scope, DetectionScope):
            raise InputError("Expected a comparison on a classifier, but this one is on a detector.")
        return self.scope

    @property
    def num_bootstrap(self) -> int:
        """How many bootstrap samples the intervals come from; 0 for none."""
        return self.settings.num_bootstrap

    @property
    def draws(self) -> int:
        """An older name of `num_bootstrap`."""
        return self.settings.num_bootstrap

    @property
    def confidence(self) -> float:
        """Of the intervals."""
        return self.settings.confidence

    @property
    def baseline(self) -> MethodResult:
        """The uncorrected model."""
        return self.rows[0]

    @property
    def metric_names(self) -> tuple[str, ...]:
        """All metrics that were measured, in the order of a table."""
        return tuple(self.rows[0].values)

    def focus(self, method: str | None = None) -> MethodResult:
        """The method to look at closely: the named one, or the first after the uncorrected model."""
        if method is not None:
            return self._row("method", method)
        if len(self.rows) < 2:
            raise InputError("Expected the comparison to have a method other than `none`, but it has none.")
        return self.rows[1]

    def describe(self) -> str:
        """Say what was measured on what, in one line."""
        return self.scope.protocol.describe() if isinstance(self.scope, DetectionScope) else self.scope.describe()

    def verdict(self, name: str | None = None) -> str:
        """Say in a sentence or two what a method changes; by default the first one after the baseline."""
        if len(self.rows) == 1:
            return f"Nothing was compared: {self.rows[0].name} is the only row."
        return self.verdict_on(self.rows[1] if name is None else self[name])

    def verdict_on(self, row: MethodResult) -> str:
        """Say in a sentence or two what the method of a row changes."""
        if self.task == DETECTION:
            sentences = [describe_changes(row.name, row.differences)]
            if "ECE" in row.differences:
                sentences.append(f"{describe_calibration(self.baseline.values, row.values)}.")
            if row.thresholds is not None and self.baseline.thresholds is not None:
                sentences.append(describe_threshold(self.baseline.thresholds, row.thresholds))
            return " ".join(sentences)
        return describe_classifier(row.name, row.differences, self.baseline.values, row.values)

    def made_by(self, command: tuple[str, ...]) -> Comparison:
        """The same comparison with the command that made it."""
        return replace(self, provenance=replace(self.provenance, command=command))

    def with_details(self) -> Comparison:
        """The same comparison with what else the report shows: scores, thresholds, kinds of error, pictures.

        It takes as long as some methods take to measure, so it waits until `save` or the report wants it.
        """
        if self.add_details is None:
            return self
        return replace(self, rows=tuple(self.add_details(self.rows)), add_details=None)

    def to_dict(self) -> dict[str, Any]:
        """Give everything but arrays as plain values, for JSON."""
        from logn.evaluate.comparison.files import comparison_document

        return comparison_document(self)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything into a folder: `comparison.json`, `.safetensors`, `.md`, `.csv`, `.tex`, `per_class.csv`."""
        from logn.evaluate.comparison.files import save_comparison

        save_comparison(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Comparison:
        """Read what `save` or `logn compare -o` wrote."""
        from logn.evaluate.comparison.files import load_comparison

        return load_comparison(folder)


def detection_classes(
    truth: GroundTruth,
    groups: Groups | None,
    train_counts: FloatArray | None = None,
    moments: ClassMoments | None = None,
) -> tuple[EvaluatedClass, ...]:
    """List the classes of a detector with their group, their boxes, and what is known from training."""
    columns = zip(truth.category_ids.tolist(), truth.class_names, truth.boxes_per_class.tolist(), strict=True)
    known = [
        EvaluatedClass(number, name, None if groups is None else str(groups[place]) or None, boxes)
        for place, (number, name, boxes) in enumerate(columns)
    ]
    return _with_training(known, train_counts, moments)


def classifier_classes(truth: ClassificationTruth, moments: ClassMoments | None = None) -> tuple[EvaluatedClass, ...]:
    """List the classes of a classifier with their group, their rows, and what is known from training."""
    known = [
        EvaluatedClass(place, truth.name(place), truth.group_of(place), rows)
        for place, rows in enumerate(truth.rows_per_class.tolist())
    ]
    return _with_training(known, truth.train_counts, moments)


def _with_training(
    classes: list[EvaluatedClass], train_counts: FloatArray | None, moments: ClassMoments | None
) -> tuple[EvaluatedClass, ...]:
    if train_counts is not None:
        classes = [replace(one, train_count=float(n)) for one, n in zip(classes, train_counts, strict=True)]
    if moments is None:
        return tuple(classes)
    foreground = foreground_columns(moments.num_columns, moments.metadata.background)
    mean = np.where(moments.count[foreground] > 0, moments.mean[foreground], np.nan)
    if len(mean) != len(classes):
        return tuple(classes)
    columns = zip(classes, plain_values(mean), plain_values(moments.std[foreground]), strict=True)
    return tuple(replace(one, mean=middle, std=spread) for one, middle, spread in columns)
