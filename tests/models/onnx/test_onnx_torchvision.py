"""Folding into exports of torchvision's detectors: what the file gives is what PyTorch gives with the map attached."""

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.models.detection import FasterRCNN, MaskRCNN, RetinaNet, ssdlite320_mobilenet_v3_large
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.retinanet import RetinaNetHead

from logn.errors import InputError
from logn.models.locate import locate_logits
from logn.models.onnx.fold import fold_onnx
from logn.models.onnx.model import record_onnx
from logn.models.preprocessing import Preprocessing
from logn.models.torch.attach import attach
from logn.models.torch.record import record

CLASSES = 6


class Pyramid(nn.Module):
    """A small backbone for torchvision's detectors."""

    out_channels = 16

    def __init__(self, levels):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(16 if level else 3, 16, 3, 2, 1) for level in range(levels))

    def forward(self, images):
        features = {}
        for level, layer in enumerate(self.layers):
            images = layer(images).relu()
            features[str(level)] = images
        return features


def regions():
    return {
        "rpn_anchor_generator": AnchorGenerator(((32, 64),) * 3, ((0.5, 1.0, 2.0),) * 3),
        "box_head": TwoMLPHead(16 * 49, 32),
        "box_predictor": FastRCNNPredictor(32, CLASSES),
        "min_size": 64,
        "max_size": 64,
        "box_score_thresh": 0.0,
    }


def faster_rcnn():
    return FasterRCNN(Pyramid(3), **regions(), rpn_post_nms_top_n_test=20, box_detections_per_img=10)


def ssdlite():

    options = {"weights": None, "weights_backbone": None, "score_thresh": 0.0, "detections_per_img": 10}
    return ssdlite320_mobilenet_v3_large(num_classes=CLASSES, **options)


def retinanet():

    model = RetinaNet(
        Pyramid(5),
        CLASSES,
        min_size=64,
        max_size=64,
        anchor_generator=AnchorGenerator(tuple((size,) for size in (16, 32, 64, 128, 256)), ((0.5, 1.0, 2.0),) * 5),
        head=RetinaNetHead(16, 3, CLASSES),
        score_thresh=0.0,
        detections_per_img=10,
    )
    for module in model.head.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return model


@pytest.mark.parametrize(("make", "background"), [(faster_rcnn, 0), (ssdlite, 0), (retinanet, None)])
def test_torchvision_detectors(exported, map_of, outputs_of, interface, settle, tmp_path, make, background):
    torch.manual_seed(0)
    model = make()
    if make is ssdlite:
        settle(model, lambda images: model.head(list(model.backbone(images).values())))
    model.eval()
    pixels = np.random.default_rng(3).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    image = torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float() / 255
    source = exported(make.__name__, model, ([image],))
    affine = map_of(CLASSES, background)
    report = fold_onnx(source, affine, tmp_path / "out.onnx")
    assert report.largest_difference < 1e-4
    assert interface(source) == interface(tmp_path / "out.onnx")

    layer = locate_logits(model)
    with attach(model, layer, affine), torch.inference_mode():
        (expected,) = model([image])
    boxes, labels, scores = ordered(outputs_of(tmp_path / "out.onnx", image))
    np.testing.assert_allclose(scores, expected["scores"].numpy(), atol=1e-4)
    np.testing.assert_array_equal(labels, expected["labels"].numpy())
    np.testing.assert_allclose(boxes, expected["boxes"].numpy(), atol=1e-2)

    (tmp_path / "images").mkdir()
    Image.fromarray(pixels).save(tmp_path / "images" / "0.png")
    collected = record_onnx(source, tmp_path / "images", Preprocessing(), tensor=report.tensors, background=background)
    with record(model, layer) as moments, torch.inference_mode():
        model([image])
    np.testing.assert_array_equal(collected.count, moments.count)
    np.testing.assert_allclose(collected.mean, moments.mean, atol=1e-4)
    np.testing.assert_allclose(collected.variance, moments.variance, rtol=1e-3, atol=1e-6)


def ordered(outputs):
    """Boxes, labels and scores, whatever order the exporter gave them."""
    boxes = next(array for array in outputs if array.ndim == 2)
    labels = next(array for array in outputs if array.dtype == np.int64)
    scores = next(array for array in outputs if array.ndim == 1 and array.dtype == np.float32)
    return boxes, labels, scores


def test_mask_rcnn_takes_the_boxes_logits_not_the_masks(exported, map_of, tmp_path):
    torch.manual_seed(0)
    masks = {"mask_head": MaskRCNNHeads(16, (8,), 1), "mask_predictor": MaskRCNNPredictor(8, 8, CLASSES)}
    sizes = {"rpn_post_nms_top_n_test": 10, "box_detections_per_img": 5}
    model = MaskRCNN(Pyramid(3), **regions(), **masks, **sizes).eval()
    source = exported("MaskRCNN", model, ([torch.rand(3, 64, 64)],))
    report = fold_onnx(source, map_of(CLASSES, background=0), tmp_path / "out.onnx")
    assert report.activation == "softmax"
    (logits,) = report.tensors
    graph = onnx.load(str(source)).graph
    assert (
        next(node for node in graph.node if logits in node.output).input[1]
        == "roi_heads.box_predictor.cls_score.weight"
    )
    with pytest.raises(
        InputError, match="several tensors that may be"
    ):  # without a background nothing tells them apart
        fold_onnx(source, map_of(CLASSES), tmp_path / "other.onnx")
