"""The inner loop of the statistics: count, mean and M2 of one batch, in one pass over blocks that fit the cache.

The columns of a block are summed by BLAS. Where a mean is many standard deviations from zero, the block is first
shifted by a pilot mean, so that nothing cancels. Inside short runs of rows float32 logits stay float32 (float64 would
be twice the memory traffic for digits that the input does not have); across runs, and from there on, everything is
float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import FloatArray, row_blocks

# Values in a block: large enough to hide the cost of a NumPy call, small enough for a core's caches.
BLOCK_VALUES = 10 * 2**16
# Batches of so few values are summed in float64 throughout: the speed would not show, the digits might.
SMALL_BATCH = 2**15
# Rows that are summed in the precision of the logits before float64 takes over.
RUN_ROWS = 64
# Where the squared distance of a mean from the pilot (or from zero, without one) is more than so many variances, too
# many of the seven digits of float32 cancel: the batch is summed again with a better pilot.
FAR_PILOT = 36.0


@dataclass(frozen=True)
class BatchSums:
    """Count, mean and sum of squared deviations of one batch per class, and how many values were skipped.

    Counts are one number where they are the same for all classes, which is nearly always and saves time.
    """

    count: FloatArray | float
    mean: FloatArray
    m2: FloatArray
    skipped: FloatArray | float


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
        self._block_rows = max(1, BLOCK_VALUES // num_classes // RUN_ROWS) * RUN_ROWS
        # None: no shift is needed. Laid out as a whole block: one long loop is twice as fast as a broadcast over rows.
        self._pilot: npt.NDArray[Any] | None = None
        self._spare_pilot: npt.NDArray[Any] | None = None
        self._scratch: npt.NDArray[Any] = np.empty((0, num_classes))
        self._ones: npt.NDArray[Any] = np.ones(RUN_ROWS)

    def sum(self, rows: npt.NDArray[Any]) -> BatchSums:
        """Sums of the (N, C) `rows`, N at least 1."""
        exact = rows.dtype == np.float64 or rows.size <= SMALL_BATCH
        working = np.dtype(np.float64 if exact else np.float32)
        self._prepare(working, min(len(rows), self._block_rows))
        offset, between, m2 = self._centred(rows)
        if (between > FAR_PILOT * m2).any():
            self._set_pilot(offset if self._pilot is None else self._pilot[0] + offset)
            offset, _, m2 = self._centred(rows)
        if not np.isfinite(m2.sum()):
            self._pilot = None
            return self._careful_sums(rows)
        mean = offset if self._pilot is None else self._pilot[0] + offset
        return BatchSums(float(len(rows)), mean, m2, 0.0)

    def forget(self) -> None:
        """Start afresh, so that the next sums depend on nothing that came before; the scratch memory is kept."""
        self._pilot = None

    def _prepare(self, working: np.dtype[Any], rows: int) -> None:
        """Have scratch memory for blocks of that size; fresh memory would cost more than the sums of a batch."""
        if self._scratch.dtype != working or len(self._scratch) < rows:
            self._scratch = np.empty((rows, self._num_classes), dtype=working)
            self._ones = np.ones(RUN_ROWS, dtype=working)
            self._pilot = self._spare_pilot = None

    def _set_pilot(self, mean: FloatArray) -> None:
        if self._spare_pilot is None:
            self._spare_pilot = np.empty_like(self._scratch)
        self._pilot = self._spare_pilot
        with np.errstate(invalid="ignore", over="ignore"):
            self._pilot[:] = mean

    def _centred(self, rows: npt.NDArray[Any]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean minus pilot, what that adds to the squares, and M2.

        A value that is not finite shows in them: no need to look for it in each block.
        """
        total, squares = np.zeros(self._num_classes), np.zeros(self._num_classes)
        with np.errstate(invalid="ignore", over="ignore"):
            for block in row_blocks(rows, self._block_rows):
                size = len(block)
                shifted = self._scratch[:size]
                if self._pilot is not None:
                    np.subtract(block, self._pilot[:size], out=shifted)
                    block = shifted
                elif block.dtype != shifted.dtype:
                    np.copyto(shifted, block)
                    block = shifted
                total += self._column_sums(block)
                np.multiply(block, block, out=shifted)
                squares += self._column_sums(shifted)
            offset = total / len(rows)
            between = total * offset
            return offset, between, np.maximum(squares - between, 0.0)

    def _column_sums(self, block: npt.NDArray[Any]) -> FloatArray:
        """Sums of the columns: runs of rows by BLAS, their sums in float64."""
        whole = len(block) // RUN_ROWS * RUN_ROWS
        runs = self._ones @ block[:whole].reshape(-1, RUN_ROWS, self._num_classes)
        rest = self._ones[: len(block) - whole] @ block[whole:]
        total: FloatArray = runs.sum(axis=0, dtype=np.float64) + rest
        return total

    def _careful_sums(self, rows: npt.NDArray[Any]) -> BatchSums:
        """The slow way, for batches with values that are not finite or whose squares exceed float32."""
        count, total, pilot = (np.zeros(self._num_classes) for _ in range(3))
        for block in row_blocks(rows, self._block_rows):
            finite = np.isfinite(block)
            if self._nonfinite == "error" and not finite.all():
                row, column = np.argwhere(~finite)[0]
                raise InputError(
                    f"Expected `logits` to be finite, but got {block[row, column]} for class {column}; "
                    'nonfinite="skip" (`--nonfinite skip`) leaves such values out and counts them.'
                )
            count += finite.sum(axis=0)
            total += np.where(finite, block, 0.0).sum(axis=0, dtype=np.float64)
        mean = np.divide(total, count, out=pilot, where=count > 0)
        m2 = np.zeros(self._num_classes)
        for block in row_blocks(rows, self._block_rows):
            deviation = np.where(np.isfinite(block), block, mean).astype(np.float64) - mean
            m2 += (deviation * deviation).sum(axis=0)
        return BatchSums(count, mean, m2, float(len(rows)) - count)
