"""RF-DETR in the package `rfdetr` of its authors: its class logits and its proposals. transformers has its own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from logn.base.boxes import corners_of
from logn.errors import InputError, LogNWarning, MissingExtraError, warn
from logn.models.frameworks.shared import modules_from
from logn.models.images import as_tensor
from logn.models.layer import LogitLayer, count_columns, output_width
from logn.models.proposals import Postprocessing, Proposals

if TYPE_CHECKING:
    from torch import nn


PACKAGE = "rfdetr"
PATH = "class_embed"


def locate_in_rfdetr(model: nn.Module) -> LogitLayer | None:
    """The class logits of RF-DETR, with masks or without; None when there are none.

    The copies that pick the encoder's proposals, `transformer.enc_out_class_embed`, are left alone.
    """
    for prefix, module, names in modules_from(model, PACKAGE):
        if "LWDETR" in names:
            return _queries(module, prefix)
    return None


def _queries(model: Any, prefix: str) -> LogitLayer | None:
    """One layer for all decoder layers, which are stacked until the model is made ready for export."""
    width = output_width(getattr(model, PATH, None))
    # With keypoints each class gets a sum of its keypoints' logits on top, which no map of this layer can reach.
    if width is None or getattr(model, "use_grouppose_keypoints", False):
        return None
    _warn_of_column_without_class(f"{prefix}{PATH}", width)
    return LogitLayer(
        f"{prefix}{PATH}",
        activation="sigmoid",
        population="queries",
        final_only=None if getattr(model, "_export", False) else "slice",
    )


def _warn_of_column_without_class(path: str, width: int) -> None:
    """Which column that is depends on how the labels were numbered in training, and the model does not say."""
    warn(
        f"RF-DETR's `{path}` has columns of no class, which would be raised like rare ones: the last ({width - 1}) if "
        "labels count from 0; column 0 and the gaps if they are COCO's (in Python name them: "
        f"dataclasses.replace(layer, unused=[{width - 1}]))."
    )


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

    prepare = staticmethod(as_tensor)

    def run(self, images: Sequence[Any]) -> Any:
        """The output of the model."""
        torch, side = self._torch, int(self._detector.model.resolution)
        device = next(self.model.parameters()).device
        with torch.inference_mode():
            tensors = [as_tensor(image).to(device) for image in images]
            # Without smoothing, as in its training.
            resized = [self._functional.resize(image, [side, side], antialias=False) for image in tensors]
            return self.model(
                self._functional.normalize(torch.stack(resized), self._detector.means, self._detector.stds)
            )

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of every query of each image: RGB arrays, or float tensors `(3, H, W)` in 0..1."""
        tensors = [as_tensor(image) for image in images]
        output = self.run(tensors)
        rows = zip(tensors, output["pred_boxes"].float(), output["pred_logits"].float(), strict=True)
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
