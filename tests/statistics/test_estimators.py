"""The paper's moving average and statistics of positives, from a model as from dumped logits."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import logn
from logn.errors import InputError
from logn.statistics.estimators import ESTIMATORS, Estimator, add_batch, finished

# The toy data of the reference: momentum 0.1, two batches of two rows, start 0 and 1.
X = np.array([[2.0, 0.5, -1.0, 3.0], [0.0, 1.5, -2.0, 4.0], [1.0, -0.5, 0.5, 2.0], [-1.0, 0.0, -3.0, 5.0]])
MEAN, VARIANCE = [0.09, 0.065, -0.26, 0.665], [1.19, 0.8675, 1.4675, 1.305]


class Passing(torch.nn.Module):
    """A model whose logits are its inputs."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 4, bias=False)
        self.head.weight.data.copy_(torch.eye(4))

    def forward(self, images):
        return self.head(images)


LAYER = logn.LogitLayer("head", background=-1, activation="softmax")
BATCHES = [torch.tensor(X[:2], dtype=torch.float32), torch.tensor(X[2:], dtype=torch.float32)]


def test_recording_a_moving_average_gives_the_numbers_of_the_official_head():
    model = Passing().eval()
    with logn.record(model, LAYER, estimator="moving-average", momentum=0.1) as moments, torch.inference_mode():
        for batch in BATCHES:
            model(batch)
    np.testing.assert_allclose(moments.mean, MEAN, atol=1e-6)
    np.testing.assert_allclose(moments.variance, VARIANCE, atol=1e-6)
    assert moments.metadata.estimator == "moving-average"
    assert (moments.metadata.layer, moments.metadata.background) == ("head", -1)
    # The balanced form, which the next step takes, needs rows.
    np.testing.assert_array_equal(np.sort(moments.sample, axis=0), np.sort(X.astype(np.float16), axis=0))
    assert moments.mean_probability is not None
    logn.logit_normalization(moments)


def test_a_bias_correction_takes_any_start_out_and_single_rows_are_left_out():
    average = logn.MovingAverage(4, momentum=0.1, initial_mean=7.0, initial_variance=3.0, bias_correction=True)
    average.update(X[:2])
    average.update(X[:1])  # one row has no variance
    average.update(X[2:])
    assert average.skipped_batches == 1
    moments = average.moments()
    # The older batch weighs 0.9 of the newer one.
    np.testing.assert_allclose(moments.mean, (0.9 * X[:2].mean(axis=0) + X[2:].mean(axis=0)) / 1.9, atol=1e-12)
    variances = X[:2].var(axis=0, ddof=1), X[2:].var(axis=0, ddof=1)
    np.testing.assert_allclose(moments.variance, (0.9 * variances[0] + variances[1]) / 1.9, atol=1e-12)
    # It never sees the variance between batches, so its own is the one within them.
    np.testing.assert_allclose(moments.within_batch_variance, moments.variance, atol=1e-12)


def test_an_estimator_hands_its_bias_correction_on():
    average = Estimator("moving-average", momentum=0.1, bias_correction=True).start(4)
    add_batch(average, X, lambda: None)
    np.testing.assert_allclose(finished(average).mean, X.mean(axis=0), atol=1e-12)


@pytest.mark.filterwarnings("ignore:This map")  # four rows; how far it moves scores is not the question
def test_calibrating_with_a_moving_average_gives_algorithm_1():
    average = {"estimator": "moving-average", "momentum": 0.1}
    # The official head adds no number to the variance.
    affine, _ = logn.calibrate(Passing(), BATCHES, layer=LAYER, method="logn", eps=1e-11, **average)
    # The worked example: the logits of one test region after the paper's equation.
    found = affine(np.array([1.0, 0.8, 0.2, 1.5]))
    np.testing.assert_allclose(found, [0.595854, 0.509987, 0.165098, 1.5], atol=2e-6)


