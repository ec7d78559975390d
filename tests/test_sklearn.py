"""LogitNormalizedClassifier is a scikit-learn classifier, and what it predicts is what the functions of LogN give."""

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import sklearn
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator

import logn
from logn.sklearn import LEAST, LogitNormalizedClassifier

FORCED = "recommended:force=true"


def draw(shares, rows=1200, seed=0):
    return make_classification(
        rows, n_features=8, n_informative=6, n_classes=len(shares), weights=list(shares), random_state=seed
    )


X, Y = draw([0.7, 0.2, 0.07, 0.03])
NAMES = np.array(["ant", "bee", "cow", "dog"])[Y]
LEVEL = draw([0.25] * 4)
TWO = draw([0.95, 0.05])


@pytest.mark.parametrize(
    "model",
    [
        LogitNormalizedClassifier(LogisticRegression()),
        LogitNormalizedClassifier(GaussianNB(), method=FORCED),
        LogitNormalizedClassifier(LinearSVC(), method=FORCED),
    ],
    ids=str,
)
def test_scikit_learns_own_checks(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as of too few rows to correct
        results = check_estimator(model, on_fail=None, on_skip=None)
    assert len(results) > 40
    assert [(item["check_name"], item["exception"]) for item in results if item["status"] == "failed"] == []


def test_it_corrects_as_recommend_says():
    model = LogitNormalizedClassifier(LogisticRegression()).fit(X, NAMES)
    moments = logn.ClassMoments(4)
    moments.update(np.log(cross_val_predict(LogisticRegression(), X, NAMES, method="predict_proba")))
    recommendation = logn.recommend(moments, activation="softmax")
    np.testing.assert_allclose(model.affine_.shift, recommendation.fit(moments).shift)
    assert model.recommendation_.finding == recommendation.finding
    assert model.method_ == "recommended"
    inner = LogisticRegression().fit(X, NAMES)
    scores = inner.predict_log_proba(X) + model.affine_.shift
    np.testing.assert_array_equal(model.predict(X), inner.classes_[scores.argmax(axis=1)])
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    np.testing.assert_allclose(np.log(model.predict_proba(X)), model.decision_function(X))
    assert balanced_accuracy_score(NAMES, model.predict(X)) > balanced_accuracy_score(NAMES, inner.predict(X)) + 0.05


def test_two_classes_have_one_logit():
    features, labels = TWO
    model = LogitNormalizedClassifier(LogisticRegression()).fit(features, labels)
    odds, probabilities = model.decision_function(features), model.predict_proba(features)
    assert odds.shape == (len(labels),)
    np.testing.assert_allclose(odds, np.log(probabilities[:, 1] / probabilities[:, 0]))
    np.testing.assert_array_equal(model.predict(features), (odds > 0).astype(int))
    assert model.predict(features).sum() > LogisticRegression().fit(features, labels).predict(features).sum()


def test_level_classes_are_predicted_as_by_the_inner_one():
    with pytest.warns(logn.LogNWarning, match=r"nearly level.* those of LogisticRegression") as caught:
        model = LogitNormalizedClassifier(LogisticRegression()).fit(*LEVEL)
    assert [warning.filename for warning in caught if warning.category is logn.LogNWarning] == [__file__]
    inner = LogisticRegression().fit(*LEVEL)
    assert (model.method_, model.recommendation_.method) == ("none", "none")
    np.testing.assert_array_equal(model.predict(LEVEL[0]), inner.predict(LEVEL[0]))
    np.testing.assert_array_equal(model.predict_proba(LEVEL[0]), inner.predict_proba(LEVEL[0]))


def test_a_frozen_classifier_stays_and_needs_no_labels():
    inner = LogisticRegression().fit(X, NAMES)
    model = LogitNormalizedClassifier(FrozenEstimator(inner)).fit(X)
    moments = logn.ClassMoments(4)
    moments.update(inner.predict_log_proba(X))
    expected = logn.recommend(moments, activation="softmax").fit(moments)
    np.testing.assert_allclose(model.affine_.shift, expected.shift)
    assert model.estimator_.estimator is inner
    np.testing.assert_array_equal(model.classes_, inner.classes_)
    with pytest.raises(NotFittedError):
        LogitNormalizedClassifier(FrozenEstimator(LogisticRegression())).fit(X)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"strength": 1.0}, {"strength": 1.0}),
        ({"target": [4, 3, 2, 1]}, {"target": [4, 3, 2, 1]}),
        ({"target": {"dog": 1, "cow": 2, "bee": 3, "ant": 4}}, {"target": [4, 3, 2, 1]}),
        ({"method": "logn", "strength": 0.5}, {"spec": "logn", "strength": 0.5}),
        ({"method": "loga"}, {"spec": "loga"}),
        ({"target": "training"}, {"target": "training"}),
    ],
)
def test_options_are_those_of_the_methods(options, expected):
    model = LogitNormalizedClassifier(LogisticRegression(), **options).fit(X, NAMES)
    affine = logn.methods.fit(**{"spec": "recommended", "moments": model.moments_, "counts": np.bincount(Y)} | expected)
    assert model.affine_ == affine
    assert model.method_ == affine.method


