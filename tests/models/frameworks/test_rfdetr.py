"""RF-DETR's own package by a stand-in: modules with the same class names, attributes and paths, for `make test`.

What it does with logits and boxes follows `rfdetr` 1.11, where the same was checked; nothing of its code is here.
"""

from __future__ import annotations

import copy
import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torchvision.transforms import functional

import logn
from logn.errors import InputError
from logn.methods.logit_normalization import logit_normalization
from logn.models.frameworks.rfdetr import RFDetrDetector
from logn.models.layer import LogitLayer
from logn.models.locate import locate_logits
from logn.models.torch.fold import fold
from logn.models.torch.record import record

CLASSES = 5
FEATURES = 12
MEMORY, QUERIES = 20, 12

# One column is no class.
pytestmark = pytest.mark.filterwarnings("ignore:RF-DETR's .* has columns of no class")


class Transformer(nn.Module):
    __module__ = "rfdetr.models.transformer"

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(3))
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
        self.transformer.enc_out_class_embed = nn.ModuleList(copy.deepcopy(self.class_embed) for _ in range(2))
        # The model ends in its backbone.
        self.backbone = nn.Sequential(nn.Linear(3 * 16, MEMORY * FEATURES), *(nn.Identity() for _ in range(20)))
        self.use_grouppose_keypoints = use_grouppose_keypoints
        self._export = False

    def export(self):
        self._export = True

    def forward(self, images):
        memory = self.backbone(nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)).unflatten(1, (MEMORY, -1))
        states, proposals = self.transformer(memory, self._export)
        logits, boxes = self.class_embed(states), self.bbox_embed(states).sigmoid()
        if self._export:
            return boxes, logits
        return {"pred_logits": logits[-1], "pred_boxes": boxes[-1], "enc_outputs": {"pred_logits": proposals}}


def make(spread, **options):
    torch.manual_seed(0)
    model = LWDETR(**options).eval()
    spread(model, LogitLayer("class_embed"))
    return model


def outputs(model):
    images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return model(images)


def own_logits(model):
    output = outputs(model)
    logits = output[1] if model._export else output["pred_logits"]
    return [logits.reshape(-1, CLASSES + 1)]


@pytest.mark.parametrize("is_exported", [False, True])
def test_the_last_decoder_layer_is_recorded_out_of_the_stack(is_exported, agreement, spread):
    model = make(spread)
    if is_exported:  # runs the last decoder layer only
        model.export()
    layer, _ = agreement(model, own_logits)
    expected = LogitLayer("class_embed", activation="sigmoid", class_axis=-1, population="queries", final_only="slice")
    assert layer == dataclasses.replace(expected, final_only=None if is_exported else "slice")


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
    with pytest.warns(UserWarning, match=r"unused=\[5\]"):
        layer = locate_logits(model)
    with record(model, dataclasses.replace(layer, unused=(CLASSES,))) as moments:
        outputs(model)
    affine = logit_normalization(moments)
    assert (affine.scale[CLASSES], affine.shift[CLASSES]) == (1, 0)
    assert (affine.scale[:CLASSES] != 1).all()


def test_layers_that_cannot_be_known_are_not_guessed(spread):
    """Keypoints add to the logits; a renamed layer has as many columns as those that pick proposals."""
    with pytest.raises(InputError, match="class_embed"):
        locate_logits(make(spread, use_grouppose_keypoints=True))
    model = make(spread)
    model.labels = model._modules.pop("class_embed")
    with pytest.raises(InputError, match="labels"):
        locate_logits(model, num_columns=CLASSES + 1)
    outer = nn.Module()
    outer.model = make(spread)
    assert locate_logits(outer).path == "model.class_embed"


class RFDETRNano:
    __module__ = "rfdetr.variants"
    means, stds = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    _is_optimized_for_inference = False

    def __init__(self, class_names, num_classes=CLASSES):
        torch.manual_seed(0)
        network = LWDETR()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.normal_()
        self.class_names = class_names
        parts = {"postprocess": SimpleNamespace(num_select=20), "args": SimpleNamespace(num_classes=num_classes)}
        self.model = SimpleNamespace(model=network, resolution=64, **parts)

    def predict(self, image, threshold=0.5):
        batch = functional.resize(image, [64, 64], antialias=False)[None]
        with torch.inference_mode():
            output = self.model.model(functional.normalize(batch, self.means, self.stds))
        scores = output["pred_logits"][0].sigmoid().flatten()
        best = scores.argsort(descending=True, stable=True)[: self.model.postprocess.num_select]
        center, size = output["pred_boxes"][0][best // (CLASSES + 1)].split(2, dim=1)
        scale = torch.tensor(image.shape[-2:]).flip(0).repeat(2)
        boxes = (torch.cat([center - size / 2, center + size / 2], dim=1) * scale).clamp(min=0).minimum(scale)
        kept = scores[best] > threshold
        return boxes[kept], scores[best][kept], (best % (CLASSES + 1))[kept]


def test_decoded_proposals_are_the_detections_of_rfdetr(same_detections, pictures):
    detector = RFDETRNano([*"abcdef"])  # a name for every column, so that all are compared
    same_detections(RFDetrDetector(detector), pictures, detector.predict)


def test_the_column_that_is_no_class_is_left_out():
    found = logn.detector(RFDETRNano([*"abcde"]))
    assert isinstance(found, RFDetrDetector)
    assert (found.head.foreground.tolist(), found.class_names, found.num_classes) == (
        [*range(5)],
        tuple("abcde"),
        CLASSES,
    )
    assert found.logit_layer.unused == (5,)
    assert found.propose([torch.rand(3, 40, 50)])[0].num_columns == CLASSES + 1


def test_published_weights_count_by_the_ids_of_coco(monkeypatch):
    coco = SimpleNamespace(COCO_CLASSES={1: "person", 2: "bicycle", 4: "motorcycle"})
    monkeypatch.setattr("logn.models.frameworks.rfdetr.import_module", lambda name: coco)
    found = RFDetrDetector(RFDETRNano(["person", "bicycle", "motorcycle"], num_classes=90))
    assert (found.head.foreground.tolist(), found.class_names) == ([1, 2, 4], ("person", "bicycle", "motorcycle"))
    assert RFDetrDetector(RFDETRNano(["cup", "fork"], num_classes=90)).head.foreground.tolist() == [0, 1]


def test_what_was_made_ready_for_inference_is_refused():
    detector = RFDETRNano([*"abcde"])
    detector._is_optimized_for_inference = True
    with pytest.raises(InputError, match="`detector`"):
        RFDetrDetector(detector)
