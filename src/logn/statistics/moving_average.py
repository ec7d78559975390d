"""The paper's estimator: moving averages of each batch's mean and variance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import as_rows
from logn.logits.shards import LogitBlock
from logn.statistics.batch_sums import BatchMoments, BatchSummer
from logn.statistics.collect_journal import Arrays
from logn.statistics.file_format import StatisticsFile
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
        self.metadata = (metadata or StatisticsMetadata()).with_changes(estimator="moving-average")
        self.metadata.check_width(num_classes)
        self.skipped_batches = 0
        self._bias_correction = bias_correction
        self._initial = (initial_mean, initial_variance)
        self._mean = np.full(num_classes, float(initial_mean))
        self._variance = np.full(num_classes, float(initial_variance))
        self._rows, self._batches = 0, 0
        self._summer = BatchSummer(num_classes, "error")

    def update(self, logits: Any) -> None:
        """Add a batch (…, C). One of fewer than two rows has no variance: it is left out and counted."""
        rows = as_rows(logits, self.num_classes)
        if len(rows) == 0:
            self.skipped_batches += 1
        else:
            self.add(self._summer.moments(rows), len(rows))

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
        zeros = np.zeros(self.num_classes)
        return ClassMoments.from_file(
            StatisticsFile(
                count=count,
                mean=mean,
                m2=np.maximum(variance, 0.0) * (count - 1.0),
                within_variance_sum=np.maximum(variance, 0.0) * self._batches,
                batches=zeros + self._batches,
                skipped=zeros,
                metadata=self.metadata,
            )
        )


class MovingAverageStatistics:
    """`MovingAverage` in the form that `collect_shards` takes.

    Args:
        num_classes: Columns of the logits, the background included.
        metadata: What the logits are.
        options: Further arguments of `MovingAverage`.
    """

    def __init__(self, num_classes: int, *, metadata: StatisticsMetadata | None = None, **options: Any) -> None:
        self._average = MovingAverage(num_classes, metadata=metadata, **options)
        self._options = options

    def settings(self) -> dict[str, Any]:
        """What the result depends on apart from the shards."""
        return {**self._options, **self._average.metadata.to_text()}

    def compute(self, block: LogitBlock) -> list[tuple[BatchMoments, int]]:
        """Moments of each batch; the averaging, which needs the batches in order, is left to `merge`."""
        summer = BatchSummer(self._average.num_classes, "error")
        return [(summer.moments(batch), len(batch)) for batch in block.read_batches()]

    def merge(self, result: list[tuple[BatchMoments, int]]) -> None:
        """Take the batches of a block, in order."""
        for batch, rows in result:
            self._average.add(batch, rows)

    def arrays(self) -> Arrays:
        """The state, for the journal."""
        return self._average.state()

    def restore(self, arrays: Arrays) -> None:
        """Continue from the state that `arrays` returned."""
        self._average.restore(arrays)

    def moments(self) -> ClassMoments:
        """The result."""
        return self._average.moments()
