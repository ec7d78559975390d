"""Where Detectron2's detectors have their class logits, by the module paths that its sources document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logn.models.frameworks import modules_from
from logn.models.layer import LogitLayer, output_width

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
