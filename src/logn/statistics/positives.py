"""Statistics of positives only: each class's logit over the samples of that class (the paper's appendix)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import as_rows, is_torch_tensor
from logn.statistics.file_format import StatisticsFile
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments


class PositiveMoments:
    """Moments of logit c over the samples whose label is c. It needs labels, and the paper finds it worse.

    The text has two readings: all samples of class c, or only those that the model also predicts as c.

    Args:
        num_classes: Columns of the logits, the background included.
        require_correct: Use only samples whose highest logit is that of their label.
        metadata: What the logits are.

    Example:
        >>> positives = PositiveMoments(2)
        >>> positives.update(np.array([[2.0, 0.5], [3.0, 0.0], [0.0, 1.5]]), labels=[0, 0, 1])
        >>> positives.moments().mean, positives.moments().variance
        (array([2.5, 1.5]), array([0.5, nan]))
    """

    def __init__(
        self, num_classes: int, *, require_correct: bool = False, metadata: StatisticsMetadata | None = None
    ) -> None:
        name = "positives-correct" if require_correct else "positives"
        self.num_classes = num_classes
        self._require_correct = require_correct
        self._moments = ClassMoments(
            num_classes, metadata=(metadata or StatisticsMetadata()).with_changes(estimator=name)
        )

    def update(self, logits: Any, labels: Any) -> None:
        """Add logits (…, C) and the column index of each sample's label."""
        rows = as_rows(logits, self.num_classes)
        columns = _as_labels(labels, len(rows), self.num_classes)
        values = rows[np.arange(len(rows)), columns].astype(np.float64)
        if not np.isfinite(values).all():
            column = int(columns[~np.isfinite(values)][0])
            raise InputError(f"Expected `logits` to be finite, but got a value that is not for class {column}.")
        if self._require_correct:
            correct = rows.argmax(axis=1) == columns
            values, columns = values[correct], columns[correct]
        if not len(values):
            return  # NumPy counts nothing in whole numbers, whatever its weights are
        count = np.bincount(columns, minlength=self.num_classes).astype(np.float64)
        total = np.bincount(columns, weights=values, minlength=self.num_classes)
        mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
        m2 = np.bincount(columns, weights=(values - mean[columns]) ** 2, minlength=self.num_classes)
        zeros = np.zeros(self.num_classes)
        batch = StatisticsFile(
            count=count,
            mean=mean,
            m2=np.where(count > 1, m2, 0.0),
            within_variance_sum=np.divide(m2, count - 1, out=zeros.copy(), where=count > 1),
            batches=(count > 1).astype(np.float64),
            skipped=zeros,
            metadata=self._moments.metadata,
        )
        self._moments.merge(ClassMoments.from_file(batch))

    def merge(self, other: PositiveMoments) -> PositiveMoments:
        """Add what `other` has seen, in place, and return self."""
        self._moments.merge(other._moments)
        return self

    def moments(self) -> ClassMoments:
        """A copy of the statistics so far, in the form that every method takes."""
        return ClassMoments.from_file(self._moments.to_file())


def _as_labels(labels: Any, rows: int, num_classes: int) -> npt.NDArray[np.intp]:
    if is_torch_tensor(labels):
        labels = labels.numpy(force=True)
    array = np.asarray(labels).reshape(-1)
    if array.shape != (rows,) or not (array.dtype.kind in "iu" or rows == 0):
        raise InputError(
            f"Expected `labels` to be one whole number per sample ({rows}), but got {array.dtype} {array.shape}."
        )
    if rows and (array.min() < 0 or array.max() >= num_classes):
        raise InputError(f"Expected `labels` to be in 0..{num_classes - 1}, but got {array.min()} to {array.max()}.")
    return array.astype(np.intp)
