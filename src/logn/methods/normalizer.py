"""LogitNormalizer: correct arrays of logits with scikit-learn's verbs, without scikit-learn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from logn.base.arrays import is_torch_tensor
from logn.errors import InputError, warn
from logn.methods.affine import ClassAffine
from logn.methods.catalog import fit
from logn.methods.recommend import RECOMMENDED
from logn.statistics.doubts import row_checks, sanity_checks
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments

ArrayT = TypeVar("ArrayT")


class LogitNormalizer:
    """Fit on the logits of training images, transform those of others; no labels are read.

    Args:
        method: "recommended" (what `logn.recommend` says), "logn" (the paper's equations), or another method of
            `logn.methods` that needs statistics only.
        background: Index of the background column: None, 0 or -1.
        activation: "softmax" or "sigmoid": what the model applies to the logits.
        sample_rows: How many rows to keep as a sample.
        options: Options of the method, such as `strength`, `target`, or for sigmoids `threshold`.

    Attributes:
        affine_: The correction, which can be folded into a model.
        moments_: The statistics of the logits.

    Example:
        >>> train = np.random.default_rng(0).normal([3.0, 0.0, -4.0], [2.0, 1.0, 0.5], size=(1000, 3))
        >>> normalizer = LogitNormalizer().fit(train)
        >>> normalizer.affine_.shift.round(2)
        array([0.13, 1.37, 4.37])
        >>> paper = LogitNormalizer("logn").fit(train)
        >>> paper.transform(train).std(axis=0, ddof=1).round(3).tolist()
        [1.0, 1.0, 1.0]
        >>> bool(np.allclose(paper.affine_.inverse()(paper.transform(train)), train))
        True
    """

    def __init__(
        self,
        method: str = RECOMMENDED,
        *,
        background: int | None = None,
        activation: str = "softmax",
        sample_rows: int = 4096,
        **options: Any,
    ) -> None:
        self.method = method
        self.sample_rows = sample_rows
        self.options = options
        self._head = Head(background=background, activation=activation)
        self._moments: ClassMoments | None = None
        self._affine: ClassAffine | None = None

    def fit(self, logits: Any) -> LogitNormalizer:
        """Fit to the logits (N, C) of training images alone."""
        self._moments = None
        self.partial_fit(logits)
        self._affine = self._correction()
        return self

    def partial_fit(self, logits: Any) -> LogitNormalizer:
        """Fit to these logits, too, in addition to all that came before."""
        rows = _checked_rows(logits)
        if self._moments is None:
            self._moments = ClassMoments(replace(self._head, num_columns=rows.shape[1]), sample_rows=self.sample_rows)
        self._moments.update(rows)
        self._affine = None
        return self

    @property
    def moments_(self) -> ClassMoments:
        """The statistics of the logits."""
        if self._moments is None:
            raise InputError("This LogitNormalizer is not fitted yet: call fit(logits) first.")
        return self._moments

    @property
    def affine_(self) -> ClassAffine:
        """The correction; after `partial_fit` made when it is asked for, since a first row alone has no variance."""
        if self._affine is None:
            self._affine = self._correction()
        return self._affine

    def transform(self, logits: ArrayT) -> ArrayT:
        """The corrected logits (N, C), an array or a tensor of the kind and dtype that came."""
        corrected: ArrayT = self.affine_(_checked_rows(logits))
        return corrected

    def _correction(self) -> ClassAffine:
        affine = fit(self.method, self.moments_, **self.options)
        for doubt in (*sanity_checks(self.moments_), *row_checks(self.moments_)):
            warn(doubt)
        return affine


def _checked_rows(logits: Any) -> Any:
    """Logits (N, C) as an array or tensor of floating point; whole numbers become float64."""
    if hasattr(logits, "columns"):  # whose order may be another one next time
        raise InputError("Expected `logits` to be an array or a tensor, but got a data frame: pass its `to_numpy()`.")
    array = logits if is_torch_tensor(logits) else np.asarray(logits)
    if array.ndim != 2:
        raise InputError(f"Expected `logits` to be of shape (N, C), but got {tuple(array.shape)}.")
    if is_torch_tensor(array) or not np.issubdtype(array.dtype, np.integer):
        return array
    return array.astype(np.float64)
