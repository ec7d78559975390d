"""scikit-learn: a classifier around another one, which corrects its scores, as `CalibratedClassifierCV` does.

Example::

    model = LogitNormalizedClassifier(HistGradientBoostingClassifier()).fit(X, y)
    model.predict(X_test)

`docs/how-to/scikit-learn.md` shows more.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from logn.base.arrays import FloatArray, log_softmax
from logn.errors import InputError, MissingExtraError, warn
from logn.methods.affine import ClassAffine
from logn.methods.catalog import fit, parse
from logn.methods.checks import checked_target
from logn.methods.recommend import NONE, RECOMMENDED, Recommendation, recommend
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments
from logn.statistics.summary import active_classes

try:
    import sklearn
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import check_cv
    from sklearn.utils import column_or_1d, get_tags, indexable
    from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
    from sklearn.utils.metaestimators import _safe_split
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.parallel import Parallel, delayed
    from sklearn.utils.validation import _check_method_params, check_is_fitted
except ModuleNotFoundError as error:
    raise MissingExtraError("scikit-learn", extra="sklearn") from error

# Below this, probabilities are taken for it, since 0 has no logarithm.
LEAST = 1e-12


class LogitNormalizedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Correct a classifier that is trained on long-tailed data, so that it predicts rare classes more often.

    `fit` trains the classifier and reads how strongly it prefers each class from out-of-fold scores, as they are on
    data that it has not seen. The scores are logarithms of `predict_proba`; where there is none, `decision_function` is
    taken for logits. `logn.recommend` judges them; where it finds nothing to correct, a warning has the reason and
    predictions are those of the classifier.

    Args:
        estimator: The classifier. It is cloned and trained; one in a `sklearn.frozen.FrozenEstimator` is used as it is,
            and `fit` then needs data like those it was trained on, without labels.
        method: "recommended" (what `logn.recommend` says; "recommended:force=true" corrects in any case), "logn" (the
            paper's equations) or another method of `logn.methods`. Class counts are those of `y`.
        strength: How much of the correction, from 0 to 1; None for the method's own default.
        target: Class mix to aim at: one share per class in the order of `classes_`, a dict of class and share,
            "training", or None for equal shares.
        cv: Folds of the out-of-fold scores, as elsewhere in scikit-learn; None for 5.
        n_jobs: Folds that are trained at the same time.

    Attributes:
        estimator_: The classifier, trained on all data.
        method_: The method that is applied; "none" where there is nothing to correct.
        recommendation_: What `logn.recommend` says, with the reason.
        affine_: The correction of the logarithms of the probabilities.
        moments_: The statistics of the out-of-fold scores.
        classes_: The classes.
        n_features_in_: Number of features, if `estimator_` has it.
        feature_names_in_: Names of the features, if `estimator_` has them.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.metrics import balanced_accuracy_score
        >>> X, y = make_classification(2000, n_informative=5, n_classes=4, weights=[0.8, 0.12, 0.05], random_state=0)
        >>> plain = LogisticRegression().fit(X[:1000], y[:1000])
        >>> model = LogitNormalizedClassifier(LogisticRegression()).fit(X[:1000], y[:1000])
        >>> [round(balanced_accuracy_score(y[1000:], each.predict(X[1000:])), 2) for each in (plain, model)]
        [0.37, 0.47]
    """

    estimator_: Any
    classes_: Any
    moments_: ClassMoments
    recommendation_: Recommendation
    affine_: ClassAffine
    method_: str

    def __init__(
        self,
        estimator: Any,
        *,
        method: str = RECOMMENDED,
        strength: float | None = None,
        target: Any = None,
        cv: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.strength = strength
        self.target = target
        self.cv = cv
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> LogitNormalizedClassifier:  # noqa: N803
        """Train the classifier and fit the correction.

        Args:
            X: Features, as the classifier takes them.
            y: Class of each row; not needed for a frozen classifier.
            fit_params: For the `fit` of the classifier, such as `sample_weight`.
        """
        options = {} if self.strength is None else {"strength": self.strength}
        parse(self.method, options)  # before the training
        if not _has_scores(self.estimator):
            raise InputError(
                "Expected `estimator` to be a classifier with predict_proba or decision_function, but got "
                f"{type(self.estimator).__name__}."
            )
        is_frozen = isinstance(self.estimator, FrozenEstimator)
        labels = None if is_frozen and y is None else _checked_labels(y)
        features, labels = indexable(X, labels)
        if is_frozen:
            check_is_fitted(self.estimator)
        self.classes_ = self.estimator.classes_ if is_frozen else np.unique(labels)
        target = self._checked_target()
        if is_frozen:
            self.estimator_ = self.estimator
            scores = self._log_probabilities(self.estimator, features)
        else:
            params = self._routed(fit_params)
            scores = self._out_of_fold(features, labels, params)
            self.estimator_ = clone(self.estimator).fit(features, labels, **params)
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        self._fit_correction(scores, labels, target, options)
        return self

    def predict(self, X: Any) -> Any:  # noqa: N803
        """The class of each row."""
        if self._is_left_alone():
            return self.estimator_.predict(X)
        return self.classes_[self._corrected(X).argmax(axis=1)]

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        """The corrected probability of each class."""
        if self._is_left_alone() and hasattr(self.estimator_, "predict_proba"):
            return self.estimator_.predict_proba(X)
        return np.exp(self._corrected(X))

    def decision_function(self, X: Any) -> FloatArray:  # noqa: N803
        """Logarithms of the corrected probabilities; for two classes those of the odds of the second, one per row."""
        check_is_fitted(self)
        scores = self._corrected(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def get_metadata_routing(self) -> Any:
        """Where scikit-learn's metadata routing sends the parameters of `fit`: to the classifier."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        return MetadataRouter(owner=type(self).__name__).add(estimator=self.estimator, method_mapping=mapping)

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn wants to know: it takes what the classifier takes."""
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags = copy.deepcopy(inner.input_tags)
        tags.classifier_tags = copy.deepcopy(inner.classifier_tags) or tags.classifier_tags
        tags.classifier_tags.multi_label = False
        return tags

    def _is_left_alone(self) -> bool:
        check_is_fitted(self)
        return self.method_ == NONE

    def _corrected(self, features: Any) -> FloatArray:
        return log_softmax(self.affine_(self._log_probabilities(self.estimator_, features)))

    def _routed(self, fit_params: dict[str, Any]) -> Any:
        if not sklearn.get_config()["enable_metadata_routing"]:
            return fit_params
        return process_routing(self, "fit", **fit_params).estimator.fit

    def _checked_target(self) -> Any:
        """The shares in the order of the classes; a word as it is."""
        target = self.target
        if isinstance(target, Mapping):
            classes = self.classes_.tolist()
            for odd, text in ((set(target) - set(classes), "are none of"), (set(classes) - set(target), "lack")):
                if odd:
                    raise InputError(f"The keys of `target` {text} the classes of `y`: {sorted(map(str, odd))[0]}.")
            target = [target[label] for label in classes]
        if target is not None and not isinstance(target, str):
            checked_target(target, len(self.classes_))
        return target

    def _out_of_fold(self, features: Any, labels: Any, params: Any) -> FloatArray:
        """Scores of rows that the classifier was not trained on."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)  # that is the long tail
            splits = list(check_cv(self.cv, labels, classifier=True).split(features, labels))

        def score(train: Any, test: Any) -> FloatArray:
            # Each fold knows all classes: of one that would be missing, all rows are trained on.
            train = np.concatenate([train, np.flatnonzero(~np.isin(labels, labels[train]))])
            inner = clone(self.estimator)
            inner.fit(*_safe_split(inner, features, labels, train), **_check_method_params(features, params, train))
            return self._log_probabilities(inner, _safe_split(inner, features, labels, test, train)[0])

        return np.concatenate(Parallel(n_jobs=self.n_jobs)(delayed(score)(*split) for split in splits))

    def _log_probabilities(self, fitted: Any, features: Any) -> FloatArray:
        """Logarithms of the probabilities `(N, C)`, at least that of LEAST."""
        if hasattr(fitted, "predict_proba"):
            with np.errstate(divide="ignore"):
                scores = np.log(np.asarray(fitted.predict_proba(features), np.float64))
        else:
            margins = np.asarray(fitted.decision_function(features), np.float64)
            scores = log_softmax(np.stack([-margins / 2, margins / 2], axis=1) if margins.ndim == 1 else margins)
        classes = len(self.classes_)
        if scores.shape != (len(scores), classes):
            raise InputError(
                f"Expected {type(fitted).__name__} to give one score for each of {classes} classes, but got scores of "
                f"shape {scores.shape}."
            )
        return np.maximum(scores, np.log(LEAST))

    def _fit_correction(self, scores: FloatArray, labels: Any, target: Any, options: Mapping[str, Any]) -> None:
        names = tuple(map(str, self.classes_))
        head = Head(names=names, activation="softmax", population="images")
        self.moments_ = ClassMoments(head, sample_rows=4096)
        self.moments_.update(scores)
        self.recommendation_ = recommend(self.moments_)
        counts = None if labels is None else [np.sum(labels == label) for label in self.classes_]
        if active_classes(self.moments_, None).sum() > 1:
            self.affine_ = fit(self.method, self.moments_, counts, target=target, **options)
        else:  # as after training on one class
            self.affine_ = ClassAffine.identity(len(names))
        self.method_ = self.affine_.method
        name = type(self.estimator).__name__
        if self.method_ == NONE:
            finding = replace(self.recommendation_.verdict, unit="rows")
            warn(f"{finding} Predictions are those of {name}, uncorrected.")
        if not hasattr(self.estimator_, "predict_proba"):
            warn(
                f"{name} has no predict_proba, so its decision_function was taken for logits. CalibratedClassifierCV "
                "around it gives probabilities, which suit the correction better."
            )
        clipped = float((scores <= np.log(LEAST)).mean())
        if clipped > 0:
            warn(
                f"{100 * clipped:.2g} % of the probabilities of {name} are 0 or nearly so and were raised to {LEAST}: "
                "no correction makes these classes likely. CalibratedClassifierCV around it, or more trees, may help."
            )


def _has_scores(estimator: Any) -> bool:
    return any(hasattr(estimator, name) for name in ("predict_proba", "decision_function"))


def _checked_labels(y: Any) -> Any:
    """One class per row, as an array."""
    if y is None:
        raise InputError("LogitNormalizedClassifier requires y to be passed, but the target y is None.")
    check_classification_targets(y)
    if (kind := type_of_target(y)) not in ("binary", "multiclass"):
        raise InputError(f"Expected `y` to have one class per row, but got {kind} labels.")
    return column_or_1d(y, warn=True)
