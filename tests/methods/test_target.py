"""Aiming a correction at a class mix, by a part of its strength: one definition for all methods."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.conftest import moments_of

import logn
from logn.base.arrays import softmax
from logn.methods.catalog import fit

COUNTS = [900.0, 90.0, 10.0]
SHARES = hnp.arrays(np.float64, 3, elements=st.floats(0.01, 1.0))
ROWS = np.random.default_rng(0).normal([2.0, 1.0, -1.0, -3.0], [1.0, 2.0, 1.0, 0.5], size=(400, 4))


@pytest.fixture
def moments():
    names = ("background", "car", "bus", "unicycle")
    return moments_of(ROWS, sample_rows=1000, background=0, activation="softmax", names=names)


def test_the_paper_s_form_towards_a_target_is_the_definition(moments):
    plain = logn.logit_normalization(moments)
    aimed = logn.logit_normalization(moments, target=COUNTS, strength=0.5)
    lowest = moments.mean[1:].min()
    shares = np.array(COUNTS) / 1000
    np.testing.assert_allclose(aimed.scale[1:], plain.scale[1:], rtol=1e-12)
    shift = 0.5 * (plain.shift[1:] + lowest * plain.scale[1:] + np.log(3 * shares))
    np.testing.assert_allclose(aimed.shift[1:], shift, rtol=1e-12)
    assert (aimed.scale[0], aimed.shift[0]) == (1.0, 0.0)


@pytest.mark.parametrize("spec", ["logn:use_std=false,margin=0,", "p2p:margin=0,"])
@pytest.mark.parametrize("background", [0, None])
def test_a_strength_of_0_changes_nothing_and_1_is_the_method(spec, background):
    recorded = moments_of(ROWS, background=background, activation="softmax")
    nothing, whole = fit(f"{spec}strength=0", recorded), fit(f"{spec}strength=1,target=uniform", recorded)
    np.testing.assert_allclose(nothing.scale, 1.0)
    np.testing.assert_allclose(nothing.shift, 0.0, atol=1e-6)
    assert whole == fit(spec, recorded)


def test_methods_that_take_their_prior_out_put_the_target_in():
    target, prior, log_counts = np.array([0.5, 0.3, 0.2]), np.array(COUNTS) / 1000, np.log(COUNTS)
    # x + ln t - tau ln prior, and x - gamma (ln N - ln(C t)).
    adjusted = logn.methods.logit_adjustment(COUNTS, 0.75, target=10 * target, background=-1)
    np.testing.assert_allclose(adjusted.shift[:3], np.log(target) - 0.75 * np.log(prior), rtol=1e-12)
    calibrated = logn.methods.norcal(COUNTS, 0.6, target=10 * target, background=-1)
    np.testing.assert_allclose(calibrated.shift[:3], -0.6 * (log_counts - np.log(3 * target)), rtol=1e-12)
    assert adjusted.shift[3] == calibrated.shift[3] == 0.0
    assert adjusted.scale.tolist() == calibrated.scale.tolist() == [1.0] * 4


@pytest.mark.parametrize("spec", ["p2p", "loga", "norcal"])
def test_aiming_at_the_training_mix_moves_no_class_against_another(moments, spec):
    shift = fit(f"{spec}:target=training", moments, None if spec == "p2p" else COUNTS).shift[1:]
    np.testing.assert_allclose(shift, shift[0], atol=1e-6)


def test_the_mix_of_training_is_that_of_its_objects():
    counts = logn.ClassCounts([9.0, 5.0, 1.0], instance_counts=COUNTS)
    np.testing.assert_allclose(fit("loga:target=training", counts=counts).shift, 0.0, atol=1e-12)


def test_the_share_of_a_dead_class_counts_nowhere():
    rows = np.hstack([ROWS, np.full((len(ROWS), 1), -9.0)])
    plain = logn.logit_normalization(moments_of(rows, background=0))
    assert plain.settings["inactive"] == 1
    for share in (0.01, 100.0):
        aimed = logn.logit_normalization(moments_of(rows, background=0), target=[6.0, 3.0, 1.5, share])
        expected = plain.shift[1:4] + np.log(np.array([6.0, 3.0, 1.5]) / 3.5)  # over their mean
        np.testing.assert_allclose(aimed.shift, [0.0, *expected, 0.0], rtol=1e-12)


def test_a_named_target_follows_the_names_of_the_counts_where_the_model_has_none():
    counts = logn.ClassCounts([9.0, 5.0, 1.0], names=("car", "bus", "tram"))
    target = logn.ClassCounts([2.0, 6.0, 4.0], names=("tram", "car", "bus"))
    assert fit("loga", counts=counts, target=target) == fit("loga", counts=counts, target=[6.0, 4.0, 2.0])


@given(
    counts=hnp.arrays(np.float64, 3, elements=st.floats(1, 1e4)),
    target=SHARES,
    test=hnp.arrays(np.float64, (3, 3), elements=st.floats(-8, 8)),
)
def test_the_sum_of_a_target_does_not_matter_and_classes_shift_by_its_logarithm(counts, target, test):
    plain, aimed = logn.methods.norcal(counts, 1.0), logn.methods.norcal(counts, 1.0, target=target)
    np.testing.assert_allclose(aimed(test), logn.methods.norcal(counts, 1.0, target=7 * target)(test), atol=1e-9)
    bayes = softmax(plain(test)) * target
    np.testing.assert_allclose(softmax(aimed(test)), bayes / bayes.sum(axis=1, keepdims=True), atol=1e-9)


def test_a_target_of_named_shares_is_put_in_the_order_of_the_statistics(moments, tmp_path):
    turned = tmp_path / "mix.json"
    turned.write_text(json.dumps({"unicycle": 0.1, "car": 0.6, "bus": 0.3}))
    straight = logn.logit_normalization(moments, target=[0.6, 0.3, 0.1])
    assert fit(f"logn:target={turned}", moments=moments) == straight
    assert fit("logn", moments=moments, target=logn.ClassCounts.load(turned)) == straight


@pytest.mark.parametrize(
    ("spec", "options", "sentence"),
    [
        ("p2p:target=uniformly", {}, "`target` to be uniform, training or a file of shares, but got 'uniformly'"),
        ("p2p:target=counts", {}, "`target` to be uniform, training or a file of shares, but got 'counts'"),
        ("p2p:target=lost.csv", {}, "lost.csv"),
        ("norcal:on_logits=true,target=training", {"counts": COUNTS}, "`target` only with weights"),
        (
            "p2p",
            {"target": logn.ClassCounts([1.0, 1.0, 1.0], names=("car", "bus", "tram"))},
            "do not have the class 'unicycle'",
        ),
    ],
)
def test_mistakes_are_named(moments, spec, options, sentence):
    with pytest.raises(logn.InputError, match=sentence):
        fit(spec, moments, **options)


def test_a_uniform_target_is_none_and_training_needs_counts_or_the_mean_probability(moments):
    assert fit("norcal:on_logits=true,target=uniform", moments, COUNTS) == fit("norcal:on_logits=true", moments, COUNTS)
    bare = moments_of(ROWS, mean_probability=False)
    with pytest.raises(logn.InputError, match="do not hold the mean probability of each class"):
        fit("logn:target=training", moments=bare, activation="softmax")
