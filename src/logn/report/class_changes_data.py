"""Per class, before and after a correction: mean and spread of the logit, training counts, AP."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.method_spec import fit_method
from logn.errors import InputError
from logn.logits.arrays import foreground_columns
from logn.report.before_after import method_map
from logn.report.run_folder import Run
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


def class_changes(run: Run, method: str) -> ClassChanges:
    """Compute the statistics after a correction from those before: an affine map moves them exactly."""
    moments = run.moments
    affine = method_map(run, method) if run.has("predictions") else _map_without_store(run, method)
    if not hasattr(affine, "scale"):
        raise InputError(f"Expected `{method}` to be affine, since statistics follow only then, but it is not.")
    foreground = foreground_columns(moments.num_classes, moments.metadata.background)
    names = moments.metadata.class_names
    images = run.image_counts(None if names is None else names[foreground])
    mean, std = moments.mean[foreground], moments.std[foreground]
    if len(images) != len(mean):
        raise InputError(f"Expected the counts to have {len(mean)} classes, but they have {len(images)}.")
    scale, shift = affine.scale[foreground], affine.shift[foreground]
    return ClassChanges(images, mean, scale * mean + shift, std, np.abs(scale) * std)


def _map_without_store(run: Run, method: str) -> ClassAffine:
    return fit_method(method, background=run.moments.metadata.background, **run.fit_inputs())
