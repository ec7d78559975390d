"""Where Ultralytics' YOLO models have their class logits. They are recognised by name; nothing is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logn.models.frameworks import modules_from
from logn.models.layer import LogitLayer

if TYPE_CHECKING:
    from torch import nn

PACKAGE = "ultralytics"
# Heads whose classes are texts, compared with the image; they have no class layer before their text is fused in.
OPEN_VOCABULARY = {"WorldDetect", "YOLOEDetect"}


def locate_in_ultralytics(model: nn.Module) -> LogitLayer | None:
    """The class logits of a YOLO (v5 to 26), RT-DETR or classification model; None when there is none."""
    for prefix, module, names in modules_from(model, PACKAGE):
        if "Detect" in names and not names & OPEN_VOCABULARY:
            return _levels(module, prefix)
        if "RTDETRDecoder" in names:
            path = f"{prefix}dec_score_head.{int(getattr(module, 'eval_idx', -1)) % len(module.dec_score_head)}"
            return LogitLayer(path, activation="sigmoid", population="queries")
        if "Classify" in names:
            return LogitLayer(f"{prefix}linear", activation="softmax", population="images")
    return None


def _levels(head: Any, prefix: str) -> LogitLayer | None:
    """One 1x1 convolution per level; models that can do without suppression of duplicates have a second set of them.

    Which set predicts is chosen when the model is used, so both are corrected. They are stages: each has statistics
    and a map of its own. `fuse()` drops `cv3` where the second set predicts.
    """
    names = ("cv3", "one2one_cv3")
    sets = [(name, blocks) for name in names if (blocks := getattr(head, name, None)) is not None]
    paths = [
        (stage, f"{prefix}{name}.{level}.{len(block) - 1}")
        for stage, (name, blocks) in enumerate(sets)
        for level, block in enumerate(blocks)
    ]
    if not paths:
        return None
    return LogitLayer(
        tuple(path for _, path in paths),
        activation="sigmoid",
        class_axis=1,
        population="all anchors",
        stages=tuple(stage for stage, _ in paths) if len(sets) > 1 else False,
    )
