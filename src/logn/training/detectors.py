"""The detectors: the paper's three on torchvision's parts, and a small one that trains on a CPU in minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.transform import resize_boxes

from logn.errors import InputError
from logn.logits.layer import LogitLayer
from logn.logits.proposals import Proposals
from logn.training.heads import CLASSIFIERS
from logn.training.losses.by_name import DEFAULT_LOSS, parse_loss
from logn.training.region_boxes import clip
from logn.training.region_heads import RegionHeads

MODELS = ("small", "mask-rcnn-r50", "mask-rcnn-r101", "cascade-r101")


@dataclass(frozen=True)
class DetectorSettings:
    """Everything that is needed to build a detector again, weights aside.

    Args:
        model: One of `MODELS`.
        num_classes: Foreground classes.
        classifier: `linear`, `cosine` (normalised) for the classes and the masks, as the paper uses, or `scaled`: a
            linear one of which only a scale per class is trained (LWS).
        temperature: Of the cosine classifier.
        pretrained: Whether the backbone starts from given weights. Then its normalisation and its first two stages
            stay frozen, as in the paper; otherwise all of it is trained.
        image_size: Shorter side of a test image; None takes the model's own (800, small: 128).
        loss: Name of the loss it is trained with, which decides how many logits there are and what they mean.

    Example:
        >>> DetectorSettings("small", num_classes=3, classifier="svm")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `classifier` to be one of ('linear', 'cosine', 'scaled'), but got 'svm'.
    """

    model: str
    num_classes: int
    classifier: str = "linear"
    temperature: float = 20.0
    pretrained: bool = False
    image_size: int | None = None
    loss: str = DEFAULT_LOSS

    def __post_init__(self) -> None:
        parse_loss(self.loss)
        if self.model not in MODELS:
            raise InputError(f"Expected `model` to be one of {MODELS}, but got {self.model!r}.")
        if self.classifier not in CLASSIFIERS:
            raise InputError(f"Expected `classifier` to be one of {CLASSIFIERS}, but got {self.classifier!r}.")
        if self.num_classes < 1:
            raise InputError(f"Expected `num_classes` to be at least 1, but got {self.num_classes}.")
        if not self.temperature > 0:
            raise InputError(f"Expected `temperature` to be above 0, but got {self.temperature}.")
        if self.image_size is not None and self.image_size < 32:
            raise InputError(f"Expected `image_size` to be at least 32 pixels, but got {self.image_size}.")

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain values, for a file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DetectorSettings:
        """The settings from a file; names that this version does not know are an error."""
        known = {field.name for field in fields(cls)}
        if set(values) - known:
            raise InputError(
                f"Expected detector settings among {sorted(known)}, but got {sorted(set(values) - known)}."
            )
        return cls(**values)


class Detector(MaskRCNN):  # type: ignore[misc]
    """A Mask R-CNN that also gives its proposals with all logits (`logn.logits.proposals.ProposingDetector`).

    In training mode it is called with images and targets, with labels 1..F, and gives losses, as torchvision's; in
    evaluation mode it gives detections, as torchvision's.

    Attributes:
        settings: What it was built from.
        background: Place of the background among the logits that it proposes; None where there is none.
        activation: `softmax` or `sigmoid`: what makes scores of these logits.
        class_names: Names of the foreground classes, where they are known.
    """

    background: int | None
    activation: str
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
            num_classes=self.roi_heads.layout.test_columns(self.num_classes),
            population="test proposals",
            stages=len(paths) > 1,
        )

    @torch.inference_mode()
    def propose(self, images: Sequence[Tensor]) -> list[Proposals]:
        """Boxes and full logits of each image, before any threshold or suppression.

        Args:
            images: Float tensors `(3, H, W)` with values in 0..1, of any sizes.
        """
        sizes = [(int(image.shape[-2]), int(image.shape[-1])) for image in images]
        with _evaluation_mode(self):
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
            # One box per column: the background has one too, which nobody asks for.
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
        device = next(self.parameters()).device
        given = [np.asarray(rows, dtype=np.float32).reshape(-1, 4) for rows in boxes]
        columns = [np.asarray(rows, dtype=np.int64).reshape(-1) + 1 for rows in labels]
        distinct = [
            _distinct(b, None if self.settings.model == "small" else c) for b, c in zip(given, columns, strict=True)
        ]
        with _evaluation_mode(self):
            batch, features = self._features(images)
            regions = [
                resize_boxes(
                    torch.as_tensor(b[first], device=device), (int(image.shape[-2]), int(image.shape[-1])), inner
                )
                for b, (first, _), image, inner in zip(given, distinct, images, batch.image_sizes, strict=True)
            ]
            chosen = [torch.as_tensor(c[first], device=device) for c, (first, _) in zip(columns, distinct, strict=True)]
            masks = self.roi_heads.mask_probabilities(features, regions, chosen, batch.image_sizes)
        return [mask.float().cpu().numpy()[back] for mask, (_, back) in zip(masks, distinct, strict=True)]

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


class _evaluation_mode:  # noqa: N801 - reads as a verb where it is used
    """Switch a model to evaluation for a block, since a request for proposals must not move running statistics."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.was_training = model, model.training

    def __enter__(self) -> None:
        self.model.eval()

    def __exit__(self, *error: object) -> None:
        self.model.train(self.was_training)


