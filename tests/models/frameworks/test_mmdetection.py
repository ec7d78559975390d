"""MMDetection by stand-ins: modules with its class names, attributes and paths.

`make test-mmdet` runs the real models, in an environment of their own; these tests run everywhere.
"""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch
from torch import nn

from logn.errors import InputError
from logn.models.locate import locate_logits
from logn.models.torch.attach import attach
from logn.models.torch.fold import fold
from logn.models.torch.record import record

CLASSES = 5
FEATURES = 12
WAY_OUT = "use logn.attach instead"


class NormedLinear(nn.Linear):
    __module__ = "mmdet.models.layers.normed_predictor"

    def forward(self, features):
        weight = self.weight / (self.weight.norm(dim=1, keepdim=True) + 1e-6)
        return nn.functional.linear(20 * features / (features.norm(dim=1, keepdim=True) + 1e-6), weight, self.bias)


class Shared2FCBBoxHead(nn.Module):
    __module__ = "mmdet.models.roi_heads.bbox_heads.convfc_bbox_head"

    def __init__(self, classifier=nn.Linear, extra=1, use_sigmoid=False):
        super().__init__()
        self.num_classes = CLASSES
        self.loss_cls = types.SimpleNamespace(use_sigmoid=use_sigmoid)
        self.fc_cls = classifier(FEATURES, CLASSES + extra)
        self.fc_reg = nn.Linear(FEATURES, 4 * CLASSES)


class RoIHead(nn.Module):
    __module__ = "mmdet.models.roi_heads.standard_roi_head"

    def __init__(self, stages=0, **options):
        super().__init__()
        one = Shared2FCBBoxHead(**options)
        self.bbox_head = nn.ModuleList(Shared2FCBBoxHead(**options) for _ in range(stages)) if stages else one
        self.mask_head = nn.Conv2d(FEATURES, CLASSES, 1)


class TwoStageDetector(nn.Module):
    __module__ = "mmdet.models.detectors.two_stage"

    def __init__(self, **options):
        super().__init__()
        self.rpn_head = nn.ModuleDict({"rpn_cls": nn.Conv2d(FEATURES, 3, 1)})
        self.roi_head = RoIHead(**options)

    def forward(self, features):
        heads = self.roi_head.bbox_head
        heads = heads if isinstance(heads, nn.ModuleList) else [heads]
        return [head.fc_cls(features + stage) for stage, head in enumerate(heads)]


class SingleStageDetector(nn.Module):
    __module__ = "mmdet.models.detectors.single_stage"

    def __init__(self, head, name="bbox_head"):
        super().__init__()
        self.add_module(name, head)

    def forward(self, inputs):
        return next(self.children())(inputs)


class DenseHead(nn.Module):
    __module__ = "mmdet.models.dense_heads.anchor_head"

    def __init__(self, name, anchors, use_sigmoid=True, levels=0):
        super().__init__()
        self.use_sigmoid_cls = use_sigmoid
        self.cls_out_channels = CLASSES if use_sigmoid else CLASSES + 1
        self.anchors, self.name = anchors, name
        channels = anchors * self.cls_out_channels
        self.cls_convs = nn.ModuleList([nn.Conv2d(FEATURES, FEATURES, 3, padding=1)])
        if levels:
            blocks = [nn.Sequential(nn.ReLU(), nn.Conv2d(FEATURES, channels, 1)) for _ in range(levels)]
            setattr(self, name, nn.ModuleList(blocks))
        else:
            setattr(self, name, nn.Conv2d(FEATURES, channels, 3, padding=1))

    def forward(self, levels):
        layer = getattr(self, self.name)
        scores = [
            (layer[index] if isinstance(layer, nn.ModuleList) else layer)(level) for index, level in enumerate(levels)
        ]
        # As the framework flattens them: channels last, then rows of classes.
        return [torch.cat([score.permute(0, 2, 3, 1).reshape(-1, self.cls_out_channels) for score in scores])]


class QueryHead(nn.Module):
    """The class layer of a transformer: given a stack of layers, or called once per layer."""

    def __init__(self, name):
        super().__init__()
        self.loss_cls = types.SimpleNamespace(use_sigmoid=False)
        self.add_module(name, nn.Linear(FEATURES, CLASSES + 1))


class DETRHead(QueryHead):
    __module__ = "mmdet.models.dense_heads.detr_head"

    def forward(self, queries):
        return [self.fc_cls(torch.stack([queries, queries * 2]))[-1].flatten(0, 1)]


class Mask2FormerHead(QueryHead):
    __module__ = "mmdet.models.dense_heads.mask2former_head"

    def forward(self, queries):
        return [[self.cls_embed(queries * layer) for layer in (1, 2, 3)][-1].flatten(0, 1)]


class DeformableDETRHead(nn.Module):
    __module__ = "mmdet.models.dense_heads.deformable_detr_head"

    def __init__(self, share_pred_layer, as_two_stage):
        super().__init__()
        self.loss_cls = types.SimpleNamespace(use_sigmoid=True)
        self.as_two_stage = as_two_stage
        shared = nn.Linear(FEATURES, CLASSES)
        self.cls_branches = nn.ModuleList(
            shared if share_pred_layer else nn.Linear(FEATURES, CLASSES) for _ in range(4 if as_two_stage else 3)
        )

    def forward(self, memory):
        queries = memory
        if self.as_two_stage:
            self.proposals = self.cls_branches[3](memory).detach()
            best = self.proposals.amax(dim=-1).topk(4, dim=1).indices
            queries = memory.gather(1, best[..., None].expand(-1, -1, FEATURES))
        return [[self.cls_branches[layer](queries + layer) for layer in range(3)][-1].flatten(0, 1)]


