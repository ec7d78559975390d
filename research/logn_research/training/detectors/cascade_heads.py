"""The heads of a cascade: three stages, each on the boxes of the one before."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder, Matcher

from logn_research.training.detectors.region_heads import Features, RegionHeads
from logn_research.training.detectors.region_sampling import (
    ClassificationLoss,
    RegionSamples,
    Sizes,
    Target,
    box_losses,
    clip,
    mask_loss,
    sample_regions,
)

# The usual cascade: each stage asks for a tighter match, corrects smaller errors and counts half of the one before.
STAGE_IOU = (0.5, 0.6, 0.7)
STAGE_WEIGHT = (1.0, 0.5, 0.25)
STAGE_BOX_WEIGHTS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))


class CascadeRegionHeads(RegionHeads):
    """Three stages, each with its own box head, classifier and mask head, each on the boxes of the one before.

    The logits of the stages are averaged before the softmax, their mask probabilities after the sigmoid. The
    modules are `nn.ModuleList`s of three; the boxes are class-agnostic.
    """

    logit_layer_paths = tuple(f"roi_heads.box_predictor.{stage}.cls_score" for stage in range(len(STAGE_IOU)))

    box_head: nn.ModuleList
    box_predictor: nn.ModuleList
    mask_head: nn.ModuleList
    mask_predictor: nn.ModuleList

    def __init__(self, **modules: Any) -> None:
        super().__init__(beta=1.0, box_weights=STAGE_BOX_WEIGHTS[-1], **modules)
        self.later_losses = nn.ModuleList()
        self.stage_coders = [BoxCoder(weights) for weights in STAGE_BOX_WEIGHTS]
        self.stage_matchers = [Matcher(iou, iou, allow_low_quality_matches=False) for iou in STAGE_IOU]

    def use_loss(self, loss: ClassificationLoss) -> None:
        """Train each stage with a copy of `loss`, since the state of a loss belongs to one classifier."""
        super().use_loss(loss)
        if isinstance(loss, nn.Module):
            self.later_losses = nn.ModuleList(copy.deepcopy(loss) for _ in STAGE_IOU[1:])

    def losses(
        self, features: Features, proposals: list[Tensor], image_shapes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """Sum of the stages' losses, each stage trained on what the one before made of its regions."""
        losses: dict[str, Tensor] = {}
        self.keep_regions(features, image_shapes, targets)
        for stage, weight in enumerate(STAGE_WEIGHT):
            samples = sample_regions(proposals, targets, self.stage_matchers[stage], self.fg_bg_sampler)
            loss, coder = self.stage_loss(stage), self.stage_coders[stage]
            pooled = self.box_roi_pool(features, samples.boxes, image_shapes)
            pooled, recalled = self.with_recalled(pooled, loss, coder)
            logits, offsets = self.box_predictor[stage](self.box_head[stage](pooled))
            class_loss, box_loss = box_losses(logits, offsets, samples, coder, loss, beta=self.beta, recalled=recalled)
            boxes, labels, rows = samples.positives()
            pooled = self.mask_roi_pool(features, boxes, image_shapes)
            mask_logits = self.mask_predictor[stage](self.mask_head[stage](pooled), torch.cat(labels))
            losses[f"loss_classifier_{stage}"] = weight * class_loss
            losses[f"loss_box_reg_{stage}"] = weight * box_loss
            losses[f"loss_mask_{stage}"] = weight * mask_loss(mask_logits, boxes, rows, targets)
            refined = self.refine(stage, offsets[: len(torch.cat(samples.boxes))], samples.boxes, image_shapes)
            # The true boxes join again in the next stage, so their refined copies would count twice.
            proposals = [b[~truth] for b, truth in zip(refined, samples.is_truth, strict=True)]
        return losses

    def stage_loss(self, stage: int) -> ClassificationLoss:
        """The loss of a stage."""
        return self.later_losses[stage - 1] if stage and len(self.later_losses) else self.classification_loss

    def sampled_stages(
        self, features: Features, proposals: list[Tensor], image_shapes: Sizes, targets: Sequence[Target]
    ) -> Iterator[tuple[RegionSamples, Tensor]]:
        """The regions that the training of each stage samples, and what its class layer says of them."""
        for stage, matcher in enumerate(self.stage_matchers):
            samples = sample_regions(proposals, targets, matcher, self.fg_bg_sampler)
            logits, offsets = self.run_stage(stage, features, samples.boxes, image_shapes)
            yield samples, logits
            refined = self.refine(stage, offsets, samples.boxes, image_shapes)
            proposals = [b[~truth] for b, truth in zip(refined, samples.is_truth, strict=True)]

    def run_stage(
        self, stage: int, features: Features, boxes: list[Tensor], image_shapes: Sizes
    ) -> tuple[Tensor, Tensor]:
        """Logits and offsets of one stage."""
        pooled = self.box_roi_pool(features, boxes, image_shapes)
        logits, offsets = self.box_predictor[stage](self.box_head[stage](pooled))
        return logits, offsets

    def refine(self, stage: int, offsets: Tensor, boxes: list[Tensor], image_shapes: Sizes) -> list[Tensor]:
        """Move the boxes as a stage says, and keep them inside their images."""
        moved = self.stage_coders[stage].decode(offsets.detach().float(), boxes)
        return clip(moved.reshape(-1, 4).split([len(b) for b in boxes]), image_shapes)

    def score(
        self, features: Features, proposals: list[Tensor], image_shapes: Sizes
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Logits averaged over the stages; offsets of the last one, for the boxes that reached it."""
        logits, offsets = self.run_stage(0, features, proposals, image_shapes)
        for stage in range(1, len(STAGE_IOU)):
            proposals = self.refine(stage - 1, offsets, proposals, image_shapes)
            more, offsets = self.run_stage(stage, features, proposals, image_shapes)
            logits = logits + more
        return self.test_logits(logits / len(STAGE_IOU)), offsets, proposals

    def mask_probabilities(
        self, features: Features, boxes: list[Tensor], labels: list[Tensor], image_shapes: Sizes
    ) -> list[Tensor]:
        """Mask probabilities averaged over the stages."""
        pooled = self.mask_roi_pool(features, boxes, image_shapes)
        columns = torch.cat(labels)
        stages = [
            predictor(head(pooled), columns).sigmoid()
            for head, predictor in zip(self.mask_head, self.mask_predictor, strict=True)
        ]
        return list(torch.split(torch.stack(stages).mean(0), [len(rows) for rows in boxes]))
