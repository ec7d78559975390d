"""RF-DETR's own package by a stand-in: modules with the same class names, attributes and paths, for `make test`.

What the forward pass does with the logits follows `rfdetr` 1.11, where the same was checked; nothing of its code is
here.
"""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

from logn.calibrators.normalization import logit_normalization
from logn.deploy.fold import fold
from logn.errors import InputError
from logn.logits.layer import LogitLayer
from logn.logits.locate import locate_logits
from logn.statistics.record import record

CLASSES = 5
FEATURES = 12
DECODER_LAYERS = 3
QUERIES = 4
GROUPS = 2

# One column is no class.
pytestmark = pytest.mark.filterwarnings("ignore:RF-DETR's .* has a column that is no class")


class Transformer(nn.Module):
    __module__ = "rfdetr.models.transformer"

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(DECODER_LAYERS))
        self.enc_out_class_embed = None

    def forward(self, memory, exported):
        scores = self.enc_out_class_embed[0](memory)
        best = scores.amax(dim=-1).topk(QUERIES, dim=1).indices
        queries = memory.take_along_dim(best[..., None], dim=1)
        states = []
        for layer in self.layers:
            queries = queries + layer(queries).tanh()
            states.append(queries)
        return states[-1] if exported else torch.stack(states), scores


class LWDETR(nn.Module):
    __module__ = "rfdetr.models.lwdetr"

    def __init__(self, use_grouppose_keypoints=False):
        super().__init__()
        self.transformer = Transformer()
        self.class_embed = nn.Linear(FEATURES, CLASSES + 1)
        self.bbox_embed = nn.Linear(FEATURES, 4)
        self.transformer.enc_out_class_embed = nn.ModuleList(copy.deepcopy(self.class_embed) for _ in range(GROUPS))
        # The model ends in its backbone.
        self.backbone = nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(20)))
        self.use_grouppose_keypoints = use_grouppose_keypoints
        self._export = False

    def export(self):
        self._export = True

    def forward(self, images):
        states, proposals = self.transformer(self.backbone(images), self._export)
        logits, boxes = self.class_embed(states), self.bbox_embed(states)
        if self._export:
            return boxes, logits
        return {"pred_logits": logits[-1], "pred_boxes": boxes[-1], "enc_outputs": {"pred_logits": proposals}}


def make(spread, **options):
    torch.manual_seed(0)
    model = LWDETR(**options).eval()
    spread(model, LogitLayer("class_embed"))
    return model


def outputs(model):
    images = torch.rand(3, 10, FEATURES, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return model(images)


def own_logits(model):
    output = outputs(model)
    logits = output[1] if model._export else output["pred_logits"]
    return [logits.reshape(-1, CLASSES + 1)]


def test_the_last_decoder_layer_is_recorded_out_of_the_stack(agreement, spread):
    layer, _ = agreement(make(spread), own_logits)
    assert layer == LogitLayer(
        "class_embed", activation="sigmoid", class_axis=-1, population="queries", final_only="slice"
    )


def test_a_model_made_ready_for_export_runs_the_last_decoder_layer_only(agreement, spread):
    model = make(spread)
    model.export()
    layer, _ = agreement(model, own_logits)
    assert layer.final_only is None


def test_folding_leaves_the_proposals_alone(class_map, spread):
    model = make(spread)
    before = outputs(model)
    fold(model, locate_logits(model), class_map(CLASSES + 1))
    after = outputs(model)
    assert torch.equal(before["enc_outputs"]["pred_logits"], after["enc_outputs"]["pred_logits"])
    assert torch.equal(before["pred_boxes"], after["pred_boxes"])
    assert not torch.allclose(before["pred_logits"], after["pred_logits"])


def test_the_column_that_is_no_class_is_to_be_named(spread):
    model = make(spread)
    with pytest.warns(UserWarning, match=r"the last \(5\) .*dataclasses\.replace\(layer, unused=\(5,\)\)"):
        layer = locate_logits(model)
    with record(model, dataclasses.replace(layer, unused=(CLASSES,))) as moments:
        outputs(model)
    affine = logit_normalization(moments)
    assert (affine.scale[CLASSES], affine.shift[CLASSES]) == (1, 0)
    assert (affine.scale[:CLASSES] != 1).all()


def test_keypoints_are_refused_since_they_add_to_the_logits(spread):
    with pytest.raises(InputError, match=r'but got LWDETR; .*LogitLayer\("class_embed".* out of: class_embed \(Linear'):
        locate_logits(make(spread, use_grouppose_keypoints=True))


def test_a_renamed_layer_is_not_guessed(spread):
    model = make(spread)
    model.labels = model._modules.pop("class_embed")
    # The layers that pick proposals have as many columns, so both are listed.
    with pytest.raises(
        InputError, match=r"with 6 columns, but got LWDETR; .*enc_out_class_embed\.0 .*labels \(Linear, 6"
    ):
        locate_logits(model, num_columns=CLASSES + 1)


def test_a_model_inside_another_module_is_found(spread):
    outer = nn.Module()
    outer.model = make(spread)
    assert locate_logits(outer).path == "model.class_embed"
