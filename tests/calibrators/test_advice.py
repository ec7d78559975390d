"""The recommendation: which correction, when none, and how sure it is."""

import json
from dataclasses import replace

import numpy as np
import pytest

from logn.calibrators.advice import (
    CLEAR_CORRELATION,
    EXTRA_MARGINS,
    LITTLE_MEAN_SPREAD,
    LITTLE_STD_SPREAD,
    STRONG_MEAN_SPREAD,
    advice_from,
    advise,
    recommended_for,
    recommended_method,
)
from logn.calibrators.form_preview import form_effects
from logn.calibrators.method_spec import fit_method
from logn.errors import InputError
from logn.statistics.diagnosis import Correlation, diagnose, tail_bias
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments

CLASSES = np.arange(60)
COUNTS = 2000 / (CLASSES + 1.0)


def detector(strength, *, spread=None, sample_rows=2000, prior=True, **metadata):
    """A detector whose class means fall by `strength` standard deviations from head to tail."""
    metadata = {"background": 0, "activation": "softmax", **metadata}
    spread = strength / 4 if spread is None else spread
    mean, std = -CLASSES / 60 * strength - 1, 1 - CLASSES / 60 * spread
    rows = np.random.default_rng(0).standard_normal((4000, 60)) * std + mean
    if metadata["background"] == 0:
        rows = np.hstack([np.random.default_rng(1).normal(3, 1.0, (4000, 1)), rows])
    moments = ClassMoments(
        rows.shape[1], sample_rows=sample_rows, mean_probability=prior, metadata=StatisticsMetadata(**metadata)
    )
    moments.update(rows)
    return moments


def test_a_strong_tail_is_corrected_with_high_confidence():
    advice = advise(detector(3.0))
    assert (advice.form, advice.strength, advice.confidence) == (recommended_method(0, "softmax"), "strong", "high")
    assert advice.indicators["mean_spread"] >= STRONG_MEAN_SPREAD
    assert advice.indicators["balanced_mass_factor"] == pytest.approx(1.0, abs=1e-6)
    assert "hardly ever score highest" in advice.reason
    fit_method(advice.form, moments=detector(3.0))


def test_level_classes_are_left_alone():
    advice = advise(detector(0.0))
    assert (advice.form, advice.strength) == ("none", "little")
    assert advice.indicators["mean_spread"] < LITTLE_MEAN_SPREAD
    assert advice.indicators["std_spread"] < LITTLE_STD_SPREAD
    assert "little to gain" in advice.reason


def test_counts_make_it_surer_or_call_it_off():
    moments = detector(3.0, spread=0.0)
    # Means that differ while the spreads do not can come from anything, unless the counts explain them.
    assert advise(moments).confidence == "low"
    with_counts = advise(moments, COUNTS)
    assert with_counts.confidence == "high"
    assert with_counts.indicators["mean_count_correlation"] > CLEAR_CORRELATION
    shuffled = COUNTS[np.random.default_rng(3).permutation(60)]
    called_off = advise(moments, shuffled)
    assert called_off.form == "none"
    assert "not as the training counts do" in called_off.reason
    reverse = advise(moments, COUNTS[::-1])
    assert (reverse.form, reverse.confidence) == ("none", "low")
    assert "reverse" in reverse.reason


def test_without_rows_it_says_what_is_missing():
    assert advise(detector(3.0, sample_rows=0, prior=False)).form == "logn:balanced"
    advice = advise(detector(3.0, sample_rows=0))
    assert advice.form == recommended_method(0, "softmax")
    assert advice.confidence == "moderate"
    assert "--sample-rows 4096" in advice.reason
    assert "starved_share" in advice.indicators


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_heads_on_which_the_rule_was_not_checked_get_less_confidence(activation):
    assert advise(detector(3.0, background=None, activation=activation)).confidence == "moderate"


@pytest.mark.parametrize("estimator", ["positives", "positives-correct"])
def test_statistics_of_positives_are_not_trusted(estimator):
    advice = advise(detector(3.0, estimator=estimator))
    assert advice.confidence == "low"
    assert any("positives" in caution for caution in advice.cautions)


def test_the_papers_margin_is_mentioned_when_it_would_hurt():
    caution, _ = advise(detector(3.0)).cautions
    assert caution.startswith("The paper's own form (logn:margin=min) lowers the foreground mass")


def test_too_few_classes_make_no_tail():
    moments = ClassMoments(3, sample_rows=100)
    moments.update(np.random.default_rng(0).standard_normal((100, 3)) - [0.0, 3.0, 6.0])
    assert advise(moments).form == "none"
    assert "too few" in advise(moments).reason


def test_programs_can_read_it():
    plain = json.loads(json.dumps(advise(detector(3.0), COUNTS).to_dict()))
    assert plain["form"] == recommended_method(0, "softmax")
    assert set(plain) == {"form", "confidence", "strength", "reason", "indicators", "cautions"}


@pytest.mark.parametrize(("correlation", "confidence"), [(0.55, "low"), (0.65, "high")])
def test_means_that_differ_without_the_spreads_need_clear_counts(correlation, confidence):
    moments = detector(3.0)
    diagnosis = replace(diagnose(moments), mean_with_count=Correlation(correlation, correlation))
    bias = replace(tail_bias(moments), mean_std_correlation=0.0)
    assert advice_from(bias, diagnosis, form_effects(moments)).confidence == confidence


@pytest.mark.parametrize("labels", ["federated", "exhaustive"])
def test_what_the_labels_verify_decides_the_margin_and_is_asked_for(labels):
    moments = detector(3.0)
    advice = advise(moments, labels=labels)
    assert advice.form == recommended_for(moments, labels=labels) == recommended_method(0, "softmax", labels)
    assert advice.fit(moments).settings["extra_margin"] == EXTRA_MARGINS[labels]
    assert not any("--labels" in caution for caution in advice.cautions)
    assert any("--labels" in caution for caution in advise(moments).cautions)
    with pytest.raises(InputError, match='Expected `labels` to be "federated" or "exhaustive", but got'):
        advise(moments, labels="coco")


def test_each_kind_of_model_has_its_own_recommendation():
    classifier = advise(detector(3.0, background=None))
    assert classifier.form == "p2p:strength=0.5"
    assert any("all of it (`p2p`)" in caution for caution in classifier.cautions)
    sigmoids = advise(detector(3.0, background=None, activation="sigmoid"))
    assert sigmoids.form == "logn:balanced"
    assert any("logn thresholds" in caution for caution in sigmoids.cautions)


def test_a_class_without_any_probability_leaves_the_form_that_needs_none():
    rows = np.random.default_rng(0).standard_normal((1000, 8)) - np.arange(8) / 2
    rows[:, 0] += 5
    rows[:, -1] = -2000 + np.random.default_rng(1).standard_normal(1000)
    metadata = StatisticsMetadata(background=0, activation="softmax")
    moments = ClassMoments(8, sample_rows=500, mean_probability=True, metadata=metadata)
    moments.update(rows)
    with pytest.raises(InputError, match="mean probability above 0"):
        fit_method("p2p", moments=moments)
    assert advise(moments).form == "logn:balanced"
