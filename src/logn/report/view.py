"""What the page looks at: one method of a comparison beside the uncorrected model, in the words of its task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from logn.errors import InputError
from logn.measure import tables
from logn.measure.comparison import CLASSIFICATION, DETECTION, Comparison, MethodResult
from logn.measure.detection.bootstrap import Interval
from logn.measure.detection.metrics import count_name

UNKNOWN = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Words:
    """What a task calls things; `groups` are the metrics of the groups and, last, of all."""

    model: str
    score: str
    data: str
    units: str
    examples: str
    groups: Mapping[str, str]
    class_mean: str

    @property
    def metric(self) -> str:
        """The metric over all classes."""
        return list(self.groups)[-1]


WORDS = {
    DETECTION: Words(
        model="detector",
        score="AP",
        data="proposals",
        units="images",
        examples="boxes",
        groups={"APr": "Rare", "APc": "Common", "APf": "Frequent", "AP": "All"},
        class_mean="Class-mean recall",
    ),
    CLASSIFICATION: Words(
        model="classifier",
        score="accuracy",
        data="logits",
        units="rows",
        examples="rows",
        groups={"few": "Few-shot", "medium": "Medium-shot", "many": "Many-shot", "top-1": "All"},
        class_mean="Class-mean accuracy",
    ),
}


class PredictionInput(msgspec.Struct, frozen=True):
    """The stored predictions of a detector."""

    path: str = "PREDICTIONS"
    images: int = 0
    proposals: int = 0
    columns: int = 0
    activation: str | None = None
    model: str | None = None
    model_words: tuple[str, ...] | None = None


class LogitInput(msgspec.Struct, frozen=True):
    """The logits of a classifier."""

    name: str | None = None
    rows: int = 0
    columns: int = 0
    model: str | None = None


class StatisticsInput(msgspec.Struct, frozen=True):
    """The statistics of the training data."""

    logits: int = 0
    layer: str | None = None
    population: str | None = None
    activation: str | None = None
    source: str | None = None


class Inputs(msgspec.Struct, frozen=True):
    """What a comparison was made from, as far as it says so."""

    predictions: PredictionInput | None = None
    logits: LogitInput | None = None
    statistics: StatisticsInput | None = None
    annotations: str | None = None
    image_root: str | None = None


@dataclass(frozen=True)
class View:
    """A comparison and the method to look at closely.

    Args:
        comparison: What was compared.
        focus: The method to look at.
        inputs: What the comparison was made from.
        images: Folder that the paths of the images start from; None for where the comparison saw them.
        commands: What makes the comparison and the page again.
    """

    comparison: Comparison
    focus: MethodResult
    inputs: Inputs
    images: Path | None = None
    commands: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, comparison: Comparison, focus: MethodResult, images: Path | None = None, commands: tuple[str, ...] = ()
    ) -> View:
        """Look at a method of a comparison; raise InputError where its record of the inputs is damaged."""
        try:
            inputs = msgspec.convert(comparison.provenance.inputs, Inputs)
        except msgspec.ValidationError as error:
            raise InputError(
                f"`inputs` in `comparison.json` is not as `logn compare -o` writes it: {error}. Compare again."
            ) from error
        return cls(comparison, focus, inputs, images, commands)

    @property
    def before(self) -> MethodResult:
        """The uncorrected model."""
        return self.comparison.baseline

    @property
    def is_detector(self) -> bool:
        """Whether a detector was compared."""
        return self.comparison.task == DETECTION

    @property
    def confidence(self) -> str:
        """That of the intervals, as the page writes it."""
        return f"{100 * self.comparison.settings.confidence:g} %"

    @property
    def words(self) -> Words:
        """What the task calls things."""
        return WORDS[self.comparison.task]

    @property
    def class_mean(self) -> str:
        """The metric that counts every class the same."""
        return self.at_count("recall") if self.is_detector else "balanced"

    def at_count(self, name: str, group: str = "") -> str:
        """A metric at an equal number of detections, at the threshold that the user named."""
        return count_name(name, self.comparison.settings.at, group)

    def change(self, metric: str) -> Interval:
        """The difference that the method makes; NaN where it is not known."""
        return self.focus.differences.get(metric, UNKNOWN)

    def has(self, metric: str) -> bool:
        """Whether a metric was measured before and after."""
        return not any(math.isnan(metric_of(row, metric)) for row in (self.before, self.focus))


def metric_of(row: MethodResult, name: str) -> float:
    """A metric of a method, NaN where it was not measured."""
    return row.values.get(name, math.nan)


def metric_text(name: str, value: float) -> str:
    """A metric as the page has it.

    Example:
        >>> metric_text("AP", 0.254), metric_text("NLL", 1.5), metric_text("AP", float("nan"))
        ('25.4', '1.500', '–')
    """
    return "–" if math.isnan(value) else tables.metric_text(name, value)
