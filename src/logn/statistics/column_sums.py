"""The inner loop of the statistics: sums of columns and of their squares, in blocks that fit a core's cache.

Both come from one pass over memory: the second sum finds the block in the cache, and neither writes an array of the
block's size. Inside short runs of rows float32 logits stay float32 (float64 would be twice the memory traffic for
digits that the input does not have); across runs everything is float64.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.logits.arrays import FloatArray, row_blocks

# Values in a block: large enough to hide the cost of a NumPy call, small enough for a core's own cache.
BLOCK_VALUES = 320 * 2**10
# Rows that are summed in the precision of the logits before float64 takes over.
RUN_ROWS = 64
# Runs whose sums are kept until they are converted to float64 together.
RUNS = 8
# Rows narrower than this lie side by side as if they were one: loops over few columns would be all overhead.
WIDE_ROW = 2048


class ColumnSummer:
    """Sums the columns of (N, C) rows and their squares, minus a pilot mean where one is set.

    Scratch memory is kept between calls: fresh memory would cost more than the sums of a batch.

    Args:
        num_classes: Columns.
        working: Precision inside a run, float32 or float64.

    Example:
        >>> summer = ColumnSummer(2, np.float64)
        >>> summer.sum(np.array([[2.0, 0.5], [0.0, 1.5]])).tolist()
        [[2.0, 2.0], [4.0, 2.5]]
        >>> summer.set_pilot(np.array([1.0, 1.0]))
        >>> summer.sum(np.array([[2.0, 0.5], [0.0, 1.5]])).tolist()
        [[0.0, 0.0], [2.0, 0.5]]
    """

    def __init__(self, num_classes: int, working: npt.DTypeLike) -> None:
        self._num_classes = num_classes
        self._abreast = max(1, WIDE_ROW // num_classes)
        self._width = self._abreast * num_classes
        self._run_rows = RUN_ROWS * self._abreast
        self._block_runs = max(1, BLOCK_VALUES // (RUN_ROWS * self._width))
        self._pilot: FloatArray | None = None
        # The pilot laid out as a whole block: one long loop is twice as fast as a broadcast over rows.
        self._pilot_rows: npt.NDArray[Any] = np.empty((0, num_classes), working)
        self._scratch: npt.NDArray[Any] = np.empty((0, num_classes), working)
        self._ones: npt.NDArray[Any] = np.ones(RUN_ROWS, working)
        # Of each run the sums, then the sums of squares. Small, since each batch sweeps them out of the near cache.
        self._runs: npt.NDArray[Any] = np.empty((RUNS, 2 * self._width), working)
        self._exact_runs: FloatArray = np.empty(self._runs.shape)
        self._exact_ones = np.ones(RUNS)

    @property
    def pilot(self) -> FloatArray | None:
        """What is subtracted from every row before it is summed; the same object while it stays the same."""
        return self._pilot

    def set_pilot(self, mean: FloatArray | None) -> None:
        """Subtract `mean`, rounded to the working precision, from now on; None subtracts nothing."""
        self._pilot = None if mean is None else mean.astype(self._scratch.dtype).astype(np.float64)
        if mean is not None:
            self._pilot_rows[:] = mean

    def sum(self, rows: npt.NDArray[Any]) -> FloatArray:
        """Sums of the columns of (N, C) `rows` and of their squares: (2, C). N is at least 1."""
        if len(rows) <= RUNS * self._run_rows:
            sums = self._sum_chunk(rows)
        else:
            sums = reduce(add, map(self._sum_chunk, row_blocks(rows, RUNS * self._run_rows)))
        return sums if self._abreast == 1 else sums.reshape(2, self._abreast, self._num_classes).sum(axis=1)

    def _sum_chunk(self, chunk: npt.NDArray[Any]) -> FloatArray:
        """Sums of at most `RUNS` runs of rows, in float64."""
        runs, rest = divmod(len(chunk), self._run_rows)
        ready = self._pilot is None and chunk.dtype == self._runs.dtype and chunk.flags.c_contiguous
        if ready:
            self._sum_runs(chunk[: len(chunk) - rest], 0)
        else:
            for first in range(0, runs, self._block_runs):
                start, stop = first * self._run_rows, min(first + self._block_runs, runs) * self._run_rows
                self._sum_runs(self._shifted(chunk[start:stop]), first)
        if rest:
            self._sum_short_run(chunk[-rest:], ready, self._runs[runs])
            runs += 1
        exact = self._exact_runs[:runs]
        np.copyto(exact, self._runs[:runs])
        sums: FloatArray = self._exact_ones[:runs] @ exact
        return sums.reshape(2, self._width)

    def _sum_runs(self, rows: npt.NDArray[Any], first: int) -> None:
        """Put the sums of whole runs of rows into `_runs`, from number `first` on, block by block."""
        runs = rows.reshape(-1, RUN_ROWS, self._width)
        for start in range(0, len(runs), self._block_runs):
            block = runs[start : start + self._block_runs]
            sums = self._runs[first + start : first + start + len(block)]
            # The squares first: their loop computes while it waits for memory; BLAS then finds the block in the cache.
            np.einsum("rij,rij->rj", block, block, out=sums[:, self._width :])
            np.matmul(self._ones, block, out=sums[:, : self._width])

    def _sum_short_run(self, rest: npt.NDArray[Any], ready: bool, run: npt.NDArray[Any]) -> None:
        """Put the sums of fewer rows than a run has into `run`."""
        if not ready or len(rest) % self._abreast:
            rest = self._shifted(rest, pad=-len(rest) % self._abreast)
        wide = rest.reshape(-1, self._width)
        np.einsum("ij,ij->j", wide, wide, out=run[self._width :])
        np.matmul(self._ones[: len(wide)], wide, out=run[: self._width])

    def _shifted(self, block: npt.NDArray[Any], pad: int = 0) -> npt.NDArray[Any]:
        """The block minus the pilot, in the working precision; behind it `pad` rows of zeros, which add nothing."""
        size = len(block)
        self._reserve(size + pad)
        if self._pilot is None:
            np.copyto(self._scratch[:size], block)
        else:
            np.subtract(block, self._pilot_rows[:size], out=self._scratch[:size])
        self._scratch[size : size + pad] = 0.0
        return self._scratch[: size + pad]

    def _reserve(self, rows: int) -> None:
        if len(self._scratch) < rows:
            self._scratch = np.empty((rows, self._num_classes), self._scratch.dtype)
            self._pilot_rows = np.empty_like(self._scratch)
            if self._pilot is not None:
                self._pilot_rows[:] = self._pilot
