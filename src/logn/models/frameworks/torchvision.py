"""Where torchvision's detectors have their class logits.

Nothing of torchvision is imported: a detector is known by the module that its class, or a base of it, comes from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logn.models.layer import LogitLayer, output_width

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
