"""LogitNormalizer gives what the functions give."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import logn
from logn.errors import InputError, LogNWarning
from logn.statistics.head import Head

TRAIN = np.random.default_rng(0).normal([3.0, 0.0, -4.0, 1.0], [2.0, 1.0, 0.5, 1.0], size=(400, 4))
TEST = np.random.default_rng(1).normal(size=(7, 4))


@pytest.mark.parametrize(
    ("method", "options", "about"),
    [
        ("recommended", {}, {"activation": "softmax"}),
        ("recommended", {"strength": 1.0}, {"background": 0, "activation": "softmax"}),
        ("recommended", {"threshold": 0.4}, {"activation": "sigmoid"}),
        ("recommended", {"target": [5.0, 3.0, 2.0, 1.0]}, {"activation": "softmax"}),
        ("logn", {}, {"background": -1, "activation": "softmax"}),
        ("logn:use_std=false", {"strength": 0.5}, {"activation": "softmax"}),
    ],
)
def test_it_gives_what_the_function_gives(method, options, about):
    moments = logn.ClassMoments(Head(4, **about), sample_rows=4096)
    moments.update(TRAIN)
    expected = logn.methods.fit(method, moments, **options)
    normalizer = logn.LogitNormalizer(method, **options, **about).fit(TRAIN)
    assert normalizer.affine_ == expected
    np.testing.assert_array_equal(normalizer.moments_.mean, moments.mean)
    np.testing.assert_array_equal(normalizer.transform(TEST), expected(TEST))


@given(rows=hnp.arrays(np.float64, (12, 3), elements=st.floats(-30, 30)), cut=st.integers(1, 11))
def test_parts_give_what_the_whole_gives(rows, cut):
    rows = rows + np.arange(12)[:, None]  # every class varies
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", logn.LogNWarning)
        whole = logn.LogitNormalizer("logn").fit(rows)
        parts = logn.LogitNormalizer("logn").partial_fit(rows[:cut]).partial_fit(rows[cut:])
        np.testing.assert_allclose(parts.affine_.scale, whole.affine_.scale, rtol=1e-6)
        np.testing.assert_allclose(parts.affine_.shift, whole.affine_.shift, rtol=1e-6, atol=1e-6)


def test_fit_forgets_and_partial_fit_does_not():
    normalizer = logn.LogitNormalizer().fit(TRAIN[:100])
    first = normalizer.affine_
    assert normalizer.partial_fit(TRAIN[100:]).affine_ != first
    assert normalizer.moments_.count.tolist() == [400] * 4
    assert normalizer.fit(TRAIN[:100]).affine_ == first
    assert normalizer.fit(TRAIN[:, :3]).affine_.num_columns == 3


def test_a_first_row_alone_waits_for_more():
    normalizer = logn.LogitNormalizer().partial_fit(TRAIN[:1])
    with pytest.raises(logn.InputError, match="at least two rows"):
        normalizer.transform(TEST)
    normalizer.partial_fit(TRAIN[1:])
    np.testing.assert_allclose(normalizer.transform(TEST), logn.LogitNormalizer().fit(TRAIN).transform(TEST))


def test_tensors_and_half_precision_come_back_as_they_came():
    torch = pytest.importorskip("torch")
    normalizer = logn.LogitNormalizer().fit(torch.tensor(TRAIN))
    corrected = normalizer.transform(torch.tensor(TEST, dtype=torch.float32))
    assert corrected.dtype == torch.float32
    np.testing.assert_allclose(
        corrected.numpy(), logn.LogitNormalizer().fit(TRAIN).transform(TEST), rtol=1e-5, atol=1e-5
    )
    assert normalizer.transform(TEST.astype(np.float16)).dtype == np.float16


@pytest.mark.parametrize("logits", [TRAIN[0], TRAIN[:, :, None], TRAIN * 1j, np.full((3, 2), np.nan)])
def test_what_does_not_fit_is_refused(logits):
    with pytest.raises(InputError, match="`logits`"):
        logn.LogitNormalizer().fit(logits)


def test_it_says_when_it_is_not_fitted_and_when_columns_differ():
    with pytest.raises(InputError, match=r"fit\(logits\)"):
        logn.LogitNormalizer().transform(TEST)
    with pytest.raises(InputError, match="`logits`"):
        logn.LogitNormalizer().fit(TRAIN).transform(TEST[:, :3])


def test_it_does_without_scikit_learn():
    code = (
        "import sys; sys.modules['sklearn'] = None; import logn, numpy as np; "
        "print(logn.LogitNormalizer().fit(np.eye(4) * 9 + np.arange(4)).affine_.scale.shape)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "(4,)\n"


def test_a_data_frame_is_refused_since_its_columns_may_come_in_another_order():
    """They got the shifts of other classes once."""

    class Frame:
        columns = ("a", "b", "c", "d")

    for step in (logn.LogitNormalizer().fit, logn.LogitNormalizer().fit(TRAIN).transform):
        with pytest.raises(InputError, match="`logits`"):
            step(Frame())


@pytest.mark.parametrize(
    ("rows", "doubt"),
    [
        (np.random.default_rng(0).normal(size=(40, 3)), "only 40 rows"),
        (np.random.default_rng(0).normal(size=(150, 400)), "more columns \\(400\\) than rows"),
        (np.random.default_rng(0).random((400, 3)), "as probabilities do: LogN needs the logits"),
    ],
)
def test_doubtful_logits_are_warned_of_as_by_correct(rows, doubt):
    with pytest.warns(LogNWarning, match=doubt):
        logn.LogitNormalizer("logn").fit(rows)
    with pytest.warns(LogNWarning, match=doubt):
        assert logn.LogitNormalizer("logn").partial_fit(rows).affine_ is not None


@pytest.mark.parametrize("target", [["a", "b", "c"], ["0.2", "0.3", "0.5"], [[1], [1, 2]], {"a": 1}])
def test_a_target_that_is_no_numbers_is_one_sentence(target):
    logits = np.random.default_rng(0).normal(size=(500, 3))
    with pytest.raises(InputError, match="Expected `target` to be one share per foreground class, as numbers"):
        logn.LogitNormalizer("p2p", target=target).fit(logits)
