"""How statistics are estimated: exactly, by the paper's moving average, or over the positives of each class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from logn.errors import InputError
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments, Nonfinite
from logn.statistics.moving_average import MovingAverage
from logn.statistics.positives import PositiveMoments

EXACT, MOVING_AVERAGE, POSITIVES, CORRECT_POSITIVES = "exact", "moving-average", "positives", "positives-correct"
ESTIMATORS = (EXACT, MOVING_AVERAGE, POSITIVES, CORRECT_POSITIVES)

Statistics = ClassMoments | MovingAverage | PositiveMoments


@dataclass(frozen=True)
class Estimator:
    """Which statistics to take of batches of logits.

    Args:
        name: "exact"; "moving-average" (the paper's algorithm 1: means and variances of batches, averaged in their
            order); "positives" (each class's logit over its own samples, which need labels) or "positives-correct"
            (those that are recognised too).
        momentum: Of the moving average; 5e-5 by default, as in the official configurations.
        bias_correction: Whether to take the start of the moving average out again.

    Example:
        >>> average = Estimator("moving-average", momentum=0.1).start(2)
        >>> average.update([[2.0, 0.5], [0.0, 1.5]])
        >>> finished(average).mean
        array([0.1, 0.1])
        >>> Estimator("exact", momentum=0.1)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `momentum` only with the estimator moving-average, but it is exact.
    """

    name: str = EXACT
    momentum: float | None = None
    bias_correction: bool = False

    def __post_init__(self) -> None:
        if self.name not in ESTIMATORS:
            raise InputError(f"Expected `estimator` to be one of {ESTIMATORS}, but got {self.name!r}.")
        given = {"momentum": self.momentum, "bias_correction": self.bias_correction or None}
        option = next((option for option, value in given.items() if value is not None), None)
        if option is not None and self.name != MOVING_AVERAGE:
            raise InputError(f"Expected `{option}` only with the estimator moving-average, but it is {self.name}.")

    @property
    def needs_labels(self) -> bool:
        """Whether each row needs the column of its class."""
        return self.name in (POSITIVES, CORRECT_POSITIVES)

    def start(
        self,
        num_classes: int,
        *,
        nonfinite: Nonfinite = "error",
        sample_rows: int = 0,
        mean_probability: bool = False,
        metadata: StatisticsMetadata | None = None,
    ) -> Statistics:
        """Statistics of nothing yet; the arguments are those of `ClassMoments`."""
        kept: dict[str, Any] = {"sample_rows": sample_rows, "mean_probability": mean_probability, "metadata": metadata}
        if self.name == EXACT:
            return ClassMoments(num_classes, nonfinite=nonfinite, **kept)
        if nonfinite != "error":
            raise InputError(f"Expected `nonfinite` to be 'error' with the estimator {self.name}, but got 'skip'.")
        if self.name == MOVING_AVERAGE:
            momentum: dict[str, Any] = {} if self.momentum is None else {"momentum": self.momentum}
            return MovingAverage(num_classes, bias_correction=self.bias_correction, **momentum, **kept)
        return PositiveMoments(num_classes, require_correct=self.name == CORRECT_POSITIVES, **kept)


def finished(statistics: Statistics) -> ClassMoments:
    """The statistics in the form that every method takes; exact ones are given as they are."""
    return statistics if isinstance(statistics, ClassMoments) else statistics.moments()


def add_batch(statistics: Statistics, logits: Any, labels: Callable[[], Any], objectness: Any = None) -> None:
    """Add a batch; `labels` is asked for the columns of its rows only where they count."""
    if isinstance(statistics, PositiveMoments):
        statistics.update(logits, labels())
    else:
        statistics.update(logits, objectness)
