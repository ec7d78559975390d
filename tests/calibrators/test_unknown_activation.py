"""Logits whose activation nobody stated: sigmoids keep their detections, and a softmax does not notice."""

import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import logn
from logn.calibrators.advice import advise
from logn.calibrators.balanced_margin import solve_margin_of_moments
from logn.calibrators.form_preview import form_effects
from logn.calibrators.method_spec import fit_method
from logn.calibrators.score_shift_warning import form_warning
from logn.logits.arrays import sigmoid, softmax
from logn.statistics.metadata import StatisticsMetadata

CLASSES = 4
ROWS = hnp.arrays(np.float64, st.tuples(st.integers(5, 30), st.just(CLASSES)), elements=st.floats(-20, 20))
TEST = hnp.arrays(np.float64, (3, CLASSES), elements=st.floats(-20, 20))
FORMS = st.fixed_dictionaries(
    {
        "margin": st.sampled_from([None, "balance"]),
        "relative_std": st.booleans(),
        "use_mean": st.booleans(),
        "use_std": st.booleans(),
    }
)


def moments_of(rows, *, sample_rows=100, **metadata):
    moments = logn.ClassMoments(rows.shape[1], sample_rows=sample_rows, metadata=StatisticsMetadata(**metadata))
    moments.update(rows)
    return moments


def as_sampled(rows):
    """Rows as the sample holds them, so that sums over both can be compared exactly."""
    return rows.astype(np.float16).astype(np.float64)


def one_stage(rows=3000, classes=20):
    """Logits as a one-stage detector gives them: far below 0, frequent classes higher and wider."""
    generator = np.random.default_rng(0)
    mean, std = np.linspace(-5, -9, classes), np.linspace(2.5, 1.0, classes)
    return as_sampled(generator.standard_normal((rows, classes)) * std + mean)


