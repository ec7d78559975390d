"""From the sums of batches to count, mean and M2: folded now and then instead of after every batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logn.logits.arrays import FloatArray
from logn.statistics.batch_sums import BatchSummer, SquareBound
from logn.statistics.totals import Totals

# Batches whose raw sums are kept until they are folded into mean and M2 together, in a dozen operations on vectors that
# would take nearly as long for one batch; fewer where their sums would take more memory than this.
FOLD_EVERY = 64
FOLD_BYTES = 2**22


class RunningSums:
    """Totals to which batches are added. Reading them changes nothing, not even the last digit later on.

    The raw sums of a batch are taken as they are where their squares are below the bound that the earlier batches set
    (`SquareBound`), and looked at closely otherwise. So of the sums of squares at most 37 times their M2 cancels, which
    is one or two of the digits that they have.

    Args:
        num_classes: Columns of the logits.
        nonfinite: As in `ClassMoments`.

    Example:
        >>> sums = RunningSums(1, nonfinite="error")
        >>> for batch in ([[1.0], [3.0]], [[5.0]]):
        ...     sums.add(np.array(batch))
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
        # How many batches were added, and at how many the bound is to be learnt: at 1, 2, 4, 8, and so on.
        self._added, self._learn_at = 0, 0
        self.restart(Totals.nothing(num_classes))

    def add(self, rows: npt.NDArray[Any]) -> None:
        """Add a batch of (N, C) `rows`, N at least 1."""
        if self._added == self._learn_at:
            self._bound.learn(self.totals().typical_variance())
            self._learn_at = max(1, 2 * self._added)
        if not len(self._sums):
            batches = max(1, min(FOLD_EVERY, FOLD_BYTES // (2 * 8 * self._num_classes)))
            self._sums = np.empty((batches, 2, self._num_classes))
        sums = self._sums[len(self._counts)]
        if not self._summer.sum(rows, sums, self._bound):
            self.merge(self._summer.careful_totals(rows))
            return
        if self._summer.pilot is not self._pilot:
            self._fold()
            self._sums[0] = sums
            self._pilot = self._summer.pilot
        self._counts.append(len(rows))
        self._added += 1
        if len(self._counts) == len(self._sums):
            self._fold()

    def merge(self, other: Totals) -> None:
        """Add what was seen elsewhere."""
        self._folded, self._counts = self.totals().merged(other), []
        self._learn_at = self._added

    def restart(self, totals: Totals) -> None:
        """Forget everything and go on from these totals; what follows depends on nothing else."""
        self._summer.forget()
        self._pilot, self._folded, self._counts = None, totals, []
        self._added, self._learn_at = 0, 0

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
        within = variances - np.einsum("b,bc,bc->c", freedom / counts, sums[:, 0], sums[:, 0])
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

    def _fold(self) -> None:
        self._folded, self._counts = self.totals(), []
