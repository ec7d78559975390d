"""Statistics that cannot be what the user thinks they are."""

import numpy as np
import pytest

import logn
from logn.calibrators.advice import advise
from logn.statistics.doubts import doubts
from logn.statistics.metadata import StatisticsMetadata


def moments_of(rows, **metadata):
    moments = logn.ClassMoments(rows.shape[1], sample_rows=500, metadata=StatisticsMetadata(**metadata))
    moments.update(rows)
    return moments


@pytest.fixture
def detector():
    """Logits of six classes and a background in the last column."""
    random = np.random.default_rng(3)
    return random.standard_normal((400, 7)) + np.array([0.5, 0.0, -0.5, -1.0, -1.5, -2.0, 5.0])


def softmax(rows):
    scores = np.exp(rows)
    return scores / scores.sum(axis=1, keepdims=True)


def test_a_background_that_nobody_named_is_noticed(detector):
    [sentence] = doubts(moments_of(detector))
    assert "The last column scores highest in 100 %" in sentence
    assert "`--background last`, in Python `background=-1`" in sentence
    [sentence] = doubts(moments_of(detector[:, ::-1]))
    assert "`--background first`, in Python `background=0`" in sentence


def test_a_background_at_the_other_end_is_noticed(detector):
    [sentence] = doubts(moments_of(detector, background=0))
    assert "the named background in 0 %" in sentence
    assert "`--background last`" in sentence


def test_the_right_background_raises_no_doubt(detector):
    assert doubts(moments_of(detector, background=-1)) == ()
    assert doubts(moments_of(detector), background=-1) == ()


def test_classifiers_sigmoids_and_small_samples_raise_no_doubt(detector):
    assert doubts(moments_of(detector[:, :-1])) == ()
    assert doubts(moments_of(detector, activation="sigmoid")) == ()
    assert doubts(moments_of(detector[:10])) == ()
    assert doubts(moments_of(detector, population="images")) == ()
    assert doubts(logn.ClassMoments(7)) == ()


def test_probabilities_are_no_logits(detector):
    [sentence] = doubts(moments_of(softmax(detector), background=-1))
    assert "each row sums to 1" in sentence
    assert sentence.endswith("LogN needs the logits, before the softmax.")
    [sentence] = doubts(moments_of(1 / (1 + np.exp(-detector[:, :-1])), activation="sigmoid"))
    assert sentence.endswith("before the softmax or sigmoid.")


def test_advice_on_doubtful_statistics_is_unsure_and_says_why(detector):
    advice = advise(moments_of(detector))
    assert advice.confidence == "low"
    assert advice.cautions[0] == doubts(moments_of(detector))[0]


def test_calibrate_warns(detector):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(7, 7))
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(7))
        model[1].bias.zero_()
    batches = [torch.tensor(detector, dtype=torch.float32)]
    layer = logn.LogitLayer("1")
    with pytest.warns(logn.LogNWarning, match="as a background does"):
        logn.calibrate(model, batches, layer=layer)
