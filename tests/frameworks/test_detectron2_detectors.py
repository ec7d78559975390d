"""Detectron2's detectors as a source of proposals, by a stand-in with its methods; nothing of its code is here.

What these methods are given and give follows its sources, on which the same was checked by hand.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from logn_research.datasets.glyphs.scenes import generate_glyph_scenes
from logn_research.datasets.glyphs.settings import GlyphSettings
from safetensors.torch import load_file
from torch import nn
from torchvision.ops import batched_nms, clip_boxes_to_image

import logn
from logn.cli.main import execute
from logn.errors import InputError
from logn.evaluate.models.detectron2 import Detectron2Detector
from logn.evaluate.store.store import PredictionStore

PAGE = Path(__file__).parents[2] / "docs/how-to/mmdetection.md"
CLASSES = 4
FEATURES = 8


class Resize:
    """An augmentation that doubles an image, as Detectron2's take and give arrays (H, W, C)."""

    def get_transform(self, image):
        return self

    def apply_image(self, image):
        return image.repeat(2, axis=0).repeat(2, axis=1)


class Boxes:
    def __init__(self, tensor):
        self.tensor = tensor


class Transform:
    def apply_deltas(self, deltas, boxes):
        return (boxes[:, None] + deltas.unflatten(1, (-1, 4)) * 5).flatten(1)


class FastRCNNOutputLayers(nn.Module):
    __module__ = "detectron2.modeling.roi_heads.fast_rcnn"

    def __init__(self, use_sigmoid_ce, agnostic):
        super().__init__()
        self.use_sigmoid_ce, self.box2box_transform = use_sigmoid_ce, Transform()
        self.cls_score = nn.Linear(FEATURES, CLASSES + 1)
        self.bbox_pred = nn.Linear(FEATURES, 4 if agnostic else 4 * CLASSES)
        self.test_score_thresh, self.test_nms_thresh, self.test_topk_per_image = 0.1, 0.4, 12

    def predict_boxes(self, predictions, proposals):
        (one,) = proposals
        return (self.box2box_transform.apply_deltas(predictions[1], one.proposal_boxes.tensor),)

    def inference(self, predictions, proposals):
        (boxes,) = self.predict_boxes(predictions, proposals)
        logits = predictions[0]
        scores = (logits.sigmoid() if self.use_sigmoid_ce else logits.softmax(-1))[:, :-1]
        boxes = clip_boxes_to_image(boxes.unflatten(1, (-1, 4)), proposals[0].image_size).expand(-1, CLASSES, 4)
        rows, labels = (scores > self.test_score_thresh).nonzero().unbind(1)
        kept = batched_nms(boxes[rows, labels], scores[rows, labels], labels, self.test_nms_thresh)
        rows, labels = (values[kept[: self.test_topk_per_image]] for values in (rows, labels))
        return boxes[rows, labels], scores[rows, labels], labels


class GeneralizedRCNN(nn.Module):
    __module__ = "detectron2.modeling.meta_arch.rcnn"
    input_format = "BGR"

    def __init__(self, use_sigmoid_ce=False, agnostic=False, cascade=False):
        super().__init__()
        self.backbone = nn.Linear(7, FEATURES)
        self.roi_heads = nn.Module()
        heads = [FastRCNNOutputLayers(use_sigmoid_ce, agnostic) for _ in range(3 if cascade else 1)]
        self.roi_heads.box_predictor = nn.ModuleList(heads) if cascade else heads[0]

    def forward(self, inputs):
        ((image, height, width),) = [(each["image"], each["height"], each["width"]) for each in inputs]
        inner = tuple(image.shape[-2:])
        corners = torch.rand(30, 2, generator=torch.Generator().manual_seed(2)) * torch.tensor(inner[::-1])
        boxes = torch.cat([corners, corners + 30], dim=1)
        colours = (image.mean(dim=(1, 2)) / 255).expand(30, 3)
        features = self.backbone(torch.cat([boxes / max(inner), colours], dim=1))
        predictor = self.roi_heads.box_predictor
        proposals = [SimpleNamespace(proposal_boxes=Boxes(boxes), image_size=inner)]
        found = predictor.inference((predictor.cls_score(features), predictor.bbox_pred(features)), proposals)
        return found[0] * torch.tensor([width / inner[1], height / inner[0]]).repeat(2), *found[1:]


