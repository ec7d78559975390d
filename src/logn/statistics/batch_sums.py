"""The inner loop of the statistics: count, mean and M2 of one batch, in one pass over blocks that fit the cache.

Each block is shifted by a pilot mean before it is squared, so that nothing cancels, and its columns are summed by BLAS.
Inside a block float32 logits stay float32 (float64 would be twice the memory traffic for digits that the input does
not have); across blocks, and from there on, everything is float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import FloatArray, row_blocks

# Values in a block: large enough to hide the cost of a NumPy call, small enough for a core's caches.
BLOCK_VALUES = 5 * 2**16
# Batches of so few values are summed in float64 throughout: the speed would not show, the digits might.
SMALL_BATCH = 2**15
# A pilot whose squared distance from the mean exceeds this many variances costs digits: the batch is summed again.
FAR_PILOT = 64.0


@dataclass(frozen=True)
class BatchSums:
    """Per-class count, mean and sum of squared deviations of one batch, and how many values were skipped."""

    count: FloatArray
    mean: FloatArray
    m2: FloatArray
    skipped: FloatArray


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
        self._block_rows = max(1, BLOCK_VALUES // num_classes)
        # The pilot is laid out as a whole block: one long loop is twice as fast as a broadcast over short rows.
        self._pilot: npt.NDArray[Any] | None = None
        self._stale = False
        self._scratch: npt.NDArray[Any] = np.empty(0)
        self._ones: npt.NDArray[Any] = np.empty(0)

    def sum(self, rows: npt.NDArray[Any]) -> BatchSums:
        """Sums of the (N, C) `rows`, N at least 1."""
        exact = rows.dtype == np.float64 or rows.size <= SMALL_BATCH
        working = np.dtype(np.float64 if exact else np.float32)
        rows_needed = min(len(rows), self._block_rows)
        if self._pilot is None or self._stale or self._pilot.dtype != working or len(self._pilot) < rows_needed:
            first = rows[: self._block_rows].mean(axis=0, dtype=np.float64)
            self._set_pilot(first, working, rows_needed)
        offset, m2 = self._centred(rows)
        if (offset * offset * len(rows) > FAR_PILOT * m2).any():
            self._set_pilot(self._pilot_mean() + offset, working, rows_needed)
            offset, m2 = self._centred(rows)
        if not np.isfinite(m2).all():
            self._pilot = None
            return self._careful_sums(rows)
        count = np.full(self._num_classes, float(len(rows)))
        return BatchSums(count, self._pilot_mean() + offset, m2, np.zeros(self._num_classes))

    def forget(self) -> None:
        """Start afresh, so that the next sums depend on nothing that came before; the scratch memory is kept."""
        self._stale = True

    def _set_pilot(self, mean: FloatArray, working: np.dtype[Any], rows: int) -> None:
        self._stale = False
        if self._pilot is not None and self._pilot.dtype == working and len(self._pilot) >= rows:
            self._pilot[:] = mean  # fresh memory would cost more than the sums of a batch
            return
        self._pilot = np.tile(mean.astype(working), (rows, 1))
        self._scratch = np.empty_like(self._pilot)
        self._ones = np.ones(rows, dtype=working)

    def _pilot_mean(self) -> FloatArray:
        assert self._pilot is not None  # noqa: S101 - for the type checker
        mean: FloatArray = self._pilot[0].astype(np.float64)
        return mean

    def _centred(self, rows: npt.NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """Mean minus pilot, and M2. A value that is not finite shows in them: no need to look for it in each block."""
        assert self._pilot is not None  # noqa: S101 - for the type checker
        total, squares = np.zeros(self._num_classes), np.zeros(self._num_classes)
        with np.errstate(invalid="ignore", over="ignore"):
            for block in row_blocks(rows, self._block_rows):
                size = len(block)
                shifted, ones = self._scratch[:size], self._ones[:size]
                np.subtract(block, self._pilot[:size], out=shifted)
                total += ones @ shifted
                np.multiply(shifted, shifted, out=shifted)
                squares += ones @ shifted
            offset = total / len(rows)
            return offset, np.maximum(squares - total * offset, 0.0)

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
