"""torchvision's detectors: where their class logits are, and their proposals with all logits.

Nothing of torchvision is imported until a detector runs: it is known by the module that its class, or a base of it,
comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from logn.data.masks import paste_mask
from logn.errors import InputError, MissingExtraError, warn
from logn.models.images import as_tensor
from logn.models.layer import LogitLayer, count_columns, output_width
from logn.models.proposals import MaskFunction, Postprocessing, Proposals

if TYPE_CHECKING:
    from torch import nn


PACKAGE = "torchvision.models.detection"


def locate_in_torchvision(model: nn.Module) -> LogitLayer | None:
    """The class logits of a torchvision detector, also of one inside another module; None when there is none."""
    for prefix, module in model.named_modules():
        family = family_of(module)
        if family is not None:
            return _LOCATORS[family](module, f"{prefix}." if prefix else "")
    return None


def family_of(module: Any) -> str | None:
    """The kind of detector, by the base classes, so that subclasses count too; None where it is none of torchvision's.

    Example:
        >>> family_of(object()) is None
        True
    """
    for base in type(module).__mro__:
        if base.__module__.startswith(PACKAGE) and base.__name__ in _LOCATORS:
            return base.__name__
    return None


def _region_based(model: Any, prefix: str) -> LogitLayer | None:
    """Faster, Mask and Keypoint R-CNN: softmax over the classes of each proposal, the background first."""
    predictor = getattr(model.roi_heads, "box_predictor", None)
    if output_width(getattr(predictor, "cls_score", None)) is None:
        return None
    path = f"{prefix}roi_heads.box_predictor.cls_score"
    return LogitLayer(path, background=0, activation="softmax", population="test proposals")


def _one_convolution(model: Any, prefix: str) -> LogitLayer:
    """RetinaNet and FCOS: one convolution for all levels. They count classes from 1, so column 0 is never trained."""
    head = model.head.classification_head
    return LogitLayer(
        f"{prefix}head.classification_head.cls_logits",
        activation="sigmoid",
        class_axis=1,
        anchors=int(head.num_anchors),
        num_columns=int(head.num_classes),
        population="all anchors",
        unused=(0,),
    )


def _one_convolution_per_level(model: Any, prefix: str) -> LogitLayer:
    """SSD and SSDlite: softmax over the classes of each anchor; in SSDlite a level ends in a 1x1 convolution."""
    head = model.head.classification_head
    columns = int(head.num_columns)
    paths, anchors = [], []
    for level, block in head.module_list.named_children():
        last, module = [(name, part) for name, part in block.named_modules() if output_width(part) is not None][-1]
        paths.append(f"{prefix}head.classification_head.module_list.{level}" + (f".{last}" if last else ""))
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


_LOCATORS = {
    "FasterRCNN": _region_based,
    "RetinaNet": _one_convolution,
    "FCOS": _one_convolution,
    "SSD": _one_convolution_per_level,
}


class TorchvisionDetector:
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
        >>> import torch
        >>> from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn as build
        >>> detector = TorchvisionDetector(build(weights=None, weights_backbone=None, num_classes=4))
        >>> found = detector.propose([torch.rand(3, 64, 96)])[0]
        >>> found.num_columns, found.boxes.shape[1:], (found.height, found.width)
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
        try:
            import torch
            from torchvision.models.detection.transform import resize_boxes
        except ImportError as error:
            raise MissingExtraError("torchvision", extra="torchvision") from error
        family = family_of(model)
        layer = None if family is None else locate_in_torchvision(model)
        if layer is None:
            raise InputError(
                "Expected `model` to be a detector of torchvision with its class layer where torchvision has it "
                f"(`roi_heads.box_predictor.cls_score` or `head.classification_head`), but got {type(model).__name__}."
            )
        self._torch, self._resize, self._family = torch, resize_boxes, family
        self.model, self.logit_layer = model.eval(), layer
        self.background, self.activation = layer.background, str(layer.activation)
        columns = count_columns(model, layer)
        no_class = set(layer.unused if unused is None else unused) | ({0} if layer.background == 0 else set())
        self.class_columns = tuple(column for column in range(columns) if column not in no_class)
        self.num_classes = len(self.class_columns)
        self.class_names = _names_of_classes(class_names, self.class_columns, columns)
        # Where the user says what is unused, there is nothing to doubt.
        self._doubted = list(layer.unused) if unused is None else []
        self._kept = anchors_per_level or (None if family == "SSD" else getattr(model, "topk_candidates", None))
        self.population = "test proposals" if self._is_two_stage else "kept anchors" if self._kept else "all anchors"
        self.postprocessing = self._own_postprocessing()

    @property
    def _is_two_stage(self) -> bool:
        return self._family == "FasterRCNN"

    def _own_postprocessing(self) -> Postprocessing:
        heads = self.model.roi_heads if self._is_two_stage else self.model
        return Postprocessing(
            nms_iou=heads.nms_thresh,
            score_threshold=heads.score_thresh,
            max_detections=heads.detections_per_img,
            min_box_size=1e-2 if self._is_two_stage else 0.0,
            score_power=0.5 if self._family == "FCOS" else 1.0,
        )

    prepare = staticmethod(as_tensor)

    def run(self, images: Sequence[Any]) -> None:
        """Run the model up to its class logits."""
        with self._torch.inference_mode():
            batch, features = self._features([as_tensor(image) for image in images])
            if self._is_two_stage:
                self._classify(batch, features)
            else:
                self.model.head(list(features.values()))

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of each image: RGB arrays, or float tensors `(3, H, W)` in 0..1."""
        tensors = [as_tensor(image) for image in images]
        with self._torch.inference_mode():
            batch, features = self._features(tensors)
            rows = self._regions(batch, features) if self._is_two_stage else self._anchors(batch, features)
            inner = zip(tensors, batch.image_sizes, strict=True)
            return [self._proposals(*row, *sizes) for row, sizes in zip(rows, inner, strict=True)]

    @property
    def masks(self) -> MaskFunction | None:
        """Masks of detections, from the mask head; None for a model without one."""
        heads = self.model.roi_heads if self._is_two_stage else None
        return None if getattr(heads, "mask_predictor", None) is None else self._masks

    def _masks(self, image: Any, boxes: Any, classes: Any, rows: Any) -> Iterator[npt.NDArray[np.bool_]]:
        torch, heads, tensor = self._torch, self.model.roi_heads, as_tensor(image)
        height, width = (int(side) for side in tensor.shape[-2:])
        columns = [self.class_columns[label] for label in classes.tolist()]
        with torch.inference_mode():
            batch, features = self._features([tensor])
            given = torch.as_tensor(boxes, device=batch.tensors.device)
            regions = self._resize(given, (height, width), batch.image_sizes[0])
            pooled = heads.mask_head(heads.mask_roi_pool(features, [regions], batch.image_sizes))
            of_class = heads.mask_predictor(pooled)[range(len(columns)), columns].sigmoid().float().cpu().numpy()
        for mask, box in zip(of_class, boxes, strict=True):
            yield paste_mask(mask, box, height, width)

    def _classify(self, batch: Any, features: Any) -> tuple[Any, Any, Any]:
        """Regions of each image, and the logits and box offsets of all of them."""
        heads = self.model.roi_heads
        regions, _ = self.model.rpn(batch, features)
        pooled = heads.box_head(heads.box_roi_pool(features, regions, batch.image_sizes))
        return regions, *heads.box_predictor(pooled)

    def _regions(self, batch: Any, features: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Boxes `(N, F, 4)`, logits and no objectness of each image."""
        regions, logits, offsets = self._classify(batch, features)
        boxes = self.model.roi_heads.box_coder.decode(offsets, regions)
        counts = [len(region) for region in regions]
        for moved, rows in zip(boxes.split(counts), logits.split(counts), strict=True):
            yield moved[:, list(self.class_columns)], rows, None  # the background has a box too, which is not used

    def _anchors(self, batch: Any, features: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Boxes `(N, 4)`, logits and objectness of the kept anchors of each image."""
        maps = list(features.values())
        output = self.model.head(maps)
        anchors = self.model.anchor_generator(batch, maps)
        places = self.model.anchor_generator.num_anchors_per_location()
        counts = [level.shape[-2] * level.shape[-1] * count for level, count in zip(maps, places, strict=True)]
        coder = self.model.box_coder
        decode = coder.decode if self._family == "FCOS" else coder.decode_single
        for place, boxes in enumerate(anchors):
            logits, offsets = output["cls_logits"][place], output["bbox_regression"][place]
            self._warn_of_active_columns(logits)
            sure = output["bbox_ctrness"][place, :, 0] if "bbox_ctrness" in output else None
            kept = self._best(logits, sure, counts)
            yield decode(offsets[kept], boxes[kept]), logits[kept], None if sure is None else sure[kept]

    def _warn_of_active_columns(self, logits: Any) -> None:
        """Warn once of an image whose best score is in a column that is taken for unused."""
        best = logits.amax(dim=0)
        active = [column for column in self._doubted if best[column] >= best[list(self.class_columns)].max()]
        if active:
            self._doubted = []
            warn(
                f"Column {active[0]} of `{self.logit_layer.name}` is left out, as torchvision counts classes from 1, "
                "but it holds the best score of an image: does the model count from 0? (in Python unused=() says so)."
            )

    def _best(self, logits: Any, objectness: Any, counts: Sequence[int]) -> Any:
        """The anchors that are kept, ascending: of each level those whose best class scores highest."""
        torch = self._torch
        if self._kept is None:
            return slice(None)
        scores = logits.softmax(-1) if self.activation == "softmax" else logits.sigmoid()
        best = scores[:, list(self.class_columns)].amax(dim=1)
        best = best if objectness is None else best * objectness.sigmoid()
        chosen, start = [], 0
        for level in best.split(list(counts)):
            chosen.append(level.topk(min(self._kept, len(level))).indices.sort().values + start)
            start += len(level)
        return torch.cat(chosen)

    def _proposals(self, boxes: Any, logits: Any, objectness: Any, image: Any, inner: tuple[int, int]) -> Proposals:
        height, width = (int(side) for side in image.shape[-2:])
        boxes = boxes.float()
        boxes[..., 0::2] = boxes[..., 0::2].clamp(min=0, max=inner[1])
        boxes[..., 1::2] = boxes[..., 1::2].clamp(min=0, max=inner[0])
        pixels = self._resize(boxes.reshape(-1, 4), inner, (height, width)).reshape(boxes.shape)
        return Proposals(
            pixels, logits.float(), height, width, objectness=None if objectness is None else objectness.float()
        )

    def _features(self, images: Sequence[Any]) -> tuple[Any, Any]:
        device = next(self.model.parameters()).device
        batch, _ = self.model.transform([image.to(device) for image in images])
        features = self.model.backbone(batch.tensors)
        return batch, features if isinstance(features, dict) else {"0": features}


def _names_of_classes(
    names: Sequence[str] | None, class_columns: Sequence[int], columns: int
) -> tuple[str, ...] | None:
    if names is None:
        return None
    if len(names) == columns != len(class_columns):
        return tuple(names[column] for column in class_columns)
    if len(names) != len(class_columns):
        raise InputError(
            f"Expected `class_names` to name the {len(class_columns)} classes, or all {columns} columns, but got "
            f"{len(names)}."
        )
    return tuple(names)