class RetinaNet(nn.Module):
    __module__ = "detectron2.modeling.meta_arch.retinanet"
    anchors, input_format, centerness = 3, "RGB", False
    test_score_thresh, test_nms_thresh, max_detections_per_image, test_topk_candidates = 0.3, 0.5, 15, 10_000

    def __init__(self):
        super().__init__()
        self.num_classes, self.box2box_transform = CLASSES, Transform()
        self.head = nn.Module()
        self.head.cls_score = nn.Conv2d(3, self.anchors * CLASSES, 3, padding=1)
        self.head.bbox_pred = nn.Conv2d(3, self.anchors * 4, 3, padding=1)
        self.head.ctrness = nn.Conv2d(3, self.anchors, 3, padding=1)

    def anchor_generator(self, features):
        anchors = []
        for level in features:
            rows, columns, sizes = torch.meshgrid(*map(torch.arange, (*level.shape[-2:], self.anchors)), indexing="ij")
            corners = torch.stack([columns, rows], dim=-1).reshape(-1, 2) * 16.0
            anchors.append(Boxes(torch.cat([corners, corners + 20 + 8 * sizes.reshape(-1, 1)], dim=1)))
        return anchors

    def forward_inference(self, images, features, predictions):
        rows = [
            torch.cat([level[0].unflatten(0, (-1, width)).permute(2, 3, 0, 1).flatten(0, 2) for level in levels])
            for levels, width in zip(predictions, (CLASSES, 4, 1), strict=False)
        ]
        scores = rows[0].sigmoid()
        scores = (scores * rows[2].sigmoid()).sqrt() if self.centerness else scores
        places = torch.cat([level.tensor for level in self.anchor_generator(features)])
        boxes = self.box2box_transform.apply_deltas(rows[1], places)
        chosen, labels = (scores > self.test_score_thresh).nonzero().unbind(1)
        kept = batched_nms(boxes[chosen], scores[chosen, labels], labels, self.test_nms_thresh)
        kept = kept[: self.max_detections_per_image]
        return boxes[chosen[kept]], scores[chosen[kept], labels[kept]], labels[kept]

    def forward(self, inputs):
        (one,) = inputs
        image = one["image"][None] / 255
        features = [nn.functional.avg_pool2d(image, size) for size in (16, 32)]
        layers = [self.head.cls_score, self.head.bbox_pred, *([self.head.ctrness] if self.centerness else [])]
        predictions = [[layer(level) for level in features] for layer in layers]
        boxes, scores, labels = self.forward_inference([image], features, predictions)
        size = one["height"], one["width"]
        scale = torch.tensor([size[1] / image.shape[-1], size[0] / image.shape[-2]]).repeat(2)
        return clip_boxes_to_image(boxes * scale, size), scores, labels


class FCOS(RetinaNet):
    __module__ = "detectron2.modeling.meta_arch.fcos"
    anchors, centerness = 1, True