def dense(name, **options):
    return SingleStageDetector(DenseHead(name, **options))


def mask2former():
    return SingleStageDetector(Mask2FormerHead("cls_embed"), "panoptic_head")


GENERATOR = torch.Generator().manual_seed(1)
ROWS, QUERIES = torch.rand(20, FEATURES, generator=GENERATOR), torch.rand(2, 9, FEATURES, generator=GENERATOR)
PYRAMID = [torch.rand(2, FEATURES, size, size + 1, generator=GENERATOR) for size in (4, 2)]
CONVOLUTIONS = {"retina_cls": 9, "atss_cls": 1}
# model, inputs, what is known of its layer
MODELS = {
    "mask_rcnn": (TwoStageDetector, ROWS, {"path": "roi_head.bbox_head.fc_cls", "population": "test proposals"}),
    "cascade": (lambda: TwoStageDetector(stages=3), ROWS, {"stages": True}),
    **{
        name: (lambda name=name: dense(name, anchors=CONVOLUTIONS[name]), PYRAMID, {"path": f"bbox_head.{name}"})
        for name in CONVOLUTIONS
    },
    "levels": (lambda: dense("multi_level_conv_cls", anchors=1, levels=2), PYRAMID, {}),
    "ssd": (lambda: dense("cls_convs", anchors=4, levels=2, use_sigmoid=False), PYRAMID, {}),
    "detr": (
        lambda: SingleStageDetector(DETRHead("fc_cls")),
        QUERIES,
        {"path": "bbox_head.fc_cls", "final_only": "slice"},
    ),
    "mask2former": (mask2former, QUERIES, {"path": "panoptic_head.cls_embed", "final_only": "call"}),
}
PATHS = {
    "cascade": tuple(f"roi_head.bbox_head.{stage}.fc_cls" for stage in range(3)),
    "levels": tuple(f"bbox_head.multi_level_conv_cls.{level}.1" for level in range(2)),
    "ssd": tuple(f"bbox_head.cls_convs.{level}.1" for level in range(2)),
}


def make(model, spread):
    torch.manual_seed(0)
    spread(model.eval(), locate_logits(model))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_recorded_attached_and_folded_agree_with_the_model(name, agreement, spread):
    build, inputs, known = MODELS[name]
    layer, _ = agreement(make(build(), spread), lambda model: model(inputs))
    is_sigmoid = name in (*CONVOLUTIONS, "levels")
    assert (layer.background, layer.activation) == ((None, "sigmoid") if is_sigmoid else (-1, "softmax"))
    assert layer.class_axis == (1 if inputs is PYRAMID else -1)
    assert layer.anchors_of(0) == CONVOLUTIONS.get(name, 4 if name == "ssd" else 1)
    assert layer.paths == PATHS.get(name, layer.paths)
    expected = {"final_only": None, "stages": False, **known}
    assert {key: getattr(layer, key) for key in expected} == expected


@pytest.mark.parametrize("stages", [0, 3])
def test_cosine_heads_are_attached_to_and_not_folded(stages, agreement, spread):
    model = make(TwoStageDetector(stages=stages, classifier=NormedLinear), spread)
    layer, _ = agreement(model, lambda model: model(ROWS), fold_refused=WAY_OUT)
    assert layer.background == -1


def test_the_map_covers_the_classes_of_seesaw_and_not_its_objectness(agreement, spread, class_map):
    model = make(TwoStageDetector(extra=2), spread)
    layer, folded = agreement(model, lambda model: [logits[:, :CLASSES] for logits in model(ROWS)])
    assert (layer.background, layer.activation, layer.extra_columns) == (None, "softmax", 2)
    plain = model(ROWS)[0].detach()
    np.testing.assert_allclose(folded(ROWS)[0][:, CLASSES:].detach(), plain[:, CLASSES:], atol=1e-6)
    with attach(model, layer, class_map(CLASSES)):
        np.testing.assert_array_equal(model(ROWS)[0][:, CLASSES:].detach(), plain[:, CLASSES:])


def test_equalised_heads_have_a_sigmoid_and_a_background():
    layer = locate_logits(TwoStageDetector(use_sigmoid=True))
    assert (layer.background, layer.activation) == (-1, "sigmoid")


@pytest.mark.parametrize("as_two_stage", [False, True])
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.filterwarnings("ignore:.* was tied to")
def test_deformable_detr_is_corrected_in_its_last_decoder_layer_only(share, as_two_stage, agreement, spread):
    model = make(SingleStageDetector(DeformableDETRHead(share, as_two_stage)), spread)
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
    model = SingleStageDetector(DeformableDETRHead(True, False))
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
    class TOODHead(DenseHead):
        __module__ = "mmdet.models.dense_heads.tood_head"

    with pytest.raises(InputError, match="SingleStageDetector"):
        locate_logits(SingleStageDetector(TOODHead("conv_cls", anchors=1)))
    refusal(TwoStageDetector(), CLASSES + 1)
