"""From the sums of batches to count, mean and M2: folded now and then instead of after every batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logn.logits.arrays import FloatArray
from logn.statistics.batch_sums import BatchSummer, SquareBound, Totals

# Batches whose raw sums are kept until they are folded into mean and M2 together, in a dozen operations on vectors that
# would take nearly as long for one batch; fewer where their sums would take more memory than this.
FOLD_EVERY = 64
FOLD_BYTES = 2**22
# Batches that are looked at closely before a bound is made of them, which takes as long as looking at that many.
LOOK_CLOSELY = 6


class RunningSums:
    """Totals to which batches are added. Reading them changes nothing, not even the last digit later on.

    The raw sums of a batch are taken as they are where their squares are below the bound that the earlier batches set
    (`SquareBound`), and looked at closely otherwise. So what cancels is of the size of some dozen times M2, which is
    two of the digits that the sums of squares have.

    Args:
        num_classes: Columns of the logits.
        nonfinite: As in `ClassMoments`.

    Example:
        >>> sums = RunningSums(1, nonfinite="error")
        >>> for batch in ([[1.0], [3.0]], [[5.0]]):
        ...     _ = sums.add(np.array(batch))
        >>> sums.totals().mean.tolist(), sums.totals().m2.tolist()
        ([3.0], [8.0])
    """

    def __init__(self, num_classes: int, nonfinite: str) -> None:
        self._num_classes = num_classes
        self._summer = BatchSummer(num_classes, nonfinite)
        self._bound = SquareBound(num_classes)
        # The sums of each batch, and of its squares; reserved when the first one comes.
        self._sums: FloatArray = np.empty((0, 2, num_classes))
        self._counts: list[int] = []
        self._pilot: FloatArray | None = None
        self._bounded = False
        self.restart(Totals.nothing(num_classes))

    def add(self, rows: npt.NDArray[Any]) -> bool:
        """Add a batch of (N, C) `rows`, N at least 1; True where all of it is surely finite."""
        if not self._bounded and len(self._counts) == LOOK_CLOSELY:
            self._learn(self.totals())
        if not len(self._sums):
            batches = max(1, min(FOLD_EVERY, FOLD_BYTES // (2 * 8 * self._num_classes)))
            self._sums = np.empty((batches, 2, self._num_classes))
        sums = self._sums[len(self._counts)]
        if not self._summer.sum(rows, sums, self._bound):
            self.merge(self._summer.careful_totals(rows))
            return False
        if self._summer.pilot is not self._pilot:
            self._go_on_from(self.totals())
            self._sums[0] = sums
            self._pilot = self._summer.pilot
        self._counts.append(len(rows))
        if len(self._counts) == len(self._sums):
            self._go_on_from(self.totals())
        return True

    def merge(self, other: Totals) -> None:
        """Add what was seen elsewhere."""
        self._go_on_from(self.totals().merged(other))

    def restart(self, totals: Totals) -> None:
        """Forget everything and continue from these totals; what follows depends on nothing else."""
        self._summer.forget()
        self._pilot = None
        self._go_on_from(totals)

    def totals(self) -> Totals:
        """Of everything that was added; not a copy."""
        if not self._counts:
            return self._folded
        sums, counts = self._sums[: len(self._counts)], np.array(self._counts, dtype=np.float64)
        rows = counts.sum()
        # The variance within batches; those of one row have none.
        freedom = np.divide(1.0, counts - 1.0, out=np.zeros_like(counts), where=counts > 1.0)
        weighted = np.stack([np.ones_like(counts), freedom]).dot(sums.reshape(len(counts), -1))
        (total, squares), (_, variances) = weighted.reshape(2, 2, -1)
        offset = total / rows
        within = variances - _weighted_squares(sums[:, 0], freedom / counts)
        zeros = np.zeros_like(total)
        return self._folded.merged(
            Totals(
                count=zeros + rows,
                mean=offset if self._pilot is None else self._pilot + offset,
                m2=np.maximum(squares - total * offset, 0.0),
                within_variance_sum=np.maximum(within, 0.0),
                batches=zeros + np.count_nonzero(counts > 1.0),
                skipped=zeros,
            )
        )

    def _go_on_from(self, totals: Totals) -> None:
        self._folded, self._counts = totals, []
        self._learn(totals)

    def _learn(self, totals: Totals) -> None:
        # Until each class has seen a batch of two values, only single rows, which have no variance, are vouched for.
        self._bound.learn(totals.smaller_variance(), totals.count.min() if totals.batches.all() else 1.0)
        self._bounded = bool(totals.count.any())


def _weighted_squares(sums: FloatArray, weights: FloatArray) -> FloatArray:
    """The squares of (B, C) `sums`, added up with a weight for each row."""
    if weights.min() == weights.max():  # nearly always, and twice as fast
        result: FloatArray = weights[0] * np.einsum("bc,bc->c", sums, sums)
        return result
    return np.asarray(np.einsum("b,bc,bc->c", weights, sums, sums))
