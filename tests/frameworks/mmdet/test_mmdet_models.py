"""Real MMDetection models, small and with random weights. Run by `make test-mmdet`, in an environment of their own."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from logn.deploy.attach import attach
from logn.deploy.fold import fold
from logn.logits.layer import find_modules
from logn.logits.locate import locate_logits

pytest.importorskip("mmdet", reason="MMDetection has an environment of its own: make test-mmdet")

from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmdet.utils import register_all_modules
from mmengine.config import Config

register_all_modules()
CONFIGS = Path(__import__("mmdet").__file__).parent / ".mim" / "configs"
CLASSES = 6
WAY_OUT = r"a cosine head normalises its weight in every pass, so scaling it has no effect\); use logn.attach instead"


def small(path, **changes):
    """A configuration of MMDetection with a ResNet-18, few classes and few proposals."""
    model = Config.fromfile(CONFIGS / path).model
    model.backbone.update(depth=18, init_cfg=None, norm_cfg={"type": "BN"})
    widths = [64, 128, 256, 512]
    if "neck" in model and "in_channels" in model.neck:
        wanted = model.neck.in_channels
        model.neck.in_channels = widths[-len(wanted) :]
    model.data_preprocessor.pop("batch_augments", None)
    for change in changes.values():
        change(model)
    return model


def build(config):
    torch.manual_seed(0)
    model = MODELS.build(config).eval()
    # Some parameters are memory that nobody has written to until then, which may hold NaN.
    model.init_weights()
    layer = locate_logits(model)
    with torch.no_grad():
        for module in find_modules(model, layer):
            module.weight.normal_(std=3 / module.weight[0].numel() ** 0.5)
            module.bias.normal_()
    return model


def box_heads(model):
    heads = model.roi_head.bbox_head
    return list(heads) if isinstance(heads, torch.nn.ModuleList) else [heads]


def fewer_classes(model):
    heads = model.roi_head.bbox_head
    for head in heads if isinstance(heads, list) else [heads]:
        head.update(num_classes=CLASSES, fc_out_channels=64)
    if "mask_head" in model.roi_head:
        masks = model.roi_head.mask_head
        for head in masks if isinstance(masks, list) else [masks]:
            head.update(num_classes=CLASSES, num_convs=1, conv_out_channels=16)
    model.test_cfg.rpn.update(nms_pre=60, max_per_img=40)
    model.test_cfg.rcnn.update(score_thr=0.0, max_per_img=10)


def normed(model):
    heads = model.roi_head.bbox_head
    for head in heads if isinstance(heads, list) else [heads]:
        head.cls_predictor_cfg = {"type": "NormedLinear", "temperature": 20}
    masks = model.roi_head.mask_head
    for head in masks if isinstance(masks, list) else [masks]:
        head.predictor_cfg = {"type": "NormedConv2d", "temperature": 20}


def dense(model):
    model.bbox_head.num_classes = CLASSES
    model.test_cfg.update(score_thr=0.0, max_per_img=10)


def transformer(model):
    model.bbox_head.num_classes = CLASSES
    model.num_queries = 12
    model.encoder.num_layers = 1
    model.decoder.num_layers = 3
    model.test_cfg.max_per_img = 10


def run(model):
    """Run the model's own inference on two images."""
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randint(0, 255, (3, 96, 128), generator=generator, dtype=torch.uint8) for _ in range(2)]
    samples = []
    for image in inputs:
        shape = tuple(image.shape[1:])
        samples.append(
            DetDataSample(
                metainfo={
                    "img_shape": shape,
                    "ori_shape": shape,
                    "scale_factor": (1.0, 1.0),
                    "batch_input_shape": shape,
                }
            )
        )
    with torch.inference_mode():
        return model.test_step({"inputs": inputs, "data_samples": samples})


def outputs_of(model, modules):
    """What the heads themselves return during inference."""
    seen = [[] for _ in modules]
    handles = [
        module.register_forward_hook(lambda module, inputs, output, place=place: seen[place].append(output))
        for place, module in enumerate(modules)
    ]
    run(model)
    for handle in handles:
        handle.remove()
    return seen


def region_logits(model):
    return [torch.cat([output[0] for output in outputs]) for outputs in outputs_of(model, box_heads(model))]


def dense_logits(model):
    ((output,),) = outputs_of(model, [model.bbox_head])
    columns = model.bbox_head.cls_out_channels
    return [torch.cat([level.permute(0, 2, 3, 1).reshape(-1, columns) for level in output[0]])]


def query_logits(model):
    ((output,),) = outputs_of(model, [model.bbox_head])
    return [output[0][-1].flatten(0, 1)]


