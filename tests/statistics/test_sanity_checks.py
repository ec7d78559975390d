"""Statistics that cannot be what the user thinks they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import conftest

import logn
from logn.errors import InputError, LogNWarning
from logn.logits.arrays import softmax
from logn.statistics.diagnosis import FEW_ROWS, ONE_LOGIT, refuse_probabilities, row_checks, sanity_checks


def moments_of(rows, **metadata):
    return conftest.moments_of(rows, sample_rows=500, **metadata)


@pytest.fixture
def detector():
    """Logits of six classes and a background in the last column."""
    random = np.random.default_rng(3)
    return random.standard_normal((400, 7)) + np.array([0.5, 0.0, -0.5, -1.0, -1.5, -2.0, 5.0])


def test_a_background_that_nobody_named_is_noticed(detector):
    [sentence] = sanity_checks(moments_of(detector))
    assert "The last column scores highest in 100 %" in sentence
    assert "`--background last` (in Python `background=-1`)" in sentence
    [sentence] = sanity_checks(moments_of(detector[:, ::-1]))
    assert "`--background first` (in Python `background=0`)" in sentence


def test_a_background_at_the_other_end_is_noticed(detector):
    [sentence] = sanity_checks(moments_of(detector, background=0))
    assert "the named background in 0 %" in sentence
    assert "`--background last`" in sentence


def test_the_right_background_classifiers_sigmoids_and_small_samples_raise_no_doubt(detector):
    assert sanity_checks(moments_of(detector), background=-1) == ()
    for rows, metadata in (
        (detector, {"background": -1}),
        (detector[:, :-1], {}),
        (detector, {"activation": "sigmoid"}),
        (detector[:10], {}),
        (detector, {"population": "images"}),
    ):
        assert sanity_checks(moments_of(rows, **metadata)) == ()
    assert sanity_checks(logn.ClassMoments(7)) == ()


def test_probabilities_are_no_logits(detector):
    [sentence] = sanity_checks(moments_of(softmax(detector), background=-1))
    assert "each row sums to 1" in sentence
    assert sentence.endswith("LogN needs the logits, before the softmax.")
    [sentence] = sanity_checks(moments_of(1 / (1 + np.exp(-detector[:, :-1])), activation="sigmoid"))
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
    moments = conftest.moments_of(softmax(detector).astype(dtype), sample_rows=sample_rows)
    with pytest.raises(InputError, match="`moments` are of probabilities"):
        logn.logit_normalization(moments, background=-1)
    logs = conftest.moments_of(np.log(softmax(detector).clip(1e-12)).astype(dtype), sample_rows=sample_rows)
    logn.logit_normalization(logs, background=-1)  # what the sentence proposes


@given(
    rows=st.integers(20, 60), columns=st.integers(2, 9), seed=st.integers(0, 2**32 - 1), sharpness=st.floats(0.01, 30)
)
@settings(max_examples=60, deadline=None)
def test_any_softmax_is_noticed_and_its_logits_are_not(rows, columns, seed, sharpness):
    logits = 3 + sharpness * np.random.default_rng(seed).standard_normal((rows, columns))
    with pytest.raises(InputError, match="of probabilities"):
        refuse_probabilities(conftest.moments_of(softmax(logits)))
    refuse_probabilities(conftest.moments_of(logits))


def test_scores_of_sigmoids_are_a_warning(detector):
    with pytest.warns(LogNWarning, match="lie between 0 and 1, as probabilities do"):
        logn.logit_normalization(moments_of(1 / (1 + np.exp(-detector)), activation="sigmoid"))


def test_few_rows_between_0_and_1_are_not_judged():
    moments = moments_of(softmax(np.eye(3)))
    logn.logit_normalization(moments)
    assert sanity_checks(moments) == ()


def test_one_logit_has_nothing_to_be_compared_with():
    moments = moments_of(np.random.default_rng(0).standard_normal((200, 1)))
    assert sanity_checks(moments) == (ONE_LOGIT,)
    with pytest.warns(LogNWarning, match="There is only one logit"):
        logn.logit_normalization(moments)


def test_few_rows_and_exchanged_axes_are_told_apart_from_enough_rows():
    random = np.random.default_rng(0)
    [sentence] = row_checks(moments_of(random.standard_normal((80, 5000))))
    assert "more columns (5,000) than rows (80)" in sentence
    assert "numpy.ascontiguousarray(logits.T)" in sentence
    [sentence] = row_checks(moments_of(random.standard_normal((9, 3))))
    assert "only 9 rows, from which the spread of a class is uncertain by 25 %" in sentence
    assert row_checks(moments_of(random.standard_normal((FEW_ROWS, 3)))) == ()
    assert row_checks(logn.ClassMoments(3)) == ()


@pytest.mark.parametrize("probabilities", [True, False])
@pytest.mark.parametrize(("level", "warns"), [(1.0, True), (-1.0, True), (-9.0, False)])
def test_an_unused_column_that_scores_as_classes_do_is_noticed(level, warns, probabilities):
    rows = np.random.default_rng(0).standard_normal((400, 6)) + np.array([level, 0.0, -1.0, -2.0, -3.0, -4.0])
    moments = moments_of(rows, mean_probability=probabilities, activation="sigmoid", layer="head", unused=(0,))
    found = [sentence for sentence in sanity_checks(moments) if "Column 0 of `head` is called unused" in sentence]
    assert bool(found) == warns
