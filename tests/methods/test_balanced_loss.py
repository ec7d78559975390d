"""Classifiers trained by cross-entropy and by balanced losses: which of them are left alone.

The sign that `recommend` looks for is clear for normalised class layers, which are trained here. It misses many others:
`docs/worth-it.md` has how many of our trials.
"""

import numpy as np
import pytest
from tests.conftest import moments_of

import logn
from logn.methods.recommend import FEWEST_RANKED

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")
# How much of the log prior is added to the logits in training: cross-entropy, balanced softmax, logit adjustment.
LOSSES = {"cross-entropy": 0.0, "balanced softmax": 1.0, "logit adjustment": 1.5}


def trained_logits(loss, seed, classes=40, normalised=True):
    """Logits of the training images of a small network on Gaussian classes, 100 down to 2 images each."""
    normalize, generator = torch.nn.functional.normalize, torch.Generator().manual_seed(seed)
    counts = (100 * 0.01 ** torch.linspace(0, 1, classes)).round().clamp(min=2)
    labels = torch.repeat_interleave(torch.arange(classes), counts.int())
    centres = torch.randn(classes, 32, generator=generator)
    images = centres[labels] + torch.randn(len(labels), 32, generator=generator)
    body = (torch.randn(32, 64, generator=generator) / 32**0.5).requires_grad_()
    head = (torch.randn(64 if normalised else 32, classes, generator=generator) / 8).requires_grad_()
    optimizer = torch.optim.SGD([body, head], lr=0.1, momentum=0.9, weight_decay=5e-4)
    prior = LOSSES[loss] * torch.log(counts / counts.sum())

    def logits():
        if not normalised:
            return images @ head
        return 16 * normalize(torch.relu(images @ body)) @ normalize(head, dim=0)

    for _ in range(120):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits() + prior, labels).backward()
        optimizer.step()
    return logits().detach().double().numpy()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loss", LOSSES)
def test_a_normalised_classifier_that_a_balanced_loss_trained_is_left_alone(loss, seed):
    moments = moments_of(trained_logits(loss, seed), population="images")
    found = logn.recommend(moments)
    assert found.ratio > 2
    assert found.method == ("recommended" if loss == "cross-entropy" else "none")
    if loss != "cross-entropy":
        assert found.finding.startswith("The classes' mean logits run against their scores, as after a balanced or")
        assert logn.methods.fit("recommended", moments) == logn.ClassAffine.identity(40)
        assert np.ptp(logn.methods.fit("recommended:force=true", moments).shift) > 0.5


@pytest.mark.parametrize("seed", range(3))
def test_softmax_regression_by_cross_entropy_is_corrected(seed):
    rows = trained_logits("cross-entropy", seed, normalised=False)
    assert logn.recommend(moments_of(rows, population="images")).method == "recommended"


def against_their_scores(classes):
    """Frequent classes that score high where they are and low elsewhere."""
    random, shares = np.random.default_rng(0), 0.01 ** np.linspace(0, 1, classes)
    labels = random.choice(classes, 4000, p=shares / shares.sum())
    rows = random.normal(size=(4000, classes)) - 3 * (1 + np.log(shares) / np.log(100))
    rows[np.arange(4000), labels] += 12
    return rows


@pytest.mark.parametrize("classes", [FEWEST_RANKED - 1, FEWEST_RANKED])
def test_it_says_nothing_of_few_classes_nor_of_other_heads(classes):
    rows = against_their_scores(classes)
    is_enough = classes >= FEWEST_RANKED
    assert (logn.recommend(moments_of(rows, activation="softmax")).method == "none") == is_enough
    detector = np.hstack([np.full((len(rows), 1), 9.0) + rows[:, :1], rows])
    assert logn.recommend(moments_of(detector, background=0)).method == "recommended"
