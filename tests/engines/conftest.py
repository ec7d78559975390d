"""Models with random weights that find things, and the functions of the example that put them into engines."""

from __future__ import annotations

import copy
import os
import runpy
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from logn.methods.affine import ClassAffine
from logn.models.layer import count_columns, find_modules
from logn.models.locate import locate_logits
from logn.models.torch.fold import fold
from logn.statistics.head import Head

os.environ.setdefault("YOLO_OFFLINE", "true")
os.environ.setdefault("YOLO_AUTOINSTALL", "false")
os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp(prefix="yolo-settings-"))
EXAMPLE = Path(__file__).parents[2] / "examples" / "engines.py"
CLASSES = 6


class SSDHeads(nn.Module):
    """The network of a torchvision SSD: class logits and box offsets of all anchors, before any are chosen."""

    def __init__(self, detector):
        super().__init__()
        self.detector = detector

    def forward(self, images):
        heads = self.detector.head(list(self.detector.backbone(images).values()))
        return heads["cls_logits"], heads["bbox_regression"]


def classifier():
    import torchvision

    return torchvision.models.mobilenet_v3_small(num_classes=CLASSES), 64, lambda model: model


def ssdlite():
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    return ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=CLASSES), 96, SSDHeads


def yolo():
    from ultralytics.nn import tasks

    model = tasks.DetectionModel("yolov8n.yaml", nc=CLASSES, verbose=False).requires_grad_(False)
    head = model.model[-1]
    head.export, head.format = True, "onnx"
    return model, 64, lambda model: model


def settle(network, images):
    """Set the running statistics of every BatchNorm to those of the images: else signals die out on the way."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    with torch.inference_mode():
        for _ in range(2):
            network(images)
    network.eval()


def spread_out(model, layer, run):
    """Standardise the logits of every channel over the anchors of the images, so that classes and places differ."""
    modules = list(dict.fromkeys(find_modules(model, layer)))
    with torch.no_grad():
        for place, module in enumerate(modules):
            seen = []
            hook = module.register_forward_hook(lambda module, inputs, output, seen=seen: seen.append(output))
            run()
            hook.remove()
            rows = seen[0].transpose(0, 1).flatten(1)
            spread = rows.std(dim=1).clamp(min=1e-6)
            goal = torch.linspace(-1.5, 1.0, len(rows)).roll(place)
            module.weight.div_(spread.reshape(-1, *[1] * (module.weight.dim() - 1)))
            module.bias.sub_(rows.mean(dim=1)).div_(spread).add_(goal)


@pytest.fixture(scope="session", params=["classifier", "ssdlite", "yolo"])
def pair(request):
    """A network, the same with a map folded in, the map, and images."""
    torch.manual_seed(0)
    model, size, network_of = {"classifier": classifier, "ssdlite": ssdlite, "yolo": yolo}[request.param]()
    network = network_of(model).eval()
    images = torch.nn.functional.interpolate(torch.rand(4, 3, 8, 8), size, mode="bilinear")
    settle(network, images)
    layer = locate_logits(model)
    spread_out(model, layer, lambda: network(images))
    generator = np.random.default_rng(0)
    columns = count_columns(model, layer)
    scale, shift = generator.uniform(0.5, 2.0, columns), generator.normal(size=columns)
    if layer.background is not None:
        scale[layer.background], shift[layer.background] = 1.0, 0.0
    affine = ClassAffine(scale, shift, head=Head(background=layer.background))
    copied = copy.deepcopy(model)
    fold(copied, layer, affine)
    corrected = network_of(copied).eval()
    with torch.no_grad():  # a YOLO makes its anchors in the first run at a size, which is no part of what is exported
        network(images[:1])
        corrected(images[:1])
    return SimpleNamespace(
        kind=request.param,
        network=network,
        corrected=corrected,
        affine=affine,
        images=images[:1],
        calibration=list(images.split(1)),
    )


@pytest.fixture(scope="session", params=["OpenVINO", "LiteRT", "onnxruntime"])
def engine(request):
    """How a model gets into the engine, by the example: `(export, suffix)`."""
    found = runpy.run_path(str(EXAMPLE))["ENGINES"][request.param]
    return SimpleNamespace(name=request.param, export=found[0], suffix=found[1])
