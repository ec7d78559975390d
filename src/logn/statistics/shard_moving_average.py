"""The paper's moving average over shards: batch after batch, in the order of the files."""

from __future__ import annotations

from typing import Any

from logn.logits.shards import LogitBlock
from logn.statistics.batch_sums import BatchMoments, BatchSummer
from logn.statistics.collect_journal import Arrays
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments
from logn.statistics.moving_average import MovingAverage


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
        """What the result depends on besides the shards."""
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
        """Go on from the state that `arrays` gave."""
        self._average.restore(arrays)

    def moments(self) -> ClassMoments:
        """The result."""
        return self._average.moments()
