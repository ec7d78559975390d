"""Statistics of positives only: each class's logit over the samples of that class (the paper's appendix)."""

from __future__ import annotations

from dataclasses import replace
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
        sample_rows: How many rows, of whatever class, to keep beside, as `ClassMoments` does.
        mean_probability: Whether to keep the mean probability of each class beside, over all rows.
        metadata: What the logits are.

    Example:
        >>> positives = PositiveMoments(2)
        >>> positives.update(np.array([[2.0, 0.5], [3.0, 0.0], [0.0, 1.5]]), labels=[0, 0, 1])
        >>> positives.moments().mean, positives.moments().variance
        (array([2.5, 1.5]), array([0.5, nan]))
    """

    def __init__(
        self,
        num_classes: int,
        *,
        require_correct: bool = False,
        sample_rows: int = 0,
        mean_probability: bool = False,
        metadata: StatisticsMetadata | None = None,
    ) -> None:
        name = "positives-correct" if require_correct else "positives"
        self.num_classes = num_classes
        self._require_correct = require_correct
        self._moments = ClassMoments(
            num_classes, metadata=(metadata or StatisticsMetadata()).with_changes(estimator=name)
        )
        self._all_rows = ClassMoments(
            num_classes, sample_rows=sample_rows, mean_probability=mean_probability, metadata=self._moments.metadata
        )
        self._keeps_rows = bool(sample_rows or mean_probability)

    @property
    def metadata(self) -> StatisticsMetadata:
        """What the logits are."""
        return self._moments.metadata

    @metadata.setter
    def metadata(self, metadata: StatisticsMetadata) -> None:
        self._moments.metadata = self._all_rows.metadata = metadata

    def update(self, logits: Any, labels: Any) -> None:
        """Add logits (…, C) and the column index of each sample's label; -1 for a row that counts for no column."""
        rows = as_rows(logits, self.num_classes)
        if self._keeps_rows:
            self._all_rows.update(rows)
        columns = _as_labels(labels, len(rows), self.num_classes)
        rows, columns = rows[columns >= 0], columns[columns >= 0]
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
        self._all_rows.merge(other._all_rows)
        return self

    def moments(self) -> ClassMoments:
        """A copy of the statistics so far, in the form that every method takes."""
        kept = self._all_rows.to_file()
        names = ("sample_capacity", "sample_rows", "sample_keys", "probabilities")
        return ClassMoments.from_file(replace(self._moments.to_file(), **{name: getattr(kept, name) for name in names}))


def _as_labels(labels: Any, rows: int, num_classes: int) -> npt.NDArray[np.intp]:
    if is_torch_tensor(labels):
        labels = labels.numpy(force=True)
    array = np.asarray(labels).reshape(-1)
    if array.shape != (rows,) or not (array.dtype.kind in "iu" or rows == 0):
        raise InputError(
            f"Expected `labels` to be one whole number per sample ({rows}), but got {array.dtype} {array.shape}."
        )
    if rows and (array.min() < -1 or array.max() >= num_classes):
        raise InputError(
            f"Expected `labels` to be in 0..{num_classes - 1}, or -1 for none, but got {array.min()} to {array.max()}."
        )
    return array.astype(np.intp)
