"""What must hold for Prior2Posterior whatever the numbers are, and what it refuses."""

import copy
import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import logn
from logn.logits.arrays import sigmoid, softmax

CLASSES = 4
ELEMENTS = st.floats(-8, 8, width=16)  # which the sample keeps as they are
ROWS = hnp.arrays(np.float64, st.tuples(st.integers(5, 30), st.just(CLASSES)), elements=ELEMENTS)
COUNTS = hnp.arrays(np.int64, CLASSES, elements=st.integers(1, 40))
STRENGTHS = st.floats(0, 1)
ALIVE = np.ones(CLASSES, bool)


def moments_of(rows, *, sample_rows=100, mean_probability=True, **metadata):
    moments = logn.ClassMoments(
        rows.shape[1],
        mean_probability=mean_probability,
        sample_rows=sample_rows,
        metadata=logn.StatisticsMetadata(**metadata),
    )
    moments.update(rows)
    return moments


def well_spread(rows):
    return bool((rows.std(axis=0) > 0.1).all() and rows.min() < 0)  # without one below 0 they look like probabilities


@given(counts=COUNTS, strength=STRENGTHS, seed=st.integers(0, 99))
def test_it_is_logit_adjustment_where_the_model_has_the_prior_of_its_labels(counts, strength, seed):
    # A model that is as sure of every row as the class shares say, but for a common shift of each row.
    shares = counts / counts.sum()
    rows = np.log(shares) + np.random.default_rng(seed).normal(0, 3, (50, 1))
    affine = logn.prior2posterior(moments_of(rows, activation="softmax"), strength=strength, active=ALIVE)
    adjusted = logn.logit_adjustment(counts, strength=strength)
    np.testing.assert_allclose(softmax(affine(rows)), softmax(adjusted(rows)), atol=1e-9)
    given_target = logn.prior2posterior(moments_of(rows, activation="softmax"), target=counts, active=ALIVE)
    np.testing.assert_allclose(given_target.shift, 0.0, atol=1e-9)


@given(rows=ROWS, activation=st.sampled_from(["softmax", "sigmoid"]), background=st.sampled_from([None, 0, -1]))
def test_strength_0_changes_nothing(rows, activation, background):
    assume(well_spread(rows))
    moments = moments_of(rows, activation=activation, background=background)
    assert logn.prior2posterior(moments, strength=0.0) == logn.ClassAffine.identity(CLASSES, background)


@given(rows=ROWS, other=ROWS, strength=STRENGTHS, background=st.sampled_from([None, 0, -1]))
def test_parts_that_are_merged_give_the_same_map(rows, other, strength, background):
    both = np.concatenate([rows, other])
    assume(well_spread(both))
    what = {"activation": "softmax", "background": background}
    whole = logn.prior2posterior(moments_of(both, **what), strength=strength)
    merged = logn.prior2posterior(moments_of(rows, **what).merge(moments_of(other, **what)), strength=strength)
    np.testing.assert_allclose(merged.shift, whole.shift, atol=1e-7)


@given(rows=ROWS, common=st.floats(-5, 5), strength=STRENGTHS)
def test_a_softmax_ignores_a_common_shift(rows, common, strength):
    assume(well_spread(rows))
    plain, moved = moments_of(rows, activation="softmax"), moments_of(rows + common, activation="softmax")
    first = logn.prior2posterior(plain, strength=strength)
    np.testing.assert_allclose(logn.prior2posterior(moved, strength=strength).shift, first.shift, atol=1e-9)
    shifted = logn.prior2posterior(plain, strength=strength, margin=common)
    np.testing.assert_allclose(softmax(shifted(rows)), softmax(first(rows)), atol=1e-9)


@given(rows=ROWS, strength=STRENGTHS, std_power=st.sampled_from([0.0, 0.5]), background=st.sampled_from([0, -1]))
@pytest.mark.filterwarnings("ignore::logn.errors.LogNWarning")  # few rows tell a prior badly
def test_the_foreground_mass_is_kept(rows, strength, std_power, background):
    assume(well_spread(rows))
    affine = logn.prior2posterior(moments_of(rows, background=background), strength=strength, std_power=std_power)
    before, after = (1 - softmax(each)[:, background].mean() for each in (rows, affine(rows)))
    assert after == pytest.approx(before, rel=1e-7)
    assert affine.scale[background] == 1.0
    assert affine.shift[background] == 0.0


@given(rows=ROWS, strength=STRENGTHS)
def test_sigmoids_keep_the_expected_number(rows, strength):
    assume(well_spread(rows))
    affine = logn.prior2posterior(moments_of(rows, activation="sigmoid"), strength=strength)
    assert sigmoid(affine(rows)).sum() == pytest.approx(sigmoid(rows).sum(), rel=1e-7)


