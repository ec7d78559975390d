"""Classifiers trained by cross-entropy and by balanced losses: which of them are left alone.

`docs/worth-it.md` has more kinds of networks and how often the sign errs (`benchmarks/balanced_losses.py`).
"""

import numpy as np
import pytest
from tests.conftest import moments_of

import logn
from logn.statistics.verdict import FEWEST_COMPARED, losing_slope

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")
# How much of the log prior is added to the logits in training: cross-entropy, balanced softmax, logit adjustment.
LOSSES = {"cross-entropy": 0.0, "balanced softmax": 1.0, "logit adjustment": 1.5}


def trained_logits(loss, seed, kind="normalised", classes=40):
    """Logits of the training images of a small network on Gaussian classes, 100 down to 2 images each."""
    normalize, generator = torch.nn.functional.normalize, torch.Generator().manual_seed(seed)
    counts = (100 * 0.01 ** torch.linspace(0, 1, classes)).round().clamp(min=2)
    labels = torch.repeat_interleave(torch.arange(classes), counts.int())
    centres = torch.randn(classes, 32, generator=generator)
    images = centres[labels] + torch.randn(len(labels), 32, generator=generator)
    body = (torch.randn(32, 64, generator=generator) / 32**0.5).requires_grad_()
    head = (torch.randn(32 if kind == "linear" else 64, classes, generator=generator) / 8).requires_grad_()
    optimizer = torch.optim.SGD([body, head], lr=0.1, momentum=0.9, weight_decay=5e-4)
    prior = LOSSES[loss] * torch.log(counts / counts.sum())

    def logits():
        if kind == "linear":
            return images @ head
        features = torch.relu(images @ body)
        return features @ head if kind == "hidden" else 16 * normalize(features) @ normalize(head, dim=0)

    for _ in range(120):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits() + prior, labels).backward()
        optimizer.step()
    return logits().detach().double().numpy()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["normalised", "hidden", "linear"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_classifier_that_a_balanced_loss_trained_is_left_alone(loss, kind, seed):
    moments = moments_of(trained_logits(loss, seed, kind), population="images")
    found = logn.recommend(moments)
    assert found.verdict.ratio > 2
    assert found.method == ("recommended" if loss == "cross-entropy" else "none")
    if loss != "cross-entropy":
        assert found.finding.startswith(
            "In images of other classes, rare classes score hardly lower than frequent ones, as after a"
        )
        assert logn.methods.fit("recommended", moments) == logn.ClassAffine.identity(40)
        assert np.ptp(logn.methods.fit("recommended:force=true", moments).shift) > 0.5


def against_their_scores(classes):
    """Frequent classes that score high where they are and low elsewhere."""
    random, shares = np.random.default_rng(0), 0.01 ** np.linspace(0, 1, classes)
    labels = random.choice(classes, 4000, p=shares / shares.sum())
    rows = random.normal(size=(4000, classes)) - 3 * (1 + np.log(shares) / np.log(100))
    rows[np.arange(4000), labels] += 12
    return rows


@pytest.mark.parametrize("classes", [FEWEST_COMPARED - 1, FEWEST_COMPARED])
def test_it_says_nothing_of_few_classes_nor_of_other_heads(classes):
    rows = against_their_scores(classes)
    is_enough = classes >= FEWEST_COMPARED
    assert (logn.recommend(moments_of(rows, activation="softmax")).method == "none") == is_enough
    detector = np.hstack([np.full((len(rows), 1), 9.0) + rows[:, :1], rows])
    assert logn.recommend(moments_of(detector, background=0)).method == "recommended"


def test_the_slope_is_that_of_worked_numbers():
    """Classes that get half of their frequency as a power where they lose; without probabilities it is not known."""
    random, shares = np.random.default_rng(0), 0.01 ** np.linspace(0, 1, 40)
    labels = random.choice(40, 20_000, p=shares / shares.sum())
    rows = np.tile(0.5 * np.log(shares), (20_000, 1))
    rows[np.arange(20_000), labels] = 12.0
    moments = moments_of(rows, activation="softmax")
    assert losing_slope(moments, np.ones(40, bool)) == pytest.approx(0.5, abs=0.01)
    probabilities = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
    probabilities[np.arange(20_000), labels] = 0.0
    np.testing.assert_allclose(moments.losing_probability, probabilities.mean(axis=0), rtol=1e-9)
    halves = [moments_of(half, activation="softmax") for half in np.split(rows, 2)]
    np.testing.assert_allclose(halves[0].merge(halves[1]).losing_probability, moments.losing_probability, rtol=1e-12)
    bare = logn.ClassMoments(40, mean_probability=False)
    bare.update(rows)
    assert np.isnan(losing_slope(bare, np.ones(40, bool)))
