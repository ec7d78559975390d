"""Aiming a correction at a class mix, by a part of its strength: one definition for all methods."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import logn
from logn.calibrators.methods import fit
from logn.logits.arrays import softmax
from logn.statistics.moments import StatisticsMetadata

COUNTS = [900.0, 90.0, 10.0]
ROWS = hnp.arrays(np.float64, st.tuples(st.integers(8, 30), st.just(4)), elements=st.floats(-8, 8))
SHARES = hnp.arrays(np.float64, 3, elements=st.floats(0.01, 1.0))


def moments_of(rows, background=0, **metadata):
    moments = logn.ClassMoments(
        rows.shape[1],
        sample_rows=1000,
        mean_probability=True,
        metadata=StatisticsMetadata(background=background, activation="softmax", **metadata),
    )
    moments.update(rows)
    return moments


@pytest.fixture
def moments():
    rows = np.random.default_rng(0).normal([2.0, 1.0, -1.0, -3.0], [1.0, 2.0, 1.0, 0.5], size=(400, 4))
    return moments_of(rows, class_names=("background", "car", "bus", "unicycle"))


def test_the_paper_s_form_towards_a_target_is_the_definition(moments):
    plain = logn.logit_normalization(moments)
    aimed = logn.logit_normalization(moments, target=COUNTS, strength=0.5)
    shares = np.array(COUNTS) / 1000
    np.testing.assert_allclose(aimed.scale[1:], plain.scale[1:], rtol=1e-12)
    np.testing.assert_allclose(aimed.shift[1:], 0.5 * (plain.shift[1:] + np.log(3 * shares)), rtol=1e-12)
    assert (aimed.scale[0], aimed.shift[0]) == (1.0, 0.0)


@pytest.mark.parametrize("spec", ["logn:use_std=false", "logn:use_std=false,margin=0", "p2p"])
@pytest.mark.parametrize("background", [0, None])
def test_a_strength_of_0_changes_nothing_and_1_is_the_method(moments, spec, background):
    recorded = moments_of(moments.sample.astype(float), background)
    sep = "," if ":" in spec else ":"
    nothing, whole = fit(f"{spec}{sep}strength=0", recorded), fit(f"{spec}{sep}strength=1,target=uniform", recorded)
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


@pytest.mark.parametrize("spec", ["p2p:target=training", "loga:target=training"])
def test_aiming_at_the_training_mix_moves_no_class_against_another(moments, spec):
    shift = fit(spec, moments, None if "p2p" in spec else COUNTS).shift[1:]
    np.testing.assert_allclose(shift, shift[0], atol=1e-6)  # no class moves against another


def test_the_share_of_a_dead_class_counts_nowhere(moments):
    rows = np.hstack([moments.sample.astype(float), np.full((len(moments.sample), 1), -9.0)])
    plain = logn.logit_normalization(moments_of(rows))
    assert plain.settings["inactive"] == 1
    for share in (0.01, 100.0):
        aimed = logn.logit_normalization(moments_of(rows), target=[6.0, 3.0, 1.5, share])
        expected = plain.shift[1:4] + np.log(np.array([6.0, 3.0, 1.5]) / 3.5)  # over their mean
        np.testing.assert_allclose(aimed.shift, [0.0, *expected, 0.0], rtol=1e-12)


def test_the_mix_of_training_is_that_of_its_objects():
    counts = logn.ClassCounts([9.0, 5.0, 1.0], instance_counts=COUNTS)
    np.testing.assert_allclose(fit("loga:target=training", counts=counts).shift, 0.0, atol=1e-12)


def test_norcal_aimed_at_its_counts_moves_no_class_against_another():
    shift = fit("norcal:target=training", counts=COUNTS, background=-1).shift
    np.testing.assert_allclose(shift[:3], shift[0])


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
    turned.write_text(json.dumps({"names": ["unicycle", "car", "bus"], "shares": [0.1, 0.6, 0.3]}))
    straight = logn.logit_normalization(moments, target=[0.6, 0.3, 0.1])
    assert fit(f"logn:target={turned}", moments=moments) == straight
    assert fit("logn", moments=moments, target=logn.ClassCounts.load(turned)) == straight


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("p2p:target=uniformly", "`target` to be uniform, training or a file of shares, but got 'uniformly'"),
        ("p2p:target=counts", "`target` to be uniform, training or a file of shares, but got 'counts'"),
        ("p2p:target=lost.csv", "lost.csv"),
        ("p2p:strength=nan", "`strength` to be a finite number"),
        ("norcal:on_logits=true,target=uniform", None),
        ("norcal:on_logits=true,target=training", "`target` only with weights"),
    ],
)
def test_mistakes_are_named(moments, spec, sentence):
    counts = COUNTS if spec.startswith("norcal") else None
    if sentence is None:
        fit(spec, moments, counts)
        return
    with pytest.raises(logn.InputError, match=sentence):
        fit(spec, moments, counts)


def test_shares_that_do_not_fit_are_refused(moments, tmp_path):
    with pytest.raises(logn.InputError, match=r"`target` to be one share per foreground class \(3\)"):
        logn.logit_normalization(moments, target=[1, 2])
    with pytest.raises(logn.InputError, match="`target` to be above 0 and finite, but got nan for class 1"):
        logn.methods.norcal(COUNTS, target=[1, np.nan, 1])
    with pytest.raises(logn.InputError, match="do not have the class 'unicycle'"):
        fit("p2p", moments=moments, target=logn.ClassCounts([1.0, 1.0, 1.0], names=("car", "bus", "tram")))
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(logn.InputError, match="no classes"):
        fit(f"p2p:target={tmp_path / 'empty.csv'}", moments=moments)


def test_training_needs_counts_or_the_mean_probability():
    bare = logn.ClassMoments(3, mean_probability=False)
    bare.update(np.random.default_rng(0).normal(size=(10, 3)))
    with pytest.raises(logn.InputError, match="do not hold the mean probability of each class"):
        fit("logn:target=training", moments=bare, activation="softmax")
