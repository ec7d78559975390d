"""locate_logits: find the layer that gives the class logits, or say what to write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logn.errors import InputError
from logn.logits.classifiers import locate_in_classifier
from logn.logits.detectron2 import locate_in_detectron2
from logn.logits.layer import LogitLayer, check_model, count_columns, output_width, unwrap
from logn.logits.mmdetection import locate_in_mmdetection
from logn.logits.origin import class_names
from logn.logits.rfdetr import locate_in_rfdetr
from logn.logits.torchvision import locate_in_torchvision
from logn.logits.transformers import locate_in_transformers
from logn.logits.ultralytics import locate_in_ultralytics

if TYPE_CHECKING:
    from torch import nn

LISTED = 12
KNOWN = (
    "a detector of torchvision, MMDetection, Detectron2, Hugging Face, Ultralytics or RF-DETR, a timm model or a "
    "classifier that ends in a Linear or 1x1 Conv"
)
# A new framework is one more function here.
LOCATORS = (
    locate_in_torchvision,
    locate_in_mmdetection,
    locate_in_detectron2,
    locate_in_transformers,
    locate_in_ultralytics,
    locate_in_rfdetr,
)
# Their models are known by name; one that is not known is no plain classifier whose last layer could be guessed.
NEVER_GUESSED = ("mmdet", "detectron2", "transformers", "ultralytics", "rfdetr")
# Words in the names of class layers; those are listed first, since a detector may well end in its backbone.
CLASS_WORDS = ("cls", "class", "score", "logit")


def locate_logits(model: nn.Module, num_classes: int | None = None) -> LogitLayer:
    """Find where `model` gives its class logits.

    Knows the detectors of torchvision, MMDetection, Detectron2, Hugging Face's transformers and Ultralytics, RF-DETR,
    timm's models, any classifier that ends in a Linear or 1x1 Conv, and models that say it themselves in an attribute
    `logit_layer`. Wrappers of torch (data parallel, compiled) are looked through.

    Args:
        model: A torch module.
        num_classes: How many columns the logits must have, the background included; guards against a wrong guess.

    Raises:
        InputError: When the layer is not found; the message lists the candidates and the line to write.

    Example:
        >>> from torch import nn
        >>> locate_logits(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))).path
        '2'
    """
    check_model(model)
    inner = unwrap(model)
    for locate in (_declared, *LOCATORS, _guessed):
        layer = locate(inner, num_classes)
        if layer is not None:
            _check_columns(inner, layer, num_classes)
            return layer
    raise InputError(_not_found(inner, num_classes))


def _declared(model: nn.Module, num_classes: int | None) -> LogitLayer | None:
    layer = getattr(model, "logit_layer", None)
    return layer if isinstance(layer, LogitLayer) else None


def _guessed(model: nn.Module, num_classes: int | None) -> LogitLayer | None:
    if any(class_names(model, package) for package in NEVER_GUESSED):
        return None
    return locate_in_classifier(model, num_classes)


def _check_columns(model: nn.Module, layer: LogitLayer, num_classes: int | None) -> None:
    if num_classes is not None and (columns := count_columns(model, layer)) != num_classes:
        raise InputError(
            f"Expected `num_classes` to be {columns}, the columns of `{layer.name}`, but got {num_classes}."
        )


def _not_found(model: Any, num_classes: int | None) -> str:
    """The message that lists the candidates: first those of the wanted width, then those named like a class layer."""
    seen = [(path, module, output_width(module)) for path, module in model.named_modules()]
    candidates = [(path, type(module).__name__, width) for path, module, width in reversed(seen) if width and path]
    candidates.sort(
        key=lambda candidate: (
            candidate[2] != num_classes,
            not any(word in candidate[0].lower() for word in CLASS_WORDS),
        )
    )
    wanted = "" if num_classes is None else f" with {num_classes} columns"
    known = f"{KNOWN}{wanted}"
    if not candidates:
        return f"Expected `model` to be {known}, but got {type(model).__name__}, which has no Linear and no Conv."
    listed = ", ".join(f"{path} ({kind}, {width})" for path, kind, width in candidates[:LISTED])
    more = f" and {len(candidates) - LISTED} more" if len(candidates) > LISTED else ""
    axis = "" if "Linear" in candidates[0][1] else ", class_axis=1"
    line = f'logn.LogitLayer("{candidates[0][0]}", background=None, activation="softmax"{axis})'
    return (
        f"Expected `model` to be {known}, but got {type(model).__name__}; name the layer of the class logits yourself, "
        f"as in {line}, out of: {listed}{more}."
    )
