"""timm's models: the classifier that they name, Linear or Conv, and the two heads of a distilled transformer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logn.deploy.attach import attach
from logn.deploy.fold import fold
from logn.errors import InputError
from logn.logits.locate import locate_logits
from logn.statistics.record import record

timm = pytest.importorskip("timm", reason="the extra `frameworks` is not installed")

CLASSES = 7
# name, size of the images, path, class axis
MODELS = {
    "test_vit": (160, "head", -1),
    "test_efficientnet": (160, "classifier", -1),
    "test_convnext": (160, "head.fc", -1),
    "resnetv2_50": (64, "head.fc", 1),
    "mobilenetv3_small_050": (64, "classifier", -1),
}


def own_logits_of(size):
    images = torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(1))
    return lambda model: [model(images)]


@pytest.mark.parametrize("name", MODELS)
def test_recorded_attached_and_folded_agree_with_the_model(name, agreement, spread):
    size, path, axis = MODELS[name]
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=CLASSES).eval()
    spread(model, locate_logits(model))
    layer, _ = agreement(model, own_logits_of(size))
    assert (layer.path, layer.class_axis, layer.background, layer.activation) == (path, axis, None, None)


def distilled(spread):
    torch.manual_seed(0)
    model = timm.create_model(
        "deit_tiny_distilled_patch16_224", num_classes=CLASSES, img_size=32, embed_dim=48, depth=1, num_heads=2
    ).eval()
    spread(model, locate_logits(model))
    return model


def test_the_two_heads_of_a_distilled_transformer_are_averaged(spread, class_map):
    model = distilled(spread)
    layer = locate_logits(model)
    assert layer.paths == ("head", "head_dist")
    images, affine = torch.rand(6, 3, 32, 32), class_map(CLASSES)
    assert not model.distilled_training
    with torch.inference_mode():
        with record(model, layer) as moments:
            plain = model(images)
        features = model.forward_features(images)
        by_hand = torch.cat([model.head(features[:, 0]), model.head_dist(features[:, 1])]).double()
        np.testing.assert_allclose(moments.mean, by_hand.mean(dim=0), atol=1e-5)
        np.testing.assert_allclose(moments.variance, by_hand.var(dim=0), rtol=1e-4)
        with attach(model, layer, affine):
            np.testing.assert_allclose(model(images), affine(plain), atol=1e-4)
        fold(model, layer, affine)
        np.testing.assert_allclose(model(images), affine(plain), atol=1e-4)


def test_a_renamed_layer_is_named_in_the_message():
    model = timm.create_model("test_vit", num_classes=CLASSES)
    model.labels, model.head = model.head, torch.nn.Identity()
    with pytest.raises(InputError) as caught:
        locate_logits(model, num_columns=CLASSES)
    assert 'logn.LogitLayer("labels", background=None)' in str(caught.value)
    assert "labels (Linear, 7)" in str(caught.value)
