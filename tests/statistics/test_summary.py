"""What the statistics are said to mean, and statistics that cannot be what the user thinks they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import moments_of

import logn
from logn.base.arrays import softmax
from logn.data.class_counts import ClassCounts
from logn.errors import InputError, LogNWarning
from logn.statistics.doubts import FEW_ROWS, ONE_LOGIT, refuse_probabilities, row_checks, sanity_checks
from logn.statistics.moments import ClassMoments
from logn.statistics.summary import active_classes, diagnose, spearman


def _moments(means, spreads, **metadata):
    return moments_of(np.random.default_rng(0).standard_normal((400, len(means))) * spreads + means, **metadata)


@settings(deadline=None)
@given(st.permutations(range(9)))
def test_rank_correlation_agrees_with_numpy(order):
    straight = np.arange(9)
    assert spearman(np.exp(order), straight) == pytest.approx(np.corrcoef(order, straight)[0, 1], abs=1e-9)


def test_rank_correlation_shares_ranks_between_equal_values():
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3.5, 3.5.
    assert spearman([1, 2, 2, 3], [1, 2, 3, 3]) == pytest.approx(np.corrcoef([1, 2.5, 2.5, 4], [1, 2, 3.5, 3.5])[0, 1])
    assert np.isnan(spearman([1, 1, 1], [1, 2, 3]))
    assert np.isnan(spearman([1.0], [2.0]))


def test_the_background_is_left_out():
    diagnosis = diagnose(_moments([9.0, -1.0, -3.0], 1.0, background=0, names=("bg", "cup", "spoon")))
    assert diagnosis.names == ("cup", "spoon")
    assert diagnosis.mean == pytest.approx([-1, -3], abs=0.2)
    assert diagnosis.background_mean == pytest.approx(9, abs=0.2)
    assert "Pass the training counts" in diagnosis.conclusion


def test_dead_classes_do_not_enter_the_correlation():
    diagnosis = diagnose(_moments([0.0, -50.0, -1.0, -2.0], [1.0, 0.0, 1.0, 1.0]), [1000, 500, 100, 10])
    assert diagnosis.dead == ("class 1",)
    assert diagnosis.mean_with_count == pytest.approx(1.0)


def test_columns_named_as_no_class_are_not_live():
    moments = _moments([0.0, -1.0, -2.0], 1.0, names=("cup", "N/A", "spoon"))
    assert active_classes(moments, None).tolist() == [True, False, True]


def test_a_file_of_nothing_has_only_dead_classes():
    diagnosis = diagnose(ClassMoments(3), [5, 5, 5])
    assert diagnosis.dead == ("class 0", "class 1", "class 2")
    assert np.isnan(diagnosis.mean_with_count)
    assert "little" in diagnosis.conclusion


COUNTS = np.geomspace(2000, 1, 40).round()


@pytest.mark.parametrize(
    ("means", "words"),
    [
        (np.log(COUNTS), "strongly follow"),
        (-np.log(COUNTS), "reverse"),
        (np.tile([0.0, 1.0], 20), "beyond chance"),
        (np.log(COUNTS) / 4 + np.tile([0.0, 1.5], 20), "partly follow"),
    ],
)
def test_the_conclusion_says_what_the_numbers_say(means, words):
    diagnosis = diagnose(_moments(means, 0.5), COUNTS)
    assert words in diagnosis.conclusion
    assert f"{diagnosis.mean_with_count:+.2f}" in diagnosis.conclusion


def test_counts_are_matched_by_name_and_sorted_for_show():
    moments = _moments([0.0, 1.0, 2.0, 5.0], 1.0, background=-1, names=("a", "b", "c", "background"))
    counts = ClassCounts(np.array([500.0, 50.0, 5.0]), names=("c", "a", "b"))
    diagnosis = diagnose(moments, counts)
    assert diagnosis.image_counts.tolist() == [50, 5, 500]
    assert diagnosis.groups.tolist() == ["c", "r", "f"]
    assert diagnosis.order().tolist() == [2, 0, 1]
    assert diagnose(moments).order().tolist() == [2, 1, 0]


def test_names_come_from_the_counts_where_none_were_recorded_and_their_number_must_fit():
    moments = _moments([5.0, 0.0, 1.0], 1.0, background=0)
    with pytest.warns(LogNWarning, match="taken in their order"):
        found = diagnose(moments, ClassCounts(np.array([9.0, 2.0]), names=("cup", "spoon")))
    assert found.names == ("cup", "spoon")
    assert diagnose(moments, [9, 2]).names == ("class 1", "class 2")
    with pytest.raises(InputError, match="3 foreground classes, but got 2"):
        diagnose(_moments([0.0, 1.0, 2.0], 1.0), [1, 2])


def sampled(rows, **metadata):
    return moments_of(rows, sample_rows=500, **metadata)


@pytest.fixture
def detector():
    """Logits of six classes and a background in the last column."""
    random = np.random.default_rng(3)
    return random.standard_normal((400, 7)) + np.array([0.5, 0.0, -0.5, -1.0, -1.5, -2.0, 5.0])


def test_a_background_that_nobody_named_is_noticed(detector):
    [sentence] = sanity_checks(sampled(detector))
    assert "The last column scores highest in 100 %" in sentence
    assert "`background`: last (in Python -1)" in sentence
    [sentence] = sanity_checks(sampled(detector[:, ::-1]))
    assert "`background`: first (in Python 0)" in sentence


def test_a_background_at_the_other_end_is_noticed(detector):
    [sentence] = sanity_checks(sampled(detector, background=0))
    assert "the named background in 0 %" in sentence
    assert "`background`: last" in sentence


def test_the_right_background_classifiers_sigmoids_and_small_samples_raise_no_doubt(detector):
    assert sanity_checks(sampled(detector), background=-1) == ()
    for rows, metadata in (
        (detector, {"background": -1}),
        (detector[:, :-1], {}),
        (detector, {"activation": "sigmoid"}),
        (detector[:10], {}),
        (detector, {"population": "images"}),
    ):
        assert sanity_checks(sampled(rows, **metadata)) == ()
    assert sanity_checks(logn.ClassMoments(7)) == ()


def test_probabilities_are_no_logits(detector):
    [sentence] = sanity_checks(sampled(softmax(detector), background=-1))
    assert "each row sums to 1" in sentence
    assert sentence.endswith("LogN needs the logits, before the softmax.")
    [sentence] = sanity_checks(sampled(1 / (1 + np.exp(-detector[:, :-1])), activation="sigmoid"))
    assert sentence.endswith("before the softmax or sigmoid.")


def test_calibrate_warns(detector):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(7, 7))
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(7))
        model[1].bias.zero_()
    batches = [torch.tensor(detector, dtype=torch.float32)]
    layer = logn.LogitLayer("1", activation="softmax")
    with pytest.warns(logn.LogNWarning, match="as a background does"):
        logn.calibrate(model, batches, layer=layer)


@pytest.mark.parametrize("sample_rows", [0, 500])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_statistics_of_probabilities_are_refused_with_and_without_a_sample(detector, sample_rows, dtype):
    moments = moments_of(softmax(detector).astype(dtype), sample_rows=sample_rows)
    with pytest.raises(InputError, match="`moments` are of probabilities"):
        logn.logit_normalization(moments, background=-1)
    logs = moments_of(np.log(softmax(detector).clip(1e-12)).astype(dtype), sample_rows=sample_rows)
    logn.logit_normalization(logs, background=-1)  # what the sentence proposes


@given(
    rows=st.integers(20, 60), columns=st.integers(2, 9), seed=st.integers(0, 2**32 - 1), sharpness=st.floats(0.01, 30)
)
@settings(max_examples=60, deadline=None)
def test_any_softmax_is_noticed_and_its_logits_are_not(rows, columns, seed, sharpness):
    logits = 3 + sharpness * np.random.default_rng(seed).standard_normal((rows, columns))
    with pytest.raises(InputError, match="of probabilities"):
        refuse_probabilities(moments_of(softmax(logits)))
    refuse_probabilities(moments_of(logits))


@pytest.mark.parametrize(("level", "spread"), [(0.4, 0.1), (0.25, 3.0)], ids=["another sum", "too wide"])
def test_logits_that_are_like_probabilities_in_one_respect_are_none(level, spread):
    noise = np.random.default_rng(0).standard_normal((50, 4))
    refuse_probabilities(moments_of(level + spread * (noise - noise.mean(axis=0))))


def test_scores_of_sigmoids_are_a_warning(detector):
    with pytest.warns(LogNWarning, match="lie between 0 and 1, as probabilities do"):
        logn.logit_normalization(sampled(1 / (1 + np.exp(-detector)), activation="sigmoid"))


def test_few_rows_between_0_and_1_are_not_judged():
    moments = sampled(softmax(np.eye(3)))
    logn.logit_normalization(moments)
    assert sanity_checks(moments) == ()


def test_one_logit_has_nothing_to_be_compared_with():
    moments = sampled(np.random.default_rng(0).standard_normal((200, 1)))
    assert sanity_checks(moments) == (ONE_LOGIT,)
    with pytest.warns(LogNWarning, match="There is only one logit"):
        logn.logit_normalization(moments)


def test_few_rows_and_exchanged_axes_are_told_apart_from_enough_rows():
    random = np.random.default_rng(0)
    [sentence] = row_checks(sampled(random.standard_normal((80, 5000))))
    assert "more columns (5,000) than rows (80)" in sentence
    assert "numpy.ascontiguousarray(logits.T)" in sentence
    [sentence] = row_checks(sampled(random.standard_normal((9, 3))))
    assert "only 9 rows, from which the spread of a class is uncertain by 25 %" in sentence
    assert row_checks(sampled(random.standard_normal((FEW_ROWS, 3)))) == ()
    assert row_checks(logn.ClassMoments(3)) == ()


@pytest.mark.parametrize("probabilities", [True, False])
@pytest.mark.parametrize(("level", "warns"), [(1.0, True), (-1.0, True), (-9.0, False)])
def test_an_unused_column_that_scores_as_classes_do_is_noticed(level, warns, probabilities):
    rows = np.random.default_rng(0).standard_normal((400, 6)) + np.array([level, 0.0, -1.0, -2.0, -3.0, -4.0])
    moments = sampled(rows, mean_probability=probabilities, activation="sigmoid", layer="head", unused=(0,))
    found = [sentence for sentence in sanity_checks(moments) if "Column 0 of `head` is called unused" in sentence]
    assert bool(found) == warns