def predictor_of(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "cls_score" in name:
                parameter.normal_(std=2)
    return SimpleNamespace(model=model.eval(), aug=Resize(), input_format=model.input_format)


def own_detections(predictor):
    def own(image):
        picture = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        picture = picture[..., ::-1] if predictor.input_format == "BGR" else picture
        pixels = torch.from_numpy(predictor.aug.apply_image(picture).astype("float32").transpose(2, 0, 1).copy())
        height, width = image.shape[-2:]
        with torch.inference_mode():
            return predictor.model([{"image": pixels, "height": height, "width": width}])

    return own


@pytest.mark.parametrize(
    "build",
    [
        GeneralizedRCNN,
        lambda: GeneralizedRCNN(agnostic=True),
        lambda: GeneralizedRCNN(use_sigmoid_ce=True),
        RetinaNet,
        FCOS,
    ],
    ids=["faster", "agnostic", "sigmoid", "retinanet", "fcos"],
)
def test_decoded_proposals_are_the_detections_of_detectron2(build, same_detections, pictures):
    predictor = predictor_of(build())
    detector = Detectron2Detector(predictor)
    same_detections(detector, pictures, own_detections(predictor))
    found = detector.propose(pictures[:1])[0]
    assert found.num_columns == CLASSES + (detector.background is not None)
    assert (found.objectness is not None) == (build is FCOS)


def test_as_many_anchors_of_each_level_are_kept_as_the_model_looks_at(pictures):
    predictor = predictor_of(RetinaNet())
    everything = Detectron2Detector(predictor).propose(pictures[:1])[0]
    few = Detectron2Detector(predictor, anchors_per_level=5).propose(pictures[:1])[0]
    assert len(few.logits) == 10 < len(everything.logits)
    assert few.logits.max() == everything.logits.max()


def test_a_model_alone_is_asked_how_it_takes_images():
    predictor = predictor_of(GeneralizedRCNN())
    model = predictor.model
    with pytest.raises(
        InputError, match=r"`augmentation`, which resizes images, or a `DefaultPredictor`, but got a mo"
    ):
        logn.detector(model)
    found = logn.detector(model, augmentation=Resize(), class_names="abcd")
    assert isinstance(found, Detectron2Detector)
    assert found.class_names == ("a", "b", "c", "d")
    model.input_format = None
    with pytest.raises(
        InputError, match=r'`input_format`, the order of the colours, to be "BGR" or "RGB", but got None'
    ):
        logn.detector(model, augmentation=Resize())
    with pytest.raises(InputError, match=r"`class_names` to name the 4 classes, but got 2"):
        logn.detector(model, augmentation=Resize(), input_format="RGB", class_names=["a", "b"])
    with pytest.raises(InputError, match=r"a cascade of Detectron2 averages the probabilities of its stages"):
        logn.detector(GeneralizedRCNN(cascade=True), augmentation=Resize())
    assert np.isfinite(found.propose([torch.rand(3, 32, 48)])[0].boxes).all()


class DefaultPredictor:
    __module__ = "detectron2.engine.defaults"

    def __init__(self, names):
        torch.manual_seed(0)  # each command builds the model anew
        made = predictor_of(GeneralizedRCNN())
        self.model, self.aug, self.input_format = made.model, made.aug, made.input_format
        self.metadata = SimpleNamespace(thing_classes=names)


BUILD = """
import json, pathlib, runpy

def build():
    names = [category["name"] for category in json.loads(pathlib.Path("train.json").read_text())["categories"]]
    return runpy.run_path({here!r})["DefaultPredictor"](names)
"""


def test_the_commands_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "my_detector", raising=False)
    generate_glyph_scenes(tmp_path, GlyphSettings(classes=CLASSES, train=12, dev=2, test=4, size=64))
    (tmp_path / "test.json").rename(tmp_path / "val.json")
    (tmp_path / "my_detector.py").write_text(BUILD.format(here=__file__))
    page = PAGE.read_text(encoding="utf-8")
    block = re.search(r"```console\n(\$ logn predict my_detector.*?)```", page, re.DOTALL)[1]
    commands = [shlex.split(line.removeprefix("$ ")) for line in block.splitlines()]
    assert [command[1] for command in commands] == ["predict", "collect", "compare", "report"]
    for command in commands:
        assert execute(command[1:]) == 0
    sys.modules.pop("my_detector", None)
    store = PredictionStore("predictions")
    assert (len(store), store.header.background, store.header.num_classes) == (4, -1, CLASSES)
    assert (tmp_path / "comparison" / "report.html").is_file()


def test_the_first_command_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "my_detector", raising=False)
    generate_glyph_scenes(tmp_path, GlyphSettings(classes=CLASSES, train=12, dev=1, test=1, size=64))
    (tmp_path / "images").rename(tmp_path / "train")
    (tmp_path / "my_detector.py").write_text(BUILD.format(here=__file__))
    page = PAGE.read_text(encoding="utf-8")
    command = shlex.split(re.search(r"```console\n\$ (logn correct .*?)```", page, re.DOTALL)[1])
    assert execute([*command[1:], "--method", "logn"]) == 0  # random weights have no tail that asks for one
    sys.modules.pop("my_detector", None)
    weights = load_file("corrected.safetensors")
    before = DefaultPredictor(list("abcd")).model.state_dict()
    changed = {name for name, values in before.items() if not torch.equal(values, weights[name])}
    assert changed == {f"roi_heads.box_predictor.cls_score.{kind}" for kind in ("weight", "bias")}
