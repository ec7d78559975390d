"""From the sums of batches to count, mean and M2: folded now and then instead of after every batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logn.logits.arrays import FloatArray
from logn.statistics.batch_sums import BatchSums

# Batches whose raw sums are added up before they are folded into mean and M2. `BatchSummer` sees to it that the squares
# of a batch are at most 37 times its M2, so those of many batches are at most 37 times theirs: of the 16 digits of
# float64 fewer than two cancel, whatever the means. Folding now and then bounds the rounding of the additions too.
FOLD_EVERY = 64


@dataclass(frozen=True)
class Totals:
    """What was seen of each class: count, mean, M2 (sum of squared deviations), and per-batch figures.

    Example:
        >>> from logn.statistics.batch_sums import BatchSummer
        >>> one, two = (Totals.of_batch(BatchSummer(1, "error").sum(np.array([[value]]))) for value in (2.0, 4.0))
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
    def of_batch(cls, batch: BatchSums) -> Totals:
        """Of one batch, in which each class may have its own count."""
        count, nothing = np.zeros_like(batch.m2) + batch.counts, np.zeros_like(batch.m2)
        # Where fewer than two values were seen M2 is 0, and so is what it adds.
        within = batch.m2 / np.maximum(count - 1.0, 1.0)
        return cls(count, batch.mean, batch.m2, within, (count > 1.0) + nothing, batch.skipped + nothing)

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


class RunningSums:
    """Totals to which batches are added as raw sums. Reading them changes nothing, not even the last digit later on.

    Example:
        >>> from logn.statistics.batch_sums import BatchSummer
        >>> sums, summer = RunningSums(1), BatchSummer(1, nonfinite="error")
        >>> for batch in ([[1.0], [3.0]], [[5.0]]):
        ...     sums.add(summer.sum(np.array(batch)))
        >>> sums.totals().mean.tolist(), sums.totals().m2.tolist()
        ([3.0], [8.0])
    """

    def __init__(self, num_classes: int) -> None:
        self._pilot: FloatArray | None = None
        self._sums, self._within = np.zeros((2, num_classes)), np.zeros(num_classes)
        self.reset(Totals.nothing(num_classes))

    def add(self, batch: BatchSums) -> None:
        """Add a batch."""
        if not isinstance(batch.counts, float):
            self.merge(Totals.of_batch(batch))
            return
        if self._added == FOLD_EVERY or batch.pilot is not self._pilot:
            self.reset(self.totals())
            self._pilot = batch.pilot
        self._added += 1
        self._rows += batch.counts
        self._sums += batch.sums
        if batch.counts > 1.0:
            self._batches += 1
            self._within += batch.m2 * (1.0 / (batch.counts - 1.0))

    def merge(self, other: Totals) -> None:
        """Add what was seen elsewhere."""
        self.reset(self.totals().merged(other))

    def totals(self) -> Totals:
        """Of everything that was added; not a copy."""
        if self._added == 0:
            return self._folded
        total, squares = self._sums
        offset = total / self._rows
        zeros = np.zeros_like(total)
        return self._folded.merged(
            Totals(
                count=zeros + self._rows,
                mean=offset if self._pilot is None else self._pilot + offset,
                m2=np.maximum(squares - total * offset, 0.0),
                within_variance_sum=self._within,
                batches=zeros + self._batches,
                skipped=zeros,
            )
        )

    def reset(self, totals: Totals) -> None:
        """Go on from these totals."""
        self._folded = totals
        self._added, self._batches, self._rows = 0, 0, 0.0
        self._sums.fill(0.0)
        self._within.fill(0.0)
