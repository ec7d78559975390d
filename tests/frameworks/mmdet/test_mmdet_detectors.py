"""Detectors of MMDetection as a source of proposals: what is decoded from them is what MMDetection itself gives."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from logn.errors import InputError
from logn.evaluate.models.mmdetection import MMDetectionDetector

pytest.importorskip("mmdet", reason="MMDetection has an environment of its own: make test-mmdet")

from mmcv.transforms import Compose
from mmdet.registry import MODELS
from mmengine.config import Config

SMALL = runpy.run_path(str(Path(__file__).with_name("test_mmdet_models.py")))
CLASSES = SMALL["CLASSES"]
PIPELINE = [
    {"type": "LoadImageFromFile"},
    {"type": "Resize", "scale": (128, 96), "keep_ratio": True},
    {"type": "Pad", "size": (128, 128), "pad_val": {"img": (114, 114, 114)}},
    {"type": "PackDetInputs", "meta_keys": ("img_id", "ori_shape", "img_shape", "scale_factor")},
]


def seesaw(model):
    model.roi_head.bbox_head.loss_cls = {"type": "SeesawLoss", "num_classes": CLASSES}


def agnostic(model):
    model.roi_head.bbox_head.reg_class_agnostic = True
    model.test_cfg.rcnn.nms.class_agnostic = True


def thresholds(model):
    """Thresholds and limits that take effect."""
    model.test_cfg.update(score_thr=0.3, max_per_img=30, nms_pre=10**6)


REGIONS = {
    "mask_rcnn": ("mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py", []),
    "seesaw": ("mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py", [seesaw]),
    "class_agnostic": ("mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py", [agnostic]),
    "cascade": ("cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py", []),
}
DENSE = {
    "retinanet": "retinanet/retinanet_r50_fpn_1x_coco.py",
    "atss": "atss/atss_r50_fpn_1x_coco.py",
    "gfl": "gfl/gfl_r50_fpn_1x_coco.py",
    "fcos": "fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py",
    "vfnet": "vfnet/vfnet_r50_fpn_1x_coco.py",
}
PER_LEVEL = {"yolox": "yolox/yolox_tiny_8xb8-300e_coco.py", "rtmdet": "rtmdet/rtmdet_tiny_8xb32-300e_coco.py"}
QUERIES = {
    "detr": "detr/detr_r50_8xb2-150e_coco.py",
    "conditional_detr": "conditional_detr/conditional-detr_r50_8xb2-50e_coco.py",
    "dab_detr": "dab_detr/dab-detr_r50_8xb2-50e_coco.py",
    "deformable_detr": "deformable_detr/deformable-detr-refine-twostage_r50_16xb2-50e_coco.py",
    "dino": "dino/dino-4scale_r50_8xb2-12e_coco.py",
}


def build(name):
    small, make = SMALL["small"], SMALL["build"]
    if name in REGIONS:
        path, changes = REGIONS[name]
        return make(small(path, classes=SMALL["fewer_classes"], **{change.__name__: change for change in changes}))
    if name in DENSE:
        return make(small(DENSE[name], dense=SMALL["dense"], thresholds=thresholds))
    if name in QUERIES:
        return make(small(QUERIES[name], transformer=SMALL["transformer"]))
    config = Config.fromfile(SMALL["CONFIGS"] / PER_LEVEL[name]).model
    config.data_preprocessor.pop("batch_augments", None)
    config.backbone.init_cfg = None
    config.bbox_head.num_classes = CLASSES
    config.test_cfg.nms_pre = 10**6
    model = make(config)
    if name == "rtmdet":
        spread_out(model, [*model.bbox_head.rtm_cls, *model.bbox_head.rtm_reg])
    return model


def spread_out(model, layers):
    """Boxes of some extent and scores that differ from place to place, which an untrained RTMDet does not give."""
    sizes = {}
    handles = [
        layer.register_forward_hook(lambda layer, inputs, output: sizes.update({layer: float(inputs[0].std())}))
        for layer in layers
    ]
    SMALL["run"](model)
    for handle in handles:
        handle.remove()
    with torch.no_grad():
        for layer, size in sizes.items():
            layer.weight.normal_(std=1 / (size * layer.weight[0].numel() ** 0.5))
            layer.bias.fill_(0.0 if layer.out_channels == CLASSES else 2.0)


def own_detections(model):
    pipeline = Compose([{"type": "mmdet.LoadImageFromNDArray"}, *PIPELINE[1:]])

    def own(image):
        picture = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()[..., ::-1]
        prepared = pipeline({"img": np.ascontiguousarray(picture), "img_id": 0})
        data = {"inputs": [prepared["inputs"]], "data_samples": [prepared["data_samples"]]}
        with torch.inference_mode():
            found = model.test_step(data)[0].pred_instances
        return found.bboxes, found.scores, found.labels

    return own


@pytest.mark.parametrize("name", [*REGIONS, *DENSE, *PER_LEVEL, *QUERIES])
def test_decoded_proposals_are_the_detections_of_mmdetection(name, same_detections, pictures):
    model = build(name)
    same_detections(MMDetectionDetector(model, PIPELINE), pictures, own_detections(model))


def test_sparse_rcnn(same_detections, pictures):
    config = SMALL["small"]("sparse_rcnn/sparse-rcnn_r50_fpn_1x_coco.py")
    config.rpn_head.num_proposals = 20
    config.test_cfg.rcnn.max_per_img = 10
    for head in config.roi_head.bbox_head:
        head.update(num_classes=CLASSES, feedforward_channels=64)
    model = SMALL["build"](config)
    model.rpn_head.init_weights()
    with torch.no_grad():
        for head in SMALL["box_heads"](model):
            head.fc_reg.weight.mul_(0.01)
            head.fc_reg.bias.zero_()
    same_detections(MMDetectionDetector(model, PIPELINE), pictures, own_detections(model))


def test_what_a_head_is_asked_and_what_it_is(pictures):
    model = build("mask_rcnn")
    with pytest.raises(
        InputError, match=r"Expected `pipeline`, .* `mmdet.apis.init_detector` makes it, but got neither"
    ):
        MMDetectionDetector(model)
    model.cfg = Config({"test_dataloader": {"dataset": {"pipeline": PIPELINE}}})
    model.dataset_meta = {"classes": ("a", "b", "c", "d", "e", "f")}
    detector = MMDetectionDetector(model)
    assert detector.class_names == ("a", "b", "c", "d", "e", "f")
    assert (detector.background, detector.activation, detector.population) == (-1, "softmax", "test proposals")
    (found,) = detector.propose(pictures[:1])
    assert found.boxes.shape[1:] == (CLASSES, 4)
    assert "predict_by_feat" not in vars(model.roi_head.bbox_head)  # the model is as it was
    tood = MODELS.build(SMALL["small"]("tood/tood_r50_fpn_1x_coco.py", dense=SMALL["dense"]))
    with pytest.raises(InputError, match=r"whose head is known, but got TOOD with TOODHead"):
        MMDetectionDetector(tood, PIPELINE)


def test_other_kinds_of_suppression_are_said():
    model = build("mask_rcnn")
    model.roi_head.test_cfg.nms = {"type": "soft_nms", "iou_threshold": 0.5}
    with pytest.warns(UserWarning, match=r"MMDetection's `soft_nms` is not decoded here"):
        MMDetectionDetector(model, PIPELINE)
