"""LogitNormalizer: correct arrays of logits in the manner of scikit-learn, which it does not need."""

from __future__ import annotations

import importlib
import inspect
from functools import cached_property
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

    It has the interface of a scikit-learn transformer, so it goes into pipelines and can be cloned. Wrong input raises
    `logn.InputError`, a ValueError.

    Args:
        method: "recommended" (what `logn.recommend` says), "logn" (the paper's equations), or another method of
            `logn.methods` that needs statistics only.
        strength: How much of the correction, from 0 to 1; None for the method's own default.
        target: Share of each foreground class where the model will be used, of any sum; None for equal shares.
        background: Index of the background column: None, 0 or -1.
        activation: "softmax" or "sigmoid": what the model applies to the logits.
        threshold: For sigmoids: the score above which you count a detection.
        sample_rows: How many rows to keep as a sample.

    Attributes:
        affine_: The correction, which can be folded into a model.
        moments_: The statistics of the logits.
        n_features_in_: Columns of the logits.
        feature_names_in_: Their names, if the logits came as a data frame whose columns have texts as names.

    Example:
        >>> train = np.random.default_rng(0).normal([3.0, 0.0, -4.0], [2.0, 1.0, 0.5], size=(1000, 3))
        >>> normalizer = LogitNormalizer().fit(train)
        >>> normalizer.affine_.shift.round(2)
        array([0.13, 1.37, 4.37])
        >>> paper = LogitNormalizer("logn").fit(train)
        >>> paper.transform(train).std(axis=0, ddof=1).round(3).tolist()
        [1.0, 1.0, 1.0]
        >>> bool(np.allclose(paper.inverse_transform(paper.transform(train)), train))
        True
    """

    moments_: ClassMoments
    n_features_in_: int
    feature_names_in_: Any

    def __init__(
        self,
        method: str = RECOMMENDED,
        *,
        strength: float | None = None,
        target: Any = None,
        background: int | None = None,
        activation: str = "softmax",
        threshold: float | None = None,
        sample_rows: int = 4096,
    ) -> None:
        self.method = method
        self.strength = strength
        self.target = target
        self.background = background
        self.activation = activation
        self.threshold = threshold
        self.sample_rows = sample_rows

    def fit(self, logits: Any, y: Any = None) -> LogitNormalizer:
        """Fit to the logits (N, C) of training images alone; `y` is ignored, as no labels are needed."""
        rows = _checked_rows(logits)
        if len(rows) < 2:
            raise InputError(
                f"Expected `logits` to hold at least two rows to have a variance, but got {len(rows)} sample."
            )
        for name in ("affine_", "moments_", "n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        self.partial_fit(logits)
        self.affine_ = self._correction()
        return self

    def partial_fit(self, logits: Any, y: Any = None) -> LogitNormalizer:
        """Fit to these logits too, in addition to all that came before; `y` is ignored."""
        rows = _checked_rows(logits)
        if not hasattr(self, "moments_"):
            head = Head(rows.shape[1], background=self.background, activation=self.activation)
            self.moments_ = ClassMoments(head, sample_rows=self.sample_rows)
            self.n_features_in_ = int(rows.shape[1])
            if (names := _column_names(logits)) is not None:
                self.feature_names_in_ = names
        self._check_columns(logits, rows)
        self.moments_.update(rows)
        self.__dict__.pop("affine_", None)
        return self

    @cached_property
    def affine_(self) -> ClassAffine:
        """The correction; after `partial_fit` made when it is asked for, since a first row has no variance yet."""
        if not self.__sklearn_is_fitted__():
            raise AttributeError("LogitNormalizer has no attribute 'affine_' before it is fitted.")
        return self._correction()

    def transform(self, logits: ArrayT) -> ArrayT:
        """The corrected logits (N, C), an array or a tensor of the kind and dtype that came."""
        rows = self._to_transform(logits)
        corrected: ArrayT = self.affine_(rows)
        return corrected

    def fit_transform(self, logits: ArrayT, y: Any = None) -> ArrayT:
        """Fit to `logits` and correct them."""
        return self.fit(logits, y).transform(logits)

    def inverse_transform(self, logits: ArrayT) -> ArrayT:
        """Undo the correction."""
        rows = self._to_transform(logits)
        original: ArrayT = self.affine_.inverse()(rows)
        return original

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor by name; `deep` changes nothing."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> LogitNormalizer:
        """Change arguments of the constructor; what was fitted stays until the next `fit`."""
        parameters = self.get_params()
        for name, value in params.items():
            if name not in parameters:
                raise InputError(
                    f"Expected the parameters of LogitNormalizer to be {', '.join(parameters)}, but got `{name}`."
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """The arguments that are not the default."""
        defaults = inspect.signature(type(self)).parameters
        changed = {name: value for name, value in self.get_params().items() if value != defaults[name].default}
        return f"LogitNormalizer({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is something to correct with; scikit-learn asks."""
        return hasattr(self, "moments_")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn wants to know of a transformer; only scikit-learn asks, so it is there."""
        tags = importlib.import_module("sklearn.utils")
        return tags.Tags(
            estimator_type="transformer",
            target_tags=tags.TargetTags(required=False),
            transformer_tags=tags.TransformerTags(preserves_dtype=["float64", "float32", "float16"]),
            input_tags=tags.InputTags(two_d_array=True),
        )

    def _correction(self) -> ClassAffine:
        options = {name: getattr(self, name) for name in ("strength", "threshold") if getattr(self, name) is not None}
        affine = fit(self.method, self.moments_, target=self.target, **options)
        for doubt in (*sanity_checks(self.moments_), *row_checks(self.moments_)):
            warn(doubt)
        return affine

    def _to_transform(self, logits: Any) -> Any:
        if not self.__sklearn_is_fitted__():
            raise InputError("This LogitNormalizer is not fitted yet: call fit(logits) first.")
        rows = _checked_rows(logits)
        self._check_columns(logits, rows)
        return rows

    def _check_columns(self, logits: Any, rows: Any) -> None:
        columns, expected = rows.shape[1], self.n_features_in_
        if columns != expected:
            # The second half is what scikit-learn's users know.
            raise InputError(
                f"Expected `logits` to have {expected} columns, but got {columns}: X has {columns} features, but "
                f"LogitNormalizer is expecting {expected} features as input."
            )
        names, fitted = _column_names(logits), getattr(self, "feature_names_in_", None)
        if names is not None and fitted is not None and (names != fitted).any():
            place = int(np.flatnonzero(names != fitted)[0])
            raise InputError(
                f"Expected column {place} of `logits` to be {fitted[place]!r}, but got {names[place]!r}: The feature "
                "names should match those that were passed during fit, in the same order."
            )


def _column_names(logits: Any) -> Any:
    """The names of the columns of a data frame, if all are texts, as scikit-learn takes them; else None."""
    names = getattr(logits, "columns", None)
    if names is None or not all(isinstance(name, str) for name in names):
        return None
    return np.asarray(list(names), dtype=object)


def _checked_rows(logits: Any) -> Any:
    """Logits (N, C) as an array or tensor of floating point; whole numbers become float64."""
    if hasattr(logits, "toarray"):
        raise InputError("Expected `logits` to be a dense array, but got a sparse one; give logits.toarray().")
    array = logits if is_torch_tensor(logits) else np.asarray(logits)
    if array.ndim != 2:
        one_row = "; Reshape your data: logits[None] is one row" if array.ndim == 1 else ""
        raise InputError(f"Expected `logits` to be of shape (N, C), but got {tuple(array.shape)}{one_row}.")
    if array.shape[1] == 0:
        shape = tuple(array.shape)
        raise InputError(
            f"Expected `logits` to have columns, but got 0 feature(s) (shape={shape}) while a minimum of 1 is required."
        )
    if is_torch_tensor(array):
        return array
    if np.iscomplexobj(array):
        raise InputError(f"Expected `logits` to be real numbers, but got {array.dtype}. Complex data not supported.")
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float64)
