"""Per class, before and after a correction: mean and spread of the logit, and training counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.calibrators.affine import ClassAffine
from logn.errors import InputError
from logn.evaluate.comparison.comparison import Comparison, EvaluatedClass
from logn.evaluate.comparison.method_fitting import UnsavedMap
from logn.logits.arrays import foreground_columns
from logn.statistics.diagnosis import spearman

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClassChanges:
    """Statistics of the logits of the foreground classes, `(F,)` each, before and after an affine correction.

    Args:
        images: Training images.
        mean_before: Mean logit of the model.
        mean_after: Mean logit after the correction.
        std_before: Standard deviation of the logit; NaN where fewer than two values were seen.
        std_after: The same after the correction.
    """

    images: FloatArray
    mean_before: FloatArray
    mean_after: FloatArray
    std_before: FloatArray
    std_after: FloatArray

    def follows_count(self, values: FloatArray) -> float:
        """Rank correlation of values with the training images; NaN where the values do not vary."""
        known = np.isfinite(values)
        return spearman(values[known], self.images[known])


def class_changes(comparison: Comparison, method: str) -> ClassChanges:
    """Compute the statistics after a correction from those before: an affine map moves them exactly."""
    affine = comparison[method].transform
    images = _column(comparison.classes, "train_count", "training counts (`--counts`)")
    mean, std = (_column(comparison.classes, name, "statistics (`--statistics`)") for name in ("mean", "std"))
    if isinstance(affine, UnsavedMap):
        raise InputError(
            "Expected a map that was saved with the comparison, but this one is a function that no file can hold."
        )
    if affine is None:
        return ClassChanges(images, mean, mean, std, std)
    if not isinstance(affine, ClassAffine):
        raise InputError(f"Expected `{method}` to be affine, since statistics follow only then, but it is not.")
    foreground = foreground_columns(affine.num_columns, affine.background)
    scale, shift = affine.scale[foreground], affine.shift[foreground]
    return ClassChanges(images, mean, scale * mean + shift, std, np.abs(scale) * std)


def _column(classes: Sequence[EvaluatedClass], name: str, made_from: str) -> FloatArray:
    values = [getattr(known, name) for known in classes]
    if all(value is None for value in values):
        raise InputError(f"Expected the comparison to be made with {made_from}, but it was made without.")
    return np.array([np.nan if value is None else value for value in values], np.float64)
