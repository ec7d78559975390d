"""Detectron2's detectors: where their class logits are, by the paths that its sources document, and their proposals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from logn.errors import InputError
from logn.models.frameworks.shared import class_names, modules_from, run_until
from logn.models.images import Rgb, as_rgb
from logn.models.layer import LogitLayer, count_columns, output_width
from logn.models.proposals import Postprocessing, Proposals

if TYPE_CHECKING:
    from torch import nn


PACKAGE = "detectron2"
REGION_BASED = {"GeneralizedRCNN", "ProposalNetwork", "PanopticFPN"}
DENSE = {"RetinaNet", "FCOS"}


def locate_in_detectron2(model: nn.Module) -> LogitLayer | None:
    """The class logits of Fast, Faster, Mask and Cascade R-CNN, RetinaNet and FCOS; None when there are none."""
    for prefix, module, names in modules_from(model, PACKAGE):
        if names & DENSE:
            return _dense(module, prefix)
        if names & REGION_BASED:
            return _region_based(module, prefix)
    return None


def _dense(model: Any, prefix: str) -> LogitLayer | None:
    """One convolution for all levels, `channel = anchor * columns + class`."""
    width = output_width(getattr(model.head, "cls_score", None))
    classes = getattr(model, "num_classes", None)
    if width is None or not classes:
        return None
    return LogitLayer(
        f"{prefix}head.cls_score",
        activation="sigmoid",
        class_axis=1,
        anchors=width // int(classes),
        num_columns=int(classes),
        population="all anchors",
    )


def _region_based(model: Any, prefix: str) -> LogitLayer | None:
    """Background last. The stages of a cascade are averaged as probabilities, so each has a map of its own."""
    predictor = getattr(getattr(model, "roi_heads", None), "box_predictor", None)
    if predictor is None:
        return None
    root = f"{prefix}roi_heads.box_predictor"
    cascade = type(predictor).__name__ == "ModuleList"
    predictors = list(predictor) if cascade else [predictor]
    if any(output_width(getattr(each, "cls_score", None)) is None for each in predictors):
        return None
    paths = tuple(f"{root}.{stage}.cls_score" for stage in range(len(predictors))) if cascade else f"{root}.cls_score"
    # Trained with sigmoids (MODEL.ROI_BOX_HEAD.USE_SIGMOID_CE), the last column gets no gradient and is cut off.
    sigmoid = bool(getattr(predictors[0], "use_sigmoid_ce", False))
    return LogitLayer(
        paths,
        background=None if sigmoid else -1,
        activation="sigmoid" if sigmoid else "softmax",
        population="test proposals",
        stages=cascade,
        extra_columns=1 if sigmoid else 0,
    )


class Detectron2Detector:
    """A Fast, Faster or Mask R-CNN, RetinaNet or FCOS of Detectron2.

    Images are prepared one by one as its `DefaultPredictor` does it. The model runs as in its own inference up to
    where it would turn logits into scores; it stays in evaluation mode. The stages of a cascade are averaged as
    probabilities there, for which a proposal would need the logits of every stage: a cascade is refused.

    Args:
        model: A `DefaultPredictor`, which knows how images are prepared, or its model alone.
        augmentation: With a model alone, what resizes an image: `ResizeShortestEdge([800, 800], 1333)` or another
            augmentation of Detectron2.
        input_format: With a model alone, "BGR" or "RGB", the order of the colours that it takes; by default what it
            says itself.
        class_names: Of the classes, in order; by default those that the predictor's metadata name.
        anchors_per_level: How many anchors of each level of a one-stage detector are kept, those whose best class
            scores highest; by default `test_topk_candidates` of the model, as many as it looks at.
    """

    def __init__(
        self,
        model: Any,
        *,
        augmentation: Any = None,
        input_format: str | None = None,
        class_names: Sequence[str] | None = None,
        anchors_per_level: int | None = None,
    ) -> None:
        import torch

        network = getattr(model, "model", model)
        self._augmentation: Any = augmentation or getattr(model, "aug", None)
        layer = locate_in_detectron2(network) if isinstance(network, torch.nn.Module) else None
        if layer is None:
            raise InputError(f"Expected `model` to be a detector of Detectron2, but got {type(model).__name__}.")
        if layer.stages:
            raise InputError(
                "A cascade of Detectron2 averages the probabilities of its stages, which no logits of a proposal can "
                "hold. Correct it, and measure it by Detectron2 itself."
            )
        if self._augmentation is None:
            raise InputError(
                "A model of Detectron2 does not say how its images are resized. Pass its `DefaultPredictor`, or "
                "`augmentation`: detectron2.data.transforms.ResizeShortestEdge([800, 800], 1333) is the default there."
            )
        self._colours = _colours(input_format, model, network)
        self._torch, self.model, self.logit_layer = torch, network.eval(), layer
        self.background, self.activation = layer.background, str(layer.activation)
        self.num_classes = count_columns(network, layer) - (layer.background is not None)
        self.class_names = _names(model, class_names, self.num_classes)
        self._is_dense = bool(DENSE & _kinds(network))
        self._kept = anchors_per_level or getattr(network, "test_topk_candidates", None)
        self.population = "kept anchors" if self._is_dense and self._kept else layer.population
        self.postprocessing = self._own_postprocessing()

    def _own_postprocessing(self) -> Postprocessing:
        owner = self.model if self._is_dense else self.model.roi_heads.box_predictor
        limit = owner.max_detections_per_image if self._is_dense else owner.test_topk_per_image
        return Postprocessing(
            nms_iou=float(owner.test_nms_thresh),
            score_threshold=float(owner.test_score_thresh),
            max_detections=int(limit) if limit >= 0 else None,
            min_box_size=0.0,
            score_power=0.5 if "FCOS" in _kinds(self.model) else 1.0,
            clip_boxes=True,
        )

    def prepare(self, image: Rgb) -> dict[str, Any]:
        """An RGB image as the model takes it."""
        picture = image[..., ::-1] if self._colours == "BGR" else image
        picture = self._augmentation.get_transform(picture).apply_image(np.ascontiguousarray(picture))
        pixels = self._torch.as_tensor(np.ascontiguousarray(picture.astype("float32").transpose(2, 0, 1)))
        return {"image": pixels, "height": image.shape[0], "width": image.shape[1]}

    def run(self, images: Sequence[Any]) -> None:
        """Run the model up to where it would turn logits into scores."""
        with self._torch.inference_mode():
            for image in images:
                self._reach(self._prepared(image))

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of each image: prepared ones, RGB arrays, or float tensors `(3, H, W)` in 0..1."""
        with self._torch.inference_mode():
            return [self._propose(self._prepared(image)) for image in images]

    def _prepared(self, image: Any) -> dict[str, Any]:
        return image if isinstance(image, dict) else self.prepare(as_rgb(image))

    def _reach(self, image: dict[str, Any]) -> dict[str, Any]:
        """What the method that decodes is given."""
        owner = self.model if self._is_dense else self.model.roi_heads.box_predictor
        method = "forward_inference" if self._is_dense else "inference"
        given = run_until(owner, method, lambda: self.model([image]))
        if given is None:
            raise InputError(f"The model never calls `{method}` of {type(owner).__name__}: no logits to read.")
        return given

    def _propose(self, image: dict[str, Any]) -> Proposals:
        height, width, inner = image["height"], image["width"], image["image"].shape[-2:]
        read = self._anchors if self._is_dense else self._regions
        boxes, logits, objectness = read(self._reach(image), inner)
        scale = boxes.new_tensor([width / inner[1], height / inner[0]]).repeat(2)
        objectness = None if objectness is None else objectness.float()
        return Proposals((boxes * scale).float(), logits.float(), height=height, width=width, objectness=objectness)

    def _regions(self, given: dict[str, Any], inner: tuple[int, int]) -> tuple[Any, Any, Any]:
        predictor = self.model.roi_heads.box_predictor
        logits = given["predictions"][0]
        (boxes,) = predictor.predict_boxes(given["predictions"], given["proposals"])
        boxes = boxes.reshape(len(logits), -1, 4) if boxes.shape[1] > 4 else boxes
        # Clipped before suppression; rows that are no numbers are dropped.
        finite = boxes.isfinite().flatten(1).all(dim=1) & logits.isfinite().all(dim=1)
        size = boxes.new_tensor([inner[1], inner[0]]).repeat(2)
        return boxes[finite].clamp(min=0).minimum(size), logits[finite][:, : self._columns], None

    @property
    def _columns(self) -> int:
        """With sigmoids the last column is never trained."""
        return self.num_classes + (self.background is not None)

    def _anchors(self, given: dict[str, Any], inner: tuple[int, int]) -> tuple[Any, Any, Any]:
        torch, model = self._torch, self.model
        widths = (self.num_classes, 4, 1)
        predicted = [
            [_rows(level, width) for level in levels]
            for levels, width in zip(given["predictions"], widths, strict=False)
        ]
        anchors = [level.tensor for level in model.anchor_generator(given["features"])]
        kept = [self._best(*level) for level in zip(predicted[0], *predicted[2:], strict=True)]
        logits, offsets, *more = ([rows[best] for rows, best in zip(part, kept, strict=True)] for part in predicted)
        places = torch.cat([rows[best] for rows, best in zip(anchors, kept, strict=True)])
        boxes = model.box2box_transform.apply_deltas(torch.cat(offsets), places)
        return boxes, torch.cat(logits), torch.cat(more[0])[:, 0] if more else None

    def _best(self, logits: Any, centerness: Any = None) -> Any:
        """Which anchors of a level are kept, ascending: those whose best class scores highest."""
        best = logits.amax(dim=1).sigmoid()
        best = best if centerness is None else best * centerness[:, 0].sigmoid()
        return best.topk(min(self._kept or len(best), len(best))).indices.sort().values


def _rows(level: Any, columns: int) -> Any:
    """The rows of one image at one level: `(1, anchors * columns, H, W)` becomes `(H * W * anchors, columns)`."""
    return level[0].permute(1, 2, 0).reshape(-1, columns)


def _kinds(model: Any) -> set[str]:
    return class_names(model, PACKAGE)


def _colours(given: str | None, predictor: Any, network: Any) -> str:
    for found in (given, getattr(predictor, "input_format", None), getattr(network, "input_format", None)):
        if found in ("BGR", "RGB"):
            return str(found)
    raise InputError(f'Expected `input_format`, the order of the colours, to be "BGR" or "RGB", but got {given!r}.')


def _names(model: Any, given: Sequence[str] | None, classes: int) -> tuple[str, ...] | None:
    names = given if given is not None else getattr(getattr(model, "metadata", None), "thing_classes", None)
    if names is None:
        return None
    if len(names) != classes:
        raise InputError(f"Expected `class_names` to name the {classes} classes, but got {len(names)}.")
    return tuple(names)
