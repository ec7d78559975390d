"""What must hold for every method whatever the numbers are."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import logn
from logn.classes.counts import fractal_dimension
from logn.logits.arrays import softmax
from logn.statistics.moments import StatisticsMetadata

ELEMENTS = st.floats(-20, 20)
CLASSES = 4
ROWS = hnp.arrays(np.float64, st.tuples(st.integers(5, 30), st.just(CLASSES)), elements=ELEMENTS)
TEST = hnp.arrays(np.float64, (3, CLASSES), elements=ELEMENTS)
COUNTS = hnp.arrays(np.float64, CLASSES - 1, elements=st.integers(1, 10_000).map(float))


def moments_of(rows, **options):
    result = logn.ClassMoments(rows.shape[1], **options)
    result.update(rows)
    return result


def well_spread(rows):
    return bool((rows.std(axis=0) > 0.1).all())


@given(rows=ROWS, test=TEST, offset=st.floats(-10, 10), column=st.integers(0, 2))
def test_a_constant_added_to_a_class_is_normalised_away(rows, test, offset, column):
    assume(well_spread(rows))
    add = np.zeros(CLASSES)
    add[column] = offset
    plain = logn.logit_normalization(moments_of(rows), background=-1, margin=0.0)(test)
    moved = logn.logit_normalization(moments_of(rows + add), background=-1, margin=0.0)(test + add)
    np.testing.assert_allclose(moved, plain, rtol=1e-9, atol=1e-7)


@given(rows=ROWS, test=TEST, factor=st.floats(0.1, 10), column=st.integers(0, 2))
def test_a_factor_on_a_class_is_normalised_away_without_a_margin(rows, test, factor, column):
    assume(well_spread(rows))
    times = np.ones(CLASSES)
    times[column] = factor
    plain = logn.logit_normalization(moments_of(rows), background=-1, margin=0.0, eps=0.0)(test)
    scaled = logn.logit_normalization(moments_of(rows * times), background=-1, margin=0.0, eps=0.0)(test * times)
    np.testing.assert_allclose(scaled, plain, rtol=1e-7, atol=1e-6)


@given(rows=ROWS)
def test_normalised_training_logits_have_mean_0_and_variance_1(rows):
    assume(well_spread(rows))
    normalised = moments_of(logn.logit_normalization(moments_of(rows), background=None)(rows))
    np.testing.assert_allclose(normalised.mean, 0.0, atol=1e-6)
    np.testing.assert_allclose(normalised.variance, 1.0, rtol=1e-2)


@given(rows=ROWS, test=TEST)
def test_a_very_low_margin_leaves_background_a_very_high_one_foreground(rows, test):
    assume(well_spread(rows))
    options = {"background": -1, "strength": 0.0, "use_std": False}
    low = softmax(logn.logit_normalization(moments_of(rows), margin=-1e3, **options)(test))
    high = softmax(logn.logit_normalization(moments_of(rows), margin=1e3, **options)(test))
    np.testing.assert_allclose(low[:, -1], 1.0)
    np.testing.assert_allclose(high[:, -1], 0.0, atol=1e-12)


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


@given(rows=ROWS, test=TEST, statistic=st.sampled_from(["mean", "prior"]), strength=st.floats(0, 1))
def test_the_lowest_class_keeps_its_logits_and_the_others_lose_a_part_of_their_advantage(
    rows, test, statistic, strength
):
    assume(well_spread(rows))
    moments = moments_of(rows)
    values = moments.mean[:-1] if statistic == "mean" else np.log(moments.mean_probability_of("softmax")[:-1])
    affine = logn.logit_normalization(moments, statistic=statistic, strength=strength, use_std=False, background=-1)
    np.testing.assert_allclose(affine.shift[:-1], -strength * (values - values.min()), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(affine.scale, 1.0)


@given(counts=COUNTS, test=TEST, gamma=st.floats(0, 2))
def test_norcal_on_exponentials_on_probabilities_and_as_a_shift(counts, test, gamma):
    weights = np.append(counts**-gamma, 1.0)
    shifted = softmax(logn.methods.norcal(counts, gamma, background=-1)(test))
    for scores in (np.exp(test) * weights, softmax(test) * weights):
        np.testing.assert_allclose(shifted, scores / scores.sum(axis=1, keepdims=True), rtol=1e-9)


@given(counts=COUNTS, test=TEST)
def test_strength_0_changes_nothing(counts, test):
    for affine in (
        logn.logit_normalization(moments_of(test), strength=0.0, use_std=False, background=-1, active=[True] * 4),
        logn.methods.norcal(counts, 0.0, background=-1),
        logn.methods.logit_adjustment(counts, 0.0, background=-1),
        logn.methods.fracal([100 / 3] * 3, 100, [1.5, 1.2, 2.0], background=-1, power=0.0),
        logn.methods.temperature(CLASSES, 1.0),
        logn.methods.tau_norm(np.eye(CLASSES) * 3.0, 0.0),
    ):
        np.testing.assert_allclose(affine(test), test, rtol=1e-12, atol=1e-12)


@given(counts=COUNTS, test=TEST, tau=st.floats(-2, 2))
def test_logit_adjustment_undoes_itself(counts, test, tau):
    there, back = (
        logn.methods.logit_adjustment(counts, tau, background=0),
        logn.methods.logit_adjustment(counts, -tau, background=0),
    )
    np.testing.assert_allclose(back(there(test)), test, atol=1e-9)


@given(counts=COUNTS, factor=st.floats(0.5, 100), test=TEST)
def test_priors_do_not_know_the_size_of_the_data(counts, factor, test):
    small, large = (
        logn.methods.logit_adjustment(counts, background=0),
        logn.methods.logit_adjustment(counts * factor, background=0),
    )
    np.testing.assert_allclose(small(test), large(test), atol=1e-9)


@given(dimension=st.floats(1, 2), test=TEST)
def test_one_dimension_for_all_only_moves_foreground_against_background(dimension, test):
    shift = logn.methods.fracal([100 / 3] * 3, 100, [dimension] * 3, background=-1).shift
    np.testing.assert_allclose(shift[:3], shift[0])
    assert shift[3] == 0.0


@given(counts=COUNTS, test=TEST, seed=st.integers(0, 100))
def test_permuting_the_classes_permutes_the_map(counts, test, seed):
    order = np.random.default_rng(seed).permutation(CLASSES - 1)
    columns = np.append(order, CLASSES - 1)
    for make in (logn.methods.logit_adjustment, logn.methods.norcal, logn.methods.inverse_image_frequency):
        straight, permuted = make(counts, background=-1), make(counts[order], background=-1)
        np.testing.assert_allclose(permuted(test[:, columns]), straight(test)[:, columns], rtol=1e-9, atol=1e-9)


def test_tau_1_is_the_cosine_without_the_feature_length():
    rng = np.random.default_rng(0)
    weight, feature = rng.normal(size=(5, 7)), rng.normal(size=7)
    cosine = (weight / np.linalg.norm(weight, axis=1, keepdims=True)) @ feature
    np.testing.assert_allclose(logn.methods.tau_norm(weight, 1.0)(weight @ feature), cosine, rtol=1e-12)


def test_tau_norm_takes_convolutions_and_tensors():
    torch = pytest.importorskip("torch")
    weight = torch.randn(3, 4, 1, 1, generator=torch.Generator().manual_seed(0))
    flat = logn.methods.tau_norm(weight.reshape(3, 4).numpy(), 0.7)
    np.testing.assert_allclose(logn.methods.tau_norm(weight, 0.7).scale, flat.scale, rtol=1e-6)


def test_dead_classes_neither_move_nor_set_the_margin():
    rng = np.random.default_rng(0)
    rows = rng.normal([1.0, -2.0, 0.0, -50.0, 0.0], 1.0, size=(200, 5))
    rows[:, 3] = -50.0
    affine = logn.logit_normalization(moments_of(rows), background=0)
    assert (affine.scale[3], affine.shift[3]) == (1.0, 0.0)
    assert affine.settings["inactive"] == 1
    assert affine.settings["margin_value"] == pytest.approx(rows[:, 1].mean())
    forced = logn.logit_normalization(moments_of(rows), background=0, active=[True] * 5)
    assert forced.settings["margin_value"] == -50.0


@pytest.mark.parametrize("margin", ["min", "mean", "max"])
@pytest.mark.parametrize("side", [-1, 1])
def test_named_margins_are_those_of_the_living_means(margin, side):
    rows = side * np.random.default_rng(0).normal([0.0, 3.0, 5.0, 0.0], [1.0, 0.5, 0.5, 0.0], size=(200, 4))
    affine = logn.logit_normalization(moments_of(rows), background=0, margin=margin)
    assert affine.settings["inactive"] == 1
    assert affine.settings["margin_value"] == pytest.approx(getattr(rows[:, 1:3].mean(axis=0), margin)())


def test_a_dead_class_that_is_left_alone_needs_no_eps():
    rows = np.random.default_rng(0).normal([0.0, -1.0, -2.0, -5.0], [1.0, 2.0, 1.0, 0.0], size=(50, 4))
    affine = logn.logit_normalization(moments_of(rows), background=0, eps=0.0)
    assert (affine.scale[3], affine.shift[3]) == (1.0, 0.0)
    np.testing.assert_allclose(affine.scale[1:3], 1 / rows[:, 1:3].std(axis=0, ddof=1))


@pytest.mark.parametrize(("share", "alive"), [(1e-4, False), (8e-4, False), (1.25e-3, True), (1e-2, True)])
def test_a_class_that_hardly_varies_is_dead(share, alive):
    rows = np.random.default_rng(0).normal(size=(300, 4)) * [1.0, 1.0, share, 1.0]
    assert logn.logit_normalization(moments_of(rows)).settings["inactive"] == (not alive)


def test_a_background_that_varies_much_more_kills_no_class():
    rows = np.random.default_rng(0).normal(size=(300, 2)) * [1e4, 1.0]
    assert logn.logit_normalization(moments_of(rows), background=0).settings["inactive"] == 0


def test_columns_that_are_recorded_as_unused_are_dead():
    rows = np.random.default_rng(0).normal([0.0, -1.0, -9.0, -2.0], 1.0, size=(100, 4))
    moments = moments_of(rows, metadata=StatisticsMetadata(background=0, unused=(2,)))
    affine = logn.logit_normalization(moments)
    assert (affine.scale[2], affine.shift[2]) == (1.0, 0.0)
    assert affine.settings["margin_value"] == pytest.approx(rows[:, 3].mean())


def test_a_recorded_background_is_the_default():
    rows = np.random.default_rng(0).normal(size=(20, 4))
    moments = moments_of(rows, sample_rows=20, metadata=StatisticsMetadata(background=-1))
    assert logn.logit_normalization(moments) == logn.logit_normalization(moments, background=-1)
    assert logn.logit_normalization(moments) != logn.logit_normalization(moments, background=None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"margin": "minimum"}, "`margin` to be a number or one of"),
        ({"margin": float("nan")}, "`margin` to be a finite number"),
        ({"margin": "background", "background": None}, "this head has none"),
        ({"margin": "mean", "background": None}, "this head has none"),
        ({"strength": 1.5}, "`strength` to be from 0 to 1"),
        ({"strength": -0.1}, "`strength` to be from 0 to 1"),
        ({"statistic": "median"}, "`statistic` to be one of"),
        ({"target": [1.0, 2.0]}, "one share per foreground class"),
        ({"background": 2}, "`background` to be None, 0 or -1"),
        ({"background": False}, "`background` to be None, 0 or -1, but got False"),
        ({"active": [True]}, "`active` to be one boolean per column"),
        ({"active": [True, False, False, False]}, "no foreground class that was seen and varies"),
        ({"eps": -1.0}, "`eps` to be at least 0"),
        ({"std_power": float("inf")}, "`std_power`"),
    ],
)
def test_bad_options_are_refused(options, words):
    rows = np.random.default_rng(0).normal(size=(20, 4))
    with pytest.raises(logn.InputError, match=words):
        logn.logit_normalization(moments_of(rows), **({"background": 0} | options))


def test_empty_statistics_are_refused():
    with pytest.raises(logn.InputError, match="no foreground class that was seen and varies"):
        logn.logit_normalization(logn.ClassMoments(3), background=0)


@pytest.mark.parametrize(
    "make", [logn.methods.logit_adjustment, logn.methods.norcal, logn.methods.inverse_image_frequency]
)
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


def test_other_bad_arguments_are_refused():
    for base in (0.0, 1.0, 1.5):
        with pytest.raises(logn.InputError, match="`gamma` to be between 0 and 1"):
            logn.methods.norcal([1, 2], base, weights="effective-number")
    with pytest.raises(logn.InputError, match="`weights` to be one of"):
        logn.methods.norcal([1, 2], weights="other")
    with pytest.raises(logn.InputError, match="`counts` to be at most"):
        logn.methods.fracal([5, 200], 100, None)
    assert logn.methods.fracal([5, 100], 100, None).num_columns == 2  # a class in every image
    with pytest.raises(logn.InputError, match="`dimensions` to have 2 numbers"):
        logn.methods.fracal([5, 20], 100, [1.0])
    with pytest.raises(logn.InputError, match="`value` to be above 0"):
        logn.methods.temperature(3, 0.0)
    with pytest.raises(logn.InputError, match="no row of zeros, but row 1"):
        logn.methods.tau_norm(np.array([[1.0, 0.0], [0.0, 0.0]]), 0.5)
    with pytest.raises(logn.InputError, match="`variant` to be one of"):
        logn.methods.inverse_image_frequency([1, 2], "cubic")
    with pytest.raises(logn.InputError, match="between 0 and 1"):
        fractal_dimension([[0.5, 1.5]], [0], 1)
    with pytest.raises(logn.InputError, match=r"`labels` to be in 0\.\.0"):
        fractal_dimension([[0.5, 0.5]], [1], 1)
