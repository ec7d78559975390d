"""The memory of features keeps the newest, draws weak classes more often, and jitters boxes inside the image."""

import pytest
import torch
from logn_research.losses.softmax import EquilibriumLoss
from logn_research.training.feature_memory import FeatureMemory, jittered_boxes
from logn_research.training.layers import ScaledLinear
from logn_research.training.regions import PLAIN, keep_true_regions

from logn.errors import InputError


def test_the_oldest_features_go_first_and_carry_no_gradient():
    memory = FeatureMemory(3, capacity=2)
    features = torch.arange(8.0).reshape(4, 2).requires_grad_()
    memory.add(features, torch.tensor([0, 2, 0, 0]))
    assert memory.features_of(0).tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert not memory.features_of(0).requires_grad
    assert (len(memory), len(memory.features_of(1))) == (3, 0)


def test_weak_classes_are_drawn_more_often_and_empty_ones_bring_nothing():
    torch.manual_seed(0)
    memory = FeatureMemory(3)
    memory.add(torch.arange(6.0)[:, None], torch.tensor([0, 0, 0, 0, 0, 2]))
    scores = torch.tensor([0.3, 0.1, 0.1])
    # The class of which nothing is kept takes its share of the draws, as in the reference.
    expected = torch.tensor([1 / 7, 3 / 7, 3 / 7], dtype=torch.float64)
    torch.testing.assert_close(memory.probabilities(scores), expected, rtol=0, atol=1e-6)
    drawn = memory.draw(scores, classes=3500, features_each=1)
    features, classes = drawn.features, drawn.classes
    assert abs(len(features) / 3500 - 4 / 7) < 0.03
    assert abs((classes == 2).double().mean().item() - 0.75) < 0.05
    assert set(features[classes == 0, 0].tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0}
    assert (features[classes == 2] == 5.0).all()


def test_features_are_drawn_with_repetition():
    memory = FeatureMemory(2)
    assert memory.draw(torch.tensor([0.5, 0.5])) is None
    memory.add(torch.arange(3.0)[:, None], torch.zeros(3, dtype=torch.int64))
    drawn = memory.draw(torch.tensor([1e-4, 1e4]), classes=2, features_each=4)
    assert drawn.features.shape == (8, 1)  # four of three that there are
    assert set(drawn.features[:, 0].tolist()) <= {0.0, 1.0, 2.0}
    assert drawn.offsets is None
    torch.manual_seed(0)
    memory.add(torch.tensor([[3.0]]), torch.zeros(1, dtype=torch.int64))
    rows = memory.draw(torch.tensor([1e-4, 1e4]), classes=2000, features_each=4).features.reshape(2000, 4)
    # Four draws of four features are all different in 4! of 4^4 cases.
    different = sum(len(set(row)) == 4 for row in rows.tolist())
    assert different / 2000 == pytest.approx(24 / 256, abs=0.03)


def test_a_class_brings_one_value_however_often_it_is_drawn():
    memory, loss = FeatureMemory(1), EquilibriumLoss(1, background=0)
    memory.add(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))
    drawn = memory.draw(loss.mean_score, classes=8)
    # Softmax 1/3 at the class of every drawn feature: 0.9 * 0.01 + 0.1 / 3, once.
    logits = torch.log(torch.tensor([[2.0, 1.0]])).repeat(len(drawn.classes), 1)
    loss(logits, drawn.classes + 1, drawn.instances)
    assert loss.mean_score.item() == pytest.approx(0.9 * 0.01 + 0.1 / 3, abs=1e-7)


def test_draws_of_two_classes_and_a_true_object_bring_three_values():
    loss = EquilibriumLoss(2, background=0)
    memory = FeatureMemory(2)
    memory.add(torch.zeros(2, 2), torch.tensor([0, 1]))
    torch.manual_seed(0)
    drawn = memory.draw(loss.mean_score, classes=8)
    assert set(drawn.classes.tolist()) == {0, 1}
    labels = torch.cat((torch.tensor([1]), drawn.classes + 1))
    instances = torch.cat((torch.tensor([0]), drawn.instances))
    loss(torch.zeros(len(labels), 3), labels, instances)
    kept = torch.tensor([0.9**2, 0.9], dtype=torch.float64)
    torch.testing.assert_close(loss.mean_score, kept * 0.01 + (1 - kept) / 3)


def test_every_pattern_of_directions_occurs_once_and_boxes_stay_inside():
    torch.manual_seed(0)
    box = torch.tensor([[30.0, 30.0, 60.0, 54.0], [0.0, 0.0, 100.0, 80.0]])
    moved = jittered_boxes(box, (80, 100))
    offset = moved[0] - box[0]
    assert len({tuple(row) for row in (offset > 0).int().tolist()}) == 16
    assert (offset.abs() <= torch.tensor([5.0, 4.0, 5.0, 4.0]) + 1e-4).all()
    assert (moved >= 0).all()
    assert (moved <= torch.tensor([100.0, 80.0, 100.0, 80.0])).all()
    assert jittered_boxes(torch.zeros(0, 4), (8, 8)).shape == (0, 16, 4)


def test_sixteen_regions_around_each_true_box_are_kept_under_its_class():
    memory = FeatureMemory(3)
    targets = [
        {"boxes": torch.tensor([[10.0, 10.0, 40.0, 30.0]]), "labels": torch.tensor([3])},
        {"boxes": torch.tensor([[5.0, 8.0, 25.0, 28.0], [30.0, 30.0, 60.0, 70.0]]), "labels": torch.tensor([1, 1])},
    ]
    # The regions themselves stand in for their features.
    keep_true_regions(memory, lambda features, boxes, shapes: torch.cat(boxes), {}, [(50, 50), (80, 80)], targets)
    assert [len(memory.features_of(place)) for place in range(3)] == [32, 0, 16]
    kept = memory.content()
    # What the box regression should answer leads from each region to its true box.
    true = torch.cat((targets[1]["boxes"], targets[0]["boxes"])).repeat_interleave(16, 0)
    torch.testing.assert_close(PLAIN.decode_single(kept["offsets"], kept["features"]), true, atol=1e-3, rtol=0)


def test_wrong_sizes_get_a_sentence():
    with pytest.raises(InputError, match="Expected `num_classes` and `capacity` to be at least 1"):
        FeatureMemory(0)


@pytest.mark.parametrize("bias", [True, False])
def test_of_a_scaled_classifier_the_scales_alone_are_trained(bias):
    torch.manual_seed(0)
    layer = ScaledLinear(torch.nn.Linear(4, 3, bias=bias))
    layer(torch.randn(5, 4)).sum().backward()
    assert layer.weight.grad is None
    assert layer.scale.grad is not None
