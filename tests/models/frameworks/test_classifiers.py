"""A walk over the classifiers that people use: the layer whose logits the model returns is found, or it is refused.

Random weights, small images. That the layer is the right one is shown by a random map: attached to the layer, it maps
what the model returns. Of each kind of head some are recorded and folded as well.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torchvision

from logn.errors import InputError
from logn.models.frameworks.classifiers import classifier_layer
from logn.models.layer import find_modules
from logn.models.locate import locate_logits
from logn.models.output_check import OutputCheck
from logn.models.torch.attach import attach
from logn.models.torch.fold import fold
from logn.models.torch.record import record

timm = pytest.importorskip("timm", reason="the extra `frameworks` is not installed")
hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")

CLASSES = 7
# name: the layer, the size of the images, the options that make it small
TORCHVISION = {
    "resnet18": ("fc", 64, {}),
    "mobilenet_v2": ("classifier.1", 64, {}),
    "mobilenet_v3_small": ("classifier.3", 64, {}),
    "efficientnet_b0": ("classifier.1", 64, {}),
    "regnet_y_400mf": ("fc", 64, {}),
    "densenet121": ("classifier", 64, {}),
    "shufflenet_v2_x0_5": ("fc", 64, {}),
    "inception_v3": ("fc", 80, {"init_weights": False}),
    "googlenet": ("fc", 64, {"init_weights": False}),
    "convnext_tiny": ("classifier.2", 64, {}),
    "swin_t": ("head", 64, {}),
    "vit_b_16": ("heads.head", 32, {"image_size": 32}),
}
TIMM = {
    "resnet18": ("fc", 64, {}),
    "efficientnet_b0": ("classifier", 64, {}),
    "mobilenetv3_small_050": ("classifier", 64, {}),
    "regnetx_002": ("head.fc", 64, {}),
    "vit_tiny_patch16_224": ("head", 32, {"img_size": 32, "depth": 1}),
    "vit_small_patch14_dinov2": ("head", 28, {"img_size": 28, "depth": 1}),
    "beit_base_patch16_224": ("head", 32, {"img_size": 32, "depth": 1, "embed_dim": 48, "num_heads": 2}),
    "eva02_tiny_patch14_224": ("head", 28, {"img_size": 28, "depth": 1}),
    "deit_tiny_distilled_patch16_224": (("head", "head_dist"), 32, {"img_size": 32, "depth": 1}),
    "levit_128s": (("head.linear", "head_dist.linear"), 224, {}),
    "crossvit_tiny_240": (("head.0", "head.1"), 240, {"depth": ((1, 1, 0),)}),
    "repvit_m0_9": (("head.head.l", "head.head_dist.l"), 64, {}),
    "swin_tiny_patch4_window7_224": ("head.fc", 64, {"img_size": 64, "window_size": 2, "depths": (1, 1, 1, 1)}),
    "convnext_atto": ("head.fc", 64, {}),
    "mixer_s32_224": ("head", 64, {"img_size": 64}),
    "poolformer_s12": ("head.fc", 64, {}),
    "mobilevit_xxs": ("head.fc", 64, {}),
    "maxvit_rmlp_pico_rw_256": ("head.fc", 64, {"img_size": 64}),
    "resnetv2_50x1_bit": ("head.fc", 64, {"channels": (128,) * 4, "stem_chs": 32}),
}
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
PATCHES = {**SMALL, "image_size": 64, "patch_size": 16}
WIDTHS = [8, 8, 16, 16]
TRANSFORMERS = {
    "ViT": ("classifier", PATCHES),
    "DeiT": ("classifier", PATCHES),
    "Beit": ("classifier", PATCHES),
    "Dinov2": ("classifier", {**PATCHES, "mlp_ratio": 1}),
    "CLIP": ("classifier", {"vision_config": {**PATCHES, "projection_dim": 16}}),
    "Siglip": ("classifier", {"vision_config": PATCHES}),
    "Swin": ("classifier", {"image_size": 64, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}),
    "ConvNext": ("classifier", {"hidden_sizes": WIDTHS, "depths": [1] * 4}),
    "ResNet": ("classifier.1", {"embedding_size": 8, "hidden_sizes": WIDTHS, "depths": [1] * 4, "layer_type": "basic"}),
    "RegNet": ("classifier.1", {"embedding_size": 8, "hidden_sizes": WIDTHS, "depths": [1] * 4, "groups_width": 8}),
    "MobileNetV2": ("classifier", {"depth_multiplier": 0.35}),
    "MobileViT": ("classifier", {"hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8] * 6 + [16], "image_size": 64}),
    "PoolFormer": ("classifier", {"hidden_sizes": WIDTHS, "depths": [1] * 4}),
    "Segformer": ("classifier", {"hidden_sizes": WIDTHS, "depths": [1] * 4, "num_attention_heads": [1] * 4}),
    "TextNet": ("fc", {}),
    "TimmWrapper": ("timm_model.fc", {"architecture": "resnet18"}),
}
RECORDED = [
    *("vit_tiny_patch16_224", "efficientnet_b0", "convnext_atto", "resnetv2_50x1_bit", "mobilenetv3_small_050"),
    *("ViT", "ResNet", "ConvNext", "TextNet", "TimmWrapper"),
]


def pictures(size):
    return torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(1))


def logits_of(returned):
    return returned if isinstance(returned, torch.Tensor) else returned["logits"]


@pytest.fixture
def walk(spread, class_map, agreement):
    """Find the layer with and without images, compare it with what the model returns, and map it."""

    def check(name, model, images, path):
        spread(model, classifier_layer(model, (path,) if isinstance(path, str) else path))  # some heads start at zero
        layer = locate_logits(model.eval())
        kind = type(find_modules(model, layer)[0]).__name__
        kinds = {"Conv2d": (1, "image locations")}
        assert (layer.path, layer.activation, layer.background) == (path, None, None)
        assert (layer.class_axis, layer.population) == kinds.get(kind, (-1, "images"))
        with warnings.catch_warnings(), torch.inference_mode(), OutputCheck(model, layer) as output:
            warnings.simplefilter("error")
            plain = logits_of(model(images))
        assert output.agreement.agrees
        assert locate_logits(model, inputs=images) == layer
        affine = class_map(CLASSES)
        with torch.inference_mode(), attach(model, layer, affine):
            np.testing.assert_allclose(logits_of(model(images)), affine(plain), atol=1e-3)
        if name in RECORDED:
            agreement(model, lambda model: [logits_of(model(images))])
        elif isinstance(path, tuple):
            fold(model, layer, affine)
            with torch.inference_mode():
                np.testing.assert_allclose(logits_of(model(images)), affine(plain), atol=1e-3)

    torch.manual_seed(0)
    return check


@pytest.mark.parametrize("name", TORCHVISION)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_torchvision(name, walk):
    path, size, options = TORCHVISION[name]
    walk(name, torchvision.models.get_model(name, num_classes=CLASSES, **options), pictures(size), path)


@pytest.mark.parametrize("name", TIMM)
def test_timm(name, walk):
    path, size, options = TIMM[name]
    walk(name, timm.create_model(name, num_classes=CLASSES, **options), pictures(size), path)


def transformers_model(name, **changes):
    config = getattr(hf, f"{name}Config")(**TRANSFORMERS[name][1])
    config.num_labels = CLASSES
    for key, value in changes.items():
        setattr(config, key, value)
    return getattr(hf, f"{name}ForImageClassification")(config)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name, walk):
    walk(name, transformers_model(name), pictures(64), TRANSFORMERS[name][0])


@pytest.mark.parametrize("name", ["ViT", "TimmWrapper"])
def test_the_configuration_tells_the_activation_where_it_names_the_problem(name):
    for problem, activation in (("single_label", "softmax"), ("multi_label", "sigmoid")):
        model = transformers_model(name, problem_type=f"{problem}_classification")
        assert locate_logits(model).activation == activation


def test_the_two_heads_of_deit_with_a_teacher_share_one_map(class_map, spread):
    torch.manual_seed(0)
    config = hf.DeiTConfig(**PATCHES)
    config.num_labels = CLASSES
    model = hf.DeiTForImageClassificationWithTeacher(config).eval()
    layer = locate_logits(model)
    assert layer.paths == ("cls_classifier", "distillation_classifier")
    spread(model, layer)
    affine, images = class_map(CLASSES), pictures(64)
    with torch.inference_mode():
        plain = model(images)["logits"]
        fold(model, layer, affine)
        np.testing.assert_allclose(model(images)["logits"], affine(plain), atol=1e-4)


def test_both_heads_of_a_distilled_transformer_are_recorded(spread):
    torch.manual_seed(0)
    _, size, options = TIMM["deit_tiny_distilled_patch16_224"]
    model = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=CLASSES, **options).eval()
    layer, images = locate_logits(model), pictures(size)
    spread(model, layer)
    with torch.inference_mode():
        with record(model, layer) as moments:
            model(images)
        features = model.forward_features(images)
        by_hand = torch.cat([model.head(features[:, 0]), model.head_dist(features[:, 1])]).double()
    np.testing.assert_allclose(moments.mean, by_hand.mean(dim=0), atol=1e-5)
    np.testing.assert_allclose(moments.variance, by_hand.var(dim=0), rtol=1e-4)


def test_volo_adds_its_second_head_and_is_refused():
    model = timm.create_model("volo_d1_224", num_classes=CLASSES, img_size=64).eval()
    for options in ({}, {"inputs": pictures(64)}):
        with pytest.raises(InputError, match="`head`"):
            locate_logits(model, **options)


def test_a_renamed_layer_is_named_in_the_message():
    model = timm.create_model("test_vit", num_classes=CLASSES)
    model.labels, model.head = model.head, torch.nn.Identity()
    with pytest.raises(InputError, match="labels"):
        locate_logits(model, num_columns=CLASSES)
