"""The two-stage detectors: torchvision's Mask R-CNN, with its proposals and all of their logits on request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
from logn_research.training.detectors.feature_memory import FeatureMemory
from logn_research.training.detectors.region_heads import RegionHeads
from logn_research.training.detectors.region_sampling import ClassificationLoss, Target, clip, size_of
from logn_research.training.detectors.settings import DetectorSettings
from logn_research.training.engine.evaluation_mode import evaluation_mode


class SampledLogits(NamedTuple):
    """Logits `(N, C)` of sampled regions, and the column of the class of each, -1 for the background."""

    logits: npt.NDArray[np.float32]
    columns: npt.NDArray[np.int64]


class TwoStageDetector(MaskRCNN):  # type: ignore[misc]
    """A Mask R-CNN that also gives its proposals with all logits (`logn.logits.proposals.ProposingDetector`).

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
            num_classes=self.roi_heads.layout.test_columns(self.num_classes),
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
    def sample_logits(self, images: Sequence[Tensor], targets: Sequence[Target]) -> list[SampledLogits]:
        """Logits of the regions that training would sample, of each stage: the population of the official statistics.

        The proposals are those of training, the true boxes among them, from torch's random state; no weight and no
        running statistic changes. All images and targets count as one batch.

        Args:
            images: Float tensors `(3, H, W)` with values in 0..1, at the size of training.
            targets: Boxes and labels 1..F, as training takes them.
        """
        device = next(self.parameters()).device
        with evaluation_mode(self):
            moved = [{name: target[name].to(device) for name in ("boxes", "labels")} for target in targets]
            self.transform.train()  # it takes the images as they are, as in training
            self.rpn.train()  # as many proposals as in training
            batch, moved = self.transform([image.to(device) for image in images], moved)
            features = self.backbone(batch.tensors)
            regions, _ = self.rpn(batch, features, moved)
            stages = self.roi_heads.sampled_stages(features, regions, batch.image_sizes, moved)
            return [
                SampledLogits(self.roi_heads.test_logits(logits).float().cpu().numpy(), self._columns(samples.labels))
                for samples, logits in stages
            ]

    def _columns(self, labels: Sequence[Tensor]) -> npt.NDArray[np.int64]:
        """The column of each region's class; -1 for the background."""
        classes = torch.cat(list(labels)).cpu().numpy()
        return np.where(classes > 0, classes - (self.background is None), -1)

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
            raise InputError(
                f"Expected a detector with a mask head, but got {self.settings.model!r}, which gives boxes only."
            )
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
