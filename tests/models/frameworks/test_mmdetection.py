"""MMDetection by stand-ins: modules with its class names, attributes and paths.

`make test-mmdet` runs the real models, in an environment of their own; these tests run everywhere.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from logn.errors import InputError
from logn.models.layer import LogitLayer
from logn.models.locate import locate_logits
from logn.models.torch.attach import attach
from logn.models.torch.fold import fold
from logn.models.torch.record import record

CLASSES = 5
FEATURES = 12
GENERATOR = torch.Generator().manual_seed(1)
ROWS, QUERIES = torch.rand(20, FEATURES, generator=GENERATOR), torch.rand(2, 9, FEATURES, generator=GENERATOR)


class Module(nn.Module):
    """A class of MMDetection's, by where it says that it comes from."""

    __module__ = "mmdet.models"

    def __init_subclass__(cls):
        cls.__module__ = "mmdet.models"

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class NormedLinear(nn.Linear):
    __module__ = "mmdet.models.layers.normed_predictor"

    def forward(self, features):
        weight = self.weight / (self.weight.norm(dim=1, keepdim=True) + 1e-6)
        return nn.functional.linear(20 * features / (features.norm(dim=1, keepdim=True) + 1e-6), weight, self.bias)


class RoIHead(Module):
    pass


class TwoStageDetector(Module):
    def __init__(self, stages=0, classifier=nn.Linear, extra=1, use_sigmoid=False):
        def head():
            loss, layer = SimpleNamespace(use_sigmoid=use_sigmoid), classifier(FEATURES, CLASSES + extra)
            return Module(num_classes=CLASSES, loss_cls=loss, fc_cls=layer, fc_reg=nn.Linear(FEATURES, 4 * CLASSES))

        super().__init__(rpn_head=nn.ModuleDict({"rpn_cls": nn.Conv2d(FEATURES, 3, 1)}))
        self.roi_head = RoIHead(bbox_head=nn.ModuleList(head() for _ in range(stages)) if stages else head())

    def forward(self, features):
        heads = self.roi_head.bbox_head
        heads = heads if isinstance(heads, nn.ModuleList) else [heads]
        return [head.fc_cls(features + stage) for stage, head in enumerate(heads)]


class DenseHead(Module):
    def __init__(self, name, anchors=1, use_sigmoid=True, levels=0):
        super().__init__(use_sigmoid_cls=use_sigmoid, cls_out_channels=CLASSES + (not use_sigmoid))
        self.cls_convs = nn.ModuleList([nn.Conv2d(FEATURES, FEATURES, 3, padding=1)])
        layers = [nn.Conv2d(FEATURES, anchors * self.cls_out_channels, 1) for _ in range(max(levels, 1))]
        setattr(self, name, nn.ModuleList(nn.Sequential(nn.ReLU(), layer) for layer in layers) if levels else layers[0])


class TOODHead(DenseHead):
    pass


class DETRHead(Module):
    pass


class Mask2FormerHead(Module):
    def forward(self, queries):
        return [[self.cls_embed(queries * layer) for layer in (1, 2, 3)][-1].flatten(0, 1)]


class DeformableDETRHead(Module):
    def __init__(self, share_pred_layer, as_two_stage):
        super().__init__(loss_cls=SimpleNamespace(use_sigmoid=True), as_two_stage=as_two_stage)
        shared, count = nn.Linear(FEATURES, CLASSES), 4 if as_two_stage else 3
        layers = [shared if share_pred_layer else nn.Linear(FEATURES, CLASSES) for _ in range(count)]
        self.cls_branches = nn.ModuleList(layers)

    def forward(self, memory):
        queries = memory
        if self.as_two_stage:
            self.proposals = self.cls_branches[3](memory).detach()
            best = self.proposals.amax(dim=-1).topk(4, dim=1).indices
            queries = memory.gather(1, best[..., None].expand(-1, -1, FEATURES))
        return [[self.cls_branches[layer](queries + layer) for layer in range(3)][-1].flatten(0, 1)]


class Detector(Module):
    """With one head, by whatever name."""

    def forward(self, inputs):
        return next(self.children())(inputs)


def query_head(kind, name):
    return kind(**{"loss_cls": SimpleNamespace(use_sigmoid=False), name: nn.Linear(FEATURES, CLASSES + 1)})


def mask2former():
    return Detector(panoptic_head=query_head(Mask2FormerHead, "cls_embed"))


def levels(name):
    return tuple(f"bbox_head.{name}.{level}.1" for level in range(2))


