"""The head of the one-stage detector: a box at every point of a grid, then the class logits of each box.

The boxes come from the features at their points, as in FCOS. The classes come from features sampled inside the boxes,
as in AlignDet and VFNet: that takes size and place out of what the classifier has to learn, which is what makes a
short training on a CPU enough. Every point is scored: none is proposed, suppressed or left out on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation

from logn.training.detectors.region_boxes import Sizes, clip

STRIDE = 8
# Points of an object lie in its box and at most so far from its centre, in pixels.
CENTRE_DISTANCE = 1.5 * STRIDE
# What a box is before anything is learnt: a square of three cells around its point.
FIRST_DISTANCE = 1.5 * STRIDE


class PointBoxes(nn.Module):
    """One box at every point of a level of the pyramid.

    Args:
        in_channels: Channels of the level.
        hidden: Channels of the convolution in between.

    Example:
        >>> boxes = PointBoxes(48)(torch.zeros(2, 48, 16, 16), [(128, 128), (128, 100)])
        >>> boxes.shape, boxes[0, 17].round().tolist()
        (torch.Size([2, 256, 4]), [0.0, 0.0, 24.0, 24.0])
    """

    def __init__(self, in_channels: int, hidden: int = 64) -> None:
        super().__init__()
        self.tower = Conv2dNormActivation(in_channels, hidden)
        self.bbox_pred = nn.Conv2d(hidden, 4, 3, padding=1)
        nn.init.normal_(self.bbox_pred.weight, std=0.01)
        nn.init.zeros_(torch.as_tensor(self.bbox_pred.bias))

    def forward(self, level: Tensor, image_shapes: Sizes) -> Tensor:
        """Boxes `(B, P, 4)` inside their images, as corners in pixels, point by point."""
        # Distances to left, top, right and bottom; the limit is larger than any image.
        distances = FIRST_DISTANCE * self.bbox_pred(self.tower(level)).float().clamp(max=6).exp()
        rows = distances.permute(0, 2, 3, 1).flatten(1, 2)
        return torch.stack(clip(list(boxes_at(points_of(level), rows)), image_shapes))


def points_of(level: Tensor) -> Tensor:
    """The points `(P, 2)` of a level `(B, C, H, W)` of the pyramid."""
    height, width = level.shape[-2:]
    return grid_points(height, width, level.device)


def grid_points(height: int, width: int, device: torch.device | None = None) -> Tensor:
    """The middle of every cell, row by row, in pixels.

    Example:
        >>> grid_points(1, 2)
        tensor([[ 4.,  4.],
                [12.,  4.]])
    """
    rows, columns = ((torch.arange(size, device=device) + 0.5) * STRIDE for size in (height, width))
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack((x.flatten(), y.flatten()), dim=1)


def boxes_at(points: Tensor, distances: Tensor) -> Tensor:
    """Corners of the boxes whose sides lie so far from the points.

    Example:
        >>> boxes_at(torch.tensor([[10.0, 20.0]]), torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[ 9., 18., 13., 24.]])
    """
    return torch.cat((points - distances[..., :2], points + distances[..., 2:]), dim=-1)


def match_points(points: Tensor, boxes: Tensor) -> Tensor:
    """Which box each point stands for, the smallest of several; -1 for none.

    A point stands for a box that holds it near its centre. The point nearest to the centre of a box that holds no
    point at all stands for it, too.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 16.0, 8.0], [5.0, 5.0, 7.0, 7.0]])
        >>> match_points(grid_points(1, 3), boxes)
        tensor([ 1,  0, -1])
    """
    if not len(boxes):
        return torch.full((len(points),), -1, dtype=torch.int64, device=points.device)
    offset = points[:, None] - (boxes[:, :2] + boxes[:, 2:]) / 2
    inside = (points[:, None] > boxes[:, :2]) & (points[:, None] < boxes[:, 2:]) & (offset.abs() < CENTRE_DISTANCE)
    stands = inside.all(2)
    stands[offset.square().sum(2).argmin(0), torch.arange(len(boxes), device=points.device)] = True
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    smallest, chosen = torch.where(stands, areas, torch.inf).min(1)
    return torch.where(smallest.isinf(), -1, chosen)


def boxes_of_points(points: Tensor, targets: Sequence[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    """Which points `(B, P)` stand for an object, and the true boxes `(N, 4)` of those that do, in their order.

    Example:
        >>> stands, boxes = boxes_of_points(grid_points(1, 2), [{"boxes": torch.tensor([[8.0, 0.0, 16.0, 8.0]])}])
        >>> stands.tolist(), boxes.tolist()
        ([[False, True]], [[8.0, 0.0, 16.0, 8.0]])
    """
    chosen = [match_points(points, target["boxes"].to(points.dtype)) for target in targets]
    boxes = [target["boxes"][rows[rows >= 0]] for rows, target in zip(chosen, targets, strict=True)]
    return torch.stack(chosen) >= 0, torch.cat(boxes)
