"""What holds for every loss whatever the numbers: identities, symmetry, and surviving odd batches."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logn_research import losses
from logn_research.losses import LOSS_NAMES, make_loss
from logn_research.losses.loss_factory import layout_of, parse_loss
from torch.nn import functional

from logn.data.class_counts import ClassCounts
from logn.errors import InputError

CLASSES = 5
COUNTS = ClassCounts([900, 300, 40, 2, 1], instance_counts=[2000, 500, 50, 9, 1], num_images=1000)
NOT_FOR_CLASSIFIERS = {"bags"}


def build(name, background=0, counts=COUNTS):
    # Above 0.002 of the images, so that two of the five classes are rare.
    options = {"eql": ":threshold=0.003", "eql-softmax": ":threshold=0.003,probability=1"}
    return make_loss(name + options.get(name, ""), counts, background=background)


def batch(loss, rows=24, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, loss.layout.columns, generator=generator)
    labels = torch.randint(0, CLASSES + (loss.background is not None), (rows,), generator=generator)
    return logits.to(dtype).requires_grad_(), labels


def scores_are_those_of_the_test_logits(loss, logits):
    test = loss.test_logits(logits)
    assert test.shape[1] == loss.layout.test_columns(CLASSES)
    scores = test.softmax(-1) if loss.layout.activation == "softmax" else test.sigmoid()
    found = loss.activate(logits)
    if loss.layout.background is None and loss.background is not None:
        found = found[:, 1:] if loss.background == 0 else found[:, :-1]
    torch.testing.assert_close(scores, found)


@pytest.mark.parametrize("background", [0, -1, None])
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_every_loss_is_finite_with_gradients_and_says_how_to_read_its_head(name, background):
    if background is None and name in NOT_FOR_CLASSIFIERS:
        with pytest.raises(InputError, match="Expected `background` to be 0 or -1"):
            build(name, background)
        return
    loss = build(name, background)
    logits, labels = batch(loss)
    value = loss(logits, labels)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logits.grad).all()
    assert logits.grad.abs().sum() > 0
    scores = loss.activate(logits.detach())
    assert scores.shape == (24, CLASSES + (background is not None))
    assert ((scores >= 0) & (scores <= 1)).all()
    scores_are_those_of_the_test_logits(loss, logits.detach())


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_background_first_and_last_are_the_same(name):
    first, last = build(name, 0), build(name, -1)
    logits, labels = batch(last)
    ends_with_background = last.layout.columns == CLASSES + 1
    moved = torch.roll(logits.detach(), 1, dims=1) if ends_with_background else logits.detach()
    for _ in range(2):  # the second time with a state
        torch.manual_seed(0)
        value = last(logits, labels)
        torch.manual_seed(0)
        torch.testing.assert_close(first(moved, (labels + 1) % (CLASSES + 1)), value)
    torch.testing.assert_close(torch.roll(last.activate(logits), 1, dims=1), first.activate(moved))


@pytest.mark.parametrize("name", sorted(set(LOSS_NAMES) - {"bags"}))
@pytest.mark.parametrize("background", [0, None])
def test_permuting_the_classes_changes_nothing(name, background):
    order = np.array([3, 0, 4, 2, 1])
    permuted = ClassCounts(
        COUNTS.image_counts[order], instance_counts=COUNTS.instance_counts[order], num_images=COUNTS.num_images
    )
    loss, other = build(name, background), build(name, background, permuted)
    logits, labels = batch(loss)
    first = 1 if background == 0 and loss.layout.columns == CLASSES + 1 else 0
    columns = np.arange(loss.layout.columns)
    columns[first : first + CLASSES] = order + first
    place = np.argsort(order)
    names = torch.from_numpy(place if background is None else np.append(0, place + 1))
    for _ in range(2):
        torch.testing.assert_close(other(logits[:, columns], names[labels]), loss(logits, labels))
    scores = loss.activate(logits)
    kept = order if background is None else np.append(0, order + 1)
    torch.testing.assert_close(other.activate(logits[:, columns]), scores[:, kept])


def test_permuting_the_classes_of_balanced_groups_permutes_the_scores():
    order = np.array([3, 0, 4, 2, 1])
    loss = build("bags")
    other = losses.BalancedGroupsLoss(COUNTS.instance_counts[order], background=0)
    columns = np.arange(loss.layout.columns)
    columns[other.test_logits.columns()[1]] = loss.test_logits.columns()[1].numpy()[order]
    logits, labels = batch(loss, rows=6)
    names = torch.from_numpy(np.append(0, np.argsort(order) + 1))
    torch.testing.assert_close(other(logits[:, columns], names[labels]), loss(logits, labels))
    torch.testing.assert_close(other.activate(logits[:, columns]), loss.activate(logits)[:, np.append(0, order + 1)])


@pytest.mark.parametrize("name", LOSS_NAMES)
@pytest.mark.parametrize("labels", ["empty", "background only", "one class only"])
def test_batches_that_lack_something(name, labels):
    loss = build(name)
    rows = 0 if labels == "empty" else 6
    logits = batch(loss, rows)[0]
    given_labels = torch.full((rows,), 0 if labels == "background only" else 2)
    for _ in range(3):
        value = loss(logits, given_labels)
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(logits.grad).all()
    assert rows or value.item() == 0
    assert all(torch.isfinite(state).all() for state in loss.state_dict().values())
    assert loss.activate(logits).shape == (rows, CLASSES + 1)


@pytest.mark.parametrize("name", LOSS_NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(name, dtype):
    loss = build(name)
    logits, labels = batch(loss, dtype=dtype)
    other = copy.deepcopy(loss)
    torch.manual_seed(0)
    value = loss(logits, labels)
    value.backward()
    assert value.dtype == torch.float32
    assert logits.grad.dtype == dtype
    assert torch.isfinite(logits.grad).all()
    torch.manual_seed(0)
    assert torch.equal(other(logits.detach().float(), labels), value)
    assert loss.activate(logits).dtype == torch.float32


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_extreme_logits_stay_finite(name):
    loss = build(name)
    logits = (batch(loss)[0].detach() * 1e4).requires_grad_()
    value = loss(logits, batch(loss)[1])
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logits.grad).all()
    assert torch.isfinite(loss.test_logits(logits)).all()
    assert torch.isfinite(loss.activate(logits)).all()


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_evaluation_leaves_the_state_alone_and_training_state_is_restored(name):
    loss = build(name)
    logits, labels = batch(loss)
    before = copy.deepcopy(loss.state_dict())
    loss.eval()(logits, labels)
    assert all(torch.equal(value, before[key]) for key, value in loss.state_dict().items())
    loss.train()(logits, labels)
    restored = build(name)
    restored.load_state_dict(loss.state_dict())
    torch.manual_seed(1)
    expected = loss(logits, labels)
    torch.manual_seed(1)
    assert torch.equal(restored(logits, labels), expected)


def test_which_losses_have_a_state():
    stateful = {name for name in LOSS_NAMES if build(name).state_dict()}
    assert stateful == {"seesaw", "eql-v2", "loce", "online-logn", "bags"}


def same_as(loss, reference, seed=0):
    logits, labels = batch(loss, seed=seed)
    torch.testing.assert_close(loss(logits, labels), reference(logits, labels))


def binary_cross_entropy(logits, labels):
    targets = functional.one_hot(labels, CLASSES + 1).to(logits.dtype)[:, -logits.shape[1] :]
    return functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(labels)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31), scale=st.floats(0.01, 100))
def test_identities(seed, scale):
    ce = functional.cross_entropy
    same_as(losses.SeesawLoss(CLASSES, background=None, p=0, q=0), ce, seed)
    equilibrium = losses.EquilibriumLoss(CLASSES, background=None).eval()
    equilibrium.mean_score.fill_(min(scale, 1.0))
    same_as(equilibrium, ce, seed)
    same_as(
        losses.EqualizationLoss([0.5, 0.1, 0.01, 0.001, 0.0], background=0, threshold=0), binary_cross_entropy, seed
    )
    same_as(losses.EqualizationV2Loss(CLASSES, background=0), binary_cross_entropy, seed)
    focal = losses.SigmoidFocalLoss(CLASSES, background=0, gamma=0, alpha=0.5, divide_by="rows")
    same_as(focal, lambda x, y: binary_cross_entropy(x, y) / 2, seed)
    same_as(losses.SoftmaxFocalLoss(CLASSES, background=0, gamma=0), ce, seed)
    same_as(losses.LogitAdjustedLoss(COUNTS.instance_counts, background=0, tau=0), ce, seed)
    same_as(losses.SoftmaxEqualizationLoss(np.zeros(CLASSES), background=0, probability=0), ce, seed)
    for background in (0, -1, None):
        scaled = losses.BalancedSoftmaxLoss(COUNTS.instance_counts * scale, background=background)
        same_as(scaled, losses.BalancedSoftmaxLoss(COUNTS.instance_counts, background=background), seed)


def test_a_foreground_row_does_not_push_rare_classes_down_and_a_background_row_does():
    for name in ("eql", "eql-softmax"):
        loss = build(name)
        first = loss.layout.columns - CLASSES
        logits = torch.zeros(2, loss.layout.columns, requires_grad=True)
        loss(logits, torch.tensor([1, 0])).backward()
        rare = logits.grad[:, first + 3 :]
        assert (rare[0] == 0).all(), name
        assert (rare[1] > 0).all(), name


def test_rare_classes_are_left_out_of_the_softmax_row_by_row_and_class_by_class():
    torch.manual_seed(0)
    loss = losses.SoftmaxEqualizationLoss([0.9, 1e-5, 1e-5], background=None, reduction="none")
    values = loss(torch.zeros(10_000, 3), torch.zeros(10_000, dtype=torch.int64))
    # Equal logits: the logarithm of how many classes are left, the true one and each of two with probability 0.1.
    left, times = torch.round(values.exp()).long().unique(return_counts=True)
    assert left.tolist() == [1, 2, 3]
    np.testing.assert_allclose(times / 10_000, [0.81, 0.18, 0.01], atol=0.015)


def test_others_are_drawn_in_proportion_and_a_group_without_rows_is_not_trained():
    loss = losses.BalancedGroupsLoss([5, 2000], background=0, others_per_row=2)
    logits = torch.zeros(50, loss.layout.columns, requires_grad=True)
    value = loss(logits, torch.tensor([1] * 3 + [0] * 47))
    # Equal logits: log 2 from foreground against background, log 2 on average over the rows drawn for the one group.
    torch.testing.assert_close(value.item(), 2 * math.log(2))
    value.backward()
    starts = loss.test_logits.columns()[0].tolist()
    trained = (logits.grad[:, starts[0] : starts[1]] != 0).any(1)
    assert trained[:3].all()
    assert trained.sum() == 3 + 6
    assert (logits.grad[:, starts[3] : starts[4]] == 0).all()
    assert (logits.grad[:, -2:] != 0).all()


def test_no_row_is_drawn_twice_among_the_others():
    loss = losses.BalancedGroupsLoss([5, 2000], background=0)
    logits = torch.zeros(50, loss.layout.columns, requires_grad=True)
    loss(logits, torch.tensor([1] * 5 + [0] * 45)).backward()
    starts = loss.test_logits.columns()[0].tolist()
    assert (logits.grad[:, starts[0] : starts[1]] != 0).any(1).sum() == 5 + 40


def test_each_object_brings_one_value():
    loss = losses.EquilibriumLoss(2, background=0)
    score = torch.tensor([0.2, 0.4, 0.9, 0.5])
    logits = torch.log(torch.stack(((1 - score) / 2, score, (1 - score) / 2), dim=1))
    logits[3] = 0.0
    labels, objects = torch.tensor([1, 1, 1, 0]), torch.tensor([7, 7, 8, 7])
    values, classes = loss.object_scores(logits, labels, objects)
    torch.testing.assert_close(values, torch.tensor([0.3, 0.9], dtype=torch.float64))
    assert classes.tolist() == [0, 0]
    loss(logits, labels, instances=objects)
    torch.testing.assert_close(loss.mean_score[0].item(), 0.81 * 0.01 + 0.19 * 0.6)
    assert len(loss.object_scores(logits, labels)[0]) == 1


def test_a_class_that_hardly_ever_scores_keeps_its_margin():
    loss = losses.EquilibriumLoss(2, background=None, reduction="none").eval()
    loss.mean_score.copy_(torch.tensor([1e-6, 0.5]))
    expected = [-math.log(1e-6 / (1e-6 + 0.5)), -math.log(0.5 / (1e-6 + 0.5))]
    torch.testing.assert_close(loss(torch.zeros(2, 2), torch.tensor([0, 1])), torch.tensor(expected))


def test_a_class_that_always_scores_zero_keeps_the_loss_finite():
    loss = losses.EquilibriumLoss(2, background=0, decay=0.0)
    logits = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    value = loss(logits, torch.tensor([2]))
    assert loss.mean_score[1] == 0
    assert torch.isfinite(value)


def test_no_gradient_through_weights_and_statistics():
    loss = losses.OnlineLogitNormalizationLoss(2, background=None, margin="min", momentum=0.5)
    logits = torch.tensor([[1.0, 2.0], [3.0, -1.0]], requires_grad=True)
    loss(logits, torch.tensor([0, 1])).backward()
    scale = (loss.variance + loss.eps).sqrt()
    wanted = loss.inverse(logits).softmax(-1) - torch.eye(2)
    torch.testing.assert_close(logits.grad, (wanted * scale / 2).float())


@pytest.mark.parametrize("name", ["focal", "focal-softmax"])
def test_the_gradient_of_focal_passes_through_its_weights_too(name):
    loss = build(name)
    logits, labels = batch(loss, rows=4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda values: loss(values, labels), logits.detach().requires_grad_())


def test_a_weight_multiplies_the_whole_focal_loss():
    plain, heavy = build("focal"), make_loss("focal:weight=3", COUNTS)
    logits, labels = batch(plain)
    torch.testing.assert_close(heavy(logits, labels), 3 * plain(logits, labels))


@pytest.mark.parametrize("logits", [[1.0, -0.5, 0.5], [6.0, 0.0, -2.0]])
def test_seesaw_weighs_by_scores_above_a_floor_and_passes_no_gradient_through_them(logits):
    loss = losses.SeesawLoss(3, background=None).eval()
    loss.counts.copy_(torch.tensor([100, 10, 1]))
    x = torch.tensor([logits], requires_grad=True)
    score = x.detach().softmax(-1)[0]
    # Class 2 is true and the rarest, so nothing is mitigated; in the second row its score is below the floor.
    factors = torch.clamp(score / score[2].clamp(min=0.01), min=1.0) ** 2
    factors[2] = 1.0
    torch.testing.assert_close(loss.log_weights(x, torch.tensor([2]))[0], factors.log())
    value = loss(x, torch.tensor([2]))
    weighted = (x.detach() + factors.log()).softmax(-1)
    torch.testing.assert_close(value, -weighted[0, 2].log())
    value.backward()
    torch.testing.assert_close(x.grad, weighted - torch.tensor([[0.0, 0.0, 1.0]]))


def test_a_count_of_the_background_moves_its_logit():
    loss = losses.LogitAdjustedLoss([100, 10], background=0, background_count=890, tau=0.5)
    wanted = 0.5 * torch.tensor([890 / 110, 100 / 110, 10 / 110], dtype=torch.float64).log()
    torch.testing.assert_close(loss.shift, wanted)
    assert losses.LogitAdjustedLoss([100, 10], background=-1).shift[-1] == 0


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("mse", "Expected `loss` to be one of cross-entropy, focal"),
        ("seesaw:r=1", "Expected the options of the loss `seesaw` to be among p, q, eps, but got `r`."),
        ("seesaw:p=much", "Expected the option `p` of the loss to be a number, but got 'much'."),
        ("cross-entropy:p=1", "to be among none, but got `p`"),
    ],
)
def test_wrong_specifications_get_a_sentence(spec, sentence):
    with pytest.raises(InputError, match=sentence):
        parse_loss(spec)


def test_wrong_arguments_get_a_sentence():
    with pytest.raises(InputError, match=r"Expected `logits` to have shape \(N, 7\) for SeesawLoss of 5 classes"):
        build("seesaw")(torch.zeros(2, 6), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(InputError, match="Expected `counts` to be above 0, but got 0 for class 1"):
        losses.BalancedSoftmaxLoss([1, 0], background=None)
    with pytest.raises(InputError, match="Expected `reduction` to be one of"):
        losses.CrossEntropyLoss(2, background=0, reduction="median")
    with pytest.raises(InputError, match="Expected `counts` to know the number of images"):
        make_loss("eql", ClassCounts([1, 2]))
    with pytest.raises(InputError, match='Expected `margin` to be a number or "min"'):
        losses.OnlineLogitNormalizationLoss(2, background=0, margin="max")


def test_a_class_that_never_occurs_is_no_obstacle():
    counts = ClassCounts([10, 0], instance_counts=[10, 0], num_images=10)
    for name in LOSS_NAMES:
        loss = make_loss(name, counts)
        value = loss(torch.zeros(3, loss.layout.columns), torch.tensor([0, 1, 1]))
        assert torch.isfinite(value), name
    assert layout_of("bags", 7).layout.columns == 7 + 6