def build_detector(settings: DetectorSettings, *, seed: int = 0, weights: dict[str, Tensor] | None = None) -> Detector:
    """Build a detector with random weights, or with the given weights in its ResNet.

    The global random state of torch is the same before and after.

    Args:
        settings: Which detector.
        seed: Of the random weights.
        weights: State dict of a ResNet for a detector with `pretrained=True` (see `read_backbone_weights`).

    Example:
        >>> detector = build_detector(DetectorSettings("small", num_classes=3))
        >>> detector.propose([torch.zeros(3, 64, 64)])[0].logits.shape[1]
        4
    """
    from logn.training.assemble import assemble  # the parts know the class Detector, so this comes late

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return assemble(settings, weights)


def small(num_classes: int, *, seed: int = 0, **settings: Any) -> Detector:
    """Build the small detector for 128-pixel images: about a million weights, class-agnostic boxes and masks.

    Example:
        >>> small(5).logit_layer_paths
        ('roi_heads.box_predictor.cls_score',)
    """
    return build_detector(DetectorSettings("small", num_classes, **settings), seed=seed)


def mask_rcnn_r50_fpn(
    num_classes: int, *, seed: int = 0, weights: dict[str, Tensor] | None = None, **settings: Any
) -> Detector:
    """Build Mask R-CNN with ResNet-50 and a feature pyramid."""
    settings = {"pretrained": weights is not None, **settings}
    return build_detector(DetectorSettings("mask-rcnn-r50", num_classes, **settings), seed=seed, weights=weights)


def mask_rcnn_r101_fpn(
    num_classes: int, *, seed: int = 0, weights: dict[str, Tensor] | None = None, **settings: Any
) -> Detector:
    """Build Mask R-CNN with ResNet-101 and a feature pyramid, the paper's detector."""
    settings = {"pretrained": weights is not None, **settings}
    return build_detector(DetectorSettings("mask-rcnn-r101", num_classes, **settings), seed=seed, weights=weights)


def cascade_mask_rcnn_r101_fpn(
    num_classes: int, *, seed: int = 0, weights: dict[str, Tensor] | None = None, **settings: Any
) -> Detector:
    """Build Cascade Mask R-CNN with ResNet-101 and a feature pyramid: three stages, logits averaged."""
    settings = {"pretrained": weights is not None, **settings}
    return build_detector(DetectorSettings("cascade-r101", num_classes, **settings), seed=seed, weights=weights)