def test_probabilities_of_zero_are_clipped_with_a_warning():
    with pytest.warns(logn.LogNWarning, match="of RandomForestClassifier are 0 or nearly so") as caught:
        model = LogitNormalizedClassifier(RandomForestClassifier(5, random_state=0)).fit(X, NAMES)
    assert len(caught) == 1
    assert model.moments_.sample.min() == pytest.approx(np.log(LEAST), abs=0.02)
    impossible = model.estimator_.predict_proba(X) == 0
    assert impossible.any()
    assert np.isfinite(model.decision_function(X)).all()
    assert model.predict_proba(X)[impossible].max() < 1e-9


def test_margins_are_taken_for_logits_with_a_warning():
    with pytest.warns(logn.LogNWarning, match="SVC has no predict_proba"):
        model = LogitNormalizedClassifier(SVC()).fit(X, NAMES)
    scores = model.estimator_.decision_function(X)
    corrected = np.log(model.predict_proba(X)) - scores - model.affine_.shift
    np.testing.assert_allclose(corrected, corrected[:, :1] * np.ones(4), atol=1e-9)


def test_classes_of_one_row_and_folds_without_a_class_do_not_matter():
    labels = NAMES.copy()
    labels[:] = np.where(np.arange(len(labels)) == 7, "emu", labels)
    model = LogitNormalizedClassifier(LogisticRegression()).fit(X, labels)
    assert model.predict_proba(X).shape == (len(X), 5)
    order = np.argsort(NAMES)
    model = LogitNormalizedClassifier(LogisticRegression(), cv=KFold(4)).fit(X[order], NAMES[order])
    assert model.moments_.count.tolist() == [len(X)] * 4


def test_labels_reach_the_inner_one_as_they_are():
    weights = {"ant": 1, "bee": 1, "cow": 5, "dog": 9}
    model = LogitNormalizedClassifier(LogisticRegression(class_weight=weights), method=FORCED).fit(X, NAMES)
    assert model.estimator_.classes_.tolist() == sorted(weights)


def test_data_frames_pipelines_searches_weights_and_pickles():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=[f"f{column}" for column in range(X.shape[1])])
    model = LogitNormalizedClassifier(LogisticRegression())
    search = GridSearchCV(model, {"strength": [0.0, 1.0]}, scoring="balanced_accuracy", cv=3)
    search.fit(frame, pandas.Series(NAMES), sample_weight=np.ones(len(X)))
    best = search.best_estimator_
    assert best.strength == 1.0
    assert best.feature_names_in_.tolist() == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        best.predict(frame[frame.columns[::-1]])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(best)).predict(frame), best.predict(frame))  # noqa: S301


def test_metadata_routing_sends_weights_to_the_inner_one():
    weights = np.where(Y == 3, 20.0, 1.0)
    with sklearn.config_context(enable_metadata_routing=True):
        inner = LogisticRegression().set_fit_request(sample_weight=True)
        routed = LogitNormalizedClassifier(inner, method=FORCED).fit(X, Y, sample_weight=weights)
    expected = LogisticRegression().fit(X, Y, sample_weight=weights)
    np.testing.assert_allclose(routed.estimator_.coef_, expected.coef_)


HARD = VotingClassifier([("tree", DecisionTreeClassifier())], voting="hard")


@pytest.mark.parametrize(
    ("estimator", "options", "labels", "message"),
    [
        (LinearRegression(), {}, NAMES, "predict_proba or decision_function, but got LinearRegression"),
        (HARD, {}, NAMES, "predict_proba or decision_function, but got VotingClassifier"),
        (SVC(decision_function_shape="ovo"), {}, NAMES, r"one score for each of 4 classes, but got scores of shape"),
        (LogisticRegression(), {"method": "norcl"}, NAMES, "did you mean `norcal`"),
        (LogisticRegression(), {"method": "loga", "strength": 1.0}, NAMES, "options of `loga`"),
        (LogisticRegression(), {"strength": 2.0}, NAMES, "strength"),
        (LogisticRegression(), {"target": {"ant": 1}}, NAMES, "keys of `target` lack the classes of `y`: bee"),
        (LogisticRegression(), {"target": dict.fromkeys([*NAMES, "eel"], 1)}, NAMES, "none of the classes of `y`: eel"),
        (LogisticRegression(), {"target": [1, 2]}, NAMES, r"one share per foreground class \(4\), but got 2"),
        (LogisticRegression(), {}, np.eye(4, dtype=int)[Y], "one class per row, but got multilabel-indicator labels"),
        (LogisticRegression(), {}, None, "requires y to be passed"),
    ],
)
def test_refusals(estimator, options, labels, message):
    with pytest.raises(logn.InputError, match=message):
        LogitNormalizedClassifier(estimator, **options).fit(X, labels)


def test_the_module_does_not_stand_in_the_way_of_scikit_learn():
    code = "import logn.sklearn, sklearn.svm, sys; print(sklearn.__name__, 'logn' in sklearn.__file__.split('/'))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["sklearn", "False"]


def test_without_scikit_learn_the_error_names_the_extra():
    code = "import sys; sys.modules['sklearn'] = None; import logn; logn.sklearn"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'MissingExtraError: The package `scikit-learn` is not installed: run pip install "logn[sklearn]"' in (
        result.stderr
    )
