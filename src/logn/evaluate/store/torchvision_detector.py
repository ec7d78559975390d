"""Any two-stage detector of torchvision as a source of proposals with all logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError, MissingExtraError
from logn.logits.proposals import Proposals

# The mask head makes a mask for every class of a box: at LVIS size, 4 MB a box.
_BOXES_AT_ONCE = 64


class TorchvisionDetector:
    """A Faster R-CNN or Mask R-CNN of torchvision that gives its proposals before any activation.

    The model runs as in its own forward pass up to the class logits and the boxes, one for each class; boxes are
    clipped and in pixels of the image as given. It stays in evaluation mode. What torchvision does afterwards is
    `logn.evaluate.decode.decoder`.

    Args:
        model: A `torchvision.models.detection` model with `roi_heads.box_predictor`.

    Example:
        >>> import torch
        >>> from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn as build
        >>> detector = TorchvisionDetector(build(weights=None, weights_backbone=None, num_classes=4))
        >>> found = detector.propose([torch.rand(3, 64, 96)])[0]
        >>> found.num_columns, found.boxes.shape[1:], (found.height, found.width)
        (4, (3, 4), (64, 96))
    """

    background: int | None = 0
    activation: str = "softmax"

    def __init__(self, model: Any) -> None:
        try:
            import torch
            from torchvision.models.detection.transform import resize_boxes
        except ImportError as error:
            raise MissingExtraError("torchvision", extra="torchvision") from error
        if not hasattr(getattr(model, "roi_heads", None), "box_predictor"):
            raise InputError(
                "Expected `model` to be a two-stage detector of torchvision, with `roi_heads.box_predictor`, "
                f"but got {type(model).__name__}."
            )
        self._torch, self._resize = torch, resize_boxes
        self.model = model.eval()
        self.num_classes = _columns(model.roi_heads.box_predictor) - 1

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of each image; images are float tensors `(3, H, W)` in 0..1."""
        heads = self.model.roi_heads
        with self._torch.inference_mode():
            batch, features = self._features(images)
            regions, _ = self.model.rpn(batch, features)
            pooled = heads.box_head(heads.box_roi_pool(features, regions, batch.image_sizes))
            logits, offsets = heads.box_predictor(pooled)
            boxes = heads.box_coder.decode(offsets, regions)
            counts = [len(region) for region in regions]
            sizes = zip(images, batch.image_sizes, strict=True)
            parts = zip(boxes.split(counts), logits.split(counts), sizes, strict=True)
            return [self._proposals(*part) for part in parts]

    def _proposals(self, boxes: Any, logits: Any, sizes: tuple[Any, tuple[int, int]]) -> Proposals:
        image, inner = sizes
        height, width = (int(side) for side in image.shape[-2:])
        boxes = boxes[:, 1:].float()  # the background has a box too, which is not used
        boxes[..., 0::2] = boxes[..., 0::2].clamp(min=0, max=inner[1])
        boxes[..., 1::2] = boxes[..., 1::2].clamp(min=0, max=inner[0])
        pixels = self._resize(boxes.reshape(-1, 4), inner, (height, width)).reshape(boxes.shape)
        return Proposals(pixels.cpu().numpy(), logits.float().cpu().numpy(), height=height, width=width)

    def predict_masks(
        self, images: Sequence[Any], boxes: Sequence[npt.NDArray[Any]], labels: Sequence[npt.NDArray[Any]]
    ) -> list[npt.NDArray[np.float32]]:
        """Mask probabilities `(M, R, R)` in the frame of each box, for foreground classes 0..F-1."""
        if getattr(self.model.roi_heads, "mask_predictor", None) is None:
            raise InputError(f"Expected `model` to have a mask head, but {type(self.model).__name__} has none.")
        torch = self._torch
        with torch.inference_mode():
            batch, features = self._features(images)
            result = []
            for place, image in enumerate(images):
                # One image at a time, with its own features: the heads take a list with one entry per image.
                own = {name: feature[place : place + 1] for name, feature in features.items()}
                inner = batch.image_sizes[place]
                device = next(iter(features.values())).device
                regions = torch.as_tensor(np.asarray(boxes[place], np.float32).reshape(-1, 4), device=device)
                regions = self._resize(regions, tuple(image.shape[-2:]), inner)
                columns = torch.as_tensor(np.asarray(labels[place], np.int64), device=device) + 1
                result.append(self._masks(own, regions, columns, inner))
            return result

    def _masks(self, features: Any, regions: Any, columns: Any, size: tuple[int, int]) -> npt.NDArray[np.float32]:
        heads = self.model.roi_heads
        pieces = []
        for start in range(0, max(len(regions), 1), _BOXES_AT_ONCE):
            part = slice(start, start + _BOXES_AT_ONCE)
            logits = heads.mask_predictor(heads.mask_head(heads.mask_roi_pool(features, [regions[part]], [size])))
            rows = self._torch.arange(len(logits), device=logits.device)
            pieces.append(logits[rows, columns[part]].sigmoid().float().cpu().numpy())
        return np.concatenate(pieces)

    def _features(self, images: Sequence[Any]) -> tuple[Any, Any]:
        device = next(self.model.parameters()).device
        batch, _ = self.model.transform([image.to(device) for image in images])
        features = self.model.backbone(batch.tensors)
        return batch, features if isinstance(features, dict) else {"0": features}


def _columns(predictor: Any) -> int:
    """Columns of the class logits, from the layer that torchvision's predictors name `cls_score`."""
    layer = getattr(predictor, "cls_score", None)
    columns = getattr(layer, "out_features", None)
    if columns is None and getattr(layer, "weight", None) is not None:
        columns = layer.weight.shape[0]  # type: ignore[union-attr]
    if columns is None:
        raise InputError("Expected `model.roi_heads.box_predictor` to have a layer `cls_score`, but it has none.")
    return int(columns)
