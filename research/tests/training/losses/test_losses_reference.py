"""The training losses against the worked numbers of the reference implementations (losses to 1e-5)."""

import numpy as np
import pytest
import torch
from logn_research.losses import (
    BalancedGroupsLoss,
    BalancedSoftmaxLoss,
    CrossEntropyLoss,
    EqualizationLoss,
    EqualizationV2Loss,
    EquilibriumLoss,
    LogitAdjustedLoss,
    OnlineLogitNormalizationLoss,
    SeesawLoss,
    SigmoidFocalLoss,
    SoftmaxEqualizationLoss,
    SoftmaxFocalLoss,
)
from logn_research.training.feature_memory import FeatureMemory
from logn_research.training.layers import ScaledLinear

LOSS, SCORE = 1e-5, 2e-6
X = torch.tensor([[2.0, 0.5, -1.0, 3.0], [0.0, 1.5, -2.0, 4.0], [1.0, -0.5, 0.5, 2.0], [-1.0, 0.0, -3.0, 5.0]])
Y = torch.tensor([0, 1, 2, 3])
T = torch.tensor([[1.0, 0.8, 0.2, 1.5]])
COUNTS = [100, 10, 1]


def close(actual, expected, tolerance=LOSS):
    np.testing.assert_allclose(torch.as_tensor(actual).detach(), expected, rtol=0, atol=tolerance)


def background_first(logits, labels):
    """The same batch with the background in column 0 and label 0."""
    return torch.roll(logits, 1, dims=1), (labels + 1) % 4


def test_cross_entropy():
    close(CrossEntropyLoss(3, background=-1, reduction="none")(X, Y), [1.384092, 2.597924, 2.014675, 0.009507])
    close(CrossEntropyLoss(3, background=-1)(X, Y), 1.501549)
    close(CrossEntropyLoss(3, background=0)(*background_first(X, Y)), 1.501549)


def test_sigmoid_focal():
    loss = SigmoidFocalLoss(3, background=-1)
    close(loss.elements(X[:, :3], Y)[0], [0.000451, 0.283059, 0.016994])
    close(loss(X[:, :3], Y), 0.391504)
    close(SigmoidFocalLoss(3, background=0)(X[:, :3], (Y + 1) % 4), 0.391504)
    close(loss.elements(X[:, :3], Y).mean(), 0.097876)


def test_softmax_focal():
    loss = SoftmaxFocalLoss(3, background=None, reduction="none")
    close(loss(X[:3, :3], Y[:3]), [0.011093, 0.009225, 0.493429])
    close(SoftmaxFocalLoss(3, background=None)(X[:3, :3], Y[:3]), 0.171249)
    close(CrossEntropyLoss(3, background=None)(X[:3, :3], Y[:3]), 0.523748)


@pytest.mark.parametrize(("threshold", "expected"), [(0.0011, 1.327994), (0.0, 1.438042)])
def test_equalization(threshold, expected):
    frequencies = [0.5, 0.01, 0.0005]
    close(EqualizationLoss(frequencies, background=-1, threshold=threshold)(X[:, :3], Y), expected)
    first = EqualizationLoss(frequencies, background=0, threshold=threshold)
    close(first(X[:, :3], (Y + 1) % 4), expected)
    close(first.layout.initial_bias, -6.906755)


@pytest.mark.parametrize(("probability", "expected"), [(0.0, 0.241311), (1.0, 0.201413)])
def test_softmax_equalization(probability, expected):
    loss = SoftmaxEqualizationLoss([0.9, 0.1, 1e-4], background=None, probability=probability)
    close(loss(X[:1, :3], Y[:1]), expected)


@pytest.mark.parametrize("background", [-1, 0])
def test_equalization_v2(background):
    loss = EqualizationV2Loss(3, background=background)
    logits, labels = (X, Y) if background == -1 else background_first(X, Y)
    close(loss(logits, labels), 3.738137)
    close(loss.positive_gradient, [0.119203, 0.182426, 0.377541])
    close(loss.negative_gradient, [1.5, 1.5, 0.435570])
    close(loss.ratio, [0.079469, 0.121617, 0.866773])
    expected = [4.999297, 4.998835, 2.239007, 1], [1.757318e-04, 2.913784e-04, 0.690248, 1]
    for weight, numbers in zip(loss.weights(), expected, strict=True):
        close(weight, numbers if background == -1 else np.roll(numbers, 1))
    close(loss(logits, labels), 3.060408)
    close(loss(logits, labels), 3.060549)
    close(loss.ratio, [0.850312, 0.916610, 1.365828])
    scores = [0.133364, 0.125869, 0.100304, 0.817574]
    row = T if background == -1 else torch.roll(T, 1, dims=1)
    close(loss.activate(row)[0], scores if background == -1 else np.roll(scores, 1), SCORE)


