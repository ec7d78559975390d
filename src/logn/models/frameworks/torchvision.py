"""torchvision's detectors: where their class logits are, and their proposals with all logits.

They are known by the module that their class, or a base of it, comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from logn.data.masks import paste_mask
from logn.errors import InputError, warn
from logn.models.detector import Detector
from logn.models.frameworks.shared import kinds_of
from logn.models.images import as_tensor
from logn.models.layer import LogitLayer, count_columns, output_width
from logn.models.proposals import Postprocessing, Proposals

PACKAGE = "torchvision.models.detection"


def locate(module: Any, kinds: set[str]) -> LogitLayer | None:
    """The class logits of a torchvision detector; None when there are none."""
    if "FasterRCNN" in kinds:
        return _region_based(module)
    if kinds & {"RetinaNet", "FCOS"}:
        return _one_convolution(module)
    return _one_convolution_per_level(module) if "SSD" in kinds else None


def _region_based(model: Any) -> LogitLayer | None:
    """Faster, Mask and Keypoint R-CNN: softmax over the classes of each proposal, the background first."""
    predictor = getattr(model.roi_heads, "box_predictor", None)
    if output_width(getattr(predictor, "cls_score", None)) is None:
        return None
    path = "roi_heads.box_predictor.cls_score"
    return LogitLayer(path, background=0, activation="softmax", population="test proposals")


def _one_convolution(model: Any) -> LogitLayer:
    """RetinaNet and FCOS: one convolution for all levels. They count classes from 1, so column 0 is never trained."""
    head = model.head.classification_head
    return LogitLayer(
        "head.classification_head.cls_logits",
        activation="sigmoid",
        class_axis=1,
        anchors=int(head.num_anchors),
        num_columns=int(head.num_classes),
        population="all anchors",
        unused=(0,),
    )


def _one_convolution_per_level(model: Any) -> LogitLayer:
    """SSD and SSDlite: softmax over the classes of each anchor; in SSDlite a level ends in a 1x1 convolution."""
    head = model.head.classification_head
    columns = int(head.num_columns)
    paths, anchors = [], []
    for level, block in head.module_list.named_children():
        last, module = [(name, part) for name, part in block.named_modules() if output_width(part) is not None][-1]
        paths.append(f"head.classification_head.module_list.{level}" + (f".{last}" if last else ""))
        anchors.append((output_width(module) or 0) // columns)
    return LogitLayer(
        tuple(paths),
        background=0,
        activation="softmax",
        class_axis=1,
        anchors=tuple(anchors),
        num_columns=columns,
        population="all anchors",
    )


class TorchvisionDetector(Detector):
    """A detector of torchvision that gives its proposals before any activation.

    The model runs as in its own forward pass up to the class logits and the boxes, which are clipped and in pixels of
    the image as given. It stays in evaluation mode. What torchvision does afterwards is `logn.predictions.decoder`.

    Faster, Mask and Keypoint R-CNN give a box per class and proposal. RetinaNet, FCOS, SSD and SSDlite give anchors:
    where the model looks at the best candidates of each level only (RetinaNet and FCOS, `topk_candidates`), as many
    anchors of each level, those whose best class scores highest. FCOS's centerness is the objectness.

    Args:
        model: A model of `torchvision.models.detection`.
        class_names: Of the foreground classes, or of all columns, as in the `meta["categories"]` of weights.
        unused: Columns of RetinaNet and FCOS that are no class; by default the first, since torchvision counts from 1.
        anchors_per_level: How many anchors of each level are kept; by default what the model looks at.

    Example:
        >>> from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn as build
        >>> detector = TorchvisionDetector(build(weights=None, weights_backbone=None, num_classes=4))
        >>> proposals = detector.propose([torch.rand(3, 64, 96)])[0]
        >>> proposals.num_columns, proposals.boxes.shape[1:], (proposals.height, proposals.width)
        (4, (3, 4), (64, 96))
    """

    def __init__(
        self,
        model: Any,
        *,
        class_names: Sequence[str] | None = None,
        unused: Sequence[int] | None = None,
        anchors_per_level: int | None = None,
    ) -> None:
        kinds = kinds_of(model, PACKAGE)
        layer = locate(model, kinds)
        if layer is None:
            raise InputError(
                "Expected `model` to be a detector of torchvision with its class layer where torchvision has it "
                f"(`roi_heads.box_predictor.cls_score` or `head.classification_head`), but got {type(model).__name__}."
            )
        self._is_two_stage, self._is_fcos = "FasterRCNN" in kinds, "FCOS" in kinds
        self._kept = anchors_per_level or (None if "SSD" in kinds else getattr(model, "topk_candidates", None))
        anchors = "kept anchors" if self._kept else "all anchors"
        no_class = {*(layer.unused if unused is None else unused), *([] if layer.background is None else [0])}
        super().__init__(
            model,
            layer,
            class_names,
            class_columns=[column for column in range(count_columns(model, layer)) if column not in no_class],
            population=layer.population if self._is_two_stage else anchors,
        )
        self._classes = self.head.foreground.tolist()
        # Where the user says what is unused, there is nothing to doubt.
        self._doubted = list(layer.unused) if unused is None else []
        heads = model.roi_heads if self._is_two_stage else model
        self.masks = None if getattr(heads, "mask_predictor", None) is None else self._masks
        self.postprocessing = Postprocessing(
            nms_iou=heads.nms_thresh,
            score_threshold=heads.score_thresh,
            max_detections=heads.detections_per_img,
            min_box_size=1e-2 if self._is_two_stage else 0.0,
            score_power=0.5 if self._is_fcos else 1.0,
        )

    @torch.inference_mode()
    def run(self, images: Sequence[Any]) -> Any:
        """The batch that the images become, and what the head says of it, in front of any decoding."""
        batch, features = self._features(images)
        if not self._is_two_stage:
            maps = list(features.values())
            return batch, (maps, self.network.head(maps))
        heads = self.network.roi_heads
        regions, _ = self.network.rpn(batch, features)
        pooled = heads.box_head(heads.box_roi_pool(features, regions, batch.image_sizes))
        return batch, (regions, *heads.box_predictor(pooled))

    @torch.inference_mode()
    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of each image."""
        tensors = [as_tensor(image) for image in images]
        batch, output = self.run(tensors)
        rows = self._regions(*output) if self._is_two_stage else self._anchors(batch, *output)
        inner = zip(tensors, batch.image_sizes, strict=True)
        return [_proposals(*row, *sizes) for row, sizes in zip(rows, inner, strict=True)]

    def _masks(self, image: Any, boxes: Any, classes: Any, rows: Any) -> Iterator[npt.NDArray[np.bool_]]:
        heads, tensor = self.network.roi_heads, as_tensor(image)
        height, width = (int(side) for side in tensor.shape[-2:])
        columns = [self._classes[label] for label in classes.tolist()]
        with torch.inference_mode():
            batch, features = self._features([tensor])
            corners = torch.as_tensor(boxes, device=batch.tensors.device)
            regions = _resized(corners, (height, width), batch.image_sizes[0])
            pooled = heads.mask_head(heads.mask_roi_pool(features, [regions], batch.image_sizes))
            of_class = heads.mask_predictor(pooled)[range(len(columns)), columns].sigmoid().float().cpu().numpy()
        for mask, box in zip(of_class, boxes, strict=True):
            yield paste_mask(mask, box, height, width)

    def _features(self, images: Sequence[Any]) -> tuple[Any, Any]:
        device = next(self.network.parameters()).device
        batch, _ = self.network.transform([as_tensor(image).to(device) for image in images])
        features = self.network.backbone(batch.tensors)
        return batch, features if isinstance(features, dict) else {"0": features}

    def _regions(self, regions: Any, logits: Any, offsets: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Boxes `(N, F, 4)`, logits and no objectness of each image."""
        boxes = self.network.roi_heads.box_coder.decode(offsets, regions)
        counts = [len(region) for region in regions]
        for moved, rows in zip(boxes.split(counts), logits.split(counts), strict=True):
            yield moved[:, self._classes], rows, None  # the background has a box too, which is not used

    def _anchors(self, batch: Any, maps: Any, output: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Boxes `(N, 4)`, logits and objectness of the kept anchors of each image."""
        per_location = self.network.anchor_generator.num_anchors_per_location()
        counts = [level.shape[-2] * level.shape[-1] * count for level, count in zip(maps, per_location, strict=True)]
        coder = self.network.box_coder
        decode = coder.decode if self._is_fcos else coder.decode_single
        for image, anchors in enumerate(self.network.anchor_generator(batch, maps)):
            logits, offsets = output["cls_logits"][image], output["bbox_regression"][image]
            self._warn_of_active_columns(logits)
            centerness = output["bbox_ctrness"][image, :, 0] if "bbox_ctrness" in output else None
            kept = self._best(logits, centerness, counts)
            yield decode(offsets[kept], anchors[kept]), logits[kept], None if centerness is None else centerness[kept]

    def _warn_of_active_columns(self, logits: Any) -> None:
        """Warn once of an image whose best score is in a column that is taken for unused."""
        best = logits.amax(dim=0)
        active = [column for column in self._doubted if best[column] >= best[self._classes].max()]
        if active:
            self._doubted = []
            warn(
                f"Column {active[0]} of `{self.head.layer}` is left out, as torchvision counts classes from 1, "
                "but it holds the best score of an image: does the model count from 0? (in Python unused=() says so)."
            )

    def _best(self, logits: Any, objectness: Any, counts: Sequence[int]) -> Any:
        """The anchors that are kept, ascending: of each level those whose best class scores highest."""
        if self._kept is None:
            return slice(None)
        scores = logits.softmax(-1) if self.head.activation == "softmax" else logits.sigmoid()
        best = scores[:, self._classes].amax(dim=1)
        best = best if objectness is None else best * objectness.sigmoid()
        chosen, start = [], 0
        for level in best.split(list(counts)):
            chosen.append(level.topk(min(self._kept, len(level))).indices.sort().values + start)
            start += len(level)
        return torch.cat(chosen)


def _proposals(boxes: Any, logits: Any, objectness: Any, image: Any, inner: tuple[int, int]) -> Proposals:
    """Proposals in pixels of an image, from boxes in the size in which the network saw it."""
    height, width = (int(side) for side in image.shape[-2:])
    boxes = boxes.float()
    boxes[..., 0::2] = boxes[..., 0::2].clamp(min=0, max=inner[1])
    boxes[..., 1::2] = boxes[..., 1::2].clamp(min=0, max=inner[0])
    pixels = _resized(boxes.reshape(-1, 4), inner, (height, width)).reshape(boxes.shape)
    return Proposals(
        pixels, logits.float(), height, width, objectness=None if objectness is None else objectness.float()
    )


def _resized(boxes: Any, size: tuple[int, int], new_size: tuple[int, int]) -> Any:
    from torchvision.models.detection.transform import resize_boxes

    return resize_boxes(boxes, size, new_size)