def check_detections(model, folded, class_map):
    """The detections of the attached and of the folded model are the same, and not those of the plain one."""
    layer = locate_logits(model)
    columns = folded[1]
    maps = [class_map(columns, layer.background, seed) for seed in range(layer.num_stages)]
    affine = maps if layer.stages else maps[0]
    with attach(model, layer, affine):
        attached = [sample.pred_instances for sample in run(model)]
    plain = [sample.pred_instances for sample in run(model)]
    for one, other in zip(attached, [sample.pred_instances for sample in run(folded[0])], strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)
        np.testing.assert_array_equal(one.labels, other.labels)
    assert not all(torch.equal(one.scores, other.scores) for one, other in zip(attached, plain, strict=True))


@pytest.mark.parametrize(
    ("path", "stages"),
    [
        ("mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py", 1),
        ("cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py", 3),
    ],
)
def test_mask_and_cascade_rcnn(path, stages, agreement, class_map):
    model = build(small(path, classes=fewer_classes))
    layer, folded = agreement(model, region_logits)
    assert (layer.background, layer.activation, layer.num_stages) == (-1, "softmax", stages)
    assert layer.paths[0] == f"roi_head.bbox_head{'.0' if stages > 1 else ''}.fc_cls"
    check_detections(model, (folded, CLASSES + 1), class_map)


def test_cascade_averages_the_logits_of_its_stages(class_map):
    """The scores of the detections are those of the mean of the mapped logits of the stages."""
    model = build(small("cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py", classes=fewer_classes))
    layer = locate_logits(model)
    # A common map keeps the choice of classes between the stages, so the boxes stay as they are.
    affine = class_map(CLASSES + 1, -1)
    plain = region_logits(model)
    fold(model, layer, affine)
    mapped = region_logits(model)
    mean = torch.stack(mapped).mean(dim=0)
    # The first stage sees the same boxes in both.
    np.testing.assert_allclose(mapped[0], affine(plain[0]), atol=1e-4)
    scores = torch.cat([sample.pred_instances.scores for sample in run(model)])
    probabilities = mean.softmax(dim=-1)[:, :-1]
    assert all((probabilities - score).abs().min() < 1e-5 for score in scores)


@pytest.mark.parametrize(
    "path", ["mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py", "cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py"]
)
def test_normed_classifiers_are_attached_to_and_not_folded(path, agreement):
    model = build(small(path, classes=fewer_classes, normed=normed))
    layer, _ = agreement(model, region_logits, fold_refused=WAY_OUT)
    assert layer.background == -1


def test_seesaw_has_two_columns_that_are_no_classes(agreement, class_map):
    config = small("mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py", classes=fewer_classes)
    config.roi_head.bbox_head.loss_cls = {"type": "SeesawLoss", "num_classes": CLASSES}
    model = build(config)
    layer, folded = agreement(model, lambda model: [rows[:, :CLASSES] for rows in region_logits(model)])
    assert (layer.background, layer.activation, layer.extra_columns) == (None, "softmax", 2)
    np.testing.assert_allclose(region_logits(folded)[0][:, CLASSES:], region_logits(model)[0][:, CLASSES:], atol=1e-5)
    check_detections(model, (folded, CLASSES), class_map)


@pytest.mark.parametrize(
    ("path", "layer_path", "anchors"),
    [
        ("retinanet/retinanet_r50_fpn_1x_coco.py", "bbox_head.retina_cls", 9),
        ("atss/atss_r50_fpn_1x_coco.py", "bbox_head.atss_cls", 1),
        ("gfl/gfl_r50_fpn_1x_coco.py", "bbox_head.gfl_cls", 1),
        ("fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py", "bbox_head.conv_cls", 1),
        ("vfnet/vfnet_r50_fpn_1x_coco.py", "bbox_head.vfnet_cls", 1),
    ],
)
def test_dense_heads(path, layer_path, anchors, agreement, class_map):
    model = build(small(path, dense=dense))
    layer, folded = agreement(model, dense_logits)
    assert (layer.path, layer.anchors, layer.background, layer.activation) == (layer_path, anchors, None, "sigmoid")
    check_detections(model, (folded, CLASSES), class_map)


@pytest.mark.parametrize(
    ("path", "first", "paths"),
    [
        ("yolox/yolox_tiny_8xb8-300e_coco.py", "bbox_head.multi_level_conv_cls.0", 3),
        ("rtmdet/rtmdet_tiny_8xb32-300e_coco.py", "bbox_head.rtm_cls.0", 3),
    ],
)
def test_one_convolution_per_level(path, first, paths, agreement):
    config = Config.fromfile(CONFIGS / path).model
    config.data_preprocessor.pop("batch_augments", None)
    config.backbone.init_cfg = None
    config.bbox_head.num_classes = CLASSES
    model = build(config)
    with torch.no_grad():
        # Features of untrained networks may be huge.
        size = float(dense_logits(model)[0].std())
        for module in find_modules(model, locate_logits(model)):
            module.weight.div_(size)
    layer, _ = agreement(model, dense_logits)
    assert (layer.paths[0], len(layer.paths)) == (first, paths)
    assert layer.background is None


