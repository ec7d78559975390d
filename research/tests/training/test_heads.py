"""The normalised layers give the reference numbers, and fold a per-class affine map exactly."""

import numpy as np
import pytest
import torch
from logn_research.training.layers import BoxPredictor, MaskPredictor, NormedConv2d, NormedLinear, class_layer

from logn.errors import InputError

WEIGHT = torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 0.5]])
BIAS = torch.tensor([0.1, 0.2, 0.3])
FEATURE = torch.tensor([[1.0, 2.0]])


def filled(layer):
    layer.weight.data.copy_(WEIGHT.reshape(layer.weight.shape))
    layer.bias.data.copy_(BIAS)
    return layer


@pytest.mark.parametrize(
    ("power", "expected"),
    [(1.0, [19.777388, 19.877373, 18.188499]), (0.5, [65.895271, 29.624527, 19.214790])],
)
def test_normed_layers_match_the_reference_numbers(power, expected):
    linear = filled(NormedLinear(2, 3, temperature=20.0, power=power))
    conv = filled(NormedConv2d(2, 3, temperature=20.0, power=power))
    np.testing.assert_allclose(linear(FEATURE)[0].detach(), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(conv(FEATURE[:, :, None, None])[0, :, 0, 0].detach(), expected, rtol=0, atol=1e-5)


def test_normed_layers_survive_zero_features():
    assert torch.isfinite(filled(NormedLinear(2, 3))(torch.zeros(1, 2))).all()


def test_a_per_class_map_folds_into_temperature_and_bias():
    layer = filled(NormedLinear(2, 3))
    scale, shift = torch.tensor([0.5, 2.0, 1.5]), torch.tensor([1.0, -2.0, 0.25])
    wanted = layer(FEATURE) * scale + shift
    layer.temperature.mul_(scale)
    layer.bias.data.mul_(scale).add_(shift)
    torch.testing.assert_close(layer(FEATURE), wanted)


def test_the_temperature_is_saved_but_not_trained():
    layer = NormedLinear(4, 3, temperature=7.0)
    assert {name for name, _ in layer.named_parameters()} == {"weight", "bias"}
    assert layer.state_dict()["temperature"].tolist() == [7.0] * 3


def test_unknown_classifier_is_refused():
    with pytest.raises(InputError, match="Expected `classifier` to be one of"):
        class_layer("tree", 2, 3, temperature=1.0)


@pytest.mark.parametrize(("agnostic", "width"), [(True, 4), (False, 16)])
def test_box_predictor_widths(agnostic, width):
    predictor = BoxPredictor(8, 3, classifier="cosine", temperature=20.0, class_agnostic=agnostic)
    logits, offsets = predictor(torch.randn(5, 8))
    assert (logits.shape, offsets.shape) == ((5, 4), (5, width))


@pytest.mark.parametrize("classifier", ["linear", "cosine"])
def test_mask_predictor_doubles_the_resolution(classifier):
    predictor = MaskPredictor(8, 4, 3, classifier=classifier, temperature=20.0)
    assert predictor(torch.randn(2, 8, 14, 14)).shape == (2, 3, 28, 28)
    assert isinstance(predictor.mask_fcn_logits, NormedConv2d) == (classifier == "cosine")


@pytest.mark.parametrize("classifier", ["linear", "cosine"])
def test_masks_of_chosen_classes_equal_those_of_all_classes_with_gradients(classifier):
    torch.manual_seed(0)
    predictor = MaskPredictor(8, 4, 5, classifier=classifier, temperature=20.0)
    features, columns = torch.randn(3, 8, 7, 7), torch.tensor([4, 1, 4])
    every = predictor(features)[torch.arange(3), columns]
    chosen = predictor(features, columns)
    torch.testing.assert_close(chosen, every, atol=1e-4, rtol=1e-4)
    weights = list(predictor.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(chosen.square().sum(), weights),
        torch.autograd.grad(every.square().sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-2, rtol=1e-3)
