"""The head of the one-stage detector: class logits and a box at every point of a grid, as FCOS has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import Conv2dNormActivation

from logn.training.heads import NormedConv2d

STRIDE = 8
# Points of an object lie in its box and at most so far from its centre, in pixels.
CENTRE_DISTANCE = 1.5 * STRIDE


class PointHead(nn.Module):
    """Two towers of convolutions on both levels of the small pyramid, for the classes and for the boxes.

    The finer level is folded into the grid of the coarser one, so that details count without four times the points.

    Args:
        in_channels: Channels of each level.
        num_classes: Foreground classes; there is no background column.
        hidden: Channels of the class tower.
        classifier: `linear` for a plain 1x1 convolution, `cosine` for the normalised one.
        temperature: Of the normalised convolution.
        initial_bias: Where the bias of the logits starts.

    Example:
        >>> head = PointHead(48, 5, hidden=64, classifier="linear", temperature=1.0, initial_bias=-4.6)
        >>> levels = {"0": torch.zeros(2, 48, 32, 32), "1": torch.zeros(2, 48, 16, 16)}
        >>> [tuple(rows.shape) for rows in head(levels)]
        [(2, 256, 5), (2, 256, 4)]
    """

    cls_score: nn.Conv2d | NormedConv2d

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        *,
        hidden: int,
        classifier: str,
        temperature: float,
        initial_bias: float,
    ) -> None:
        super().__init__()
        first = 5 * in_channels
        self.class_tower = nn.Sequential(Conv2dNormActivation(first, hidden), Conv2dNormActivation(hidden, hidden))
        self.box_tower = Conv2dNormActivation(first, 64)
        if classifier == "cosine":
            self.cls_score = NormedConv2d(hidden, num_classes, temperature=temperature)
        else:
            self.cls_score = nn.Conv2d(hidden, num_classes, 1)
            nn.init.normal_(self.cls_score.weight, std=0.01)
        nn.init.constant_(torch.as_tensor(self.cls_score.bias), initial_bias)
        self.bbox_pred = nn.Conv2d(64, 4, 3, padding=1)
        nn.init.normal_(self.bbox_pred.weight, std=0.01)
        nn.init.zeros_(torch.as_tensor(self.bbox_pred.bias))

    def forward(self, features: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits `(B, P, F)` and distances `(B, P, 4)` to left, top, right, bottom, in pixels, of all points."""
        both = torch.cat((features["1"], functional.pixel_unshuffle(features["0"], 2)), dim=1)
        logits = self.cls_score(self.class_tower(both))
        # An exponent of 1 is the length of a side; 8 more is larger than any image.
        distances = STRIDE * self.bbox_pred(self.box_tower(both)).float().clamp(max=8).exp()
        return _rows(logits), _rows(distances)


def _rows(maps: Tensor) -> Tensor:
    return maps.permute(0, 2, 3, 1).flatten(1, 2)


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


def match_batch(points: Tensor, targets: Sequence[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    """Labels `(B, P)`, 0 for the background, else 1..F, and the true box `(B, P, 4)` of each point that has one."""
    labels, boxes = [], []
    for target in targets:
        chosen = match_points(points, target["boxes"].to(points.dtype))
        nothing = target["boxes"].new_zeros(1, 4), target["labels"].new_zeros(1)
        boxes.append(torch.cat((target["boxes"], nothing[0]))[chosen])  # -1 takes the row of zeros at the end
        labels.append(torch.cat((target["labels"], nothing[1]))[chosen])
    return torch.stack(labels), torch.stack(boxes)
