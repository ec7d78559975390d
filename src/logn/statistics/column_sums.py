"""The inner loop of the statistics: sums of columns and of their squares, in blocks that fit a core's cache.

Both come from one pass over memory: the second sum finds the block in the cache, and neither writes an array of the
block's size. Inside a block float32 logits stay float32 (float64 would be twice the memory traffic for digits that the
input does not have); across blocks everything is float64.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.logits.arrays import FloatArray, row_blocks
from logn.logits.half_precision import is_finite, widen

# Narrow rows lie side by side as if they were one of about so many bytes: short loops would be all overhead, while long
# ones would not fit the nearest cache together with their sums.
WIDE_BYTES = 2**13
# Wide rows of a block, which are added in the precision of the logits before float64 takes over: enough to hide the
# cost of a NumPy call, few enough for their bytes to stay in the cache and for their rounding to stay small.
BLOCK_ROWS = 128
# Blocks whose sums are converted to float64 together.
CHUNK_BLOCKS = 4


class ColumnSummer:
    """Sums the columns of (N, C) rows and their squares, minus a pilot mean where one is set.

    Scratch memory is kept between calls: fresh memory would cost more than the sums of a batch.

    Args:
        num_classes: Columns.
        working: Precision inside a block, float32 or float64.

    Example:
        >>> summer, sums = ColumnSummer(2, np.float64), np.empty((2, 2))
        >>> summer.sum(np.array([[2.0, 0.5], [0.0, 1.5]]), out=sums)
        >>> sums.tolist()
        [[2.0, 2.0], [4.0, 2.5]]
        >>> summer.set_pilot(np.array([1.0, 1.0]))
        >>> summer.sum(np.array([[2.0, 0.5], [0.0, 1.5]]), out=sums)
        >>> sums.tolist()
        [[0.0, 0.0], [2.0, 0.5]]
    """

    def __init__(self, num_classes: int, working: npt.DTypeLike) -> None:
        self._num_classes = num_classes
        row_bytes = num_classes * np.dtype(working).itemsize
        self._abreast = max(1, round(WIDE_BYTES / row_bytes))
        self._width = self._abreast * num_classes
        self._ones: npt.NDArray[Any] = np.ones(BLOCK_ROWS, working)
        self._pilot: FloatArray | None = None
        # The pilot laid out as a whole block: one long loop is twice as fast as a broadcast over rows.
        self._pilot_rows: npt.NDArray[Any] = np.empty((0, num_classes), working)
        self._scratch: npt.NDArray[Any] = np.empty((0, num_classes), working)
        # Of each block the sums, then the squares; behind them those of the rows that fill no wide one.
        self._parts: npt.NDArray[Any] = np.empty((CHUNK_BLOCKS * 2 * self._abreast + 2, num_classes), working)
        # The same memory as wide rows. Views are kept: what makes them has left the cache between two batches.
        self._wide_parts = list(self._parts[:-2].reshape(-1, self._width))

    @property
    def pilot(self) -> FloatArray | None:
        """What is subtracted from every row before it is summed; the same object while it stays the same."""
        return self._pilot

    def set_pilot(self, mean: FloatArray | None) -> None:
        """Subtract `mean`, rounded to the working precision, from now on; None subtracts nothing."""
        self._pilot = None if mean is None else mean.astype(self._scratch.dtype).astype(np.float64)
        if mean is not None:
            self._pilot_rows[:] = mean

    def sum(self, rows: npt.NDArray[Any], out: FloatArray) -> None:
        """Put the sums of the columns of (N, C) `rows` and of their squares into `out`, (2, C). N is at least 1."""
        chunk_rows = CHUNK_BLOCKS * BLOCK_ROWS * self._abreast
        if len(rows) <= chunk_rows:
            self._sum_chunk(rows, out)
            return
        part = np.empty_like(out)
        out.fill(0.0)
        for chunk in row_blocks(rows, chunk_rows):
            self._sum_chunk(chunk, part)
            out += part

    def _sum_chunk(self, chunk: npt.NDArray[Any], out: FloatArray) -> None:
        """Sums of at most `CHUNK_BLOCKS` blocks of rows."""
        ready = self._pilot is None and chunk.dtype == self._parts.dtype and chunk.flags.c_contiguous
        rest = len(chunk) % self._abreast
        narrow = chunk[: len(chunk) - rest] if rest else chunk
        wide_rows = len(narrow) // self._abreast
        wide = narrow.reshape(wide_rows, self._width) if ready else narrow
        part = 0
        for start in range(0, wide_rows, BLOCK_ROWS):
            block = wide[start : start + BLOCK_ROWS] if ready else self._shifted_block(narrow, start)
            # The squares first: their loop computes while it waits for memory; BLAS then finds the block in the cache.
            np.einsum("ij,ij->j", block, block, out=self._wide_parts[part + 1])
            ones = self._ones if len(block) == BLOCK_ROWS else self._ones[: len(block)]
            ones.dot(block, self._wide_parts[part])
            part += 2
        weights = _part_weights(part // 2, self._abreast, rest > 0)
        parts = self._parts[: weights.shape[1]]
        if rest:
            block = chunk[-rest:] if ready else self._shifted(chunk[-rest:])
            np.einsum("ij,ij->j", block, block, out=parts[-1])
            np.add.reduce(block, axis=0, out=parts[-2])
        weights.dot(parts, out)  # converts to float64

    def _shifted_block(self, rows: npt.NDArray[Any], start: int) -> npt.NDArray[Any]:
        """The block that starts at a wide row, minus the pilot, as wide rows."""
        block = rows[start * self._abreast : (start + BLOCK_ROWS) * self._abreast]
        return self._shifted(block).reshape(-1, self._width)

    def _shifted(self, block: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The block minus the pilot, in the working precision."""
        self._reserve(len(block))
        shifted = self._scratch[: len(block)]
        if block.dtype == np.float16 and shifted.dtype == np.float32 and is_finite(block):
            block = widen(block, out=shifted)
        if self._pilot is not None:
            np.subtract(block, self._pilot_rows[: len(block)], out=shifted)
        elif block is not shifted:
            np.copyto(shifted, block)
        return shifted

    def __getstate__(self) -> tuple[int, np.dtype[Any], FloatArray | None]:
        # For copies and pickles: only the pilot is worth it. The rest is scratch memory, from which views would part.
        return self._num_classes, self._parts.dtype, self._pilot

    def __setstate__(self, state: tuple[int, np.dtype[Any], FloatArray | None]) -> None:
        num_classes, working, pilot = state
        self.__init__(num_classes, working)  # type: ignore[misc]
        self._pilot = pilot

    def _reserve(self, rows: int) -> None:
        if len(self._scratch) < rows:
            self._scratch = np.empty((rows, self._num_classes), self._scratch.dtype)
            self._pilot_rows = np.empty_like(self._scratch)
            if self._pilot is not None:
                self._pilot_rows[:] = self._pilot


@lru_cache(maxsize=64)
def _part_weights(blocks: int, abreast: int, rest: bool) -> FloatArray:
    """Zeros and ones that add up what so many blocks, and a rest, leave in the parts: sums first, then squares."""
    kinds = ([0] * abreast + [1] * abreast) * blocks + [0, 1] * rest
    return np.eye(2)[:, kinds]
