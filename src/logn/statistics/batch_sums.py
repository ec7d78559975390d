"""Count, mean and M2 of one batch: which way to sum it, so that no digits are lost.

Where a mean is many standard deviations from zero, the batch is shifted by a pilot mean before it is summed, so that
nothing cancels. Batches with values that are not finite go the slow way.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import FloatArray, row_blocks
from logn.statistics.column_sums import ColumnSummer

# Batches of so few values are summed in float64 throughout: the speed would not show, the digits might.
SMALL_BATCH = 2**15
# Where the squared distance of a mean from the pilot (or from zero, without one) is more than so many variances, too
# many of the seven digits of float32 cancel: the batch is summed again with a better pilot.
FAR_PILOT = 36.0
# Values of a block on the slow way.
CAREFUL_VALUES = 10 * 2**16


class BatchSums(NamedTuple):
    """Sums of one batch per class, M2 (the sum of squared deviations from the mean), and how many values were skipped.

    Counts are one number where they are the same for all classes, which is nearly always and saves time.
    """

    counts: FloatArray | float
    # What was subtracted from the logits before they were summed and squared; the same object from batch to batch
    # while it stays the same.
    pilot: FloatArray | None
    sums: FloatArray  # (2, C): of the logits, and of their squares
    m2: FloatArray
    skipped: FloatArray | float

    @property
    def mean(self) -> FloatArray:
        """Mean of each class (0 where everything was skipped)."""
        offset: FloatArray = self.sums[0] / np.maximum(self.counts, 1.0)
        return offset if self.pilot is None else self.pilot + offset


class BatchSummer:
    """Sums batches; keeps its pilot mean and its scratch memory between them.

    Example:
        >>> sums = BatchSummer(2, nonfinite="error").sum(np.array([[2.0, 0.5], [0.0, 1.5]]))
        >>> sums.mean.tolist(), sums.m2.tolist()
        ([1.0, 1.0], [2.0, 0.5])
    """

    def __init__(self, num_classes: int, nonfinite: str) -> None:
        self._num_classes = num_classes
        self._nonfinite = nonfinite
        self._summers: dict[type, ColumnSummer] = {}

    def sum(self, rows: npt.NDArray[Any]) -> BatchSums:
        """Sums of the (N, C) `rows`, N at least 1."""
        exact = rows.dtype == np.float64 or rows.size <= SMALL_BATCH
        summer = self._summer(np.float64 if exact else np.float32)
        # A value that is not finite shows in the sums: no need to look for it in each block.
        with np.errstate(invalid="ignore", over="ignore"):
            batch, far = _summed(summer, rows)
            if far:
                summer.set_pilot(batch.mean)
                batch, _ = _summed(summer, rows)
            if isfinite(batch.m2.dot(batch.m2)):
                return batch
        summer.set_pilot(None)
        return self._careful_sums(rows)

    def forget(self) -> None:
        """Start afresh, so that the next sums depend on nothing that came before; the scratch memory is kept."""
        for summer in self._summers.values():
            summer.set_pilot(None)

    def _summer(self, working: type) -> ColumnSummer:
        if working not in self._summers:
            self._summers[working] = ColumnSummer(self._num_classes, working)
        return self._summers[working]

    def _careful_sums(self, rows: npt.NDArray[Any]) -> BatchSums:
        """The slow way, for batches with values that are not finite or whose squares exceed float32."""
        block_rows = max(1, CAREFUL_VALUES // self._num_classes)
        count, total, mean, m2 = (np.zeros(self._num_classes) for _ in range(4))
        for block in row_blocks(rows, block_rows):
            finite = np.isfinite(block)
            if self._nonfinite == "error" and not finite.all():
                row, column = np.argwhere(~finite)[0]
                raise InputError(
                    f"Expected `logits` to be finite, but got {block[row, column]} for class {column}; "
                    'nonfinite="skip" (`--nonfinite skip`) leaves such values out and counts them.'
                )
            count += finite.sum(axis=0)
            total += np.where(finite, block, 0.0).sum(axis=0, dtype=np.float64)
        np.divide(total, count, out=mean, where=count > 0)
        for block in row_blocks(rows, block_rows):
            deviation = np.where(np.isfinite(block), block, mean).astype(np.float64) - mean
            m2 += (deviation * deviation).sum(axis=0)
        return BatchSums(count, mean, np.stack([np.zeros_like(m2), m2]), m2, float(len(rows)) - count)


def _summed(summer: ColumnSummer, rows: npt.NDArray[Any]) -> tuple[BatchSums, bool]:
    """The sums as the summer gives them, and whether its pilot is too far from some mean."""
    count = float(len(rows))
    sums = summer.sum(rows)
    total, squares = sums
    between = total * total
    between *= 1.0 / count
    m2 = squares - between
    between *= 1.0 / FAR_PILOT
    far = bool(np.minimum.reduce(np.subtract(m2, between, out=between)) < 0.0)
    return BatchSums(count, summer.pilot, sums, np.maximum(m2, 0.0) if far else m2, 0.0), far
