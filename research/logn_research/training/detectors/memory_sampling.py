"""Between a feature memory and the head that is trained: what is kept of a batch, and what is drawn for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder

from logn_research.losses.equilibrium import EquilibriumLoss
from logn_research.training.detectors.feature_memory import SIGNS, FeatureMemory, Recalled, jittered_boxes
from logn_research.training.detectors.region_sampling import Sizes

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
