"""Which regions a detection head is trained on, what it should answer for them, and LOCE's memory of earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, BoxCoder, Matcher
from torchvision.ops import batched_nms, box_iou, roi_align

from logn_research.losses.softmax import EquilibriumLoss
from logn_research.training.feature_memory import SIGNS, FeatureMemory, Recalled, jittered_boxes

Sizes = Sequence[tuple[int, int]]


def size_of(image: Tensor) -> tuple[int, int]:
    """Height and width of an image `(..., H, W)`.

    Example:
        >>> size_of(torch.zeros(3, 4, 5))
        (4, 5)
    """
    return int(image.shape[-2]), int(image.shape[-1])


def clip(boxes: Sequence[Tensor], image_shapes: Sizes) -> list[Tensor]:
    """Keep boxes `(..., 4)` of each image inside it."""
    clipped = []
    for regions, (height, width) in zip(boxes, image_shapes, strict=True):
        limit = torch.tensor([width, height, width, height], dtype=regions.dtype, device=regions.device)
        clipped.append(torch.minimum(regions.clamp(min=0), limit))
    return clipped


def best_boxes(
    boxes: Tensor, scores: Tensor, *, score: float, iou: float, max_boxes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Threshold, suppression class by class, and a limit, for scores of any kind.

    Args:
        boxes: `(N, F, 4)`.
        scores: `(N, F)`.
        score: Scores above this are kept.
        iou: Boxes of a class that overlap a better one by more are dropped.
        max_boxes: How many boxes an image may have.

    Returns:
        Boxes, scores and classes 0..F-1, best first.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 9.0, 8.0]])[:, None].repeat(1, 2, 1)
        >>> best_boxes(boxes, torch.tensor([[0.9, 0.0], [0.8, 0.3]]), score=0.1, iou=0.5, max_boxes=10)[1]
        tensor([0.9000, 0.3000])
    """
    rows, classes = torch.where(scores > score)
    found, values = boxes[rows, classes], scores[rows, classes]
    wide = ((found[:, 2:] - found[:, :2]) >= 1e-2).all(1)
    found, values, classes = found[wide], values[wide], classes[wide]
    keep = batched_nms(found, values, classes, iou)[:max_boxes]
    return found[keep], values[keep], classes[keep]


Target = dict[str, Any]
# Takes the logits (N, C) and the column of the true class (N,), background 0, and gives one number.
# One whose `uses_instances` is true is also given the object that each region belongs to.
ClassificationLoss = Callable[..., Tensor]


