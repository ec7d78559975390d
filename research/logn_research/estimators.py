"""Estimators that the paper's tables compare with exact moments: its moving average, and statistics of positives.

Both take batches of logits as NumPy arrays or torch tensors, and both give a `ClassMoments`, which every method takes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import as_rows, is_torch_tensor
from logn.errors import InputError
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments


class MovingAverage:
    """Running mean and variance as in the official head: `new = (1 - momentum) * old + momentum * batch`.

    The batch variance is unbiased; the variance between batches is not in it. The result depends on the order of the
    batches and cannot be merged.

    Args:
        head: What the logits are, or how many columns they have.
        momentum: Weight of a new batch; 5e-5 in the official configurations.
        initial_mean: Start of the mean.
        initial_variance: Start of the variance.
        bias_correction: Remove the starting values by dividing by `1 - (1 - momentum)^batches`, as Adam does; the
            official code keeps 29 % of them in its statistics of LVIS.
        options: Further arguments of `ClassMoments`: the row sample, the mean probability.

    Example:
        >>> average = MovingAverage(2, momentum=0.1)
        >>> average.update(np.array([[2.0, 0.5], [0.0, 1.5]]))
        >>> average.moments().mean
        array([0.1, 0.1])
    """

    def __init__(
        self,
        head: Head | int,
        *,
        momentum: float = 5e-5,
        initial_mean: float = 0.0,
        initial_variance: float = 1.0,
        bias_correction: bool = False,
        **options: Any,
    ) -> None:
        if not 0.0 < momentum <= 1.0:
            raise InputError(f"Expected `momentum` to be above 0 and at most 1, but got {momentum!r}.")
        self.momentum = momentum
        self.skipped_batches = 0
        self._bias_correction = bias_correction
        self._initial = np.array([[initial_mean], [initial_variance]], np.float64)
        self._exact = ClassMoments(head, **options)
        self._averages = np.repeat(self._initial, self._exact.num_columns, axis=1)
        self._rows, self._batches = 0, 0

    def update(self, logits: Any, labels: Any = None) -> None:
        """Add a batch (…, C). A batch of fewer than two rows has no variance: it is left out and counted."""
        self._exact.update(logits)
        rows = as_rows(logits, self._exact.num_columns).astype(np.float64)
        if len(rows) < 2:
            self.skipped_batches += 1
            return
        batch = np.stack([rows.mean(axis=0), rows.var(axis=0, ddof=1)])
        self._averages += self.momentum * (batch - self._averages)
        self._rows += len(rows)
        self._batches += 1

    def moments(self) -> ClassMoments:
        """The averages so far, with the number of rows that went into them; the population names the estimator."""
        mean, variance = self._averages.copy()
        if self._bias_correction and self._batches:
            start = (1.0 - self.momentum) ** self._batches
            mean, variance = (self._averages - start * self._initial) / (1.0 - start)
        # Two rows at least, so that the variance is defined.
        count = np.full_like(mean, max(self._rows, 2))
        arrays = self._exact.to_arrays() | {
            "count": count,
            "mean": mean,
            "m2": np.maximum(variance, 0.0) * (count - 1.0),
            "skipped": np.zeros_like(mean),
        }
        return ClassMoments.from_arrays(arrays, _with_estimator(self._exact.head, "moving average"))


class PositiveMoments:
    """Moments of logit c over the samples whose label is c (the paper's appendix). The paper finds them worse.

    The text has two readings: all samples of class c, or only those that the model also predicts as c.

    Args:
        head: What the logits are, or how many columns they have.
        require_correct: Use only samples whose highest logit is that of their label.
        options: Further arguments of `ClassMoments`; the row sample and the mean probability are of all rows.

    Example:
        >>> positives = PositiveMoments(2)
        >>> positives.update(np.array([[2.0, 0.5], [3.0, 0.0], [0.0, 1.5]]), labels=[0, 0, 1])
        >>> positives.moments().mean, positives.moments().variance
        (array([2.5, 1.5]), array([0.5, nan]))
    """

    def __init__(self, head: Head | int, *, require_correct: bool = False, **options: Any) -> None:
        self._require_correct = require_correct
        # NaN stands for the logits of other classes, which are skipped.
        self._all = ClassMoments(head, **options)
        self._own = ClassMoments(self._all.num_columns, nonfinite="skip", mean_probability=False)

    def update(self, logits: Any, labels: Any) -> None:
        """Add logits (…, C) and the column of each sample's label; -1 for a row that counts for no column."""
        rows = as_rows(logits, self._all.num_columns)
        columns = _as_labels(labels, len(rows), self._all.num_columns)
        self._all.update(rows)
        use = columns >= 0
        if self._require_correct:
            use &= rows.argmax(axis=1) == columns
        own = np.full((int(use.sum()), rows.shape[1]), np.nan)
        own[np.arange(len(own)), columns[use]] = rows[use, columns[use]]
        self._own.update(own)

    def merge(self, other: PositiveMoments) -> PositiveMoments:
        """Add what `other` has seen, in place, and return self."""
        self._own.merge(other._own)
        self._all.merge(other._all)
        return self

    def moments(self) -> ClassMoments:
        """The statistics so far; the population names the estimator."""
        own = self._own.to_arrays()
        arrays = self._all.to_arrays()
        arrays |= {name: own[name] for name in ("count", "mean", "m2")}
        kind = "recognised positives" if self._require_correct else "positives"
        return ClassMoments.from_arrays(arrays, _with_estimator(self._all.head, kind))


Statistics = ClassMoments | MovingAverage | PositiveMoments


def add_batch(statistics: Statistics, logits: Any, labels: Any) -> None:
    """Add a batch to statistics of any kind; exact ones need no labels."""
    if isinstance(statistics, ClassMoments):
        statistics.update(logits)
    else:
        statistics.update(logits, labels)


def _with_estimator(head: Head, estimator: str) -> Head:
    return replace(head, population=f"{head.population}, {estimator}" if head.population else estimator)


def _as_labels(labels: Any, rows: int, num_columns: int) -> npt.NDArray[np.intp]:
    if is_torch_tensor(labels):
        labels = labels.numpy(force=True)
    array = np.asarray(labels).reshape(-1)
    if array.shape != (rows,) or not (array.dtype.kind in "iu" or rows == 0):
        raise InputError(
            f"Expected `labels` to be one whole number per sample ({rows}), but got {array.dtype} {array.shape}."
        )
    if rows and (array.min() < -1 or array.max() >= num_columns):
        raise InputError(
            f"Expected `labels` to be in 0..{num_columns - 1}, or -1 for none, but got {array.min()} to {array.max()}."
        )
    return array.astype(np.intp)
