"""Real MMDetection models, small and with random weights. Run by `make test-mmdet`, in an environment of their own."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from logn.errors import InputError
from logn.models.frameworks.mmdetection import MMDetectionDetector
from logn.models.layer import find_modules
from logn.models.locate import locate_logits
from logn.models.torch.attach import attach
from logn.models.torch.fold import fold
from logn.predictions.store import Predictions

pytest.importorskip("mmdet", reason="MMDetection has an environment of its own: make test-mmdet")

from mmcv.transforms import Compose
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmdet.utils import register_all_modules
from mmengine.config import Config

register_all_modules()
CONFIGS = Path(__import__("mmdet").__file__).parent / ".mim" / "configs"
CLASSES = 6
WAY_OUT = "use logn.attach instead"


def listed(heads):
    return list(heads) if isinstance(heads, list | torch.nn.ModuleList) else [heads]


def regions(model):
    for head in listed(model.roi_head.bbox_head):
        head.update(num_classes=CLASSES, fc_out_channels=64)
    for head in listed(model.roi_head.mask_head):
        head.update(num_classes=CLASSES, num_convs=1, conv_out_channels=16)
    model.test_cfg.rpn.update(nms_pre=60, max_per_img=40)
    model.test_cfg.rcnn.update(score_thr=0.0, max_per_img=10)


def normed(model):
    for head in listed(model.roi_head.bbox_head):
        head.cls_predictor_cfg = {"type": "NormedLinear", "temperature": 20}
    for head in listed(model.roi_head.mask_head):
        head.predictor_cfg = {"type": "NormedConv2d", "temperature": 20}


def seesaw(model):
    model.roi_head.bbox_head.loss_cls = {"type": "SeesawLoss", "num_classes": CLASSES}


def agnostic(model):
    model.roi_head.bbox_head.reg_class_agnostic = True
    model.test_cfg.rcnn.nms.class_agnostic = True


def sparse(model):
    model.rpn_head.num_proposals = 20
    model.test_cfg.rcnn.max_per_img = 10
    for head in model.roi_head.bbox_head:
        head.update(num_classes=CLASSES, feedforward_channels=64)


def dense(model):
    """Thresholds and limits that take effect."""
    model.bbox_head.num_classes = CLASSES
    model.test_cfg.update(score_thr=0.3, max_per_img=30, nms_pre=10**6)


def per_level(model):
    model.bbox_head.num_classes = CLASSES
    model.test_cfg.nms_pre = 10**6


def transformer(model):
    model.bbox_head.num_classes = CLASSES
    model.num_queries = 12
    model.encoder.num_layers = 1
    model.decoder.num_layers = 3
    model.test_cfg.max_per_img = 10


def masks(model):
    head = model.panoptic_head
    head.update(in_channels=[64, 128, 256, 512], num_things_classes=CLASSES, num_queries=8)
    head.loss_cls.class_weight = [1.0] * CLASSES + [0.1]
    head.transformer_decoder.num_layers = 3
    model.panoptic_fusion_head.num_things_classes = CLASSES
    model.test_cfg.max_per_image = 5


MASK, CASCADE = "mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py", "cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py"
SMALL = {
    "mask_rcnn": (MASK, regions),
    "seesaw": (MASK, regions, seesaw),
    "class_agnostic": (MASK, regions, agnostic),
    "normed": (MASK, regions, normed),
    "cascade": (CASCADE, regions),
    "normed_cascade": (CASCADE, regions, normed),
    "sparse_rcnn": ("sparse_rcnn/sparse-rcnn_r50_fpn_1x_coco.py", sparse),
    "retinanet": ("retinanet/retinanet_r50_fpn_1x_coco.py", dense),
    "atss": ("atss/atss_r50_fpn_1x_coco.py", dense),
    "gfl": ("gfl/gfl_r50_fpn_1x_coco.py", dense),
    "fcos": ("fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py", dense),
    "vfnet": ("vfnet/vfnet_r50_fpn_1x_coco.py", dense),
    "yolox": ("yolox/yolox_tiny_8xb8-300e_coco.py", per_level),
    "rtmdet": ("rtmdet/rtmdet_tiny_8xb32-300e_coco.py", per_level),
    "detr": ("detr/detr_r50_8xb2-150e_coco.py", transformer),
    "conditional_detr": ("conditional_detr/conditional-detr_r50_8xb2-50e_coco.py", transformer),
    "dab_detr": ("dab_detr/dab-detr_r50_8xb2-50e_coco.py", transformer),
    "deformable_detr": ("deformable_detr/deformable-detr_r50_16xb2-50e_coco.py", transformer),
    "deformable_detr_refined": ("deformable_detr/deformable-detr-refine_r50_16xb2-50e_coco.py", transformer),
    "deformable_detr_two_stage": ("deformable_detr/deformable-detr-refine-twostage_r50_16xb2-50e_coco.py", transformer),
    "dino": ("dino/dino-4scale_r50_8xb2-12e_coco.py", transformer),
    "mask2former": ("mask2former/mask2former_r50_8xb2-lsj-50e_coco.py", masks),
    "tood": ("tood/tood_r50_fpn_1x_coco.py", dense),
}


def configuration(name):
    """A configuration of MMDetection with a ResNet-18, few classes and few proposals."""
    path, *changes = SMALL[name]
    model = Config.fromfile(CONFIGS / path).model
    model.backbone.init_cfg = None
    if "depth" in model.backbone:
        model.backbone.update(depth=18, norm_cfg={"type": "BN"})
        if "neck" in model and "in_channels" in model.neck:
            model.neck.in_channels = [64, 128, 256, 512][-len(model.neck.in_channels) :]
    model.data_preprocessor.pop("batch_augments", None)
    for change in changes:
        change(model)
    return model


def build(name):
    torch.manual_seed(0)
    model = MODELS.build(configuration(name)).eval()
    # Some parameters are memory that nobody has written to until then, which may hold NaN.
    model.init_weights()
    with torch.no_grad():
        for module in find_modules(model, locate_logits(model)):
            module.weight.normal_(std=3 / module.weight[0].numel() ** 0.5)
            module.bias.normal_()
        if name == "sparse_rcnn":
            # Untrained boxes may be turned inside out; these are almost the whole image at every stage.
            model.rpn_head.init_weights()
            for head in model.roi_head.bbox_head:
                head.fc_reg.weight.mul_(0.01)
                head.fc_reg.bias.zero_()
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
    run(model)
    for handle in handles:
        handle.remove()
    with torch.no_grad():
        for layer, size in sizes.items():
            layer.weight.normal_(std=1 / (size * layer.weight[0].numel() ** 0.5))
            layer.bias.fill_(0.0 if layer.out_channels == CLASSES else 2.0)


def run(model):
    """Run the model's own inference on two images."""
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randint(0, 255, (3, 96, 128), generator=generator, dtype=torch.uint8) for _ in range(2)]
    shapes = dict.fromkeys(("img_shape", "ori_shape", "batch_input_shape"), (96, 128))
    samples = [DetDataSample(metainfo={**shapes, "scale_factor": (1.0, 1.0)}) for _ in inputs]
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
    heads = listed(model.roi_head.bbox_head)
    return [torch.cat([output[0] for output in outputs]) for outputs in outputs_of(model, heads)]


