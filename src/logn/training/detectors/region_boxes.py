"""Boxes of regions: keeping them inside the image, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import batched_nms

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


def best_boxes(boxes: Tensor, scores: Tensor, *, score: float, iou: float, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Threshold, suppression class by class, and a limit, for scores of any kind.

    Args:
        boxes: `(N, F, 4)`.
        scores: `(N, F)`.
        score: Scores above this are kept.
        iou: Boxes of a class that overlap a better one by more are dropped.
        most: How many boxes an image may have.

    Returns:
        Boxes, scores and classes 0..F-1, best first.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 9.0, 8.0]])[:, None].repeat(1, 2, 1)
        >>> best_boxes(boxes, torch.tensor([[0.9, 0.0], [0.8, 0.3]]), score=0.1, iou=0.5, most=10)[1]
        tensor([0.9000, 0.3000])
    """
    rows, classes = torch.where(scores > score)
    found, values = boxes[rows, classes], scores[rows, classes]
    wide = ((found[:, 2:] - found[:, :2]) >= 1e-2).all(1)
    found, values, classes = found[wide], values[wide], classes[wide]
    keep = batched_nms(found, values, classes, iou)[:most]
    return found[keep], values[keep], classes[keep]
