"""Detectron2 by a stand-in: modules with its class names, attributes, paths and methods, since it cannot be installed.

What they do with the logits, and what their methods are given and give, follows its sources, on which the same was
checked by hand; nothing of its code is here.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torchvision.ops import batched_nms, clip_boxes_to_image

import logn
from logn.errors import InputError
from logn.models.frameworks.detectron2 import Detectron2Detector
from logn.models.locate import locate_logits
from logn.models.torch.attach import attach
from logn.models.torch.fold import fold
from logn.predictions.store import PredictionStore

NAMES = ("cup", "fork", "bed", "cat")
CLASSES = len(NAMES)
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
        return (self.box2box_transform.apply_deltas(predictions[1], proposals[0].proposal_boxes.tensor),)

    def predict_probs(self, logits):
        return (logits.sigmoid() if self.use_sigmoid_ce else logits.softmax(-1))[:, :-1]

    def inference(self, predictions, proposals):
        (boxes,) = self.predict_boxes(predictions, proposals)
        scores = self.predict_probs(predictions[0])
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
        self.proposal_generator = nn.ModuleDict({"objectness_logits": nn.Conv2d(FEATURES, 3, 1)})
        self.roi_heads = nn.Module()
        heads = [FastRCNNOutputLayers(use_sigmoid_ce, agnostic) for _ in range(3 if cascade else 1)]
        self.roi_heads.box_predictor = nn.ModuleList(heads) if cascade else heads[0]
        self.roi_heads.mask_head = nn.Conv2d(FEATURES, CLASSES, 1)

    def forward(self, inputs):
        ((image, height, width),) = [(each["image"], each["height"], each["width"]) for each in inputs]
        inner = tuple(image.shape[-2:])
        corners = torch.rand(30, 2, generator=torch.Generator().manual_seed(2)) * torch.tensor(inner[::-1])
        boxes = torch.cat([corners, corners + 30], dim=1)
        colours = (image.mean(dim=(1, 2)) / 255).expand(30, 3)
        features = self.backbone(torch.cat([boxes / max(inner), colours], dim=1))
        predictor = self.roi_heads.box_predictor
        if isinstance(predictor, nn.ModuleList):
            scores = [head.cls_score(features + stage) for stage, head in enumerate(predictor)]
            self.logits = [rows.numpy(force=True) for rows in scores]
            pairs = zip(predictor, scores, strict=True)
            return torch.stack([head.predict_probs(rows) for head, rows in pairs]).mean(dim=0)
        proposals = [SimpleNamespace(proposal_boxes=Boxes(boxes), image_size=inner)]
        predictions = predictor.cls_score(features), predictor.bbox_pred(features)
        self.logits = [predictions[0].numpy(force=True)]
        found = predictor.inference(predictions, proposals)
        return found[0] * torch.tensor([width / inner[1], height / inner[0]]).repeat(2), *found[1:]


class RetinaNet(nn.Module):
    __module__ = "detectron2.modeling.meta_arch.retinanet"
    anchors, input_format, centerness = 3, "RGB", False
    test_score_thresh, test_nms_thresh, max_detections_per_image, test_topk_candidates = 0.3, 0.5, 15, 10_000

    def __init__(self):
        super().__init__()
        self.num_classes, self.box2box_transform = CLASSES, Transform()
        self.head = nn.Module()
        for name, width in (("cls_score", CLASSES), ("bbox_pred", 4), ("ctrness", 1)):
            self.head.add_module(name, nn.Conv2d(3, self.anchors * width, 3, padding=1))

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
        self.logits = [rows[0].numpy(force=True)]
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


MODELS = {
    "faster": GeneralizedRCNN,
    "agnostic": lambda: GeneralizedRCNN(agnostic=True),
    "sigmoid": lambda: GeneralizedRCNN(use_sigmoid_ce=True),
    "cascade": lambda: GeneralizedRCNN(cascade=True),
    "retinanet": RetinaNet,
    "fcos": FCOS,
}


def predictor_of(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "cls_score" in path:
                parameter.normal_(std=2)
    return SimpleNamespace(model=model.eval(), aug=Resize(), input_format=model.input_format)


def outputs(model):
    image = 255 * torch.rand(3, 64, 96, generator=torch.Generator().manual_seed(1))
    return model([{"image": image, "height": 64, "width": 96}])


def own_logits(model):
    outputs(model)
    return model.logits


REGIONS = "roi_heads.box_predictor.cls_score"


@pytest.mark.parametrize(
    ("name", "path", "background", "activation", "population"),
    [
        ("faster", REGIONS, -1, "softmax", "test proposals"),
        ("cascade", REGIONS.replace("cls", "0.cls"), -1, "softmax", "test proposals"),
        ("retinanet", "head.cls_score", None, "sigmoid", "all anchors"),
    ],
)
def test_recorded_attached_and_folded_agree_with_the_model(name, path, background, activation, population, agreement):
    model = predictor_of(name).model
    layer, _ = agreement(model, own_logits)
    assert (layer.paths[0], layer.background, layer.activation) == (path, background, activation)
    assert (layer.population, layer.num_stages) == (population, 3 if name == "cascade" else 1)
    assert (layer.anchors, layer.class_axis) == ((3, 1) if name == "retinanet" else (1, -1))
    outer = nn.Module()
    outer.teacher = model
    assert locate_logits(outer).paths[0] == f"teacher.{path}"


def test_sigmoid_heads_have_a_last_column_that_is_never_trained(agreement, class_map):
    model = predictor_of("sigmoid").model
    layer, folded = agreement(model, lambda model: [rows[:, :CLASSES] for rows in own_logits(model)])
    assert (layer.background, layer.activation, layer.extra_columns) == (None, "sigmoid", 1)
    # It stays as it was.
    np.testing.assert_allclose(own_logits(folded)[0][:, -1], own_logits(model)[0][:, -1], atol=1e-6)
    with torch.no_grad(), attach(model, layer, class_map(CLASSES)):
        np.testing.assert_allclose(outputs(model)[1], outputs(folded)[1], atol=1e-5)


def test_cascade_averages_the_probabilities_of_its_stages(class_map):
    model = predictor_of("cascade").model
    maps = [class_map(CLASSES + 1, -1, seed) for seed in range(3)]
    with torch.no_grad():
        plain = [torch.from_numpy(rows) for rows in own_logits(model)]
        fold(model, locate_logits(model), maps)
        probabilities = outputs(model)
    expected = torch.stack([affine(rows).softmax(dim=-1) for affine, rows in zip(maps, plain, strict=True)]).mean(dim=0)
    np.testing.assert_allclose(probabilities, expected[:, :-1], atol=1e-5)


def test_a_renamed_layer_is_not_guessed(refusal):
    refusal(GeneralizedRCNN(), CLASSES + 1)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "cascade"])
def test_decoded_proposals_are_the_detections_of_detectron2(name, same_detections, pictures):
    predictor = predictor_of(name)

    def own(image):
        picture = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        picture = picture[..., ::-1] if predictor.input_format == "BGR" else picture
        pixels = torch.from_numpy(predictor.aug.apply_image(picture).astype("float32").transpose(2, 0, 1).copy())
        height, width = image.shape[-2:]
        with torch.inference_mode():
            return predictor.model([{"image": pixels, "height": height, "width": width}])

    detector = Detectron2Detector(predictor)
    same_detections(detector, pictures, own)
    found = detector.propose(pictures[:1])[0]
    assert found.num_columns == CLASSES + (detector.background is not None)
    assert (found.objectness is not None) == (name == "fcos")


def test_as_many_anchors_of_each_level_are_kept_as_the_model_looks_at(pictures):
    predictor = predictor_of("retinanet")
    everything = Detectron2Detector(predictor).propose(pictures[:1])[0]
    few = Detectron2Detector(predictor, anchors_per_level=5).propose(pictures[:1])[0]
    assert len(few.logits) == 10 < len(everything.logits)
    assert few.logits.max() == everything.logits.max()


def test_a_model_alone_is_asked_how_it_takes_images():
    model = predictor_of("faster").model
    found = logn.detector(model, augmentation=Resize(), class_names="abcd")
    assert isinstance(found, Detectron2Detector)
    assert found.class_names == ("a", "b", "c", "d")
    assert np.isfinite(found.propose([torch.rand(3, 32, 48)])[0].boxes).all()
    resized = {"augmentation": Resize()}
    model.input_format = None
    for refused, options, message in (
        (model, {}, "does not say how its images are resized. Pass its `DefaultPredictor`, or `augmentation`"),
        (model, resized, '`input_format`, the order of the colours, to be "BGR" or "RGB", but got None'),
        (model, {**resized, "input_format": "RGB", "class_names": "ab"}, "to name the 4 classes, but got 2"),
        (GeneralizedRCNN(cascade=True), resized, "A cascade of Detectron2 averages the probabilities of its stages"),
    ):
        with pytest.raises(InputError, match=message):
            logn.detector(refused, **options)


class DefaultPredictor:
    __module__ = "detectron2.engine.defaults"

    def __init__(self):
        self.__dict__.update(vars(predictor_of("faster")))
        self.metadata = SimpleNamespace(thing_classes=NAMES)


def test_the_commands_of_the_page(run_page):
    run = run_page(NAMES)
    Path("my_detector.py").write_text(f"import runpy\nbuild = runpy.run_path({__file__!r})['DefaultPredictor']\n")
    assert run("mmdetection.md", "predict") == ["predict", "collect", "compare", "report"]
    store = PredictionStore("predictions")
    assert (len(store), store.header.background, store.header.class_names) == (4, -1, NAMES)
    assert Path("comparison/report.html").is_file()
    assert run("mmdetection.md", "correct") == ["correct"]
    weights, before = load_file("corrected.safetensors"), DefaultPredictor().model.state_dict()
    changed = {name for name, values in before.items() if not torch.equal(values, weights[name])}
    assert changed == {f"{REGIONS}.{kind}" for kind in ("weight", "bias")}