def class_logits(model):
    return [rows[:, :CLASSES] for rows in region_logits(model)]


def last_stage(model):
    return [region_logits(model)[-1].flatten(0, 1)]


def dense_logits(model):
    ((output,),) = outputs_of(model, [model.bbox_head])
    columns = model.bbox_head.cls_out_channels
    return [torch.cat([level.permute(0, 2, 3, 1).reshape(-1, columns) for level in output[0]])]


def query_logits(model):
    ((output,),) = outputs_of(model, [model.bbox_head if hasattr(model, "bbox_head") else model.panoptic_head])
    return [output[0][-1].flatten(0, 1)]


# the model's own logits, the first path, background, other properties of the layer
REGIONS, BRANCH = "roi_head.bbox_head.fc_cls", "bbox_head.cls_branches.2"
LAYERS = {
    "mask_rcnn": (region_logits, REGIONS, -1, {"num_stages": 1, "activation": "softmax"}),
    "cascade": (region_logits, "roi_head.bbox_head.0.fc_cls", -1, {"num_stages": 3, "activation": "softmax"}),
    "seesaw": (class_logits, REGIONS, None, {"activation": "softmax", "extra_columns": 2}),
    "sparse_rcnn": (last_stage, "roi_head.bbox_head.5.fc_cls", None, {"activation": "sigmoid"}),
    "retinanet": (dense_logits, "bbox_head.retina_cls", None, {"activation": "sigmoid", "anchors": 9}),
    "atss": (dense_logits, "bbox_head.atss_cls", None, {"activation": "sigmoid", "anchors": 1}),
    "gfl": (dense_logits, "bbox_head.gfl_cls", None, {"activation": "sigmoid", "anchors": 1}),
    "fcos": (dense_logits, "bbox_head.conv_cls", None, {"activation": "sigmoid", "anchors": 1}),
    "vfnet": (dense_logits, "bbox_head.vfnet_cls", None, {"activation": "sigmoid", "anchors": 1}),
    "yolox": (dense_logits, "bbox_head.multi_level_conv_cls.0", None, {}),
    "rtmdet": (dense_logits, "bbox_head.rtm_cls.0", None, {}),
    "detr": (query_logits, "bbox_head.fc_cls", -1, {"final_only": "slice"}),
    "conditional_detr": (query_logits, "bbox_head.fc_cls", None, {"activation": "sigmoid"}),
    "dab_detr": (query_logits, "bbox_head.fc_cls", None, {"activation": "sigmoid"}),
    "deformable_detr": (query_logits, BRANCH, None, {"activation": "sigmoid"}),
    "deformable_detr_refined": (query_logits, BRANCH, None, {"activation": "sigmoid"}),
    "deformable_detr_two_stage": (query_logits, BRANCH, None, {"activation": "sigmoid"}),
    "dino": (query_logits, BRANCH, None, {"activation": "sigmoid"}),
    "mask2former": (query_logits, "panoptic_head.cls_embed", -1, {"final_only": "call"}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_recorded_attached_and_folded_agree_with_the_model(name, agreement, class_map):
    own_logits, path, background, known = LAYERS[name]
    model = build(name)
    if name in ("yolox", "rtmdet"):  # features of untrained networks may be huge
        size = float(dense_logits(model)[0].std())
        with torch.no_grad():
            for module in find_modules(model, locate_logits(model)):
                module.weight.div_(size)
    layer, folded = agreement(model, own_logits)
    assert (layer.paths[0], layer.background) == (path, background)
    assert {key: getattr(layer, key) for key in known} == known
    if name in ("yolox", "rtmdet", "mask2former"):
        assert len(layer.paths) == (1 if name == "mask2former" else 3)
        return
    # The detections of the attached and of the folded model are the same, and not those of the plain one.
    columns = CLASSES + (background is not None)
    maps = [class_map(columns, background, seed) for seed in range(layer.num_stages)]
    with attach(model, layer, maps if layer.stages else maps[0]):
        attached = [sample.pred_instances for sample in run(model)]
    plain, after = ([sample.pred_instances for sample in run(each)] for each in (model, folded))
    for one, other in zip(attached, after, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)
        np.testing.assert_array_equal(one.labels, other.labels)
    assert not all(torch.equal(one.scores, other.scores) for one, other in zip(attached, plain, strict=True))
    if path == BRANCH:  # the same proposals became queries
        boxes = [outputs_of(each, [each.bbox_head])[0][0][1] for each in (model, folded)]
        np.testing.assert_array_equal(*boxes)
    if name == "seesaw":
        objectness = [region_logits(each)[0][:, CLASSES:] for each in (model, folded)]
        np.testing.assert_allclose(*objectness, atol=1e-5)


def test_cascade_averages_the_logits_of_its_stages(class_map):
    """The scores of the detections are those of the mean of the mapped logits of the stages."""
    model = build("cascade")
    # A common map keeps the choice of classes between the stages, so the boxes stay as they are.
    affine = class_map(CLASSES + 1, -1)
    plain = region_logits(model)
    fold(model, locate_logits(model), affine)
    mapped = region_logits(model)
    # The first stage sees the same boxes in both.
    np.testing.assert_allclose(mapped[0], affine(plain[0]), atol=1e-4)
    scores = torch.cat([sample.pred_instances.scores for sample in run(model)])
    probabilities = torch.stack(mapped).mean(dim=0).softmax(dim=-1)[:, :-1]
    assert all((probabilities - score).abs().min() < 1e-5 for score in scores)


@pytest.mark.parametrize("name", ["normed", "normed_cascade"])
def test_normed_classifiers_are_attached_to_and_not_folded(name, agreement):
    layer, _ = agreement(build(name), region_logits, fold_refused=WAY_OUT)
    assert layer.background == -1


def test_ssd_is_found():
    # Its head has no `loss_cls`, without which this version of the framework cannot predict.
    with torch.device("meta"):
        layer = locate_logits(MODELS.build(Config.fromfile(CONFIGS / "ssd/ssd300_coco.py").model))
    assert layer.paths == tuple(f"bbox_head.cls_convs.{level}.0" for level in range(6))
    assert (layer.background, layer.activation, layer.anchors) == (-1, "softmax", (4, 6, 6, 6, 4, 4))


def test_a_copy_of_a_detector_with_shared_branches_keeps_them_shared():
    branches = copy.deepcopy(build("deformable_detr")).bbox_head.cls_branches
    assert branches[0] is branches[2]


PIPELINE = [
    {"type": "LoadImageFromFile"},
    {"type": "Resize", "scale": (128, 96), "keep_ratio": True},
    {"type": "Pad", "size": (128, 128), "pad_val": {"img": (114, 114, 114)}},
    {"type": "PackDetInputs", "meta_keys": ("img_id", "ori_shape", "img_shape", "scale_factor")},
]
DECODED = [
    *("mask_rcnn", "seesaw", "class_agnostic", "cascade", "sparse_rcnn", "retinanet", "atss", "gfl", "fcos", "vfnet"),
    *("yolox", "rtmdet", "detr", "conditional_detr", "dab_detr", "deformable_detr_two_stage", "dino"),
]


@pytest.mark.parametrize("name", DECODED)
def test_decoded_proposals_are_the_detections_of_mmdetection(name, same_detections, pictures):
    model = build(name)
    pipeline = Compose([{"type": "mmdet.LoadImageFromNDArray"}, *PIPELINE[1:]])

    def own(image):
        picture = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()[..., ::-1]
        prepared = pipeline({"img": np.ascontiguousarray(picture), "img_id": 0})
        data = {"inputs": [prepared["inputs"]], "data_samples": [prepared["data_samples"]]}
        with torch.inference_mode():
            found = model.test_step(data)[0].pred_instances
        return found.bboxes, found.scores, found.labels

    same_detections(MMDetectionDetector(model, PIPELINE), pictures, own)


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize("name", ["mask_rcnn", "class_agnostic", "cascade", "retinanet"])
def test_masks_are_those_of_mmdetection(name, pictures):
    detector = MMDetectionDetector(build(name), PIPELINE)
    if name == "retinanet":
        assert detector.masks is None
        return
    prepared = detector.prepare(pictures[0])
    data = detector._batch(prepared)
    with torch.inference_mode():
        found = detector.network.predict(data["inputs"], data["data_samples"], rescale=True)[0].pred_instances
    boxes, labels = found.bboxes.numpy(), found.labels.numpy()
    made = list(detector.masks(prepared, boxes, labels, np.zeros(len(boxes), np.int32)))
    assert len(made) > 3
    # A box is brought to the network and back, which may move a pixel next to the threshold.
    assert (np.stack(made) != found.masks.numpy()).mean() < 1e-3


def test_what_a_head_is_asked_and_what_it_is(pictures):
    model = build("mask_rcnn")
    with pytest.raises(InputError, match="`pipeline`"):
        MMDetectionDetector(model)
    model.cfg = Config({"test_dataloader": {"dataset": {"pipeline": PIPELINE}}})
    model.dataset_meta = {"classes": tuple("abcdef")}
    detector = MMDetectionDetector(model)
    assert detector.class_names == tuple("abcdef")
    assert (detector.head.background, detector.head.activation, detector.head.population) == (
        -1,
        "softmax",
        "test proposals",
    )
    (found,) = detector.propose(pictures[:1])
    assert found.boxes.shape[1:] == (CLASSES, 4)
    assert not model.roi_head.bbox_head._forward_hooks  # the model is as it was
    model.roi_head.test_cfg.nms = {"type": "soft_nms", "iou_threshold": 0.5}
    with pytest.warns(UserWarning, match="`soft_nms`"):
        MMDetectionDetector(model, PIPELINE)
    with pytest.raises(InputError, match="TOODHead"):
        MMDetectionDetector(MODELS.build(configuration("tood")), PIPELINE)


def page_model():
    """What `my_detector.py` of the page builds."""
    model = build("mask_rcnn")
    model.cfg = Config({"test_dataloader": {"dataset": {"pipeline": [*PIPELINE[:2], PIPELINE[3]]}}})
    model.dataset_meta = {"classes": tuple("abcdef")}
    return model


def test_the_commands_of_the_page(run_page):
    run_commands = run_page("abcdef")
    Path("my_detector.py").write_text(f"import runpy\nbuild = runpy.run_path({__file__!r})['page_model']\n")
    assert run_commands("mmdetection.md", "predict") == ["predict", "collect", "compare", "report"]
    store = Predictions("predictions")
    assert (len(store), store.head.background, store.header.class_boxes) == (4, -1, True)
    assert Path("comparison/report.html").is_file()
    assert run_commands("mmdetection.md", "correct") == ["correct"]
    weights, before = load_file("corrected.safetensors"), sys.modules["my_detector"].build().state_dict()
    changed = {name for name, values in before.items() if not torch.equal(values, weights[name])}
    assert changed == {f"{REGIONS}.{kind}" for kind in ("weight", "bias")}
