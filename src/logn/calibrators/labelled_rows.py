"""Rows of logits with their classes: the few labels that some methods are fitted to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import FloatArray, as_rows

NO_CLASS = -1


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Logits and the column of each row's class.

    Args:
        logits: `(N, C)` of images, or proposals, that the model was not trained on.
        labels: `(N,)` column of the class; the background's own column for background. Sigmoid heads without a
            background have -1 for rows of no class.
        units: `(N,)` which rows belong together, such as the proposals of an image: they are never on two sides of a
            split. By default each row stands alone.

    Example:
        >>> LabelledRows([[0.5, 1.0]], [2])
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `labels` to be columns from 0 to 1, but got 2 for row 0.
    """

    logits: FloatArray
    labels: npt.NDArray[np.int64]
    units: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        given: Any = self.logits if hasattr(self.logits, "shape") else np.asarray(self.logits, np.float64)
        shape = tuple(given.shape)
        if len(shape) != 2 or 0 in shape:
            raise InputError(
                f"Expected the labelled `logits` to be (rows, classes) with at least one row, but got {shape}."
            )
        logits = np.asarray(as_rows(given, shape[1]), np.float64)
        labels = np.asarray(self.labels)
        if labels.shape != (len(logits),) or labels.dtype.kind not in "iu":
            raise InputError(
                f"Expected `labels` to be one whole number for each of the {len(logits):,} rows, but got "
                f"{labels.dtype} {labels.shape}."
            )
        if not np.isfinite(logits).all():
            row, column = np.argwhere(~np.isfinite(logits))[0]
            raise InputError(
                f"Expected the labelled `logits` to be finite, but row {row}, column {column} is {logits[row, column]}."
            )
        wrong = (labels < NO_CLASS) | (labels >= shape[1])
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise InputError(
                f"Expected `labels` to be columns from 0 to {shape[1] - 1}, but got {labels[row]} for row {row}."
            )
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "labels", labels.astype(np.int64))
        units = np.arange(len(labels)) if not len(self.units) else np.asarray(self.units, np.int64)
        object.__setattr__(self, "units", units)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_columns(self) -> int:
        """Columns of the logits."""
        return int(self.logits.shape[1])

    @property
    def per_column(self) -> npt.NDArray[np.int64]:
        """Rows of each column."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.num_columns)

    def part(self, rows: npt.NDArray[Any]) -> LabelledRows:
        """Some of the rows."""
        return LabelledRows(self.logits[rows], self.labels[rows], self.units[rows])
