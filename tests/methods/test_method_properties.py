"""What must hold for every method whatever the numbers are, and what methods refuse."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.conftest import moments_of

import logn
from logn.base.arrays import softmax
from logn.data.fractal_dimensions import fractal_dimension
from logn.statistics.head import Head

ELEMENTS = st.floats(-20, 20)
CLASSES = 4
ROWS = hnp.arrays(np.float64, st.tuples(st.integers(5, 30), st.just(CLASSES)), elements=ELEMENTS)
TEST = hnp.arrays(np.float64, (3, CLASSES), elements=ELEMENTS)
COUNTS = hnp.arrays(np.float64, CLASSES - 1, elements=st.integers(1, 10_000).map(float))
BY_COUNTS = [logn.methods.logit_adjustment, logn.methods.norcal, logn.methods.inverse_image_frequency]


def well_spread(rows):
    return bool((rows.std(axis=0) > 0.1).all() and rows.min() < 0)  # without one below 0 they look like probabilities


@given(rows=ROWS, test=TEST, margin=st.sampled_from(["min", "mean", "max", "background", 1.5]))
def test_the_place_of_the_background_changes_no_score(rows, test, margin):
    assume(well_spread(rows))
    last_to_first = np.array([3, 0, 1, 2])
    last = logn.logit_normalization(moments_of(rows), background=-1, margin=margin)
    first = logn.logit_normalization(moments_of(rows[:, last_to_first]), background=0, margin=margin)
    np.testing.assert_allclose(
        softmax(first(test[:, last_to_first])), softmax(last(test))[:, last_to_first], rtol=1e-5, atol=1e-7
    )
    assert last.scale[-1] == 1.0
    assert last.shift[-1] == 0.0


@given(rows=ROWS, statistic=st.sampled_from(["mean", "prior"]), strength=st.floats(0, 1))
def test_the_margin_is_that_of_the_statistic_whatever_the_strength(rows, statistic, strength):
    assume(well_spread(rows))
    moments = moments_of(rows)
    values = moments.mean[:-1] if statistic == "mean" else np.log(moments.mean_probability_of("softmax")[:-1])
    affine = logn.logit_normalization(moments, statistic=statistic, strength=strength, use_std=False, background=-1)
    np.testing.assert_allclose(affine.shift[:-1], values.min() - strength * values, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(affine.scale, 1.0)
    assert affine.settings["margin_value"] == pytest.approx(values.min(), rel=1e-12)


@given(rows=ROWS, strength=st.floats(0, 1), background=st.sampled_from([0, -1]))
def test_the_strength_of_what_is_recommended_moves_the_classes_and_not_their_mean(rows, strength, background):
    assume(well_spread(rows))
    moments = moments_of(rows, background=background)
    foreground = slice(1, None) if background == 0 else slice(None, -1)
    prior = np.log(moments.mean_probability[foreground])
    margin = 0.5 * (prior.min() - prior.mean())
    shift = logn.methods.fit("recommended:force=true", moments, strength=strength).shift[foreground]
    np.testing.assert_allclose(shift, margin - strength * (prior - prior.mean()), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(shift.mean(), margin, rtol=1e-9, atol=1e-12)
    half = logn.methods.fit("recommended:force=true", moments)
    np.testing.assert_allclose(half.shift[foreground], -0.5 * (prior - prior.min()), rtol=1e-12, atol=1e-12)


@given(counts=COUNTS, test=TEST, gamma=st.floats(0, 2))
def test_norcal_on_exponentials_on_probabilities_and_as_a_shift(counts, test, gamma):
    weights = np.append(counts**-gamma, 1.0)
    shifted = softmax(logn.methods.norcal(counts, gamma, background=-1)(test))
    for scores in (np.exp(test) * weights, softmax(test) * weights):
        np.testing.assert_allclose(shifted, scores / scores.sum(axis=1, keepdims=True), rtol=1e-9)


@given(counts=COUNTS, test=TEST)
def test_strength_0_changes_nothing(counts, test):
    for affine in (
        logn.logit_normalization(
            moments_of(test), strength=0.0, use_std=False, margin=0.0, background=-1, active=[True] * 4
        ),
        logn.methods.norcal(counts, 0.0, background=-1),
        logn.methods.logit_adjustment(counts, 0.0, background=-1),
        logn.methods.fracal([100 / 3] * 3, 100, [1.5, 1.2, 2.0], background=-1, power=0.0),
        logn.methods.temperature(CLASSES, 1.0),
        logn.methods.tau_norm(np.eye(CLASSES) * 3.0, 0.0),
    ):
        np.testing.assert_allclose(affine(test), test, rtol=1e-12, atol=1e-12)


@given(counts=COUNTS, test=TEST, seed=st.integers(0, 100), factor=st.floats(0.5, 100))
def test_permuting_the_classes_permutes_the_map_and_priors_do_not_know_the_size_of_the_data(counts, test, seed, factor):
    order = np.random.default_rng(seed).permutation(CLASSES - 1)
    columns = np.append(order, CLASSES - 1)
    for make in BY_COUNTS:
        straight, permuted = make(counts, background=-1), make(counts[order], background=-1)
        np.testing.assert_allclose(permuted(test[:, columns]), straight(test)[:, columns], rtol=1e-9, atol=1e-9)
    small, large = (logn.methods.logit_adjustment(times * counts, background=0) for times in (1.0, factor))
    np.testing.assert_allclose(small(test), large(test), atol=1e-9)


def test_tau_norm_takes_convolutions_and_tensors():
    torch = pytest.importorskip("torch")
    weight = torch.randn(3, 4, 1, 1, generator=torch.Generator().manual_seed(0))
    flat = logn.methods.tau_norm(weight.reshape(3, 4).numpy(), 0.7)
    np.testing.assert_allclose(logn.methods.tau_norm(weight, 0.7).scale, flat.scale, rtol=1e-6)


def rows_with(levels, spread=1.0, rows=200):
    return np.random.default_rng(0).normal(levels, spread, size=(rows, len(levels)))


@pytest.mark.parametrize("margin", ["min", "mean", "max"])
@pytest.mark.parametrize("side", [-1, 1])
def test_dead_classes_neither_move_nor_set_the_margin(margin, side):
    rows = side * rows_with([0.0, 3.0, 5.0, 50.0], [1.0, 0.5, 0.5, 0.0])
    affine = logn.logit_normalization(moments_of(rows), background=0, margin=margin, eps=0.0)  # none is needed
    assert affine.settings["inactive"] == 1
    assert affine.settings["margin_value"] == pytest.approx(getattr(rows[:, 1:3].mean(axis=0), margin)())
    assert (affine.scale[3], affine.shift[3]) == (1.0, 0.0)
    np.testing.assert_allclose(affine.scale[1:3], 1 / rows[:, 1:3].std(axis=0, ddof=1))
    forced = logn.logit_normalization(moments_of(rows), background=0, active=[True] * 4, margin=margin)
    assert forced.settings["margin_value"] == pytest.approx(getattr(rows[:, 1:].mean(axis=0), margin)())
    assert forced.settings["inactive"] == 0


@pytest.mark.parametrize(("share", "alive"), [(1e-4, False), (8e-4, False), (1.25e-3, True), (1e-2, True)])
def test_a_class_that_hardly_varies_is_dead(share, alive):
    rows = rows_with([0.0] * 4, rows=300) * [1.0, 1.0, share, 1.0]
    assert logn.logit_normalization(moments_of(rows)).settings["inactive"] == (not alive)


def test_a_background_that_varies_much_more_kills_no_class():
    rows = rows_with([0.0, 0.0], rows=300) * [1e4, 1.0]
    assert logn.logit_normalization(moments_of(rows), background=0).settings["inactive"] == 0


def test_columns_that_are_recorded_as_unused_are_dead():
    rows = rows_with([0.0, -1.0, -9.0, -2.0])
    affine = logn.logit_normalization(moments_of(rows, background=0, unused=(2,)))
    assert (affine.scale[2], affine.shift[2]) == (1.0, 0.0)
    assert affine.settings["margin_value"] == pytest.approx(rows[:, 3].mean())


def test_a_recorded_background_is_the_default():
    moments = moments_of(rows_with([0.0] * 4, rows=20), background=-1)
    assert logn.logit_normalization(moments) == logn.logit_normalization(moments, background=-1)
    assert logn.logit_normalization(moments) != logn.logit_normalization(moments, background=0)


SHARES = [
    ({"target": [1.0, 2.0]}, r"`target` to be one share per foreground class \(3\), but got 2"),
    ({"target": [1, 0, 2]}, "`target` to be above 0 and finite, but got 0.0 for class 1"),
    ({"target": [1, np.nan, 1]}, "`target` to be above 0 and finite, but got nan for class 1"),
    ({"target": "even"}, "`target` to be one number per foreground class, but got str"),
]
BOTH = [
    *SHARES,
    ({"margin": "minimum"}, "`margin` to be a number or one of"),
    ({"margin": float("nan")}, "`margin` to be a finite number"),
    ({"margin": float("inf")}, "`margin` to be a finite number"),
    ({"margin": "background", "background": None}, "this head has none"),
    ({"margin": "mean", "background": None}, "this head has none"),
    ({"strength": 1.5}, "`strength` to be from 0 to 1"),
    ({"strength": -0.1}, "`strength` to be from 0 to 1"),
    ({"strength": float("nan")}, "`strength` to be a finite number"),
    ({"background": 2}, "`background` to be None, 0 or -1"),
    ({"background": False}, "`background` to be None, 0 or -1, but got False"),
    ({"active": [True]}, "`active` to be one boolean per column"),
    ({"active": [True, False, False, False]}, "no foreground class that was seen and varies"),
]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *BOTH,
        ({"statistic": "median"}, "`statistic` to be one of"),
        ({"eps": -1.0}, "`eps` to be at least 0"),
        ({"std_power": float("inf")}, "`std_power`"),
    ],
)
def test_bad_options_are_refused(options, words):
    moments = moments_of(rows_with([0.0] * 4, rows=20))
    with pytest.raises(logn.InputError, match=words):
        logn.logit_normalization(moments, **({"background": 0} | options))
    if (options, words) in BOTH:
        with pytest.raises(logn.InputError, match=words):
            logn.prior2posterior(moments, **({"background": 0} | options))


def test_empty_statistics_are_refused():
    with pytest.raises(logn.InputError, match="no foreground class that was seen and varies"):
        logn.logit_normalization(logn.ClassMoments(3), background=0)


@pytest.mark.parametrize("make", BY_COUNTS)
@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([5, 0, 3], "above 0 and finite, but got 0.0 for class 1"),
        ([5, -1, 3], "for class 1"),
        ([5, np.nan, 3], "finite"),
        ([[5, 3]], "one number per foreground class"),
        ([], "one number per foreground class"),
    ],
)
def test_bad_counts_are_refused(make, counts, words):
    with pytest.raises(logn.InputError, match=words):
        make(counts)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *(
            (lambda base=base: logn.methods.norcal([1, 2], base, weights="effective-number"), "between 0 and 1")
            for base in (0.0, 1.0, 1.5)
        ),
        (lambda: logn.methods.norcal([1, 2], weights="other"), "`weights` to be one of"),
        (lambda: logn.methods.fracal([5, 200], 100, None), "`counts` to be at most"),
        (lambda: logn.methods.fracal([5, 20], 100, [1.0]), "`dimensions` to have 2 numbers"),
        (lambda: logn.methods.fracal([5, 20]), "The method `fracal` needs `num_images`"),
        (lambda: logn.methods.temperature(3, 0.0), "`value` to be above 0"),
        (lambda: logn.methods.tau_norm(np.array([[1.0, 0.0], [0.0, 0.0]]), 0.5), "no row of zeros, but row 1"),
        (lambda: logn.methods.inverse_image_frequency([1, 2], "cubic"), "`variant` to be one of"),
        (lambda: fractal_dimension([[0.5, 1.5]], [0], 1), "between 0 and 1"),
        (lambda: fractal_dimension([[0.5, 0.5]], [1], 1), r"`labels` to be in 0\.\.0"),
    ],
)
def test_other_bad_arguments_are_refused(call, words):
    with pytest.raises(logn.InputError, match=words):
        call()


def test_a_class_may_be_in_every_image():
    assert logn.methods.fracal([5, 100], 100, None).num_columns == 2


@pytest.mark.parametrize("base", [1.5, 2.0, np.e])
def test_the_base_of_fracal_is_a_common_factor(base):
    counts, dimensions = [60, 20, 1], [1.8, 1.2, 1.0]
    other, usual = (logn.methods.fracal(counts, 100, dimensions, power=0, base=number) for number in (base, 10.0))
    np.testing.assert_allclose(other.shift * np.log(base), usual.shift * np.log(10.0), rtol=1e-12)
    with pytest.raises(logn.InputError, match="`base`"):
        logn.methods.fracal(counts, 100, dimensions, base=1.0)


# Prior2Posterior.

LABELS = hnp.arrays(np.int64, CLASSES, elements=st.integers(1, 40))
STRENGTHS = st.floats(0, 1)
ALIVE = np.ones(CLASSES, bool)


@given(counts=LABELS, strength=STRENGTHS, seed=st.integers(0, 99))
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
def test_a_prior_of_strength_0_without_a_margin_changes_nothing(rows, activation, background):
    assume(well_spread(rows))
    moments = moments_of(rows, activation=activation, background=background)
    affine = logn.prior2posterior(moments, strength=0.0, margin=0.0)
    assert affine == logn.ClassAffine.identity(CLASSES, Head(background=background))


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
    moments = moments_of(long_tailed(50), background=-1, source="torch:ab12")
    before = moments.to_bytes()
    affine = logn.prior2posterior(moments, target=[1, 2, 3])
    assert affine.head == replace(moments.head, activation="softmax")
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
        with pytest.raises(logn.InputError, match="collect them again \\(in Python with mean_probability=True"):
            call(without)
    with pytest.raises(logn.InputError, match="`activation` to be sigmoid, whose mean probability was recorded"):
        logn.prior2posterior(moments_of(rows, activation="sigmoid"), activation="softmax")
