"""RF-DETR in the package `rfdetr` of its authors: its class logits and its proposals. transformers has its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from logn.base.boxes import corners_of
from logn.errors import InputError, warn
from logn.models.detector import Detector
from logn.models.frameworks.shared import kinds_of
from logn.models.images import as_tensor
from logn.models.layer import LogitLayer, output_width
from logn.models.proposals import Postprocessing, Proposals

PACKAGE = "rfdetr"


def locate(module: Any, kinds: set[str]) -> LogitLayer | None:
    """The class logits of RF-DETR, with masks or without; None when there are none.

    Which column is no class depends on how the labels were numbered in training, and the model does not say.
    """
    layer = _class_layer(module) if "LWDETR" in kinds else None
    if layer is not None:
        last = int(output_width(module.class_embed) or 0) - 1
        warn(
            f"RF-DETR's `{layer.name}` has columns of no class, which would be raised like rare ones: the last ({last})"
            " if labels count from 0; column 0 and the gaps if they are COCO's (in Python name them: "
            f"dataclasses.replace(layer, unused=[{last}]))."
        )
    return layer


def _class_layer(network: Any) -> LogitLayer | None:
    """One layer for all decoder layers, which are stacked until the model is made ready for export.

    Its copies that pick the encoder's proposals, `transformer.enc_out_class_embed`, are left alone.
    """
    # With keypoints each class gets a sum of its keypoints' logits on top, which no map of this layer can reach.
    if output_width(getattr(network, "class_embed", None)) is None or getattr(
        network, "use_grouppose_keypoints", False
    ):
        return None
    stacked = not getattr(network, "_export", False)
    return LogitLayer(
        "class_embed", activation="sigmoid", population="queries", final_only="slice" if stacked else None
    )


class RFDetrDetector(Detector):
    """A detector of `rfdetr`, such as `RFDETRNano()`, that gives all its queries before any activation.

    Images are resized and normalised as its own `predict` does it. Its class layer has more columns than there are
    classes.

    Args:
        detector: The detector, before `optimize_for_inference`.
    """

    def __init__(self, detector: Any) -> None:
        context = getattr(detector, "model", None)
        network: Any = getattr(context, "model", None)
        layer = _class_layer(network) if "LWDETR" in kinds_of(network, PACKAGE) else None
        if context is None or layer is None or getattr(detector, "_is_optimized_for_inference", False):
            raise InputError(
                "Expected `detector` to be one of the package `rfdetr`, without keypoints and before "
                f"optimize_for_inference, but got {type(detector).__name__}."
            )
        width = int(output_width(network.class_embed) or 0)
        names = {column: name for column, name in sorted(_names_of_columns(detector).items()) if column < width}
        layer = replace(layer, unused=tuple(column for column in range(width) if column not in names))
        super().__init__(network, layer, tuple(names.values()))
        self._detector = detector
        limit = int(context.postprocess.num_select)
        self.postprocessing = Postprocessing(nms="none", score_threshold=0.5, max_detections=limit, min_box_size=0.0)

    @torch.inference_mode()
    def run(self, images: Sequence[Any]) -> Any:
        """The output of the model."""
        from torchvision.transforms import functional

        side, device = int(self._detector.model.resolution), next(self.network.parameters()).device
        # Without smoothing, as in its training.
        resized = [functional.resize(as_tensor(image).to(device), [side, side], antialias=False) for image in images]
        return self.network(functional.normalize(torch.stack(resized), self._detector.means, self._detector.stds))

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of every query of each image."""
        tensors = [as_tensor(image) for image in images]
        output, proposals = self.run(tensors), []
        rows = zip(tensors, output["pred_boxes"].float(), output["pred_logits"].float(), strict=True)
        for image, boxes, logits in rows:
            height, width = (int(side) for side in image.shape[-2:])
            size = boxes.new_tensor([width, height, width, height])
            corners = (corners_of(boxes) * size).clamp(min=0).minimum(size)
            proposals.append(Proposals(corners, logits, height=height, width=width))
        return proposals


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
