"""Every torchvision detector, random weights: the recorded, attached and folded logits against torchvision's own."""

from __future__ import annotations

import copy
import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision
from torchvision.models.detection import ssd
from torchvision.models.vgg import make_layers

from logn.correction.calibrate import calibrate
from logn.models.layer import find_modules
from logn.models.locate import locate_logits

COLUMNS = 5
SMALL = {"min_size": 64, "max_size": 96}
# No box scores above 1, so that no time goes into masks and keypoints.
REGIONS = {**SMALL, "rpn_post_nms_top_n_test": 40, "box_score_thresh": 1.1}
DETECTORS = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": REGIONS,
    "maskrcnn_resnet50_fpn": REGIONS,
    "keypointrcnn_resnet50_fpn": REGIONS,
    "retinanet_resnet50_fpn": SMALL,
    "fcos_resnet50_fpn": SMALL,
    "ssd300_vgg16": {},
    "ssdlite320_mobilenet_v3_large": {},
}


def thin_vgg16(**_options):
    """The layers of VGG16 with few channels, but for those that the heads read."""
    return SimpleNamespace(features=make_layers([4, 4, "M", 8, 8, "M", 8, 8, 8, "M", 8, 8, 512, "M", 8, 8, 512, "M"]))


@functools.lru_cache(maxsize=1)
def original(name):
    torch.manual_seed(0)
    options = {"weights": None, "weights_backbone": None, "num_classes": COLUMNS, **DETECTORS[name]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssd, "vgg16", thin_vgg16)
        model = getattr(torchvision.models.detection, name)(**options).eval()
    with torch.no_grad():
        for module in find_modules(model, locate_logits(model)):
            # Larger than the initial weights, so that anchors and classes give clearly different logits.
            module.weight.normal_(std=0.05)
            module.bias.normal_()
    return model


def images():
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(3, 60 + 8 * index, 72, generator=generator) for index in range(2)]


@torch.inference_mode()
def torchvision_logits(model):
    """The logits as torchvision itself lays them out: (rows, columns)."""
    seen = []
    region_based = hasattr(model, "roi_heads")
    module = model.roi_heads.box_predictor if region_based else model.head
    handle = module.register_forward_hook(
        lambda module, inputs, output: seen.append(output[0] if region_based else output["cls_logits"])
    )
    model(images())
    handle.remove()
    assert len(seen) == 1
    return seen[0].reshape(-1, COLUMNS).numpy()


@pytest.mark.parametrize("name", DETECTORS)
def test_recorded_attached_and_folded_agree_with_torchvision(name, agreement):
    agreement(original(name), lambda model: [torchvision_logits(model)], rtol=1e-6)


@pytest.mark.parametrize("name", ["retinanet_resnet50_fpn", "ssdlite320_mobilenet_v3_large"])
def test_the_other_order_of_anchors_would_be_seen(name, class_map):
    model = original(name)
    layer, affine = locate_logits(model), class_map(COLUMNS)
    expected, wrong = affine(torchvision_logits(model)), copy.deepcopy(model)
    with torch.no_grad():
        for index, module in enumerate(find_modules(wrong, layer)):
            scale = torch.tensor(affine.scale).float().repeat_interleave(layer.anchors_of(index))
            shift = torch.tensor(affine.shift).float().repeat_interleave(layer.anchors_of(index))
            module.weight.mul_(scale[:, None, None, None])
            module.bias.mul_(scale).add_(shift)
    assert np.abs(torchvision_logits(wrong) - expected).max() > 1.0


@pytest.mark.parametrize("name", ["ssdlite320_mobilenet_v3_large", "fcos_resnet50_fpn"])
def test_calibrate_moves_the_means_together(name):
    model = copy.deepcopy(original(name))
    model.train()
    model.backbone.eval()
    targets = [{"boxes": torch.zeros(0, 4)}, {"boxes": torch.zeros(0, 4)}]
    calibration = calibrate(model, [(tuple(images()), targets)], method="logn", margin=0.0)
    assert model.training
    assert not model.backbone.training
    mapped = torchvision_logits(model.eval())
    np.testing.assert_allclose(mapped[:, 1:].mean(axis=0), 0.0, atol=1e-4)
    np.testing.assert_allclose(mapped[:, 1:].std(axis=0, ddof=1), 1.0, atol=1e-3)
    calibration.handle.remove()
    # Column 0 is the background of the one and never trained in the other: left alone in both.
    np.testing.assert_allclose(mapped[:, 0], torchvision_logits(model)[:, 0], atol=1e-6)
    assert (calibration.affine.scale[0], calibration.affine.shift[0]) == (1.0, 0.0)
