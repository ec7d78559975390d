"""The paper's estimator: moving averages of each batch's mean and variance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import as_rows
from logn.statistics.batch_sums import BatchMoments, BatchSummer
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments


class MovingAverage:
    """Running mean and variance as in the official head: `new = (1 - momentum) * old + momentum * batch`.

    The batch variance is unbiased; the variance between batches is not in it. The result depends on the order of the
    batches and cannot be merged: `ClassMoments` is exact, this is for reproducing published numbers.

    Args:
        num_classes: Columns of the logits, the background included.
        momentum: Weight of a new batch; 5e-5 in the official configurations.
        initial_mean: Start of the mean.
        initial_variance: Start of the variance.
        bias_correction: Take the starting values out again by dividing by `1 - (1 - momentum)^batches`, as Adam does;
            the official code keeps 29 % of them in its statistics of LVIS.
        sample_rows: How many rows to keep beside the averages, as `ClassMoments` does.
        mean_probability: Whether to keep the mean probability of each class beside them, over all rows alike.
        metadata: What the logits are.

    Example:
        >>> average = MovingAverage(2, momentum=0.1)
        >>> average.update(np.array([[2.0, 0.5], [0.0, 1.5]]))
        >>> average.moments().mean
        array([0.1, 0.1])
    """

    def __init__(
        self,
        num_classes: int,
        *,
        momentum: float = 5e-5,
        initial_mean: float = 0.0,
        initial_variance: float = 1.0,
        bias_correction: bool = False,
        sample_rows: int = 0,
        mean_probability: bool = False,
        metadata: StatisticsMetadata | None = None,
    ) -> None:
        if not 0.0 < momentum <= 1.0:
            raise InputError(f"Expected `momentum` to be above 0 and at most 1, but got {momentum!r}.")
        if initial_variance < 0 or not np.isfinite([initial_mean, initial_variance]).all():
            raise InputError(
                f"Expected `initial_mean` and `initial_variance` to be finite, the latter not negative, but got "
                f"{initial_mean!r} and {initial_variance!r}."
            )
        self.num_classes = num_classes
        self.momentum = momentum
        # What is kept of the rows themselves has no order, so it is kept as for exact statistics.
        self._rows_kept = ClassMoments(
            num_classes, sample_rows=sample_rows, mean_probability=mean_probability, metadata=metadata
        )
        self._keeps_rows = bool(sample_rows or mean_probability)
        self.skipped_batches = 0
        self._bias_correction = bias_correction
        self._initial = (initial_mean, initial_variance)
        self._mean = np.full(num_classes, float(initial_mean))
        self._variance = np.full(num_classes, float(initial_variance))
        self._rows, self._batches = 0, 0
        self._summer = BatchSummer(num_classes, "error")

    @property
    def metadata(self) -> StatisticsMetadata:
        """What the logits are."""
        return self._rows_kept.metadata.with_changes(estimator="moving-average")

    @metadata.setter
    def metadata(self, metadata: StatisticsMetadata) -> None:
        self._rows_kept.metadata = metadata.with_changes(estimator="exact")

    def update(self, logits: Any, objectness: Any = None) -> None:
        """Add a batch (…, C). One of fewer than two rows has no variance: it is left out and counted.

        An `objectness` counts as in `ClassMoments`.
        """
        rows = as_rows(logits, self.num_classes)
        if len(rows) == 0:
            self.skipped_batches += 1
            return
        self.add(self._summer.moments(rows), len(rows))
        if self._keeps_rows:
            self._rows_kept.update(rows, objectness)

    def add(self, batch: BatchMoments, rows: int) -> None:
        """Add a batch of `rows` rows whose moments are known."""
        if rows < 2:
            self.skipped_batches += 1
            return
        self._mean += self.momentum * (batch.mean - self._mean)
        self._variance += self.momentum * (batch.m2 / (rows - 1) - self._variance)
        self._rows += rows
        self._batches += 1

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The averages and counters as plain arrays; `restore` continues from them."""
        counters = np.array([self._rows, self._batches, self.skipped_batches], dtype=np.int64)
        return {"mean": self._mean.copy(), "variance": self._variance.copy(), "counters": counters}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from what `state` returned."""
        self._mean, self._variance = state["mean"].copy(), state["variance"].copy()
        self._rows, self._batches, self.skipped_batches = (int(number) for number in state["counters"])

    def moments(self) -> ClassMoments:
        """The averages so far in the form that every method takes; no more can be added to it."""
        mean, variance = self._mean.copy(), self._variance.copy()
        if self._bias_correction and self._batches:
            left = (1.0 - self.momentum) ** self._batches
            mean = (mean - left * self._initial[0]) / (1.0 - left)
            variance = (variance - left * self._initial[1]) / (1.0 - left)
        # The averages stand for as many rows as went into them; two at least, so that the variance is defined.
        count = np.full(self.num_classes, float(max(self._rows, 2)))
        zeros, kept = np.zeros(self.num_classes), self._rows_kept.to_file()
        return ClassMoments.from_file(
            replace(
                kept,
                count=count,
                mean=mean,
                m2=np.maximum(variance, 0.0) * (count - 1.0),
                within_variance_sum=np.maximum(variance, 0.0) * self._batches,
                batches=zeros + self._batches,
                skipped=zeros,
                metadata=self.metadata,
            )
        )
