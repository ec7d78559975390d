"""Where MMDetection's models (3.x, `mmdet` and its fork `onedl-mmdetection`) have their class logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logn.models.frameworks import class_names, modules_from
from logn.models.layer import LogitLayer, output_width

if TYPE_CHECKING:
    from torch import nn

PACKAGE = "mmdet"
# The class convolution of dense heads, by the name that each gives it.
DENSE_LAYERS = (
    "retina_cls",
    "atss_cls",
    "gfl_cls",
    "vfnet_cls",
    "rtm_cls",
    "multi_level_conv_cls",
    "conv_cls",
    "cls_convs",
)
# These multiply or mix their class logits with another branch before the sigmoid, or pick classes elsewhere.
NOT_KNOWN = {"TOODHead", "YOLOFHead", "RepPointsHead", "YOLOV3Head", "CenterNetHead", "RPNHead"}


def locate_in_mmdetection(model: nn.Module) -> LogitLayer | None:
    """The class logits of an MMDetection detector, also of one inside another module; None when there is none."""
    for prefix, module, _ in modules_from(model, PACKAGE):
        region = getattr(getattr(module, "roi_head", None), "bbox_head", None)
        if region is not None:
            return _region_based(module.roi_head, region, f"{prefix}roi_head.bbox_head")
        for name in ("bbox_head", "panoptic_head"):
            head = getattr(module, name, None)
            if head is not None:
                return _query_based(head, f"{prefix}{name}") or _dense(head, f"{prefix}{name}")
    return None


def _region_based(roi_head: Any, bbox_head: Any, root: str) -> LogitLayer | None:
    """Faster, Mask and Cascade R-CNN: `fc_cls`, Linear or NormedLinear, background last.

    Seesaw's loss adds a pair of objectness columns behind the classes and has no background among them.
    """
    cascade = type(bbox_head).__name__ == "ModuleList"
    heads = list(bbox_head) if cascade else [bbox_head]
    layers = [getattr(head, "fc_cls", None) for head in heads]
    if any(output_width(layer) is None for layer in layers):
        return None
    paths = [f"{root}.{stage}.fc_cls" for stage in range(len(heads))] if cascade else [f"{root}.fc_cls"]
    if "SparseRoIHead" in class_names(roi_head, PACKAGE):
        # Sparse R-CNN refines its queries stage by stage; only the last stage's classes are predicted.
        paths, cascade = paths[-1:], False
    classes = int(heads[-1].num_classes)
    extra = (output_width(layers[-1]) or 0) - classes
    sigmoid = bool(getattr(getattr(heads[-1], "loss_cls", None), "use_sigmoid", False)) and extra != 2
    return LogitLayer(
        tuple(paths) if cascade else paths[0],
        background=-1 if extra == 1 else None,
        activation="sigmoid" if sigmoid else "softmax",
        population="test proposals",
        stages=cascade,
        extra_columns=extra if extra > 1 else 0,
    )


def _query_based(head: Any, root: str) -> LogitLayer | None:
    """DETRs and mask transformers."""
    sigmoid = bool(getattr(getattr(head, "loss_cls", None), "use_sigmoid", False))
    background = None if sigmoid else -1
    activation = "sigmoid" if sigmoid else "softmax"
    branches = getattr(head, "cls_branches", None)
    if branches is not None:
        # A two-stage model has one branch more, which picks the encoder's proposals.
        last = len(branches) - (2 if getattr(head, "as_two_stage", False) else 1)
        if output_width(branches[last]) is None:
            return None
        return LogitLayer(
            f"{root}.cls_branches.{last}", background=background, activation=activation, population="queries"
        )
    for name in ("fc_cls", "cls_embed"):
        if output_width(getattr(head, name, None)) is not None:
            # Mask2Former calls it after every decoder layer, the others once on all layers stacked.
            part = "call" if "Mask2FormerHead" in class_names(head, PACKAGE) else "slice"
            return LogitLayer(
                f"{root}.{name}", background=background, activation=activation, population="queries", final_only=part
            )
    return None


def _dense(head: Any, root: str) -> LogitLayer | None:
    """RetinaNet, ATSS, FCOS, RTMDet, YOLOX, SSD: convolutions, `channel = anchor * columns + class`."""
    if class_names(head, PACKAGE) & NOT_KNOWN or not hasattr(head, "cls_out_channels"):
        return None
    columns = int(head.cls_out_channels)
    sigmoid = bool(getattr(head, "use_sigmoid_cls", True))
    for name in DENSE_LAYERS:
        found = _convolutions(getattr(head, name, None), f"{root}.{name}", columns)
        if found:
            anchors = tuple(width // columns for width in found.values())
            return LogitLayer(
                tuple(found) if len(found) > 1 else next(iter(found)),
                background=None if sigmoid else -1,
                activation="sigmoid" if sigmoid else "softmax",
                class_axis=1,
                anchors=anchors if len(found) > 1 else anchors[0],
                num_columns=columns,
                population="all anchors",
            )
    return None


def _convolutions(module: Any, path: str, columns: int) -> dict[str, int]:
    """Path and width of the class convolutions: the one itself, or the last of each level."""
    width = output_width(module)
    if width is not None:
        return {path: width} if width % columns == 0 else {}
    if type(module).__name__ != "ModuleList":
        return {}
    found: dict[str, int] = {}
    for level, block in module.named_children():
        inside = [(name, output_width(part)) for name, part in block.named_modules() if output_width(part) is not None]
        if not inside or inside[-1][1] is None or inside[-1][1] % columns:
            return {}
        found[f"{path}.{level}" + (f".{inside[-1][0]}" if inside[-1][0] else "")] = inside[-1][1]
    return found