@pytest.mark.parametrize(
    ("estimator", "mean", "variance"),
    [
        ("positives", [2.5, 2.0, 0.5, 5.0], [0.5, 0.5, np.nan, np.nan]),
        ("positives-correct", [3.0, 2.5, 0.0, 5.0], [np.nan] * 4),
    ],
)
def test_recording_positives_gives_the_worked_numbers(estimator, mean, variance):
    rows = torch.tensor(np.vstack([X, [3, 0, 0, 1], [0.5, 2.5, 0, 1]]), dtype=torch.float32)
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    model, given_labels = Passing().eval(), []
    with logn.record(model, LAYER, estimator=estimator, row_labels=lambda: given_labels[-1]) as moments:
        for start in (0, 3):
            given_labels.append(labels[start : start + 3])
            with torch.inference_mode():
                model(rows[start : start + 3])
    np.testing.assert_allclose(moments.mean, mean, atol=1e-6)
    np.testing.assert_allclose(moments.variance, variance, atol=1e-6)
    assert len(moments.sample) == 6  # rows of every class, for the balanced margin


def test_calibrating_a_classifier_on_positives_takes_the_labels_of_each_batch():
    generator = torch.Generator().manual_seed(0)
    rows, labels = torch.randn(40, 4, generator=generator), torch.arange(40) % 4
    batches = [(rows[start : start + 10], labels[start : start + 10]) for start in range(0, 40, 10)]
    layer = logn.LogitLayer("head", activation="softmax")
    found = logn.calibrate(Passing(), batches, layer=layer, estimator="positives", row_labels=lambda batch: batch[1])
    positives = logn.PositiveMoments(4)
    positives.update(rows, labels)
    np.testing.assert_allclose(found.moments.mean, positives.moments().mean, atol=1e-6)
    np.testing.assert_allclose(found.moments.variance, positives.moments().variance, atol=1e-6)


def test_a_row_of_no_class_counts_for_none():
    positives = logn.PositiveMoments(2)
    positives.update(np.array([[2.0, 0.5], [9.0, 9.0]]), labels=[0, -1])
    assert positives.moments().count.tolist() == [1.0, 0.0]


@given(
    rows=hnp.arrays(np.float64, (6, 3), elements=st.floats(-50, 50)),
    labels=st.lists(st.integers(-1, 2), min_size=6, max_size=6),
)
def test_positives_of_any_split_are_those_of_the_whole(rows, labels):
    whole, parts = (Estimator("positives").start(3, sample_rows=4) for _ in range(2))
    add_batch(whole, rows, lambda: labels)
    for start in range(0, 6, 2):
        add_batch(parts, rows[start : start + 2], lambda start=start: labels[start : start + 2])
    one, other = finished(whole), finished(parts)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-9)
    np.testing.assert_allclose(one.m2, other.m2, atol=1e-6)
    assert len(one.sample) == len(other.sample) == 4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"estimator": "median"},
            f"Expected `estimator` to be one of {ESTIMATORS}".replace("(", r"\(").replace(")", r"\)"),
        ),
        ({"momentum": 0.1}, "Expected `momentum` only with the estimator moving-average, but it is exact"),
        ({"bias_correction": True}, "Expected `bias_correction` only with the estimator moving-average"),
        (
            {"estimator": "positives"},
            "Expected `row_labels`, which gives the class of each row, for the estimator positives",
        ),
        ({"row_labels": list}, "Expected `row_labels` only for statistics of positives, but the estimator is exact"),
        ({"estimator": "moving-average", "nonfinite": "skip"}, "Expected `nonfinite` to be 'error' with the estimator"),
        ({"estimator": "moving-average", "momentum": 2.0}, "Expected `momentum` to be above 0 and at most 1"),
    ],
)
def test_what_does_not_go_together_is_refused(options, sentence):
    with pytest.raises(InputError, match=sentence), logn.record(Passing().eval(), LAYER, **options):
        pass


def test_a_moving_average_of_several_processes_is_refused(monkeypatch):
    monkeypatch.setattr("logn.statistics.record.process_count", lambda: 4)
    with (
        pytest.raises(InputError, match=r"Expected one process for the estimator moving-average, .* there are 4"),
        logn.record(Passing().eval(), LAYER, estimator="moving-average"),
    ):
        pass
