"""The recommended form is one constant, and everything that has a default takes it from there."""

import inspect

import numpy as np
import pytest

import logn
from logn.calibrators.advice import recommended_method
from logn.calibrators.methods.logit_normalization import DEFAULT_FORM, DEFAULT_METHOD, FORMS, form_settings
from logn.evaluate.comparison.method_fitting import DEFAULT_METHODS, RECOMMENDED, recommended_for_store
from logn.evaluate.store.format import StoreHeader


@pytest.fixture
def moments():
    rows = np.random.default_rng(0).normal([3, 1, -1, -3, -5, 4], [3, 2, 1.5, 1, 1, 1], size=(500, 6))
    metadata = logn.StatisticsMetadata(background=-1)
    moments = logn.ClassMoments(6, sample_rows=500, mean_probability=True, metadata=metadata)
    moments.update(rows)
    return moments


BALANCED = {"margin": "balance", "relative_std": True}
PAPER = {"margin": "min", "relative_std": False}


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({}, BALANCED),
        ({"form": "balanced"}, BALANCED),
        ({"form": "logn:balanced"}, BALANCED),
        ({"form": "paper"}, PAPER),
        ({"form": "logn"}, PAPER),
        # Single arguments change single settings of a form...
        ({"eps": 1e-4}, BALANCED),
        ({"use_mean": False}, BALANCED),
        ({"std_power": 0.5}, BALANCED),
        ({"relative_std": False}, BALANCED | {"relative_std": False}),
        ({"form": "balanced", "margin": 0.0}, BALANCED | {"margin": 0.0}),
        ({"form": "paper", "relative_std": True}, PAPER | {"relative_std": True}),
        # ... but a margin without a form says which form is meant.
        ({"margin": "balance"}, BALANCED),
        ({"margin": "min"}, PAPER),
        ({"margin": None}, PAPER),
        ({"margin": -2.5}, PAPER | {"margin": -2.5}),
        ({"margin": "max", "relative_std": True}, {"margin": "max", "relative_std": True}),
    ],
)
def test_what_a_caller_gets(moments, given, settings):
    affine = logn.logit_normalization(moments, **given)
    assert {name: affine.settings[name] for name in settings} == settings
    rest = {name: value for name, value in given.items() if name != "form"}
    assert affine == logn.logit_normalization(moments, **(rest | settings))


def test_the_form_may_stand_second(moments):
    assert logn.logit_normalization(moments, "paper") == logn.logit_normalization(moments, **PAPER)


def test_an_unknown_form_is_refused(moments):
    with pytest.raises(logn.InputError, match=r"`form` to be one of balanced, paper, but got 'none'; .*fit_method"):
        logn.logit_normalization(moments, form="none")


def test_one_constant_is_the_default_everywhere(moments):
    expected = logn.logit_normalization(moments, form=DEFAULT_FORM)
    assert DEFAULT_FORM in FORMS
    assert form_settings() == FORMS[DEFAULT_FORM]
    assert logn.logit_normalization(moments) == expected
    assert logn.fit_method(DEFAULT_METHOD, moments=moments) == expected
    assert DEFAULT_METHOD in DEFAULT_METHODS
    assert inspect.signature(logn.LogitNormalizer).parameters["form"].default == DEFAULT_FORM


def test_what_is_recommended_is_compared_by_default(moments):
    advice = logn.advise(moments)
    assert advice.form == recommended_method(-1, "softmax")
    header = StoreHeader(num_columns=moments.num_classes, background=-1)
    assert DEFAULT_METHODS[0] == RECOMMENDED
    assert recommended_for_store(header, moments, federated=False) == advice.form
    federated = logn.advise(moments, labels="federated").form
    assert recommended_for_store(header, moments, federated=True) == federated != advice.form
    assert advice.fit(moments) == logn.fit_method(advice.form, moments=moments)


@pytest.mark.parametrize(
    ("activation", "expected"),
    [("softmax", ["none", "p2p:strength=0.5", "logn:balanced", "logn"]), (None, ["none", "logn:balanced", "logn"])],
)
def test_what_is_recommended_for_a_classifier_depends_on_its_activation(activation, expected):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    logits = 2 * np.eye(3)[labels] + rng.normal(size=(60, 3)) + [3.0, 1.0, 0.0]
    moments = logn.ClassMoments(
        3, sample_rows=60, mean_probability=True, metadata=logn.StatisticsMetadata(activation=activation)
    )
    moments.update(logits)
    found = logn.compare(logits, labels, moments=moments, counts=[900, 90, 9], num_bootstrap=0)
    assert [row.name for row in found.rows] == expected
    named = logn.compare(logits, labels, {"ours": "recommended"}, moments=moments, num_bootstrap=0)
    assert [row.name for row in named.rows] == ["none", "ours"]


def test_advice_against_a_correction_changes_nothing():
    rows = np.random.default_rng(0).standard_normal((2000, 6))
    level = logn.ClassMoments(6, sample_rows=500)
    level.update(rows)
    assert logn.advise(level).fit(level) == logn.ClassAffine.identity(6)


def test_without_rows_the_default_form_balances_sigmoids_and_asks_for_rows_beside_a_background():
    rows = np.random.default_rng(0).normal([-5, -6, -7], [2, 1.5, 1], size=(500, 3))
    bare = logn.ClassMoments(3)
    bare.update(rows)
    affine = logn.logit_normalization(bare)
    assert affine.settings["margin_from"] == "moments"
    assert affine.settings["relative_std"] is True
    with pytest.raises(logn.InputError, match=r'row sample for margin="balance".*or take the paper\'s form'):
        logn.logit_normalization(bare, background=0)
    assert logn.logit_normalization(bare, form="paper", background=0).settings["margin"] == "min"
