"""Detectors that can be trained here: torchvision's Mask R-CNN in parts, with its proposals and all of their logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchvision.models import resnet50, resnet101
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform, resize_boxes
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

from logn.data.masks import paste_mask
from logn.errors import InputError
from logn.models.hooks import evaluation_mode
from logn.models.layer import LogitLayer
from logn.models.proposals import MaskFunction, Proposals
from logn_research.losses.loss_factory import layout_of
from logn_research.training.backbones import load_backbone
from logn_research.training.feature_memory import FeatureMemory
from logn_research.training.heads import STAGE_IOU, CascadeRegionHeads, RegionHeads
from logn_research.training.layers import BoxPredictor, MaskPredictor
from logn_research.training.regions import ClassificationLoss, Target, clip, size_of
from logn_research.training.settings import DetectorSettings
from logn_research.training.small import (
    PYRAMID_CHANNELS,
    KeepSizeTransform,
    RegionSampler,
    SmallBackbone,
    SmallBoxHead,
    SmallMaskHead,
    SmallProposals,
)


class TwoStageDetector(MaskRCNN):  # type: ignore[misc]
    """A Mask R-CNN that also gives its proposals with all logits (`logn.detector` wraps it).

    In training mode it is called with images and targets, with labels 1..F, and gives losses, as torchvision's; in
    evaluation mode it gives detections, as torchvision's.

    Attributes:
        settings: What it was built from.
        background: Place of the background among the logits that it proposes; None where there is none.
        activation: `softmax` or `sigmoid`: what makes scores of these logits.
        population: What `propose` gives a row for.
        class_names: Names of the foreground classes, where they are known.
    """

    background: int | None
    activation: str
    population = "test proposals"
    class_names: tuple[str, ...] | None = None

    def __init__(
        self,
        settings: DetectorSettings,
        *,
        backbone: nn.Module,
        rpn: nn.Module,
        roi_heads: RegionHeads,
        transform: nn.Module,
    ) -> None:
        # MaskRCNN's own constructor would build its heads only for us to replace them.
        GeneralizedRCNN.__init__(self, backbone, rpn, roi_heads, transform)
        self.settings = settings
        self.background, self.activation = roi_heads.layout.background, roi_heads.layout.activation

    @property
    def num_classes(self) -> int:
        """How many foreground classes there are."""
        return self.settings.num_classes

    def use_loss(self, loss: ClassificationLoss) -> None:
        """Train the classifier with `loss`, which must want the logits that there are."""
        self.roi_heads.use_loss(loss)

    def use_memory(self, memory: FeatureMemory) -> None:
        """Keep regions in `memory` from now on, and train on some of them in every batch."""
        self.roi_heads.feature_memory = memory

    @torch.no_grad()
    def learn_regions(self, images: Sequence[Tensor], targets: Sequence[Target]) -> None:
        """Fill the feature memory, and what the loss remembers of each class, with a batch; no weight changes."""
        with evaluation_mode(self):
            batch, moved = self.transform(list(images), list(targets))
            features = self.backbone(batch.tensors)
            regions, _ = self.rpn(batch, features)
            self.roi_heads.learn_regions(features, regions, batch.image_sizes, moved)

    @property
    def logit_layer_paths(self) -> tuple[str, ...]:
        """The names of the class layers; the logits are the average of their outputs."""
        paths: tuple[str, ...] = self.roi_heads.logit_layer_paths
        return paths

    @property
    def logit_layer(self) -> LogitLayer:
        """Where the logits come out, as `logn.locate_logits` finds it; the stages of a cascade keep to themselves."""
        paths = self.logit_layer_paths
        return LogitLayer(
            paths[0] if len(paths) == 1 else paths,
            background=self.background,
            activation=self.activation,
            num_columns=self.roi_heads.layout.test_columns(self.num_classes),
            population=self.population,
            stages=len(paths) > 1,
        )

    @torch.inference_mode()
    def propose(self, images: Sequence[Tensor]) -> list[Proposals]:
        """Boxes and full logits of each image, before any threshold or suppression.

        Args:
            images: Float tensors `(3, H, W)` with values in 0..1, of any sizes.
        """
        sizes = [size_of(image) for image in images]
        with evaluation_mode(self):
            batch, features = self._features(images)
            regions, _ = self.rpn(batch, features, None)
            logits, offsets, regions = self.roi_heads.score(features, regions, batch.image_sizes)
            moved = self.roi_heads.box_coder.decode(offsets.float(), regions)
        counts = [len(boxes) for boxes in regions]
        boxes_of_images = clip(moved.reshape(sum(counts), offsets.shape[1] // 4, 4).split(counts), batch.image_sizes)
        result = []
        for boxes, rows, inner, outer in zip(
            boxes_of_images, logits.float().split(counts), batch.image_sizes, sizes, strict=True
        ):
            # One box per column: the background has one too, which is not used.
            foreground = boxes[:, 1:] if boxes.shape[1] > 1 else boxes
            pixels = resize_boxes(foreground.reshape(-1, 4), inner, outer).reshape(foreground.shape)
            pixels = pixels[:, 0] if boxes.shape[1] == 1 else pixels
            result.append(Proposals(pixels.cpu().numpy(), rows.cpu().numpy(), height=outer[0], width=outer[1]))
        return result

    @torch.inference_mode()
    def predict_masks(
        self, images: Sequence[Tensor], boxes: Sequence[npt.NDArray[Any]], labels: Sequence[npt.NDArray[Any]]
    ) -> list[npt.NDArray[np.float32]]:
        """Mask probabilities `(M, R, R)` in the frame of each box.

        Args:
            images: Float tensors `(3, H, W)` with values in 0..1.
            boxes: `(M, 4)` per image, in pixels of the image as given.
            labels: `(M,)` per image, foreground classes 0..F-1.
        """
        if not self.roi_heads.has_mask():
            raise InputError(f"The detector {self.settings.model!r} has no mask head: it gives boxes only.")
        device = next(self.parameters()).device
        given = [np.asarray(rows, dtype=np.float32).reshape(-1, 4) for rows in boxes]
        columns = [np.asarray(rows, dtype=np.int64).reshape(-1) + 1 for rows in labels]
        distinct = [
            _distinct(b, None if self.settings.model == "small" else c) for b, c in zip(given, columns, strict=True)
        ]
        with evaluation_mode(self):
            batch, features = self._features(images)
            regions = [
                resize_boxes(torch.as_tensor(b[first], device=device), size_of(image), inner)
                for b, (first, _), image, inner in zip(given, distinct, images, batch.image_sizes, strict=True)
            ]
            chosen = [torch.as_tensor(c[first], device=device) for c, (first, _) in zip(columns, distinct, strict=True)]
            masks = self.roi_heads.mask_probabilities(features, regions, chosen, batch.image_sizes)
        return [mask.float().cpu().numpy()[back] for mask, (_, back) in zip(masks, distinct, strict=True)]

    @property
    def masks(self) -> MaskFunction | None:
        """Masks of detections, for `logn.compare`; None for a detector without a mask head."""
        return self._masks if self.roi_heads.has_mask() else None

    def _masks(
        self, image: Tensor, boxes: npt.NDArray[Any], classes: npt.NDArray[Any], rows: npt.NDArray[Any]
    ) -> Iterator[npt.NDArray[np.bool_]]:
        (masks,) = self.predict_masks([image], [boxes], [classes])
        return (paste_mask(mask, box, *image.shape[-2:]) for mask, box in zip(masks, boxes, strict=True))

    def _features(self, images: Sequence[Tensor]) -> tuple[Any, dict[str, Tensor]]:
        device = next(self.parameters()).device
        batch, _ = self.transform([image.to(device) for image in images])
        return batch, self.backbone(batch.tensors)


def _distinct(
    boxes: npt.NDArray[np.float32], columns: npt.NDArray[np.int64] | None
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Rows that need a mask of their own, and for each row which of them; class-agnostic masks have no `columns`."""
    keys = boxes if columns is None else np.column_stack((boxes, columns))
    _, first, back = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return first, back.reshape(-1)


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
# Mean and standard deviation of the colours of ImageNet.
COLOURS = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def build_detector(
    settings: DetectorSettings, *, seed: int = 0, weights: dict[str, Tensor] | None = None
) -> TwoStageDetector:
    """Build a detector with random weights, or with the given weights in its backbone.

    The global random state of torch is the same before and after.

    Args:
        settings: Which detector.
        seed: Of the random weights.
        weights: State dict of the backbone, with torchvision's names (`read_backbone_weights`).
    """
    if weights is not None and not settings.pretrained:
        raise InputError("Expected `pretrained` to be True where `weights` are given, but got False.")
    if weights is not None and settings.model == "small":
        raise InputError("The small detector takes no backbone `weights`: leave them out.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _small(settings) if settings.model == "small" else _paper(settings, weights)


def make_detector(
    model: str, num_classes: int, *, seed: int = 0, weights: dict[str, Tensor] | None = None, **settings: Any
) -> TwoStageDetector:
    """Build an untrained detector: `small`, `mask-rcnn-r50`, `mask-rcnn-r101` or `cascade-r101`.

    Example:
        >>> make_detector("small", 5).logit_layer_paths
        ('roi_heads.box_predictor.cls_score',)
    """
    settings = {"pretrained": weights is not None, **settings}
    return build_detector(DetectorSettings(model, num_classes, **settings), seed=seed, weights=weights)


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


def _small_transform(settings: DetectorSettings) -> KeepSizeTransform:
    side = settings.image_size or 128
    return KeepSizeTransform(side, 2 * side, [0.5] * 3, [0.25] * 3, size_divisible=16)


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
        *COLOURS,
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
