"""What each form would do to the scores, on rows whose answer is known."""

import json
import warnings

import numpy as np
import pytest

from logn.calibrators.advice import advise
from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.form_preview import form_effects, map_effects
from logn.calibrators.method_spec import fit_method
from logn.calibrators.score_shift_warning import DETECTIONS_FACTOR, MASS_FACTOR, form_warning
from logn.errors import InputError
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments

HEADS = {
    "softmax, background first": {"background": 0, "activation": "softmax"},
    "softmax, background last": {"background": -1, "activation": "softmax"},
    "softmax, no background": {"background": None, "activation": "softmax"},
    "sigmoid": {"background": None, "activation": "sigmoid"},
}
head = pytest.mark.parametrize("metadata", HEADS.values(), ids=HEADS)


def tail(metadata, *, rows=3000, sample_rows=1000, level=False):
    """Statistics of twelve classes whose mean and spread fall with the index, unless `level`."""
    classes = np.arange(12)
    mean, std = (0 * classes, 1 + 0.0 * classes) if level else (-classes / 3, 2 - classes / 10)
    logits = np.random.default_rng(0).standard_normal((rows, 12)) * std + mean - 2
    if metadata["background"] is not None:
        background = np.random.default_rng(1).normal(3, 1, (rows, 1))
        logits = np.hstack([background, logits] if metadata["background"] == 0 else [logits, background])
    described = StatisticsMetadata(**metadata, population="test proposals")
    moments = ClassMoments(logits.shape[1], sample_rows=sample_rows, mean_probability=True, metadata=described)
    moments.update(logits)
    return moments


def scores(logits, metadata):
    """Foreground scores, written out."""
    if metadata["activation"] == "sigmoid":
        return 1 / (1 + np.exp(-logits))
    exponentials = np.exp(logits)
    probabilities = exponentials / exponentials.sum(1, keepdims=True)
    return probabilities if metadata["background"] is None else np.delete(probabilities, metadata["background"], axis=1)


@head
def test_every_form_is_applied_to_the_sample(metadata):
    moments = tail(metadata)
    effects = form_effects(moments, threshold=0.2)
    rows = moments.sample.astype(np.float64)
    assert effects.rows == 1000
    assert len(effects.forms) >= 4
    certain = effects.quantity == "confidence"
    for effect in (effects.before, *effects.forms):
        mapped = scores(fit_method(effect.form, moments=moments)(rows), metadata)
        mass = mapped.max(1) if certain else mapped.sum(1)
        assert effect.mass == pytest.approx(mass.mean(), rel=1e-9)
        assert effect.detections == pytest.approx(sum(row > 0.2 for row in mapped.ravel()))
    moved = scores(fit_method("logn:balanced", moments=moments)(rows), metadata).argmax(1) != scores(
        rows, metadata
    ).argmax(1)
    weight = scores(rows, metadata).sum(1)
    assert effects["logn:balanced"].winners_changed == pytest.approx((weight * moved).sum() / weight.sum())
    assert effects.before.winners_changed == 0


@head
def test_the_balanced_form_keeps_the_mass(metadata):
    effects = form_effects(tail(metadata))
    if effects.quantity != "confidence":
        assert effects["logn:balanced"].mass == pytest.approx(effects.before.mass, abs=1e-6)
    assert effects["logn:balanced"].winners_changed > 0.05


def test_the_forms_suit_the_head():
    def forms(kind):
        return {effect.form for effect in form_effects(tail(HEADS[kind])).forms}

    assert "logn:margin=background" in forms("softmax, background last")
    assert "logn:margin=background" not in forms("sigmoid")
    assert "logn:margin=min" in forms("sigmoid")
    assert not any("margin=m" in form for form in forms("softmax, no background"))


def test_another_background_than_the_recorded_one():
    moments = tail({"background": 0, "activation": "softmax"})
    assert form_effects(moments, background=None).quantity == "confidence"
    with pytest.raises(InputError, match="`background`"):
        form_effects(moments, background=2)


@head
def test_without_rows_it_says_how_to_get_them(metadata):
    effects = form_effects(tail(metadata, sample_rows=0))
    assert effects.rows == 0
    assert effects.before is None
    assert "--sample-rows 4096" in effects.note
    assert json.loads(json.dumps(effects.to_dict()))["forms"] == []


