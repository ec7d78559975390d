"""The detectors: the paper's three on torchvision's parts, and three that train on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logn_research.training.detectors.build import assemble
from logn_research.training.detectors.one_stage import OneStageDetector
from logn_research.training.detectors.settings import LIGHT, ONE_STAGE, DetectorSettings, default_loss
from logn_research.training.detectors.two_stage import TwoStageDetector

Detector = TwoStageDetector | OneStageDetector


def build_detector(settings: DetectorSettings, *, seed: int = 0, weights: dict[str, Tensor] | None = None) -> Detector:
    """Build a detector with random weights, or with the given weights in its backbone.

    The global random state of torch is the same before and after.

    Args:
        settings: Which detector.
        seed: Of the random weights.
        weights: State dict of the backbone for a detector with `pretrained=True` (see `read_backbone_weights`).

    Example:
        >>> detector = build_detector(DetectorSettings("small", num_classes=3))
        >>> detector.propose([torch.zeros(3, 64, 64)])[0].logits.shape[1]
        4
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return assemble(settings, weights)


def small(num_classes: int, *, seed: int = 0, **settings: Any) -> TwoStageDetector:
    """Build the small detector for 128-pixel images: about a million weights, class-agnostic boxes and masks.

    Example:
        >>> small(5).logit_layer_paths
        ('roi_heads.box_predictor.cls_score',)
    """
    return _two_stage(DetectorSettings("small", num_classes, **settings), seed)


def small_one_stage(num_classes: int, *, seed: int = 0, **settings: Any) -> OneStageDetector:
    """Build the small one-stage detector: a sigmoid for each class, no background, no masks.

    Example:
        >>> small_one_stage(5).propose([torch.zeros(3, 64, 64)])[0].logits.shape
        (256, 5)
    """
    settings = {"loss": default_loss(ONE_STAGE), **settings}
    detector = build_detector(DetectorSettings(ONE_STAGE, num_classes, **settings), seed=seed)
    assert isinstance(detector, OneStageDetector)  # noqa: S101 - this is how it is built
    return detector


def light(
    num_classes: int, *, seed: int = 0, weights: dict[str, Tensor] | None = None, **settings: Any
) -> TwoStageDetector:
    """Build the light detector for photographs of 256 pixels: a small backbone, class-agnostic boxes, no masks.

    Example:
        >>> light(5, backbone="resnet18").settings.backbone
        'resnet18'
    """
    settings = {"pretrained": weights is not None, **settings}
    return _two_stage(DetectorSettings(LIGHT, num_classes, **settings), seed, weights)


def mask_rcnn_r50_fpn(
    num_classes: int, *, seed: int = 0, weights: dict[str, Tensor] | None = None, **settings: Any
) -> TwoStageDetector:
    """Build Mask R-CNN with ResNet-50 and a feature pyramid."""
    settings = {"pretrained": weights is not None, **settings}
    return _two_stage(DetectorSettings("mask-rcnn-r50", num_classes, **settings), seed, weights)


def mask_rcnn_r101_fpn(
    num_classes: int, *, seed: int = 0, weights: dict[str, Tensor] | None = None, **settings: Any
) -> TwoStageDetector:
    """Build Mask R-CNN with ResNet-101 and a feature pyramid, the paper's detector."""
    settings = {"pretrained": weights is not None, **settings}
    return _two_stage(DetectorSettings("mask-rcnn-r101", num_classes, **settings), seed, weights)


def cascade_mask_rcnn_r101_fpn(
    num_classes: int, *, seed: int = 0, weights: dict[str, Tensor] | None = None, **settings: Any
) -> TwoStageDetector:
    """Build Cascade Mask R-CNN with ResNet-101 and a feature pyramid: three stages, logits averaged."""
    settings = {"pretrained": weights is not None, **settings}
    return _two_stage(DetectorSettings("cascade-r101", num_classes, **settings), seed, weights)


def _two_stage(settings: DetectorSettings, seed: int, weights: dict[str, Tensor] | None = None) -> TwoStageDetector:
    detector = build_detector(settings, seed=seed, weights=weights)
    assert isinstance(detector, TwoStageDetector)  # noqa: S101 - all but one are
    return detector
