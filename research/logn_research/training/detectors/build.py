"""Putting the parts of a detector together: backbone, proposals, heads, transform."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import resnet50, resnet101
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

from logn.errors import InputError
from logn_research.losses.loss_factory import layout_of
from logn_research.training.detectors.cascade_heads import STAGE_IOU, CascadeRegionHeads
from logn_research.training.detectors.heads import BoxPredictor, MaskPredictor
from logn_research.training.detectors.light_backbones import BACKBONES, STRIDES, LightBackbone
from logn_research.training.detectors.one_stage import OneStageDetector, PointBoxes
from logn_research.training.detectors.region_heads import RegionHeads
from logn_research.training.detectors.settings import LIGHT, ONE_STAGE, SMALL_MODELS, DetectorSettings
from logn_research.training.detectors.small_model import (
    PYRAMID_CHANNELS,
    KeepSizeTransform,
    RegionSampler,
    SmallBackbone,
    SmallBoxHead,
    SmallMaskHead,
    SmallProposals,
)
from logn_research.training.detectors.two_stage import TwoStageDetector
from logn_research.training.engine.backbone_weights import load_backbone


class FixedStatisticsNorm(nn.BatchNorm2d):
    """Batch normalisation by the statistics that it came with, of which scale and shift are trained.

    That is MMDetection's `norm_cfg=dict(type="BN", requires_grad=True)` with `norm_eval=True`: batches of a few images
    would move the statistics of a pretrained network away from where they are good.

    Example:
        >>> norm = FixedStatisticsNorm(2).train()
        >>> norm.training, norm.weight.requires_grad
        (False, True)
    """

    def train(self, mode: bool = True) -> FixedStatisticsNorm:
        """Stay in evaluation mode, whatever the network is in."""
        return super().train(False)


RESNETS = {"mask-rcnn-r50": resnet50, "mask-rcnn-r101": resnet101, "cascade-r101": resnet101}
NORMALISATION = {"affine": FixedStatisticsNorm, "frozen": FrozenBatchNorm2d, None: nn.BatchNorm2d}
SHORTER_SIDE, LONGER_SIDE = 800, 1333
LIGHT_SIDE = 256


def assemble(settings: DetectorSettings, weights: dict[str, Tensor] | None) -> TwoStageDetector | OneStageDetector:
    """Build the detector that `settings` describe, with weights from torch's present random state."""
    if weights is not None and not settings.pretrained:
        raise InputError("Expected `pretrained` to be True where `weights` are given, but got False.")
    if settings.model in SMALL_MODELS:
        if weights is not None:
            raise InputError("Expected no backbone `weights` for the small detectors, but got some.")
        return _small_one_stage(settings) if settings.model == ONE_STAGE else _small(settings)
    if settings.model == LIGHT:
        return _light(settings, weights)
    return _paper(settings, weights)


def _small(settings: DetectorSettings) -> TwoStageDetector:
    anchors = AnchorGenerator(sizes=((20, 36),), aspect_ratios=((0.6, 1.0, 1.7),))
    # Few proposals in training: suppression is quadratic, and 48 regions an image are kept anyway.
    rpn = SmallProposals(
        anchors,
        RPNHead(PYRAMID_CHANNELS, anchors.num_anchors_per_location()[0]),
        fg_iou_thresh=0.6,
        bg_iou_thresh=0.3,
        batch_size_per_image=64,
        positive_fraction=0.5,
        pre_nms_top_n={"training": 200, "testing": 600},
        post_nms_top_n={"training": 100, "testing": 300},
        nms_thresh=0.7,
    )
    heads = RegionHeads(
        box_roi_pool=RegionSampler(7),
        box_head=SmallBoxHead(PYRAMID_CHANNELS, 7, 256, 512),
        box_predictor=_box_predictor(settings, 512, class_agnostic=True),
        mask_roi_pool=RegionSampler(14),
        mask_head=SmallMaskHead(PYRAMID_CHANNELS, 32),
        # Normalising is for classes that compete; this predictor has one mask for all.
        mask_predictor=MaskPredictor(32, 16, 1, classifier="linear", temperature=1.0),
        regions_per_image=48,
        mask_regions_per_image=5,
        read_as=layout_of(settings.loss, settings.num_classes),
    )
    transform = _small_transform(settings)
    model = TwoStageDetector(settings, backbone=SmallBackbone(), rpn=rpn, roi_heads=heads, transform=transform)
    # oneDNN's kernels take this layout without reordering: a third quicker.
    model.to(memory_format=torch.channels_last)
    return model


def _small_one_stage(settings: DetectorSettings) -> OneStageDetector:
    loss = layout_of(settings.loss, settings.num_classes)
    model = OneStageDetector(
        settings,
        backbone=SmallBackbone(),
        point_boxes=PointBoxes(PYRAMID_CHANNELS),
        pool=RegionSampler(5),
        box_head=SmallBoxHead(PYRAMID_CHANNELS, 5, 256, 512),
        box_predictor=_box_predictor(settings, 512, class_agnostic=True),
        transform=_small_transform(settings),
        loss=loss,
    )
    model.to(memory_format=torch.channels_last)
    return model


def _small_transform(settings: DetectorSettings) -> KeepSizeTransform:
    side = settings.image_size or 128
    return KeepSizeTransform(side, 2 * side, [0.5] * 3, [0.25] * 3, size_divisible=16)