def test_ssd_is_found():
    # Its head has no `loss_cls`, without which this version of the framework cannot predict.
    with torch.device("meta"):
        layer = locate_logits(MODELS.build(Config.fromfile(CONFIGS / "ssd/ssd300_coco.py").model))
    assert layer.paths == tuple(f"bbox_head.cls_convs.{level}.0" for level in range(6))
    assert (layer.background, layer.activation, layer.anchors) == (-1, "softmax", (4, 6, 6, 6, 4, 4))


def test_detr(agreement, class_map):
    config = small("detr/detr_r50_8xb2-150e_coco.py", transformer=transformer)
    model = build(config)
    layer, folded = agreement(model, query_logits)
    assert (layer.path, layer.background, layer.final_only) == ("bbox_head.fc_cls", -1, "slice")
    check_detections(model, (folded, CLASSES + 1), class_map)


@pytest.mark.parametrize(
    "path", ["conditional_detr/conditional-detr_r50_8xb2-50e_coco.py", "dab_detr/dab-detr_r50_8xb2-50e_coco.py"]
)
def test_conditional_detr_and_dab_detr(path, agreement, class_map):
    model = build(small(path, transformer=transformer))
    layer, folded = agreement(model, query_logits)
    assert (layer.path, layer.background, layer.activation) == ("bbox_head.fc_cls", None, "sigmoid")
    check_detections(model, (folded, CLASSES), class_map)


def test_sparse_rcnn_predicts_with_its_last_stage(agreement, class_map):
    config = small("sparse_rcnn/sparse-rcnn_r50_fpn_1x_coco.py")
    config.rpn_head.num_proposals = 20
    config.test_cfg.rcnn.max_per_img = 10
    for head in config.roi_head.bbox_head:
        head.update(num_classes=CLASSES, feedforward_channels=64)
    model = build(config)
    # Untrained boxes may be turned inside out; these are the whole image at every stage.
    model.rpn_head.init_weights()
    with torch.no_grad():
        for head in box_heads(model):
            head.fc_reg.weight.zero_()
            head.fc_reg.bias.zero_()
    layer, folded = agreement(model, lambda model: [region_logits(model)[-1].flatten(0, 1)])
    assert (layer.path, layer.background, layer.activation) == ("roi_head.bbox_head.5.fc_cls", None, "sigmoid")
    check_detections(model, (folded, CLASSES), class_map)


@pytest.mark.parametrize(
    "path",
    [
        "deformable_detr/deformable-detr_r50_16xb2-50e_coco.py",
        "deformable_detr/deformable-detr-refine_r50_16xb2-50e_coco.py",
        "deformable_detr/deformable-detr-refine-twostage_r50_16xb2-50e_coco.py",
        "dino/dino-4scale_r50_8xb2-12e_coco.py",
    ],
)
def test_deformable_detr_and_dino(path, agreement, class_map):
    model = build(small(path, transformer=transformer))
    layer, folded = agreement(model, query_logits)
    assert (layer.path, layer.background, layer.activation) == ("bbox_head.cls_branches.2", None, "sigmoid")
    boxes = [outputs_of(each, [each.bbox_head])[0][0][1] for each in (model, folded)]
    # The same proposals became queries.
    np.testing.assert_array_equal(boxes[0], boxes[1])
    check_detections(model, (folded, CLASSES), class_map)


def test_mask2former(agreement):
    config = Config.fromfile(CONFIGS / "mask2former/mask2former_r50_8xb2-lsj-50e_coco.py").model
    config.data_preprocessor.pop("batch_augments", None)
    config.backbone.update(depth=18, init_cfg=None)
    config.panoptic_head.update(in_channels=[64, 128, 256, 512], num_things_classes=CLASSES, num_queries=8)
    config.panoptic_head.loss_cls.class_weight = [1.0] * CLASSES + [0.1]
    config.panoptic_head.transformer_decoder.num_layers = 3
    config.panoptic_fusion_head.num_things_classes = CLASSES
    config.test_cfg.max_per_image = 5
    model = build(config)

    def own_logits(model):
        ((output,),) = outputs_of(model, [model.panoptic_head])
        return [output[0][-1].flatten(0, 1)]

    layer, _ = agreement(model, own_logits)
    assert (layer.path, layer.background, layer.final_only) == ("panoptic_head.cls_embed", -1, "call")


def test_a_copy_of_a_detector_with_shared_branches_keeps_them_shared():
    config = small("deformable_detr/deformable-detr_r50_16xb2-50e_coco.py", transformer=transformer)
    model = build(config)
    branches = copy.deepcopy(model).bbox_head.cls_branches
    assert branches[0] is branches[2]
