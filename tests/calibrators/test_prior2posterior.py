"""What must hold for Prior2Posterior whatever the numbers are."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.conftest import moments_of

import logn
from logn.logits.arrays import softmax

CLASSES = 4
ROWS = hnp.arrays(np.float64, st.tuples(st.integers(5, 30), st.just(CLASSES)), elements=st.floats(-8, 8, width=16))
COUNTS = hnp.arrays(np.int64, CLASSES, elements=st.integers(1, 40))
STRENGTHS = st.floats(0, 1)
ALIVE = np.ones(CLASSES, bool)


def well_spread(rows):
    return bool((rows.std(axis=0) > 0.1).all() and rows.min() < 0)  # without one below 0 they look like probabilities


@given(counts=COUNTS, strength=STRENGTHS, seed=st.integers(0, 99))
def test_it_is_logit_adjustment_where_the_model_has_the_prior_of_its_labels(counts, strength, seed):
    # A model that is as sure of every row as the class shares say, but for a common shift of each row.
    shares = counts / counts.sum()
    rows = np.log(shares) + np.random.default_rng(seed).normal(0, 3, (50, 1))
    affine = logn.prior2posterior(moments_of(rows, activation="softmax"), strength=strength, active=ALIVE)
    adjusted = logn.methods.logit_adjustment(counts, strength)
    np.testing.assert_allclose(softmax(affine(rows)), softmax(adjusted(rows)), atol=1e-9)
    given_target = logn.prior2posterior(moments_of(rows, activation="softmax"), target=counts, active=ALIVE)
    np.testing.assert_allclose(given_target.shift, given_target.shift[0], atol=1e-9)


@given(rows=ROWS, activation=st.sampled_from(["softmax", "sigmoid"]), background=st.sampled_from([None, 0, -1]))
def test_strength_0_changes_nothing(rows, activation, background):
    assume(well_spread(rows))
    moments = moments_of(rows, activation=activation, background=background)
    assert logn.prior2posterior(moments, strength=0.0) == logn.ClassAffine.identity(CLASSES, background)


@given(rows=ROWS, common=st.floats(-5, 5), strength=STRENGTHS)
def test_a_softmax_ignores_a_common_shift(rows, common, strength):
    assume(well_spread(rows))
    plain, moved = moments_of(rows, activation="softmax"), moments_of(rows + common, activation="softmax")
    first = logn.prior2posterior(plain, strength=strength)
    np.testing.assert_allclose(logn.prior2posterior(moved, strength=strength).shift, first.shift, atol=1e-9)
    shifted = logn.prior2posterior(plain, strength=strength, margin=common)
    np.testing.assert_allclose(softmax(shifted(rows)), softmax(first(rows)), atol=1e-9)


def long_tailed(rows=5000):
    return np.random.default_rng(0).normal([2.0, 0.0, -2.0, -5.0], [1.0, 1.0, 1.0, 2.0], (rows, CLASSES))


def test_at_full_strength_the_classes_come_closer_to_equal():
    rows = long_tailed()
    affine = logn.prior2posterior(moments_of(rows, activation="softmax"))
    before, after = softmax(rows).mean(axis=0), softmax(affine(rows)).mean(axis=0)
    assert after.max() / after.min() < 0.05 * before.max() / before.min()


def test_the_map_says_what_it_was_made_for_and_leaves_the_statistics(tmp_path):
    moments = moments_of(long_tailed(50), background=-1, fingerprint="ab12")
    before = moments.to_bytes()
    affine = logn.prior2posterior(moments, target=[1, 2, 3])
    assert affine.source == moments.metadata.with_changes(activation="softmax")
    affine.save(tmp_path / "map.safetensors")
    assert logn.ClassAffine.load(tmp_path / "map.safetensors").settings == affine.settings
    assert moments.to_bytes() == before


def test_both_activations_can_be_chosen_where_none_is_recorded():
    rows = long_tailed(200)
    unknown = moments_of(rows)
    for activation in ("softmax", "sigmoid"):
        affine = logn.prior2posterior(unknown, activation=activation)
        assert affine == logn.prior2posterior(moments_of(rows, activation=activation))


def test_dead_classes_and_those_without_any_probability_are_left_alone():
    rows = long_tailed()
    rows[:, 1] = -3.0
    affine = logn.prior2posterior(moments_of(rows, background=-1))
    assert (affine.settings["inactive"], affine.shift[1]) == (1, 0.0)
    share = softmax(rows).mean(axis=0)[[0, 2]]
    np.testing.assert_allclose(affine.shift[[0, 2]], np.log(share.min() / share), atol=1e-5)
    never = logn.prior2posterior(moments_of(long_tailed() + np.array([0, 0, -2000, 0]), background=-1))
    assert (never.settings["inactive"], never.shift[2]) == (1, 0.0)


def test_what_is_not_recorded_is_asked_for():
    rows = long_tailed(50)
    without = moments_of(rows, activation="softmax", mean_probability=False)
    for call in (logn.prior2posterior, logn.recommend):
        with pytest.raises(logn.InputError, match="collect them again with mean_probability=True"):
            call(without)
    with pytest.raises(logn.InputError, match="`activation` to be sigmoid, whose mean probability was recorded"):
        logn.prior2posterior(moments_of(rows, activation="sigmoid"), activation="softmax")
