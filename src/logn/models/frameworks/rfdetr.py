"""Where RF-DETR has its class logits, in the package `rfdetr` of its authors; transformers has classes of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logn.errors import warn
from logn.models.frameworks import modules_from
from logn.models.layer import LogitLayer, output_width

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
        "labels count from 0; column 0 and the gaps if they are COCO's. Name them: "
        f"layer = dataclasses.replace(layer, unused=({width - 1},))."
    )
