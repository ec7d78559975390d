"""Sums of one batch: which way to sum it, so that no digits are lost.

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
from logn.statistics.totals import Totals

# Batches of so few values are summed in float64 throughout: the speed would not show, the digits might.
SMALL_BATCH = 2**15
# Where the squared distance of a mean from the pilot (or from zero, without one) is more than so many variances, too
# many of the seven digits of float32 cancel: the batch is summed again with a better pilot.
FAR_PILOT = 36.0
# Where squares exceed float64, values up to this one are not to blame: so many of them could be added up.
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
        """Go by these variances, of so many rows, from now on; where one is 0, nothing but 0 is below the bound."""
        self._of_one_row, self._most_rows = (1.0 + FAR_PILOT) * variance, most_rows
        self._of_rows, self._rows = self._of_one_row, 1

    def holds(self, squares: FloatArray, rows: int) -> bool:
        """Whether the sums of squares of so many rows are below the bound; never for what is not finite."""
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
