"""The memory of features keeps the newest, draws weak classes more often, and jitters boxes inside the image."""

import pytest
import torch

from logn.errors import InputError
from logn.training.classifiers.scaled_classifier import ScaledLinear
from logn.training.detectors.feature_memory import FeatureMemory, jittered_boxes


def test_the_oldest_features_go_first_and_carry_no_gradient():
    memory = FeatureMemory(3, capacity=2)
    features = torch.arange(8.0).reshape(4, 2).requires_grad_()
    memory.add(features, torch.tensor([0, 2, 0, 0]))
    assert memory.features_of(0).tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert not memory.features_of(0).requires_grad
    assert (len(memory), len(memory.features_of(1))) == (3, 0)


def test_weak_classes_are_drawn_more_often_and_empty_ones_never():
    torch.manual_seed(0)
    memory = FeatureMemory(3)
    memory.add(torch.arange(6.0)[:, None], torch.tensor([0, 0, 0, 0, 0, 2]))
    scores = torch.tensor([0.3, 0.01, 0.1])
    torch.testing.assert_close(memory.probabilities(scores), torch.tensor([0.25, 0.0, 0.75], dtype=torch.float64))
    drawn = memory.draw(scores, classes=2000, features_each=1)
    features, classes = drawn.features, drawn.classes
    assert features.shape == (2000, 1)
    assert abs((classes == 2).double().mean().item() - 0.75) < 0.05
    assert set(features[classes == 0, 0].tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0}
    assert (features[classes == 2] == 5.0).all()


def test_a_draw_takes_different_features_as_far_as_there_are():
    memory = FeatureMemory(1)
    assert memory.draw(torch.tensor([0.5])) is None
    memory.add(torch.arange(3.0)[:, None], torch.zeros(3, dtype=torch.int64))
    drawn = memory.draw(torch.tensor([0.5]), classes=2, features_each=4)
    assert sorted(drawn.features[:3, 0].tolist()) == [0.0, 1.0, 2.0]
    assert (drawn.instances - drawn.instances[0]).tolist() == [0, 0, 0, 1, 1, 1]  # two draws, one value each
    assert drawn.offsets is None


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


def test_wrong_sizes_get_a_sentence():
    with pytest.raises(InputError, match="Expected `num_classes` and `capacity` to be at least 1"):
        FeatureMemory(0)


@pytest.mark.parametrize("scale_bias", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_scaled_classifier_merges_into_an_ordinary_one(scale_bias, bias):
    torch.manual_seed(0)
    layer = ScaledLinear(torch.nn.Linear(4, 3, bias=bias), scale_bias=scale_bias)
    layer.scale.data.copy_(torch.tensor([0.5, 1.0, 2.0]))
    features = torch.randn(5, 4)
    torch.testing.assert_close(layer.merged()(features), layer(features))
    layer(features).sum().backward()
    assert layer.weight.grad is None
    assert layer.scale.grad is not None
