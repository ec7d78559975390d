"""Detectron2 by a stand-in: modules with the same class names, attributes and paths, since it cannot be installed.

What the forward passes do with the logits follows its documented behaviour; nothing of its code is here.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from logn.deploy.attach import attach
from logn.deploy.fold import fold
from logn.logits.locate import locate_logits

CLASSES = 5
FEATURES = 12


class FastRCNNOutputLayers(nn.Module):
    __module__ = "detectron2.modeling.roi_heads.fast_rcnn"

    def __init__(self, use_sigmoid_ce=False):
        super().__init__()
        self.num_classes, self.use_sigmoid_ce = CLASSES, use_sigmoid_ce
        self.cls_score = nn.Linear(FEATURES, CLASSES + 1)
        self.bbox_pred = nn.Linear(FEATURES, 4 * CLASSES)

    def forward(self, features):
        return self.cls_score(features), self.bbox_pred(features)

    def predict_probs(self, scores):
        return scores.sigmoid() if self.use_sigmoid_ce else scores.softmax(dim=-1)


class StandardROIHeads(nn.Module):
    __module__ = "detectron2.modeling.roi_heads.roi_heads"

    def __init__(self, **options):
        super().__init__()
        self.box_predictor = FastRCNNOutputLayers(**options)
        self.mask_head = nn.Conv2d(FEATURES, CLASSES, 1)

    def forward(self, features):
        scores, _ = self.box_predictor(features)
        # The columns of the foreground make the detections.
        return [scores], self.box_predictor.predict_probs(scores)[:, :-1]


class CascadeROIHeads(StandardROIHeads):
    __module__ = "detectron2.modeling.roi_heads.cascade_rcnn"

    def __init__(self, **options):
        super().__init__()
        self.box_predictor = nn.ModuleList(FastRCNNOutputLayers(**options) for _ in range(3))

    def forward(self, features):
        scores = [predictor(features + stage)[0] for stage, predictor in enumerate(self.box_predictor)]
        probabilities = [
            predictor.predict_probs(each) for predictor, each in zip(self.box_predictor, scores, strict=True)
        ]
        return scores, torch.stack(probabilities).mean(dim=0)[:, :-1]


class GeneralizedRCNN(nn.Module):
    __module__ = "detectron2.modeling.meta_arch.rcnn"

    def __init__(self, roi_heads):
        super().__init__()
        self.proposal_generator = nn.ModuleDict({"objectness_logits": nn.Conv2d(FEATURES, 3, 1)})
        self.roi_heads = roi_heads

    def forward(self, features):
        return self.roi_heads(features)


class RetinaNet(nn.Module):
    __module__ = "detectron2.modeling.meta_arch.retinanet"
    anchors = 3

    def __init__(self):
        super().__init__()
        self.num_classes = CLASSES
        self.head = nn.Module()
        self.head.cls_subnet = nn.Conv2d(FEATURES, FEATURES, 3, padding=1)
        self.head.cls_score = nn.Conv2d(FEATURES, self.anchors * CLASSES, 3, padding=1)
        self.head.bbox_pred = nn.Conv2d(FEATURES, self.anchors * 4, 3, padding=1)

    def forward(self, levels):
        scores = [self.head.cls_score(self.head.cls_subnet(level)) for level in levels]
        rows = [
            score.unflatten(1, (self.anchors, CLASSES)).permute(0, 3, 4, 1, 2).reshape(-1, CLASSES) for score in scores
        ]
        return [torch.cat(rows)], torch.cat(rows).sigmoid()


def rows_of(model):
    features = torch.rand(20, FEATURES, generator=torch.Generator().manual_seed(1))
    return model(features)


def own_logits(model):
    return rows_of(model)[0]


def make(model, spread):
    spread(model.eval(), locate_logits(model))
    return model


def test_fast_and_mask_rcnn(agreement, spread):
    layer, _ = agreement(make(GeneralizedRCNN(StandardROIHeads()), spread), own_logits)
    assert layer.path == "roi_heads.box_predictor.cls_score"
    assert (layer.background, layer.activation, layer.population) == (-1, "softmax", "test proposals")


def test_sigmoid_heads_have_a_last_column_that_is_never_trained(agreement, spread, class_map):
    model = make(GeneralizedRCNN(StandardROIHeads(use_sigmoid_ce=True)), spread)
    layer, folded = agreement(model, lambda model: [rows[:, :CLASSES] for rows in own_logits(model)])
    assert (layer.background, layer.activation, layer.extra_columns) == (None, "sigmoid", 1)
    # It stays as it was.
    np.testing.assert_allclose(own_logits(folded)[0][:, -1].detach(), own_logits(model)[0][:, -1].detach(), atol=1e-6)
    with torch.no_grad(), attach(model, layer, class_map(CLASSES)):
        np.testing.assert_allclose(rows_of(model)[1], rows_of(folded)[1], atol=1e-5)


def test_cascade_averages_the_probabilities_of_its_stages(agreement, spread, class_map):
    model = make(GeneralizedRCNN(CascadeROIHeads()), spread)
    layer, _ = agreement(model, own_logits)
    assert layer.paths == tuple(f"roi_heads.box_predictor.{stage}.cls_score" for stage in range(3))
    assert (layer.stages, layer.background, layer.activation) == (True, -1, "softmax")
    maps = [class_map(CLASSES + 1, -1, seed) for seed in range(3)]
    with torch.no_grad():
        plain = own_logits(model)
        fold(model, layer, maps)
        probabilities = rows_of(model)[1]
    expected = torch.stack([affine(rows).softmax(dim=-1) for affine, rows in zip(maps, plain, strict=True)]).mean(dim=0)
    np.testing.assert_allclose(probabilities, expected[:, :-1], atol=1e-5)


def test_retinanet_has_one_convolution_for_all_levels(agreement, spread):
    generator = torch.Generator().manual_seed(1)
    levels = [torch.rand(2, FEATURES, size, size + 1, generator=generator) for size in (4, 2)]
    layer, _ = agreement(make(RetinaNet(), spread), lambda model: model(levels)[0])
    assert (layer.path, layer.anchors, layer.class_axis) == ("head.cls_score", 3, 1)
    assert (layer.background, layer.activation, layer.population) == (None, "sigmoid", "all anchors")


def test_a_renamed_layer_is_not_guessed(refusal):
    refusal(GeneralizedRCNN(StandardROIHeads()), CLASSES + 1)


@pytest.mark.parametrize("build", [lambda: GeneralizedRCNN(StandardROIHeads()), RetinaNet])
def test_a_model_inside_another_module_is_found(build):
    outer = nn.Module()
    outer.teacher = build()
    assert locate_logits(outer).path == f"teacher.{locate_logits(outer.teacher).path}"
