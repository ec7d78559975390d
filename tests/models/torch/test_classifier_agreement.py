"""A few classifiers, random weights: the recorded, attached and folded logits agree with the model's own.

`tests/models/frameworks/test_classifiers.py` has the other families.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

import logn


class Distilled(nn.Module):
    """As in timm's distilled DeiT: two heads, whose logits are averaged at test time."""

    def __init__(self):
        super().__init__()
        self.head, self.head_dist = nn.Linear(6, 7), nn.Linear(6, 7)

    def get_classifier(self):
        return self.head, self.head_dist

    def forward(self, features):
        return (self.head(features) + self.head_dist(features)) / 2


def transformer():
    model = torchvision.models.vit_b_16(num_classes=7, image_size=32)
    nn.init.normal_(model.heads.head.weight)  # it starts at zero
    return model


@pytest.mark.parametrize(
    ("build", "shape", "heads"),
    [
        (lambda: torchvision.models.resnet18(num_classes=7), (3, 64, 64), 1),
        (transformer, (3, 32, 32), 1),
        (Distilled, (6,), 2),
    ],
    ids=["ResNet", "ViT", "two heads"],
)
@torch.inference_mode()
def test_each_way(map_of, build, shape, heads):
    torch.manual_seed(0)
    with torch.inference_mode(False):
        model = build().eval()
    affine, inputs = map_of(7), torch.rand(6, *shape)
    layer = logn.locate_logits(model, num_columns=7)
    with logn.record(model, layer) as moments:
        plain = model(inputs)
    assert moments.count.tolist() == [6.0 * heads] * 7
    np.testing.assert_allclose(moments.mean, plain.double().mean(dim=0), atol=1e-6)
    if heads == 1:
        np.testing.assert_allclose(moments.variance, plain.double().numpy().var(axis=0, ddof=1), atol=1e-6)
    with logn.attach(model, layer, affine):
        np.testing.assert_allclose(model(inputs), affine(plain), atol=1e-4, rtol=0)
    logn.fold(model, layer, affine)
    np.testing.assert_allclose(model(inputs), affine(plain), atol=1e-4, rtol=0)