@dataclass(frozen=True)
class RegionSamples:
    """The sampled regions of a batch: one tensor per image in each list."""

    boxes: list[Tensor]
    labels: list[Tensor]  # column of the class, 0 = background
    truth_index: list[Tensor]  # which true box of the image it is matched with (0 where there is none)
    is_truth: list[Tensor]  # True where the region is itself a true box that was added to the proposals
    true_boxes: list[Tensor]  # the matched true boxes

    def instances(self) -> Tensor:
        """A number for each region of the batch, the same for those matched with the same true box."""
        return torch.cat([rows + (image << 32) for image, rows in enumerate(self.truth_index)])

    def positives(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Boxes, labels and true-box indices of the regions that hold an object."""
        keep = [labels > 0 for labels in self.labels]
        chosen = [
            [values[rows] for values, rows in zip(column, keep, strict=True)]
            for column in (self.boxes, self.labels, self.truth_index)
        ]
        return chosen[0], chosen[1], chosen[2]


def sample_regions(
    proposals: Sequence[Tensor],
    targets: Sequence[Target],
    matcher: Matcher,
    sampler: BalancedPositiveNegativeSampler,
) -> RegionSamples:
    """Add the true boxes to the proposals, match all with the truth, and draw a fixed number per image."""
    columns: list[list[Tensor]] = [[], [], [], [], []]
    for boxes, target in zip(proposals, targets, strict=True):
        truth = target["boxes"].to(boxes.dtype)
        candidates = torch.cat((boxes, truth))
        matched, labels = _match(candidates, truth, target["labels"], matcher)
        positive, negative = sampler([labels])
        rows = torch.where(positive[0] | negative[0])[0]
        chosen = matched[rows]
        true_boxes = truth[chosen] if len(truth) else torch.zeros_like(candidates[rows])
        for column, values in zip(
            columns, (candidates[rows], labels[rows], chosen, rows >= len(boxes), true_boxes), strict=True
        ):
            column.append(values)
    return RegionSamples(*columns)


def _match(boxes: Tensor, truth: Tensor, classes: Tensor, matcher: Matcher) -> tuple[Tensor, Tensor]:
    if len(truth) == 0:
        nothing = torch.zeros(len(boxes), dtype=torch.int64, device=boxes.device)
        return nothing, nothing
    matched = matcher(box_iou(truth, boxes))
    labels = classes[matched.clamp(min=0)]
    labels = torch.where(matched == matcher.BELOW_LOW_THRESHOLD, 0, labels)
    labels = torch.where(matched == matcher.BETWEEN_THRESHOLDS, -1, labels)  # -1: the sampler leaves it out
    return matched.clamp(min=0), labels


def box_losses(
    logits: Tensor,
    offsets: Tensor,
    samples: RegionSamples,
    coder: BoxCoder,
    classification_loss: ClassificationLoss,
    *,
    beta: float,
    recalled: Recalled | None = None,
) -> tuple[Tensor, Tensor]:
    """Classification loss of all regions and smooth L1 loss (corner at `beta`) of those that hold an object.

    The last rows of `logits` and `offsets` are those of `recalled` regions, where there are any.
    """
    labels, instances = torch.cat(samples.labels), samples.instances()
    wanted = coder.encode_single(torch.cat(samples.true_boxes)[labels > 0], torch.cat(samples.boxes)[labels > 0])
    if recalled is not None and recalled.offsets is not None:
        labels = torch.cat((labels, recalled.classes + 1))
        instances = torch.cat((instances, recalled.instances))
        wanted = torch.cat((wanted, recalled.offsets))
    # The classifier's loss runs in float32 whatever the precision of the layers was.
    known = {"instances": instances} if getattr(classification_loss, "uses_instances", False) else {}
    class_loss = classification_loss(logits.float(), labels, **known)
    positive = torch.where(labels > 0)[0]
    predicted = offsets.float().reshape(len(labels), -1, 4)[positive]
    column = labels[positive] if predicted.shape[1] > 1 else torch.zeros_like(labels[positive])
    predicted = predicted[torch.arange(len(positive), device=labels.device), column]
    box_loss = functional.smooth_l1_loss(predicted, wanted, beta=beta, reduction="sum") / max(len(labels), 1)
    return class_loss, box_loss


def mask_targets(
    boxes: Sequence[Tensor], truth_index: Sequence[Tensor], targets: Sequence[Target], size: int
) -> Tensor:
    """Crop the true mask of each region to its box, at `size` x `size`."""
    crops = []
    for regions, rows, target in zip(boxes, truth_index, targets, strict=True):
        used, position = torch.unique(rows, return_inverse=True)
        masks = target["masks"][used][:, None].to(regions.dtype)
        rois = torch.cat((position[:, None].to(regions.dtype), regions), dim=1)
        crops.append(roi_align(masks, rois, (size, size), 1.0, -1, True)[:, 0])
    return torch.cat(crops)


def mask_loss(
    logits: Tensor, boxes: Sequence[Tensor], truth_index: Sequence[Tensor], targets: Sequence[Target]
) -> Tensor:
    """Binary cross entropy between the true masks and the mask logits `(N, R, R)` of the true classes.

    It is 0 where there are no masks to learn from: no region, or labels that are boxes only.
    """
    if len(logits) == 0 or not all("masks" in target for target in targets):
        return logits.sum() * 0.0
    wanted = mask_targets(boxes, truth_index, targets, logits.shape[-1])
    return functional.binary_cross_entropy_with_logits(logits.float(), wanted)


# Offsets are kept without weights, since each stage of a cascade has its own.
PLAIN = BoxCoder((1.0, 1.0, 1.0, 1.0))


@torch.no_grad()
def keep_true_regions(
    memory: FeatureMemory,
    pool: nn.Module,
    features: dict[str, Tensor],
    image_shapes: Sizes,
    targets: Sequence[dict[str, Any]],
) -> None:
    """Keep the pooled features of sixteen boxes around each true one."""
    truth = [target["boxes"] for target in targets]
    jittered = [jittered_boxes(b, size).reshape(-1, 4) for b, size in zip(truth, image_shapes, strict=True)]
    around = torch.cat([b.repeat_interleave(len(SIGNS), 0) for b in truth])
    classes = torch.cat([target["labels"] for target in targets]).repeat_interleave(len(SIGNS)) - 1
    memory.add(pool(features, jittered, image_shapes), classes, PLAIN.encode_single(around, torch.cat(jittered)))


def draw_regions(
    memory: FeatureMemory, loss: EquilibriumLoss, coder: BoxCoder, device: torch.device
) -> Recalled | None:
    """Draw features by the mean scores of `loss`, with offsets as `coder` has them; None from an empty memory."""
    drawn = memory.draw(loss.mean_score)
    if drawn is None or drawn.offsets is None:
        return None
    return replace(drawn, offsets=drawn.offsets * drawn.offsets.new_tensor(coder.weights)).to(device)


@torch.no_grad()
def learn_scores(loss: EquilibriumLoss, logits: Tensor, labels: Tensor, instances: Tensor) -> None:
    """Let the objects of a batch join the mean scores, without training on them."""
    loss.remember(*loss.object_scores(loss.checked(logits), labels, instances))