def test_nothing_alive_is_said_and_no_error():
    moments = ClassMoments(6, sample_rows=10)
    moments.update(np.ones((20, 6)))
    assert "active foreground class" in form_effects(moments).note
    assert advise(moments).form == "none"


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_a_threshold_is_a_score(threshold):
    with pytest.raises(InputError, match="`threshold` to be between 0 and 1"):
        form_effects(tail(HEADS["sigmoid"]), threshold=threshold)


def shifted(metadata, amount):
    columns = 12 + (metadata["background"] is not None)
    place = metadata["background"]
    foreground = ClassAffine.over_foreground(np.ones(12), np.full(12, amount), place, method="shift")
    assert foreground.num_classes == columns
    return foreground


@pytest.mark.parametrize("metadata", [HEADS["softmax, background first"], HEADS["sigmoid"]], ids=["softmax", "sigmoid"])
def test_the_warning_begins_where_its_factor_says(metadata):
    moments = tail(metadata)
    rows = moments.sample.astype(np.float64)

    def factor(amount):
        before, (after,) = map_effects(rows, {"shift": shifted(metadata, amount)}, 0.0, metadata["activation"])
        return before.mass / after.mass

    amounts = -np.linspace(0.2, 3, 15)
    factors = np.array([factor(amount) for amount in amounts])
    assert factors.min() < MASS_FACTOR < factors.max()
    for amount, reached in zip(amounts, factors, strict=True):
        # No score falls below a threshold of 0, so only the mass can warn here.
        assert (form_warning(shifted(metadata, amount), moments, threshold=0.0) is not None) == (reached > MASS_FACTOR)


def test_the_warning_names_what_falls_and_what_rises():
    moments = tail(HEADS["softmax, background first"])
    lower = form_warning(shifted(HEADS["softmax, background first"], -6.0), moments)
    assert "lowers the foreground mass" in lower
    assert "and the scores above 0.05 from" in lower
    assert "logn:balanced" in lower
    assert lower.count(".") == lower.replace(". ", "").count(".")  # one sentence
    assert "raises the foreground mass" in form_warning(shifted(HEADS["softmax, background first"], 6.0), moments)


def test_detections_that_collapse_are_warned_of_even_when_the_mass_stays():
    # One certain class becomes fifty equal ones: the same foreground mass, and no score above 0.05.
    metadata = StatisticsMetadata(background=0, activation="softmax")
    moments = ClassMoments(51, sample_rows=100, metadata=metadata)
    first = np.r_[4.0, np.zeros(49)]
    moments.update(np.random.default_rng(0).normal(0, 0.01, (100, 51)) + np.r_[0.0, first])
    flat = ClassAffine.over_foreground(np.ones(50), -first, 0, method="flat")
    warning = form_warning(flat, moments)
    assert DETECTIONS_FACTOR > 1
    assert warning.startswith("This map lowers the scores above 0.05 from 1000 to 0 per 1,000 rows")


def test_no_warning_where_nobody_can_tell_or_nothing_moves():
    metadata = HEADS["softmax, background first"]
    assert form_warning(shifted(metadata, -6.0), tail(metadata, sample_rows=0)) is None
    assert form_warning(fit_method("logn:balanced", moments=tail(metadata)), tail(metadata)) is None
    assert form_warning(ClassAffine.identity(13, 0), tail(metadata)) is None


def test_a_flat_classifier_is_told_about_its_scores_only():
    metadata = {"background": None, "activation": "softmax"}
    moments = tail(metadata)
    warning = form_warning(ClassAffine(np.full(12, 0.01), np.zeros(12)), moments)
    assert "mean confidence" in warning
    assert "scores above" not in warning
    assert "threshold" not in warning


def test_certain_rows_do_not_overflow():
    moments = ClassMoments(7, sample_rows=50, metadata=StatisticsMetadata(background=0, activation="softmax"))
    moments.update(np.random.default_rng(0).standard_normal((50, 7)) * 20000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        effects = form_effects(moments)
    assert all(np.isfinite(effect.mass) for effect in effects.forms)
