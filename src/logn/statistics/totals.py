"""Totals: count, mean and M2 of every class, and what else adds up over batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logn.logits.arrays import FloatArray


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