FC_CLS = "roi_head.bbox_head.fc_cls"
REGIONS = {"activation": "softmax", "class_axis": -1, "population": "test proposals"}
DENSE = {"activation": "sigmoid", "class_axis": 1, "population": "all anchors", "num_columns": CLASSES}
LAST = {"background": -1, "activation": "softmax", "class_axis": -1, "population": "queries"}
LAYERS = {
    "mask_rcnn": (TwoStageDetector(), LogitLayer(FC_CLS, -1, **REGIONS)),
    "seesaw": (TwoStageDetector(extra=2), LogitLayer(FC_CLS, None, **REGIONS, extra_columns=2)),
    "equalised": (TwoStageDetector(use_sigmoid=True), LogitLayer(FC_CLS, -1, **{**REGIONS, "activation": "sigmoid"})),
    "retinanet": (
        Detector(bbox_head=DenseHead("retina_cls", 9)),
        LogitLayer("bbox_head.retina_cls", **DENSE, anchors=9),
    ),
    "atss": (Detector(bbox_head=DenseHead("atss_cls")), LogitLayer("bbox_head.atss_cls", **DENSE)),
    "yolox": (
        Detector(bbox_head=DenseHead("multi_level_conv_cls", levels=2)),
        LogitLayer(levels("multi_level_conv_cls"), **DENSE, anchors=(1, 1)),
    ),
    "ssd": (
        Detector(bbox_head=DenseHead("cls_convs", 4, use_sigmoid=False, levels=2)),
        LogitLayer(
            levels("cls_convs"),
            -1,
            **{**DENSE, "activation": "softmax", "num_columns": CLASSES + 1},
            anchors=(4, 4),
        ),
    ),
    "detr": (
        Detector(bbox_head=query_head(DETRHead, "fc_cls")),
        LogitLayer("bbox_head.fc_cls", **LAST, final_only="slice"),
    ),
    "mask2former": (mask2former(), LogitLayer("panoptic_head.cls_embed", **LAST, final_only="call")),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_class_layer_is_found_by_name(name):
    model, layer = LAYERS[name]
    assert locate_logits(model) == layer
    assert locate_logits(nn.ModuleDict({"inner": model})).paths == tuple(f"inner.{path}" for path in layer.paths)


def make(model, spread):
    torch.manual_seed(0)
    spread(model.eval(), locate_logits(model))
    return model


def test_each_stage_of_a_cascade_has_a_map_of_its_own(agreement, spread):
    layer, _ = agreement(make(TwoStageDetector(stages=3), spread), lambda model: model(ROWS))
    assert layer.paths == tuple(f"roi_head.bbox_head.{stage}.fc_cls" for stage in range(3))


def test_only_the_last_of_the_calls_of_a_pass_counts(agreement, spread):
    agreement(make(mask2former(), spread), lambda model: model(QUERIES))


@pytest.mark.parametrize("stages", [0, 3])
def test_cosine_heads_are_attached_to_and_not_folded(stages, agreement, spread):
    model = make(TwoStageDetector(stages=stages, classifier=NormedLinear), spread)
    agreement(model, lambda model: model(ROWS), fold_refused="use logn.attach instead")


def test_the_map_covers_the_classes_of_seesaw_and_not_its_objectness(agreement, spread, class_map):
    model = make(TwoStageDetector(extra=2), spread)
    layer, folded = agreement(model, lambda model: [logits[:, :CLASSES] for logits in model(ROWS)])
    plain = model(ROWS)[0].detach()
    np.testing.assert_allclose(folded(ROWS)[0][:, CLASSES:].detach(), plain[:, CLASSES:], atol=1e-6)
    with attach(model, layer, class_map(CLASSES)):
        np.testing.assert_array_equal(model(ROWS)[0][:, CLASSES:].detach(), plain[:, CLASSES:])


@pytest.mark.parametrize("as_two_stage", [False, True])
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.filterwarnings("ignore:.* was tied to")
def test_deformable_detr_is_corrected_in_its_last_decoder_layer_only(share, as_two_stage, agreement, spread):
    model = make(Detector(bbox_head=DeformableDETRHead(share, as_two_stage)), spread)
    layer, folded = agreement(model, lambda model: model(QUERIES))
    assert (layer.path, layer.background, layer.activation) == ("bbox_head.cls_branches.2", None, "sigmoid")
    model(QUERIES)
    folded(QUERIES)
    if as_two_stage:
        assert torch.equal(folded.bbox_head.proposals, model.bbox_head.proposals)
    if share:
        # The slot has weights of its own after a fold, and the model is as it was otherwise.
        assert folded.bbox_head.cls_branches[0] is folded.bbox_head.cls_branches[1]
        assert folded.bbox_head.cls_branches[2] is not folded.bbox_head.cls_branches[1]
        assert model.bbox_head.cls_branches[2] is model.bbox_head.cls_branches[1]


def test_a_refused_fold_leaves_shared_slots_shared(class_map):
    model = Detector(bbox_head=DeformableDETRHead(True, False))
    layer = locate_logits(model)
    model.bbox_head.cls_branches[2].half()
    with pytest.raises(InputError, match="overflows"):
        fold(model, layer, class_map(CLASSES).then(type(class_map(CLASSES))([1e9] * CLASSES, [0.0] * CLASSES)))
    assert model.bbox_head.cls_branches[2] is model.bbox_head.cls_branches[1]


def test_a_pass_that_fails_leaves_nothing_for_the_next(spread):
    model = make(mask2former(), spread)
    with record(model, locate_logits(model)) as moments, torch.inference_mode():
        with pytest.raises(RuntimeError):
            model(torch.rand(2, 9, FEATURES + 1))
        model(QUERIES)
        # Outside a forward pass of the model every call counts.
        model.panoptic_head.cls_embed(QUERIES)
    assert moments.count.tolist() == [36.0] * (CLASSES + 1)


def test_heads_that_mix_their_logits_are_not_guessed(refusal):
    with pytest.raises(InputError, match="class"):
        locate_logits(Detector(bbox_head=TOODHead("conv_cls")))
    refusal(TwoStageDetector(), CLASSES + 1)
