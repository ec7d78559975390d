"""The heads of a two-stage detector: of one stage, or of a cascade of three."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.models.detection.roi_heads import RoIHeads

from logn.errors import InputError
from logn_research.losses.head_loss import HeadLoss
from logn_research.losses.softmax import CrossEntropyLoss, EquilibriumLoss
from logn_research.training.feature_memory import FeatureMemory, Recalled
from logn_research.training.regions import (
    ClassificationLoss,
    RegionSamples,
    Sizes,
    Target,
    best_boxes,
    box_losses,
    clip,
    draw_regions,
    keep_true_regions,
    learn_scores,
    mask_loss,
    sample_regions,
)

Features = dict[str, Tensor]


class RegionHeads(RoIHeads):  # type: ignore[misc]
    """torchvision's RoI heads with class-agnostic boxes, a loss of your choice, and logits on request.

    Args:
        box_roi_pool, box_head, box_predictor, mask_roi_pool, mask_head, mask_predictor: Modules; without those of the
            masks there are boxes only.
        read_as: The loss that says what the class layer's output means at test time.
        regions_per_image: How many regions of an image are sampled in training, a quarter of them positive.
        beta: Corner of the smooth L1 loss of the boxes.
        mask_regions_per_image: At most this many positive regions of an image train the mask head.
    """

    logit_layer_paths: tuple[str, ...] = ("roi_heads.box_predictor.cls_score",)

    def __init__(
        self,
        *,
        box_roi_pool: nn.Module,
        box_head: nn.Module,
        box_predictor: nn.Module,
        mask_roi_pool: nn.Module | None = None,
        mask_head: nn.Module | None = None,
        mask_predictor: nn.Module | None = None,
        read_as: HeadLoss,
        regions_per_image: int = 512,
        beta: float = 1 / 9,
        mask_regions_per_image: int | None = None,
        box_weights: tuple[float, float, float, float] = (10.0, 10.0, 5.0, 5.0),
    ) -> None:
        super().__init__(
            box_roi_pool,
            box_head,
            box_predictor,
            fg_iou_thresh=0.5,
            bg_iou_thresh=0.5,
            batch_size_per_image=regions_per_image,
            positive_fraction=0.25,
            bbox_reg_weights=box_weights,
            score_thresh=1e-4,  # LVIS's protocol: the tail lives among low scores
            nms_thresh=0.5,
            detections_per_img=300,
            mask_roi_pool=mask_roi_pool,
            mask_head=mask_head,
            mask_predictor=mask_predictor,
        )
        self.beta = beta
        self.mask_regions_per_image = mask_regions_per_image
        self.feature_memory: FeatureMemory | None = None
        # A module is registered, so that a loss with running counts is saved with the model.
        self.classification_loss: ClassificationLoss = functional.cross_entropy
        self.layout, self.test_logits = read_as.layout, read_as.test_logits
        if read_as.layout != CrossEntropyLoss(read_as.num_classes, background=0).layout:
            self.classification_loss = _no_loss
        if not isinstance(read_as.test_logits, nn.Identity):
            self.logit_layer_paths = ("roi_heads.test_logits",)

    def use_loss(self, loss: ClassificationLoss) -> None:
        """Train the classifier with `loss`, which must want the logits that there are."""
        if isinstance(loss, HeadLoss):
            if loss.layout != self.layout:
                raise InputError(
                    f"The `loss` does not fit the detector: it is for a {loss.layout}, the head has a {self.layout}."
                )
            self.test_logits.load_state_dict(loss.test_logits.state_dict())
        self.classification_loss = loss

    def forward(
        self, features: Features, proposals: list[Tensor], image_shapes: Any, targets: Any = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Losses in training mode, detections in torchvision's form otherwise."""
        if self.training:
            self.check_targets(targets)
            return [], self.losses(features, proposals, image_shapes, targets)
        logits, offsets, proposals = self.score(features, proposals, image_shapes)
        boxes, scores, labels = self.postprocess_detections(logits, offsets, proposals, image_shapes)
        found = [{"boxes": b, "scores": s, "labels": c} for b, s, c in zip(boxes, scores, labels, strict=True)]
        if self.has_mask():
            for image, masks in zip(found, self.mask_probabilities(features, boxes, labels, image_shapes), strict=True):
                image["masks"] = masks[:, None]
        return found, {}

    def check_targets(self, targets: Any) -> None:
        """Refuse targets without boxes; masks, which torchvision asks for too, may be missing."""
        if targets is None or not all("boxes" in target and "labels" in target for target in targets):
            raise ValueError("Expected `targets` to have `boxes` and `labels` in training, but some lack them.")

    def losses(
        self, features: Features, proposals: list[Tensor], image_shapes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """Sample regions and give the losses of the classifier, the boxes and the masks."""
        samples = sample_regions(proposals, targets, self.proposal_matcher, self.fg_bg_sampler)
        pooled = self.box_roi_pool(features, samples.boxes, image_shapes)
        self.keep_regions(features, image_shapes, targets)
        pooled, recalled = self.with_recalled(pooled, self.classification_loss, self.box_coder)
        logits, offsets = self.box_predictor(self.box_head(pooled))
        class_loss, box_loss = box_losses(
            logits, offsets, samples, self.box_coder, self.classification_loss, beta=self.beta, recalled=recalled
        )
        losses = {"loss_classifier": class_loss, "loss_box_reg": box_loss}
        if self.has_mask():
            boxes, labels, rows = self.limit_masks(samples.positives())
            pooled = self.mask_roi_pool(features, boxes, image_shapes)
            mask_logits = self.mask_predictor(self.mask_head(pooled), torch.cat(labels))
            losses["loss_mask"] = mask_loss(mask_logits, boxes, rows, targets)
        return losses

    def keep_regions(self, features: Features, image_shapes: Sizes, targets: Sequence[Target]) -> None:
        """Put regions around the true boxes into the feature memory, where there is one."""
        if self.feature_memory is not None:
            keep_true_regions(self.feature_memory, self.box_roi_pool, features, image_shapes, targets)

    def with_recalled(
        self, pooled: Tensor, loss: ClassificationLoss, coder: BoxCoder
    ) -> tuple[Tensor, Recalled | None]:
        """The pooled features with some of this and earlier batches behind them, drawn by the mean scores of `loss`."""
        if self.feature_memory is None or not isinstance(loss, EquilibriumLoss):
            return pooled, None
        recalled = draw_regions(self.feature_memory, loss, coder, pooled.device)
        if recalled is None:
            return pooled, None
        return torch.cat((pooled, recalled.features.to(pooled.dtype))), recalled

    @torch.no_grad()
    def learn_regions(
        self, features: Features, proposals: list[Tensor], image_shapes: Sizes, targets: Sequence[Target]
    ) -> None:
        """Fill the feature memory and the mean scores of the loss with a batch, without training on it."""
        self.keep_regions(features, image_shapes, targets)
        for stage, (samples, logits) in enumerate(self.sampled_stages(features, proposals, image_shapes, targets)):
            self.learn_scores(self.stage_loss(stage), logits, samples)

    def stage_loss(self, stage: int) -> ClassificationLoss:
        """The loss of a stage; there is one."""
        return self.classification_loss

    def sampled_stages(
        self, features: Features, proposals: list[Tensor], image_shapes: Sizes, targets: Sequence[Target]
    ) -> Iterator[tuple[RegionSamples, Tensor]]:
        """The regions that the training of each stage samples, and what its class layer says of them."""
        samples = sample_regions(proposals, targets, self.proposal_matcher, self.fg_bg_sampler)
        logits, _ = self.box_predictor(self.box_head(self.box_roi_pool(features, samples.boxes, image_shapes)))
        yield samples, logits

    def learn_scores(self, loss: ClassificationLoss, logits: Tensor, samples: RegionSamples) -> None:
        """Let the sampled regions join the mean scores of a loss that has them."""
        if isinstance(loss, EquilibriumLoss):
            learn_scores(loss, logits, torch.cat(samples.labels), samples.instances())

    def limit_masks(
        self, positives: tuple[list[Tensor], list[Tensor], list[Tensor]]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Keep a random few of the positive regions of each image, since masks are expensive on a CPU."""
        limit = self.mask_regions_per_image
        if limit is None:
            return positives
        keep = [torch.randperm(len(labels), device=labels.device)[:limit] for labels in positives[1]]
        boxes, labels, rows = (
            [values[chosen] for values, chosen in zip(column, keep, strict=True)] for column in positives
        )
        return boxes, labels, rows

    def score(
        self, features: Features, proposals: list[Tensor], image_shapes: Sizes
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Logits and offsets of all proposals of the batch, and the boxes that the offsets refer to."""
        logits, offsets = self.box_predictor(self.box_head(self.box_roi_pool(features, proposals, image_shapes)))
        return self.test_logits(logits), offsets, proposals

    def postprocess_detections(
        self, class_logits: Tensor, box_regression: Tensor, proposals: list[Tensor], image_shapes: Any
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Boxes, scores and labels 1..F of each image, in torchvision's way."""
        if box_regression.shape[1] == 4:  # torchvision expects a box per column
            box_regression = box_regression.repeat(1, class_logits.shape[1] + (self.layout.background is None))
        if self.layout.activation == "softmax":
            found = super().postprocess_detections(class_logits, box_regression, proposals, image_shapes)
            return found[0], found[1], found[2]
        scores = class_logits.sigmoid() if self.layout.background is None else class_logits.sigmoid()[:, 1:]
        counts = [len(boxes) for boxes in proposals]
        decoded = clip(torch.split(self.box_coder.decode(box_regression, proposals)[:, 1:], counts), image_shapes)
        limits = {"score": self.score_thresh, "iou": self.nms_thresh, "max_boxes": self.detections_per_img}
        images = [best_boxes(b, s, **limits) for b, s in zip(decoded, torch.split(scores, counts), strict=True)]
        return [i[0] for i in images], [i[1] for i in images], [i[2] + 1 for i in images]

    def mask_probabilities(
        self, features: Features, boxes: list[Tensor], labels: list[Tensor], image_shapes: Sizes
    ) -> list[Tensor]:
        """Mask probabilities `(M, R, R)` of each image for the given boxes and class columns."""
        pooled = self.mask_roi_pool(features, boxes, image_shapes)
        logits = self.mask_predictor(self.mask_head(pooled), torch.cat(labels))
        return list(torch.split(logits.sigmoid(), [len(rows) for rows in boxes]))


def _no_loss(logits: Tensor, labels: Tensor) -> Tensor:
    raise InputError("The detector's head has no loss: call `roi_heads.use_loss(...)` before training.")


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
