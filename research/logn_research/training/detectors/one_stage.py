"""A one-stage detector with a sigmoid for each class and no background, small enough for a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, BoxCoder, Matcher
from torchvision.models.detection.transform import resize_boxes
from torchvision.ops import Conv2dNormActivation, generalized_box_iou_loss

from logn.errors import InputError
from logn.logits.layer import LogitLayer
from logn.logits.proposals import Proposals
from logn_research.losses.head_loss import HeadLoss
from logn_research.training.detectors.heads import BoxPredictor
from logn_research.training.detectors.region_sampling import (
    ClassificationLoss,
    Sizes,
    Target,
    best_boxes,
    box_losses,
    clip,
    sample_regions,
    size_of,
)
from logn_research.training.detectors.settings import DetectorSettings
from logn_research.training.engine.evaluation_mode import evaluation_mode

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


KEPT_POINTS = 300
# A dense detector learns from every point; the true boxes join them, as they join the proposals of others.
ALL = BalancedPositiveNegativeSampler(batch_size_per_image=1 << 40, positive_fraction=0.5)
# Level of the pyramid whose points have boxes.
LEVEL = "1"


class OneStageDetector(nn.Module):
    """A dense detector (`logn.logits.proposals.ProposingDetector`, without masks).

    In training mode it is called with images and targets, with labels 1..F, and gives losses; in evaluation mode it
    gives detections, as torchvision's detectors.

    Args:
        settings: What it is built from.
        backbone: Gives level `"1"` at stride 8, and those that `pool` takes.
        point_boxes: A box at every point.
        pool: Features of boxes.
        box_head: From these to a vector.
        box_predictor: Logits, and a correction of the box.
        transform: torchvision's, which makes a batch of images.
        loss: Of the class logits; also says how they are read.

    Attributes:
        background: None: there is no such column.
        activation: `sigmoid`.
        population: What `propose` gives a row for.
        class_names: Names of the foreground classes, where they are known.
    """

    background: int | None = None
    activation = "sigmoid"
    population = "kept points"
    class_names: tuple[str, ...] | None = None
    logit_layer_paths: tuple[str, ...] = ("box_predictor.cls_score",)

    def __init__(
        self,
        settings: DetectorSettings,
        *,
        backbone: nn.Module,
        point_boxes: PointBoxes,
        pool: nn.Module,
        box_head: nn.Module,
        box_predictor: BoxPredictor,
        transform: nn.Module,
        loss: HeadLoss,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.backbone, self.point_boxes, self.transform = backbone, point_boxes, transform
        self.pool, self.box_head, self.box_predictor = pool, box_head, box_predictor
        self.layout = loss.layout
        self.classification_loss: ClassificationLoss = loss
        self.box_coder = BoxCoder((10.0, 10.0, 5.0, 5.0))
        self.matcher = Matcher(0.5, 0.5, allow_low_quality_matches=False)

    @property
    def num_classes(self) -> int:
        """How many foreground classes there are."""
        return self.settings.num_classes

    @property
    def logit_layer(self) -> LogitLayer:
        """Where the logits come out, of all points, of which `propose` keeps the best of each image."""
        return LogitLayer(
            self.logit_layer_paths[0],
            activation=self.activation,
            num_classes=self.num_classes,
            population="all points",
        )

    def use_loss(self, loss: ClassificationLoss) -> None:
        """Train the classifier with `loss`, which must want the logits that there are."""
        if isinstance(loss, HeadLoss) and loss.layout != self.layout:
            raise InputError(f"Expected `loss` to have the {self.layout} of the detector, but got {loss.layout}.")
        del self.classification_loss  # torch lets no plain function take the place of a module
        self.classification_loss = loss

    def forward(
        self, images: Sequence[Tensor], targets: Sequence[Target] | None = None
    ) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Losses in training mode, detections in torchvision's form otherwise."""
        if not self.training:
            return self._detections(images)
        if targets is None:
            raise InputError("Expected `targets` in training mode, but got None.")
        batch, moved = self.transform(list(images), list(targets))
        features = self.backbone(batch.tensors)
        boxes = self.point_boxes(features[LEVEL], batch.image_sizes)
        stands, truth = boxes_of_points(points_of(features[LEVEL]), moved)
        point_loss = generalized_box_iou_loss(boxes[stands], truth, reduction="sum") / stands.sum().clamp(min=1)
        # Where training fails, the loss above is no number and says so; no index can be made of such boxes.
        samples = sample_regions(list(boxes.detach().nan_to_num()), moved, self.matcher, ALL)
        logits, offsets = self._score(features, samples.boxes, batch.image_sizes)
        class_loss, box_loss = box_losses(
            logits, offsets, samples, self.box_coder, self.classification_loss, beta=1 / 9
        )
        # A mean over the coordinates of the points that hold an object, who are few of all.
        rows, positives = len(logits), int(sum((labels > 0).sum() for labels in samples.labels))
        return {
            "loss_classifier": class_loss,
            "loss_box_reg": box_loss * (rows / max(4 * positives, 1)),
            "loss_point_box": point_loss,
        }

    def _score(self, features: dict[str, Tensor], boxes: list[Tensor], shapes: Sizes) -> tuple[Tensor, Tensor]:
        logits, offsets = self.box_predictor(self.box_head(self.pool(features, boxes, shapes)))
        return logits, offsets

    @torch.inference_mode()
    def propose(self, images: Sequence[Tensor]) -> list[Proposals]:
        """Boxes and logits of the points of each image with the highest logits of any class, 300 at most.

        Args:
            images: Float tensors `(3, H, W)` with values in 0..1, of any sizes.
        """
        sizes = [size_of(image) for image in images]
        with evaluation_mode(self):
            found = self._kept_points(images)
        return [
            Proposals(resize_boxes(boxes, inner, outer).cpu().numpy(), rows.cpu().numpy(), *outer)
            for (boxes, rows, inner), outer in zip(found, sizes, strict=True)
        ]

    def predict_masks(
        self, images: Sequence[Tensor], boxes: Sequence[npt.NDArray[Any]], labels: Sequence[npt.NDArray[Any]]
    ) -> list[npt.NDArray[np.float32]]:
        """Refuse: there are none."""
        raise InputError(
            f"Expected a detector with a mask head, but got {self.settings.model!r}, which gives boxes only."
        )

    def _kept_points(self, images: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, tuple[int, int]]]:
        """Boxes and logits of the kept points of each image, and the size of the image that the network saw."""
        device = next(self.parameters()).device
        batch, _ = self.transform([image.to(device) for image in images])
        features = self.backbone(batch.tensors)
        points = points_of(features[LEVEL])
        first = list(self.point_boxes(features[LEVEL], batch.image_sizes))
        logits, offsets = self._score(features, first, batch.image_sizes)
        moved = clip(self.box_coder.decode(offsets.float(), first).reshape(len(first), -1, 4), batch.image_sizes)
        result = []
        for boxes, rows, size in zip(moved, logits.float().chunk(len(first)), batch.image_sizes, strict=True):
            # A batch is padded to its largest image; points outside of this one say nothing about it.
            inside = (points < points.new_tensor([size[1], size[0]])).all(1)
            best = torch.where(inside, rows.amax(1), -torch.inf).topk(min(KEPT_POINTS, int(inside.sum()))).indices
            result.append((boxes[best], rows[best], size))
        return result

    def _detections(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        found = []
        for image, (boxes, rows, inner) in zip(images, self._kept_points(images), strict=True):
            per_class = resize_boxes(boxes, inner, size_of(image))[:, None].expand(-1, self.num_classes, -1)
            best = best_boxes(per_class, rows.sigmoid(), score=1e-4, iou=0.5, max_boxes=300)
            found.append({"boxes": best[0], "scores": best[1], "labels": best[2] + 1})
        return found
