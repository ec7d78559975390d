"""A few classifiers, random weights: the recorded, attached and folded logits agree with the model's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from logn.models.locate import locate_logits
from logn.models.torch.attach import attach
from logn.models.torch.fold import fold
from logn.models.torch.record import record

CLASSIFIERS = {
    "resnet18": (64, {}),
    "vit_b_16": (32, {"image_size": 32}),
    "mobilenet_v3_small": (64, {}),
    "densenet121": (64, {}),
}


@torch.inference_mode()
def each_way(model, affine, inputs):
    """The moments of a run, and what the model returns as it is, with the map attached, and with it folded."""
    layer = locate_logits(model, num_columns=affine.num_columns)
    with record(model, layer) as moments:
        plain = model(inputs)
    with attach(model, layer, affine):
        attached = model(inputs)
    fold(model, layer, affine)
    return moments, plain, attached, model(inputs)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_torchvision_classifiers(map_of, name):
    size, options = CLASSIFIERS[name]
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, num_classes=7, **options).eval()
    if name == "vit_b_16":
        nn.init.normal_(model.heads.head.weight)  # it starts at zero
    affine = map_of(7)
    moments, plain, attached, folded = each_way(model, affine, torch.rand(6, 3, size, size))
    rows = plain.double().numpy()
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(moments.variance, rows.var(axis=0, ddof=1), atol=1e-6)
    np.testing.assert_allclose(attached, affine(plain), atol=1e-4, rtol=0)
    np.testing.assert_allclose(folded, affine(plain), atol=1e-4, rtol=0)


class Distilled(nn.Module):
    """As in timm's distilled DeiT: two heads, whose logits are averaged at test time."""

    def __init__(self):
        super().__init__()
        self.head, self.head_dist = nn.Linear(6, 3), nn.Linear(6, 3)

    def get_classifier(self):
        return self.head, self.head_dist

    def forward(self, features):
        return (self.head(features) + self.head_dist(features)) / 2


def test_two_heads_that_are_averaged_take_the_same_map(map_of):
    torch.manual_seed(0)
    affine = map_of(3)
    moments, plain, attached, folded = each_way(Distilled().eval(), affine, torch.rand(5, 6))
    assert moments.count.tolist() == [10.0] * 3
    np.testing.assert_allclose(moments.mean, plain.double().mean(dim=0), atol=1e-6)
    np.testing.assert_allclose(attached, affine(plain), atol=1e-5)
    np.testing.assert_allclose(folded, affine(plain), atol=1e-5)