@pytest.mark.parametrize("background", [-1, 0])
def test_seesaw_with_objectness(background):
    loss = SeesawLoss(3, background=background)
    counts = torch.tensor([100, 10, 1, 1000])
    loss.counts.copy_(counts if background == -1 else torch.roll(counts, 1))
    logits = torch.cat((X[:, :3], torch.tensor([[1, -1], [0.5, 0.5], [-0.2, 0.3], [-2, 2]])), dim=1)
    labels = Y if background == -1 else (Y + 1) % 4
    close(loss(logits, labels), 0.453076 + 0.503329)
    after = [101, 11, 2, 1001]
    assert loss.counts.tolist() == (after if background == -1 else [1001, 101, 11, 2])
    objectness, classes = loss.terms(logits, labels)
    close(objectness.sum() / 4, 0.453076)
    close(classes.sum() / 4, 0.503329)
    scores = [0.294608, 0.241204, 0.132376, 0.331812]
    row = torch.tensor([[1, 0.8, 0.2, 0.3, -0.4]])
    close(loss.activate(row)[0], scores if background == -1 else np.roll(scores, 1), SCORE)


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [
        (0.8, 2.0, [0.035960, 0.205319, 1.766368]),
        (0.8, 0.0, [0.035960, 0.205319, 1.104131]),
        (0.0, 2.0, [0.241311, 0.225802, 1.766368]),
        (0.0, 0.0, [0.241311, 0.225802, 1.104131]),
    ],
)
def test_plain_seesaw_with_fixed_counts(p, q, expected):
    loss = SeesawLoss(3, background=None, p=p, q=q, reduction="none").eval()
    loss.counts.copy_(torch.tensor(COUNTS))
    close(loss(X[:3, :3], Y[:3]), expected)
    assert loss.counts.tolist() == COUNTS


@pytest.mark.parametrize("background", [-1, 0])
def test_balanced_groups(background):
    loss = BalancedGroupsLoss([2000, 50, 5], background=background)
    logits = torch.tensor(
        [
            [0.2, -1, 0.1, 0.5, 0.3, -0.5, 2, 1, -1],
            [0.5, -2, -0.3, 1.5, 0.1, 0.4, 0, 0.5, 0.5],
            [-0.2, 0.5, 0.6, -0.5, 0.2, 0.3, 1, -0.2, 0.3],
            [0.9, -3, 0.8, 0, 0.4, 1.1, -1, -2, 2],
        ]
    )
    assert loss.layout.columns == 9
    assert [start.item() for start in loss.test_logits.columns()[0]] == [0, 2, 4, 5, 7]
    assert loss.test_logits.columns()[1].tolist() == [6, 3, 1]
    close(loss(logits, Y if background == -1 else (Y + 1) % 4), 1.528185)
    expected = [0.813981, 0.527322, 0.203883, 0.119203], [0.252268, 0.094287, 0.252268, 0.622459]
    for row, scores in zip((0, 2), expected, strict=True):
        close(loss.activate(logits)[row], scores if background == -1 else np.roll(scores, 1), SCORE)