def long_tailed(rows=5000, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal([2.0, 0.0, -2.0, -5.0], [1.0, 1.0, 1.0, 2.0], (rows, CLASSES))
    return logits.astype(np.float16).astype(np.float64)


def test_at_full_strength_the_classes_come_closer_to_equal():
    rows = long_tailed()
    affine = logn.prior2posterior(moments_of(rows, activation="softmax"))
    before, after = softmax(rows).mean(axis=0), softmax(affine(rows)).mean(axis=0)
    assert after.max() / after.min() < 0.05 * before.max() / before.min()


def test_the_sample_stands_in_with_a_warning_where_it_tells_too_little():
    rows = long_tailed()
    recorded = logn.prior2posterior(moments_of(rows, activation="softmax", sample_rows=4000))
    assert recorded.settings["prior_from"] == "recorded"
    assert recorded.settings["prior_error"] == 0.0
    plenty = moments_of(rows, activation="softmax", sample_rows=4000, mean_probability=False)
    names = ("a", "b", "c", "rare")
    few = moments_of(rows, activation="softmax", sample_rows=60, mean_probability=False, class_names=names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good = logn.prior2posterior(plenty)
    with pytest.warns(logn.LogNWarning, match=r"60 sampled rows .* 2 of 4 classes .*'rare'.*`--prior`"):
        bad = logn.prior2posterior(few)
    assert good.settings["prior_from"] == bad.settings["prior_from"] == "sample"
    # The errors that it states are those that it makes.
    for affine in (good, bad):
        difference = np.abs(affine.shift - recorded.shift)
        assert (difference < 4 * affine.settings["prior_error"]).all()
    assert good.settings["prior_error"] < 0.25 < bad.settings["prior_error"]


@pytest.mark.parametrize(("sample_rows", "warned"), [(600, True), (1500, False)])
def test_the_warning_begins_at_an_error_of_a_quarter(sample_rows, warned):
    moments = moments_of(long_tailed(), activation="softmax", sample_rows=sample_rows, mean_probability=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error = logn.prior2posterior(moments).settings["prior_error"]
    assert (0.25 < error < 0.5) if warned else (0.1 < error < 0.25)
    assert bool(caught) == warned


def test_dead_classes_are_left_alone():
    rows = long_tailed()
    rows[:, 1] = -3.0
    rows[:, 3] = np.random.default_rng(1).normal(-1.0, 1.0, len(rows))
    moments = moments_of(rows, background=-1)
    affine = logn.prior2posterior(moments, extra_margin=-1.0)
    assert affine.settings["inactive"] == 1
    assert affine.shift[1] == 0.0
    assert (affine.shift[[0, 2]] != 0.0).all()
    # Shares are among the live.
    share = softmax(rows).mean(axis=0)[[0, 2]]
    plain = logn.prior2posterior(moments, margin=0.0)
    np.testing.assert_allclose(plain.shift[[0, 2]], np.log(0.5) - np.log(share / share.sum()), atol=1e-5)
    # Another prior of the dead one does not change them.
    assert logn.prior2posterior(moments, target=[1, 5, 1], extra_margin=-1.0) == affine


def test_the_map_says_what_it_was_made_for(tmp_path):
    moments = moments_of(long_tailed(), background=-1, fingerprint="ab12")
    affine = logn.prior2posterior(moments, target=[1, 2, 3])
    assert affine.source == moments.metadata.with_changes(activation="softmax")
    affine.save(tmp_path / "map.safetensors")
    assert logn.ClassAffine.load(tmp_path / "map.safetensors").settings == affine.settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strength": float("nan")}, "`strength` to be a finite number"),
        ({"extra_margin": float("inf")}, "`extra_margin` to be a finite number"),
        ({"margin": "min"}, "`margin` to be a number or \"balance\", but got 'min'"),
        ({"target": [1, 2]}, r"`target` to be one share per foreground class \(3\)"),
        ({"target": [1, 0, 2]}, "`target` to be above 0 and finite, but got 0.0 for class 1"),
        ({"target": "even"}, "`target` to be one share per foreground class, but got 'even'"),
        ({"active": [True]}, "`active` to be one boolean per column"),
        ({"background": 2}, "`background` to be None, 0 or -1"),
    ],
)
def test_wrong_arguments(options, words):
    with pytest.raises(logn.InputError, match=words):
        logn.prior2posterior(moments_of(long_tailed(50), background=-1), **options)


def test_what_cannot_be_known_is_asked():
    rows = long_tailed(50)
    with pytest.raises(logn.InputError, match='say activation="softmax" or activation="sigmoid"'):
        logn.prior2posterior(moments_of(rows))
    with pytest.raises(logn.InputError, match="row sample or the mean probability of each class, but got none"):
        logn.prior2posterior(moments_of(rows, activation="softmax", sample_rows=0, mean_probability=False))
    with pytest.raises(logn.InputError, match="row sample for the prior of the scaled model, but got none"):
        logn.prior2posterior(moments_of(rows, activation="softmax", sample_rows=0), std_power=0.5)
    with pytest.raises(logn.InputError, match=r'row sample for margin="balance", but got none.*margin=0'):
        logn.prior2posterior(moments_of(rows, background=-1, sample_rows=0))
    with pytest.raises(logn.InputError, match="`activation` to be sigmoid, whose mean probability was recorded"):
        logn.prior2posterior(moments_of(rows, activation="sigmoid"), activation="softmax")


def test_both_activations_can_be_chosen_where_none_is_recorded():
    rows = long_tailed(200)
    unknown = moments_of(rows)
    for activation in ("softmax", "sigmoid"):
        affine = logn.prior2posterior(unknown, activation=activation)
        assert affine == logn.prior2posterior(moments_of(rows, activation=activation))


def test_a_class_that_never_has_any_probability_is_refused():
    rows = long_tailed(50) + np.array([0, 0, 0, -2000])
    with pytest.raises(logn.InputError, match=r"mean probability above 0, but got 0.0 for column 3; .*`--active`"):
        logn.prior2posterior(moments_of(rows, activation="softmax"))


def test_sigmoids_cannot_be_taken_beyond_certainty():
    rows = np.abs(long_tailed(50))
    with pytest.raises(logn.InputError, match="`target` to leave each mean probability below 1"):
        logn.prior2posterior(moments_of(rows, activation="sigmoid"), target=[97, 1, 1, 1])


def test_the_statistics_stay_as_they_were():
    moments = moments_of(long_tailed(50), background=-1)
    before = copy.copy(moments).to_file().arrays()
    logn.prior2posterior(moments, std_power=0.5, strength=0.5)
    after = moments.to_file().arrays()
    assert all(np.array_equal(before[name], after[name]) for name in before)
