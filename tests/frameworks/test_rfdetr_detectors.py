"""RF-DETR's own package as a source of proposals, by a stand-in; what it does follows `rfdetr` 1.11."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torchvision.transforms import functional

import logn
from logn.errors import InputError
from logn.evaluate.models.rfdetr import RFDetrDetector

CLASSES = 5
QUERIES = 12


class LWDETR(nn.Module):
    __module__ = "rfdetr.models.lwdetr"

    def __init__(self):
        super().__init__()
        self.queries = nn.Linear(3 * 16, QUERIES * 8)
        self.class_embed = nn.Linear(8, CLASSES + 1)
        self.bbox_embed = nn.Linear(8, 4)

    def forward(self, images):
        features = self.queries(nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)).unflatten(1, (QUERIES, 8))
        return {"pred_logits": self.class_embed(features), "pred_boxes": self.bbox_embed(features).sigmoid()}


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
        postprocess = SimpleNamespace(num_select=20)
        args = SimpleNamespace(num_classes=num_classes)
        self.model = SimpleNamespace(model=network, resolution=64, postprocess=postprocess, args=args)

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
    assert (found.class_columns, found.class_names, found.num_classes) == ((0, 1, 2, 3, 4), tuple("abcde"), CLASSES)
    assert found.logit_layer.unused == (5,)
    assert found.propose([torch.rand(3, 40, 50)])[0].num_columns == CLASSES + 1


def test_published_weights_count_by_the_ids_of_coco(monkeypatch):
    coco = SimpleNamespace(COCO_CLASSES={1: "person", 2: "bicycle", 4: "motorcycle"})
    monkeypatch.setattr("logn.evaluate.models.rfdetr.import_module", lambda name: coco)
    found = RFDetrDetector(RFDETRNano(["person", "bicycle", "motorcycle"], num_classes=90))
    assert found.class_columns == (1, 2, 4)
    assert found.class_names == ("person", "bicycle", "motorcycle")
    other = RFDetrDetector(RFDETRNano(["cup", "fork"], num_classes=90))
    assert other.class_columns == (0, 1)


def test_what_was_made_ready_for_inference_is_refused():
    detector = RFDETRNano([*"abcde"])
    detector._is_optimized_for_inference = True
    with pytest.raises(InputError, match=r"`rfdetr`, .*before optimize_for_inference, but got RFDETRN"):
        RFDetrDetector(detector)