def test_balanced_groups_of_lvis_by_its_boundaries():
    loss = BalancedGroupsLoss([9, 10, 99, 100, 999, 1000], background=0)
    assert loss.test_logits.group_of_class.tolist() == [0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("background", [-1, 0])
def test_equilibrium(background):
    loss = EquilibriumLoss(3, background=background, reduction="none").eval()
    loss.mean_score.copy_(torch.tensor([0.6, 0.2, 0.05]))
    logits, labels = (X, Y) if background == -1 else background_first(X, Y)
    close(loss(logits, labels), [0.116743, 0.826832, 3.142103, 0.250884])
    close(loss(logits, labels).mean(), 1.084140)


def test_mean_score_memory_and_the_sampling_that_follows_it():
    loss = EquilibriumLoss(3, background=-1)
    loss.remember(torch.tensor([0.4, 0.6, 0.3]), torch.tensor([0, 0, 1]))
    close(loss.mean_score, [0.103100, 0.039000, 0.010000])
    memory = FeatureMemory(3)
    memory.add(torch.zeros(3, 1), torch.tensor([0, 1, 2]))
    close(memory.probabilities(loss.mean_score), [0.071667, 0.189457, 0.738876], SCORE)


def test_balanced_softmax_and_logit_adjusted():
    loss = BalancedSoftmaxLoss(COUNTS, background=None, reduction="none")
    close(loss(X[:3, :3], Y[:3]), [0.022555, 1.173819, 5.133153])
    close(BalancedSoftmaxLoss(COUNTS, background=None)(X[:3, :3], Y[:3]), 2.109842)
    close(LogitAdjustedLoss(COUNTS, background=None)(X[:3, :3], Y[:3]), 2.109842)


@pytest.mark.parametrize(
    ("margin", "row", "value", "gradient"),
    [
        (0.0, [2.271752, 0.530701, -1.471408, 3.0], 1.506595, [-0.189331, 0.012484, 0.002193, 0.158345]),
        ("min", [2.531752, 0.790701, -1.211408, 3.0], 1.374175, [-0.175187, 0.014601, 0.002565, 0.142800]),
    ],
)
@pytest.mark.parametrize("background", [-1, 0])
def test_online_inverse_logit_normalization(background, margin, row, value, gradient):
    place = 0 if background == -1 else 1
    logits, labels = (X.double(), Y) if background == -1 else background_first(X.double(), Y)
    loss = OnlineLogitNormalizationLoss(3, background=background, margin=margin, momentum=0.1)
    loss(logits[:2], labels[:2])
    loss(logits[2:], labels[2:])
    close(loss.mean, np.roll([0.09, 0.065, -0.26, 0.665], place))
    close(loss.variance, np.roll([1.19, 0.8675, 1.4675, 1.305], place))
    loss.eval()
    close(loss.inverse(logits)[0], np.roll(row, place), SCORE)
    logits.requires_grad_()
    found = loss(logits, labels)
    found.backward()
    close(found, value)
    close(logits.grad[0], np.roll(gradient, place), SCORE)


def test_learnable_weight_scaling():
    linear = torch.nn.Linear(2, 3)
    linear.weight.data.copy_(torch.tensor([[3, 4], [0.6, 0.8], [0, 0.5]]))
    linear.bias.data.copy_(torch.tensor([0.1, 0.2, 0.3]))
    layer = ScaledLinear(linear)
    layer.scale.data.copy_(torch.tensor([0.5, 1.0, 2.0]))
    close(layer(torch.tensor([[1.0, 2.0]]))[0], [5.6, 2.4, 2.3])


def test_defaults_are_those_of_the_papers():
    focal = SigmoidFocalLoss(3, background=0)
    assert (focal.gamma, focal.alpha, focal.divide_by, focal.weight) == (2.0, 0.25, "positives", 1.0)
    assert SoftmaxFocalLoss(3, background=0).gamma == 2.0
    # Classes below 0.0011 of the images of LVIS v1 are rare, for the softmax form those below 4.3e-4; not those at it.
    assert EqualizationLoss([0.00109, 0.0011, 0.0012], background=0).rare.tolist() == [True, False, False]
    softmax = SoftmaxEqualizationLoss([4.2e-4, 4.3e-4, 4.4e-4], background=0)
    assert (softmax.rare.tolist(), softmax.probability) == ([False, True, False, False], 0.9)
    second = EqualizationV2Loss(3, background=0)
    assert (second.gamma, second.mu, second.alpha) == (12.0, 0.8, 4.0)
    seesaw = SeesawLoss(3, background=0)
    assert (seesaw.p, seesaw.q, seesaw.eps) == (0.8, 2.0, 0.01)
    assert BalancedGroupsLoss(COUNTS, background=0).others_per_row == 8.0
    loce = EquilibriumLoss(3, background=0)
    assert (loce.decay, loce.background_score, loce.mean_score.tolist()) == (0.9, 0.01, [0.01] * 3)
    online = OnlineLogitNormalizationLoss(3, background=0)
    assert (online.margin, online.momentum, online.bias_corrected, online.eps) == (0.0, 1e-3, False, 1e-5)
    close(LogitAdjustedLoss(COUNTS, background=None).shift, np.log(np.array(COUNTS) / 111))


@pytest.mark.parametrize(("make", "prior"), [(SigmoidFocalLoss, 0.01), (EqualizationV2Loss, 0.001)])
def test_sigmoid_heads_start_at_the_prior_of_their_paper(make, prior):
    bias = torch.tensor(make(3, background=0).layout.initial_bias, dtype=torch.float64)
    close(bias.sigmoid(), prior, 1e-12)


def test_bias_corrected_averages_are_those_of_the_batches_alone():
    generator = torch.Generator().manual_seed(0)
    loss = OnlineLogitNormalizationLoss(3, background=-1, momentum=0.001, bias_corrected=True)
    torch.testing.assert_close(loss.statistics()[1], torch.ones(4, dtype=torch.float64))
    batches = [3 * torch.randn(8, 4, generator=generator) - 2 for _ in range(5)]
    for batch in batches:
        loss(batch, torch.zeros(8, dtype=torch.int64))
    loss(batches[0][:1], torch.zeros(1, dtype=torch.int64))  # one row has no variance, and is left out
    weights = torch.tensor([0.999**age for age in reversed(range(5))], dtype=torch.float64)
    weights /= weights.sum()
    means = torch.stack([batch.double().mean(0) for batch in batches])
    variances = torch.stack([batch.double().var(0) for batch in batches])
    mean, variance = loss.statistics()
    torch.testing.assert_close(mean, weights @ means)
    torch.testing.assert_close(variance, weights @ variances)
    # Without the correction five batches of a thousand would hardly count.
    assert (loss.variance < 1.1).all()
