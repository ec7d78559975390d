"""Detectors of the package `rfdetr` as a source of proposals with all logits; transformers has classes of its own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from logn.base.boxes import corners_of
from logn.errors import InputError, LogNWarning, MissingExtraError
from logn.models.frameworks.rfdetr import locate_in_rfdetr
from logn.models.layer import count_columns
from logn.models.proposals import Postprocessing, Proposals


class RFDetrDetector:
    """A detector of `rfdetr`, such as `RFDETRNano()`, that gives all its queries before any activation.

    Images are resized and normalised as its own `predict` does it. Its class layer has more columns than there are
    classes; those of classes are `class_columns`.

    Args:
        detector: The detector, before `optimize_for_inference`.
    """

    background: int | None = None
    activation = "sigmoid"
    population = "queries"

    def __init__(self, detector: Any) -> None:
        try:
            import torch
            from torchvision.transforms import functional
        except ImportError as error:
            raise MissingExtraError("torchvision", extra="torchvision") from error
        context: Any = getattr(detector, "model", None)
        model: Any = getattr(context, "model", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LogNWarning)  # which columns are no class is known here
            layer = locate_in_rfdetr(model) if model is not None else None
        if layer is None or getattr(detector, "_is_optimized_for_inference", False):
            raise InputError(
                "Expected `detector` to be one of the package `rfdetr`, without keypoints and before "
                f"optimize_for_inference, but got {type(detector).__name__}."
            )
        self._torch, self._functional, self._detector = torch, functional, detector
        self.model = model.eval()
        names = _names_of_columns(detector)
        self.class_columns = tuple(sorted(column for column in names if column < count_columns(model, layer)))
        self.class_names = tuple(names[column] for column in self.class_columns)
        self.num_classes = len(self.class_columns)
        self.logit_layer = replace(
            layer, unused=tuple(set(range(count_columns(model, layer))) - set(self.class_columns))
        )
        limit = int(context.postprocess.num_select)
        self.postprocessing = Postprocessing(nms="none", score_threshold=0.5, max_detections=limit, min_box_size=0.0)

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of every query of each image; images are float tensors `(3, H, W)` in 0..1."""
        torch, side = self._torch, int(self._detector.model.resolution)
        device = next(self.model.parameters()).device
        with torch.inference_mode():
            # Without smoothing, as in its training.
            resized = [self._functional.resize(image.to(device), [side, side], antialias=False) for image in images]
            batch = self._functional.normalize(torch.stack(resized), self._detector.means, self._detector.stds)
            output = self.model(batch)
            rows = zip(images, output["pred_boxes"].float(), output["pred_logits"].float(), strict=True)
            return [self._proposals(*row) for row in rows]

    def _proposals(self, image: Any, boxes: Any, logits: Any) -> Proposals:
        height, width = (int(side) for side in image.shape[-2:])
        size = boxes.new_tensor([width, height, width, height])
        corners = corners_of(boxes) * size
        return Proposals(corners.clamp(min=0).minimum(size), logits, height=height, width=width)


def _names_of_columns(detector: Any) -> dict[int, str]:
    """The columns that are classes: by position after a training of one's own, by COCO's ids as it is published."""
    names = [str(name) for name in detector.class_names]
    slots = getattr(getattr(detector.model, "args", None), "num_classes", len(names))
    if slots > len(names):
        coco = _coco_ids(detector)
        if coco is not None and [coco[number] for number in sorted(coco)] == names:
            return coco
    return dict(enumerate(names))


def _coco_ids(detector: Any) -> dict[int, str] | None:
    """COCO's classes by their ids, from the package that the detector is of."""
    try:
        module = import_module(f"{type(detector).__module__.partition('.')[0]}.assets.coco_classes")
    except ImportError:
        return None
    return {int(number): str(name) for number, name in module.COCO_CLASSES.items()}
