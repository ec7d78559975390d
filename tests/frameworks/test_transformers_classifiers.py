"""Tiny random image classifiers of Hugging Face: their last layer, whatever it is called."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logn.deploy.fold import fold
from logn.logits.layer import LogitLayer
from logn.logits.locate import locate_logits

hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")

LABELS = 5
WIDTHS = [8, 8, 16, 16]


def own_logits(model):
    """The logits that the model itself returns."""
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return [model(pixel_values=images)["logits"]]


def vit():
    config = hf.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=64, patch_size=16
    )
    config.num_labels = LABELS
    return hf.ViTForImageClassification(config), "classifier"


def deit():
    config = hf.DeiTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=64, patch_size=16
    )
    config.num_labels = LABELS
    return hf.DeiTForImageClassificationWithTeacher(config), ("cls_classifier", "distillation_classifier")


def resnet():
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=WIDTHS, depths=[1] * 4, layer_type="basic")
    config.num_labels = LABELS
    return hf.ResNetForImageClassification(config), "classifier.1"


def convnext():
    config = hf.ConvNextConfig(hidden_sizes=WIDTHS, depths=[1] * 4)
    config.num_labels = LABELS
    return hf.ConvNextForImageClassification(config), "classifier"


def textnet():
    return hf.TextNetForImageClassification(hf.TextNetConfig(num_labels=LABELS)), "fc"


def wrapped_resnet():
    pytest.importorskip("timm", reason="the extra `frameworks` is not installed")
    config = hf.TimmWrapperConfig(architecture="resnet18", num_labels=LABELS)
    return hf.TimmWrapperForImageClassification(config), "timm_model.fc"


@pytest.mark.parametrize("build", [vit, resnet, convnext, textnet, wrapped_resnet], ids=lambda build: build.__name__)
def test_image_classifiers(build, agreement, spread):
    torch.manual_seed(0)
    model, path = build()
    spread(model.eval(), locate_logits(model))
    layer, _ = agreement(model, own_logits)
    assert layer == LogitLayer(path, class_axis=-1, population="images")


def test_the_two_heads_of_deit_share_one_map(class_map, spread):
    torch.manual_seed(0)
    model, paths = deit()
    layer = locate_logits(model.eval())
    assert layer.paths == paths
    spread(model, layer)
    affine, plain = class_map(LABELS), own_logits(model)[0]
    fold(model, layer, affine)
    np.testing.assert_allclose(own_logits(model)[0], affine(plain), atol=1e-4)


def test_the_configuration_tells_the_activation_where_it_names_the_problem():
    model, _ = vit()
    assert locate_logits(model).activation is None
    model.config.problem_type = "single_label_classification"
    assert locate_logits(model).activation == "softmax"
    model.config.problem_type = "multi_label_classification"
    assert locate_logits(model).activation == "sigmoid"


def test_a_wrapped_classifier_of_several_labels_has_a_sigmoid():
    model, _ = wrapped_resnet()
    model.config.problem_type = "multi_label_classification"
    assert locate_logits(model).activation == "sigmoid"
