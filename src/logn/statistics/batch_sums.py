"""Sums of one batch: which way to sum it, so that no digits are lost.

Where a mean is many standard deviations from zero, the batch is shifted by a pilot mean before it is summed, so that
nothing cancels. Batches with values that are not finite go the slow way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import FloatArray, is_finite, row_blocks, widen


@dataclass(frozen=True)
class Totals:
    """What was seen of each class: count, mean, M2 (sum of squared deviations), and per-batch figures.

    Example:
        >>> one, two = (Totals.of_batch(np.array([1.0]), np.array([mean]), np.zeros(1)) for mean in (2.0, 4.0))
        >>> both = one.merged(two)
        >>> both.count.tolist(), both.mean.tolist(), both.m2.tolist()
        ([2.0], [3.0], [2.0])
    """

    count: FloatArray
    mean: FloatArray
    m2: FloatArray
    within_variance_sum: FloatArray
    batches: FloatArray
    skipped: FloatArray

    @classmethod
    def nothing(cls, num_classes: int) -> Totals:
        """Of no rows."""
        return cls(*(np.zeros(num_classes) for _ in range(6)))

    @classmethod
    def of_batch(cls, count: FloatArray, mean: FloatArray, m2: FloatArray, rows: float | None = None) -> Totals:
        """Of one batch, in which each class may have its own count; the rest of its `rows` was skipped."""
        # Where fewer than two values were seen M2 is 0, and so is what it adds.
        within = m2 / np.maximum(count - 1.0, 1.0)
        skipped = np.zeros_like(count) if rows is None else rows - count
        return cls(count, mean, m2, within, (count > 1.0).astype(np.float64), skipped)

    def merged(self, other: Totals) -> Totals:
        """Of both (Chan, Golub and LeVeque's pairwise update)."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1.0)
        delta = other.mean - self.mean
        return Totals(
            count=count,
            mean=self.mean + delta * share,
            m2=self.m2 + other.m2 + delta * delta * self.count * share,
            within_variance_sum=self.within_variance_sum + other.within_variance_sum,
            batches=self.batches + other.batches,
            skipped=self.skipped + other.skipped,
        )

    def smaller_variance(self) -> FloatArray:
        """The mean of the variances within batches or the variance of all, whichever is smaller; 0 if unknown."""
        variance = np.divide(self.m2, self.count - 1.0, out=np.zeros_like(self.m2), where=self.count > 1.0)
        within = np.divide(self.within_variance_sum, self.batches, out=variance.copy(), where=self.batches > 0.0)
        return np.minimum(variance, within)


class TotalsTree:
    """Totals of many parts, added in a tree as they come: at most one of each size 1, 2, 4, … is held.

    Example:
        >>> tree = TotalsTree()
        >>> for mean in (2.0, 4.0, 9.0):
        ...     tree.add(Totals.of_batch(np.array([1.0]), np.array([mean]), np.zeros(1)))
        >>> tree.total().count.tolist(), tree.total().mean.tolist()
        ([3.0], [5.0])
    """

    def __init__(self) -> None:
        self._held: list[tuple[int, Totals]] = []

    def add(self, part: Totals) -> None:
        """Add one part."""
        size = 1
        while self._held and self._held[-1][0] == size:
            part = self._held.pop()[1].merged(part)
            size *= 2
        self._held.append((size, part))

    def total(self) -> Totals:
        """Of all parts, of which there is at least one."""
        parts = [part for _, part in self._held]
        total = parts.pop()
        while parts:
            total = parts.pop().merged(total)
        return total


# Narrow rows lie side by side as if they were one of about this many bytes: short loops would be all overhead, while
# long ones would not fit the nearest cache together with their sums.
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
    """Zeros and ones that add up what whole blocks, and a rest, leave in the parts: sums first, then squares."""
    kinds = ([0] * abreast + [1] * abreast) * blocks + [0, 1] * rest
    return np.eye(2)[:, kinds]


# Batches of so few values are summed in float64 throughout: the speed would not show, the digits might.
SMALL_BATCH = 2**15
# Where the squared distance of a mean from the pilot (or from zero, without one) is more than this many variances, too
# many of the seven digits of float32 cancel: the batch is summed again with a better pilot.
FAR_PILOT = 36.0
# Where squares exceed float64, values up to this one are not to blame: their sum would still fit.
LARGEST = 1e140
# Values of a block on the slow way.
CAREFUL_VALUES = 10 * 2**16


class BatchMoments(NamedTuple):
    """Mean of one batch per class, and M2, the sum of squared deviations from it."""

    mean: FloatArray
    m2: FloatArray


class SquareBound:
    """Whether the squares of a batch are so small that nothing worth keeping cancels: one comparison per class.

    A batch whose mean is at most 6 standard deviations away has squares of at most 37 times its variance per row. Its
    own variance is not known without work, but what the squares can spoil is: the M2 of all rows and the mean of the
    variances within batches. So they are measured by those of the batches before; and a batch of more rows than came
    before is never vouched for. Where later batches are narrower, that bound falls with each time it is learnt.

    Example:
        >>> bound = SquareBound(2)
        >>> bound.learn(np.array([1.0, 4.0]), most_rows=10)
        >>> bound.holds(np.array([370.0, 1480.0]), rows=10), bound.holds(np.array([371.0, np.nan]), rows=10)
        (True, False)
        >>> bound.holds(np.array([0.0, 0.0]), rows=11)
        False
    """

    def __init__(self, num_classes: int) -> None:
        self.learn(np.zeros(num_classes), most_rows=0.0)

    def learn(self, variance: FloatArray, most_rows: float) -> None:
        """Use these variances from now on, for up to `most_rows` rows; below a bound of 0 there is only 0."""
        self._of_one_row, self._most_rows = (1.0 + FAR_PILOT) * variance, most_rows
        self._of_rows, self._rows = self._of_one_row, 1

    def holds(self, squares: FloatArray, rows: int) -> bool:
        """Whether the sums of squares of `rows` rows are below the bound; never for what is not finite."""
        if rows > self._most_rows:
            return False
        if rows != self._rows:
            self._of_rows, self._rows = self._of_one_row * rows, rows
        # Looking for a zero byte costs a fifth of `all`.
        return b"\0" not in (squares <= self._of_rows).tobytes()


class BatchSummer:
    """Sums batches; keeps its pilot mean and its scratch memory between them.

    Example:
        >>> summer, sums = BatchSummer(2, nonfinite="error"), np.empty((2, 2))
        >>> summer.sum(np.array([[2.0, 0.5], [0.0, 1.5]]), out=sums)
        True
        >>> sums.tolist(), summer.pilot
        ([[2.0, 2.0], [4.0, 2.5]], None)
        >>> summer.moments(np.array([[2.0, 0.5], [0.0, 1.5]]))
        BatchMoments(mean=array([1., 1.]), m2=array([2. , 0.5]))
    """

    def __init__(self, num_classes: int, nonfinite: str) -> None:
        self._num_classes = num_classes
        self._nonfinite = nonfinite
        self._summers: dict[type, ColumnSummer] = {}
        # What was subtracted from the last batch before it was summed; the same object while it stays the same.
        self.pilot: FloatArray | None = None

    # A value that is not finite shows in the sums: no need to look for it in each block, nor to warn of it. As a
    # decorator it costs half of what it does as a block.
    @np.errstate(invalid="ignore", over="ignore")
    def sum(self, rows: npt.NDArray[Any], out: FloatArray, bound: SquareBound | None = None) -> bool:
        """Put the sums of the (N, C) `rows` minus `pilot`, and of the squares of that, into `out`; N is at least 1.

        Returns:
            False where something is not finite, or its square is not: `out` is worth nothing, and `careful_totals`
            knows what to do.
        """
        # By its letter, since the other byte order is another type.
        summer = self._summer(np.float64 if rows.dtype.char == "d" or rows.size <= SMALL_BATCH else np.float32)
        earlier = summer.pilot
        summer.sum(rows, out)
        self.pilot = earlier
        if bound is not None and bound.holds(out[1], len(rows)):
            return True
        m2, far = _deviations(out, len(rows))
        if far:
            summer.set_pilot(_mean(out, len(rows), earlier))
            self.pilot = summer.pilot
            summer.sum(rows, out)
            m2, _ = _deviations(out, len(rows))
        if isfinite(m2.sum()):
            return True
        if summer.pilot is not earlier:
            summer.set_pilot(earlier)
        return False

    def moments(self, rows: npt.NDArray[Any]) -> BatchMoments:
        """Mean and M2 of the (N, C) `rows`, N at least 1."""
        sums = np.empty((2, self._num_classes))
        if self.sum(rows, sums):
            m2, _ = _deviations(sums, len(rows))
            return BatchMoments(_mean(sums, len(rows), self.pilot), np.maximum(m2, 0.0))
        totals = self.careful_totals(rows)
        return BatchMoments(totals.mean, totals.m2)

    def forget(self) -> None:
        """Start afresh, so that the next sums depend on nothing that came before; the scratch memory is kept."""
        for summer in self._summers.values():
            summer.set_pilot(None)
        self.pilot = None

    def careful_totals(self, rows: npt.NDArray[Any]) -> Totals:
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
            if block.dtype.char == "d" and (too_large := finite & (np.abs(block) > LARGEST)).any():
                row, column = np.argwhere(too_large)[0]
                raise InputError(
                    f"Expected `logits` to be at most {LARGEST:g}, so that their squares can be added up, "
                    f"but got {block[row, column]} for class {column}."
                )
            count += finite.sum(axis=0)
            total += np.where(finite, block, 0.0).sum(axis=0, dtype=np.float64)
        np.divide(total, count, out=mean, where=count > 0)
        for block in row_blocks(rows, block_rows):
            deviation = np.where(np.isfinite(block), block, mean).astype(np.float64) - mean
            m2 += (deviation * deviation).sum(axis=0)
        return Totals.of_batch(count, mean, m2, rows=float(len(rows)))

    def _summer(self, working: type) -> ColumnSummer:
        if working not in self._summers:
            self._summers[working] = ColumnSummer(self._num_classes, working)
        return self._summers[working]


def _mean(sums: FloatArray, rows: int, pilot: FloatArray | None) -> FloatArray:
    offset: FloatArray = sums[0] / rows
    return offset if pilot is None else pilot + offset


def _deviations(sums: FloatArray, rows: int) -> tuple[FloatArray, bool]:
    """M2, and whether some mean is too far from what was subtracted."""
    total, squares = sums
    between = total * total / rows
    m2: FloatArray = squares - between
    # The least is NaN where anything is: then nothing is far, and the sums show that they are not finite.
    return m2, bool((m2 - between / FAR_PILOT).min() < 0.0)