def _light(settings: DetectorSettings, weights: dict[str, Tensor] | None) -> TwoStageDetector:
    name, side = str(settings.backbone), settings.image_size or LIGHT_SIDE
    backbone = LightBackbone(name, pretrained=settings.pretrained, weights=weights)
    channels = backbone.out_channels
    # Two sizes to an octave, from 18 to 224 pixels of an image of 256; larger images have larger objects.
    sizes = [cells * stride * side / LIGHT_SIDE for stride in (*STRIDES.values(), 64) for cells in (2.25, 3.5)]
    anchors = AnchorGenerator(
        sizes=tuple(zip(sizes[::2], sizes[1::2], strict=True)), aspect_ratios=((0.5, 1.0, 2.0),) * 4
    )
    rpn = RegionProposalNetwork(
        anchors,
        RPNHead(channels, anchors.num_anchors_per_location()[0]),
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=128,
        positive_fraction=0.5,
        pre_nms_top_n={"training": 200, "testing": 400},
        post_nms_top_n={"training": 200, "testing": 300},
        nms_thresh=0.7,
    )
    heads = RegionHeads(
        box_roi_pool=RegionSampler(7, strides=STRIDES),
        box_head=SmallBoxHead(channels, 7, 512, 512),
        box_predictor=_box_predictor(settings, 512, class_agnostic=True),
        regions_per_image=64,
        read_as=layout_of(settings.loss, settings.num_classes),
    )
    kind = BACKBONES[name]
    longest = round(side * LONGER_SIDE / SHORTER_SIDE)
    transform = KeepSizeTransform(side, longest, list(kind.mean), list(kind.std), size_divisible=32)
    model = TwoStageDetector(settings, backbone=backbone, rpn=rpn, roi_heads=heads, transform=transform)
    model.to(memory_format=torch.channels_last)
    return model


def _paper(settings: DetectorSettings, weights: dict[str, Tensor] | None) -> TwoStageDetector:
    backbone = _resnet_pyramid(settings, weights)
    anchors = AnchorGenerator(
        sizes=tuple((size,) for size in (32, 64, 128, 256, 512)), aspect_ratios=((0.5, 1.0, 2.0),) * 5
    )
    rpn = RegionProposalNetwork(
        anchors,
        RPNHead(backbone.out_channels, anchors.num_anchors_per_location()[0]),
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=256,
        positive_fraction=0.5,
        pre_nms_top_n={"training": 2000, "testing": 1000},
        post_nms_top_n={"training": 1000, "testing": 1000},
        nms_thresh=0.7,
    )
    if settings.model == "cascade-r101":
        heads: RegionHeads = _cascade_heads(settings)
    else:
        loss = layout_of(settings.loss, settings.num_classes)
        heads = RegionHeads(**_poolers(), **_stage(settings, class_agnostic=False), read_as=loss)
    side = settings.image_size or SHORTER_SIDE
    transform = GeneralizedRCNNTransform(
        side,
        round(side * LONGER_SIDE / SHORTER_SIDE),
        [0.485, 0.456, 0.406],
        [0.229, 0.224, 0.225],
        _skip_resize=True,  # in training the sizes are the augmentation's business
    )
    return TwoStageDetector(settings, backbone=backbone, rpn=rpn, roi_heads=heads, transform=transform)


def _resnet_pyramid(settings: DetectorSettings, weights: dict[str, Tensor] | None) -> Any:
    """ResNet and pyramid, its first stages and the statistics of its normalisation frozen where weights are given.

    Without them a frozen normalisation would let the activations of a hundred layers explode, so it is trained; and
    every residual branch starts at zero, so that the untrained network is finite in evaluation mode too.
    """
    norm = NORMALISATION[settings.batch_norm]
    resnet = RESNETS[settings.model](weights=None, norm_layer=norm, zero_init_residual=not settings.pretrained)
    if weights is not None:
        load_backbone(resnet, weights)
    return _resnet_fpn_extractor(resnet, trainable_layers=3 if settings.pretrained else 5)


def _poolers() -> dict[str, Any]:
    levels = ["0", "1", "2", "3"]
    return {
        "box_roi_pool": MultiScaleRoIAlign(levels, output_size=7, sampling_ratio=2),
        "mask_roi_pool": MultiScaleRoIAlign(levels, output_size=14, sampling_ratio=2),
    }


def _stage(settings: DetectorSettings, *, class_agnostic: bool) -> dict[str, Any]:
    """The four modules of one stage: box head, box predictor, mask head, mask predictor with a mask per class."""
    columns = settings.num_classes + 1
    head: dict[str, Any] = {"classifier": settings.mask_classifier, "temperature": settings.temperature}
    return {
        "box_head": TwoMLPHead(256 * 7 * 7, 1024),
        "box_predictor": _box_predictor(settings, 1024, class_agnostic=class_agnostic),
        "mask_head": MaskRCNNHeads(256, (256, 256, 256, 256), 1),
        "mask_predictor": MaskPredictor(256, 256, columns, **head),
    }


def _box_predictor(settings: DetectorSettings, in_features: int, *, class_agnostic: bool) -> BoxPredictor:
    layout = layout_of(settings.loss, settings.num_classes).layout
    return BoxPredictor(
        in_features,
        settings.num_classes,
        classifier=settings.classifier,
        temperature=settings.temperature,
        class_agnostic=class_agnostic,
        logits=layout.columns,
        initial_bias=layout.initial_bias,
    )


def _cascade_heads(settings: DetectorSettings) -> CascadeRegionHeads:
    stages = [_stage(settings, class_agnostic=True) for _ in STAGE_IOU]
    modules = {name: nn.ModuleList(stage[name] for stage in stages) for name in stages[0]}
    return CascadeRegionHeads(**_poolers(), **modules, read_as=layout_of(settings.loss, settings.num_classes))