@given(rows=ROWS, test=TEST, form=FORMS)
def test_a_softmax_does_not_notice(rows, test, form):
    rows = as_sampled(rows)
    assume((rows.std(axis=0) > 0.1).all())
    unknown = logn.logit_normalization(moments_of(rows), **form)
    known = logn.logit_normalization(moments_of(rows, activation="softmax"), **form)
    np.testing.assert_array_equal(unknown.scale, known.scale)
    np.testing.assert_allclose(unknown.shift - known.shift, unknown.settings["margin_value"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(softmax(unknown(test)), softmax(known(test)), rtol=1e-6, atol=1e-12)
    untied = np.diff(np.sort(known(test), axis=1))[:, -1] > 1e-6
    assert (unknown(test).argmax(axis=1) == known(test).argmax(axis=1))[untied].all()


@given(rows=ROWS, form=FORMS, activation=st.sampled_from([None, "sigmoid"]))
def test_sigmoids_keep_their_expected_number_of_detections(rows, form, activation):
    rows = as_sampled(rows)
    assume((rows.std(axis=0) > 0.1).all())
    affine = logn.logit_normalization(moments_of(rows, activation=activation), **form)
    assert sigmoid(affine(rows)).mean() == pytest.approx(sigmoid(rows).mean(), rel=1e-6)
    assert affine.settings["margin"] == "balance"
    assert affine.settings["margin_from"] == "sample"
    assert affine.settings["activation"] == activation


def test_equation_1_would_have_made_half_of_everything_a_detection():
    rows = one_stage()
    before = sigmoid(rows).mean()
    centred = logn.logit_normalization(moments_of(rows, activation="softmax"), form="paper")
    assert sigmoid(centred(rows)).mean() == pytest.approx(0.5, abs=0.02)
    for spec in ("logn", "logn:balanced", "logn:use_std=false"):
        affine = fit_method(spec, moments=moments_of(rows, sample_rows=3000))
        assert sigmoid(affine(rows)).mean() == pytest.approx(before, rel=1e-6)


def test_a_dead_class_is_shifted_with_the_others_only_where_it_may_be_a_softmax():
    rows = one_stage(classes=5)
    rows[:, 2] = 3.0  # dead, and yet more than all others together
    alive = [0, 1, 3, 4]
    every_row = {"sample_rows": 3000}
    unknown, known = (
        logn.logit_normalization(moments_of(rows, activation=name, **every_row)) for name in (None, "sigmoid")
    )
    assert unknown.settings["margin_value"] == known.settings["margin_value"]
    assert (known.scale[2], known.shift[2]) == (1.0, 0.0)
    assert (unknown.scale[2], unknown.shift[2]) == (1.0, unknown.settings["margin_value"])
    assert unknown.settings["inactive"] == 1
    without = logn.logit_normalization(moments_of(rows[:, alive], **every_row))
    np.testing.assert_allclose(unknown.shift[alive], without.shift, rtol=1e-6)  # it did not set the margin


def test_numbers_and_names_of_margins_stay_what_they_are():
    moments = moments_of(one_stage())
    for margin in (0.0, -2.5, "min", "mean", "max"):
        affine = logn.logit_normalization(moments, margin=margin)
        assert affine == logn.logit_normalization(moments, margin=margin, activation="softmax")
    assert logn.logit_normalization(moments, margin=-2.5).settings["margin_value"] == -2.5


def test_beside_a_background_it_is_a_softmax():
    rows = one_stage()
    recorded = moments_of(rows, background=0, activation="softmax")
    for form in ({}, {"margin": "balance", "relative_std": True}):
        unknown = logn.logit_normalization(moments_of(rows, background=0), **form)
        assert unknown == logn.logit_normalization(recorded, **form)
        assert unknown.settings["activation"] == "softmax"


def test_the_user_knows_better_than_the_record():
    moments = moments_of(one_stage(), activation="sigmoid")
    assert logn.logit_normalization(moments, form="paper", activation="softmax").settings["margin"] == 0.0
    assert fit_method("logn", moments=moments, activation="softmax").source.activation == "softmax"
    assert fit_method("logn:activation=sigmoid", moments=moments, activation="softmax").source.activation == "sigmoid"
    with pytest.raises(logn.InputError, match='`activation` to be "softmax", "sigmoid" or "recorded", but got'):
        logn.logit_normalization(moments, activation="relu")


def test_who_keeps_the_confidence_has_a_softmax():
    rows = as_sampled(np.random.default_rng(0).normal(size=(100, 4)) * [1.0, 2.0, 3.0, 4.0])
    kept = logn.logit_normalization(moments_of(rows), keep_confidence=True)
    assert kept == logn.logit_normalization(moments_of(rows, activation="softmax"), keep_confidence=True)
    assert kept.source.activation == "softmax"
    sigmoids = logn.logit_normalization(moments_of(rows, activation="sigmoid"))
    with pytest.raises(logn.InputError, match="to be of a softmax to keep the mean confidence, but it is of a sigmoid"):
        logn.keep_confidence(sigmoids, rows)


def expected_score(mean, std):
    """The mean of sigmoid(x) under a normal distribution, as a sum over a fine grid."""
    grid = np.linspace(-12, 12, 200_001)
    weight = np.exp(-(grid**2) / 2)
    return float((weight * sigmoid(mean + std * grid)).sum() / weight.sum())


@pytest.mark.parametrize("spread", [0.3, 1.0, 2.5])
def test_without_rows_the_default_margin_is_solved_for_normal_classes(spread):
    mean, std = np.array([-4.0, -6.0, -8.5]), np.array([1.0, 0.7, 0.5]) * spread
    rows = np.stack([mean - std * np.sqrt(0.5), mean + std * np.sqrt(0.5)])  # whose variance is exactly std^2
    affine = logn.logit_normalization(moments_of(rows, sample_rows=0), form="paper", eps=0.0)
    margin = affine.settings["margin_value"]
    before = sum(expected_score(m, s) for m, s in zip(mean, std, strict=True))
    assert 3 * expected_score(margin, 1.0) == pytest.approx(before, rel=1e-6)
    assert affine.settings["margin_from"] == "moments"
    assert (affine.settings["margin_error"], affine.settings["sample_rows"]) == (None, 0)


def test_sample_and_moments_agree_on_rows_that_are_normal():
    rows = one_stage(rows=20_000)
    sampled, solved = (logn.logit_normalization(moments_of(rows, sample_rows=number)) for number in (20_000, 0))
    difference = solved.settings["margin_value"] - sampled.settings["margin_value"]
    assert abs(difference) < 4 * sampled.settings["margin_error"]


@given(
    mean=hnp.arrays(np.float64, CLASSES, elements=st.floats(-30, 0)),
    variance=hnp.arrays(np.float64, CLASSES, elements=st.floats(0, 25)),
    shift=st.floats(-20, 20),
)
def test_a_common_shift_is_undone_by_the_moments(mean, variance, shift):
    moved = logn.ClassAffine(np.ones(CLASSES), np.full(CLASSES, shift))
    margin = solve_margin_of_moments(mean, variance, moved, np.ones(CLASSES, bool))
    assert margin.value == pytest.approx(-shift, abs=1e-6)


def test_a_balance_that_was_asked_for_needs_its_rows():
    moments = moments_of(one_stage(), sample_rows=0)
    with pytest.raises(logn.InputError, match=r'row sample for margin="balance".*or say activation="softmax"'):
        logn.logit_normalization(moments, margin="balance")
    assert fit_method("logn:balanced", moments=moments, activation="softmax").settings["margin_value"] == 0.0


def test_all_settings_are_json(tmp_path):
    for rows in (0, 1, 100):
        affine = logn.logit_normalization(moments_of(one_stage(), sample_rows=rows))
        json.dumps(dict(affine.settings), allow_nan=False)
        affine.save(tmp_path / "a.safetensors")
        assert logn.ClassAffine.load(tmp_path / "a.safetensors").settings == affine.settings


def test_forms_are_judged_by_the_same_assumption():
    moments = moments_of(one_stage(), sample_rows=3000)
    effects = form_effects(moments)
    assert effects.quantity == "expected detections"
    assert "activation is not recorded" in effects.assumption
    assert effects["logn"].mass == pytest.approx(effects.before.mass, rel=1e-6)
    assert effects["logn:balanced"].mass == pytest.approx(effects.before.mass, rel=1e-6)
    assert effects.assumption in advise(moments).cautions
    told = form_effects(moments, activation="softmax")
    assert (told.quantity, told.assumption) == ("confidence", "")
    assert advise(moments, activation="softmax").cautions != advise(moments).cautions


def test_a_margin_that_ruins_sigmoids_is_warned_of():
    moments = moments_of(one_stage(), sample_rows=3000)
    warning = form_warning(logn.logit_normalization(moments, margin=0.0), moments)
    assert warning.startswith("If sigmoids follow the logits, this map raises the mean expected detections")
    assert form_warning(logn.logit_normalization(moments, margin="balance", relative_std=True), moments) is None
    certain = logn.logit_normalization(moments, margin=0.0, activation="softmax")
    assert "confidence" in form_warning(certain, moments)
