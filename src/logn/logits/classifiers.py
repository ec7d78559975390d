"""Where image classifiers have their class logits: any that ends in a Linear or 1x1 Conv."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from logn.logits.arrays import is_torch_tensor
from logn.logits.layer import LogitLayer, output_width

if TYPE_CHECKING:
    from torch import nn

# Words in the names of box, mask and query branches: a model that has them is no plain classifier.
DETECTOR_WORDS = ("bbox", "box", "rpn", "roi", "anchor", "mask", "keypoint", "query", "centerness")
# The projection in torch's attention, which looks like a classifier at the end of a headless transformer.
NOT_CLASSIFIERS = ("NonDynamicallyQuantizableLinear",)


def locate_in_classifier(model: nn.Module, num_classes: int | None = None) -> LogitLayer | None:
    """The last layer of a classifier, or None when the model does not end in one."""
    if callable(getattr(model, "get_classifier", None)):
        return _declared_by_timm(model, num_classes)
    ending = _last_layer(model)
    if ending is None:
        return None
    path, module = ending
    if num_classes is not None and output_width(module) != num_classes:
        return None
    return _classifier_layer(model, {path: module})


def is_final_layer(module: Any) -> bool:
    """Whether `module` can be the last layer of a classifier: Linear-like, or a convolution of one pixel.

    Example:
        >>> from torch import nn
        >>> [is_final_layer(layer) for layer in (nn.Linear(4, 2), nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 3))]
        [True, True, False]
    """
    weight: Any = getattr(module, "weight", None)
    if output_width(module) is None or not is_torch_tensor(weight) or type(module).__name__ in NOT_CLASSIFIERS:
        return False
    if weight.ndim == 2:
        return hasattr(module, "out_features")
    return weight.ndim == 4 and tuple(weight.shape[2:]) == (1, 1) and not getattr(module, "transposed", False)


def _declared_by_timm(model: Any, num_classes: int | None) -> LogitLayer | None:
    """In timm a model names its classifier; a distilled transformer has two, whose logits are averaged."""
    declared = model.get_classifier()
    heads = list(declared) if isinstance(declared, tuple | list) else [declared]
    paths = {id(module): path for path, module in model.named_modules()}
    found: dict[str, Any] = {}
    for head in heads:
        inside = _last_layer(head, check_words=False) if id(head) in paths else None
        if inside is None or (num_classes is not None and output_width(inside[1]) != num_classes):
            return None
        found[paths[id(inside[1])]] = inside[1]
    return _classifier_layer(model, found)


def _last_layer(model: nn.Module, check_words: bool = True) -> tuple[str, Any] | None:
    """The last module with weights, if it is a Linear or 1x1 Conv; auxiliary heads do not count."""
    last: tuple[str, Any] | None = None
    for path, module in model.named_modules():
        words = path.lower()
        if check_words and any(word in words for word in DETECTOR_WORDS):
            return None
        if "aux" in words or next(module.parameters(recurse=False), None) is None:
            continue
        last = (path, module)
    return last if last is not None and is_final_layer(last[1]) else None


def _classifier_layer(model: nn.Module, found: dict[str, Any]) -> LogitLayer:
    convolution = any(module.weight.ndim == 4 for module in found.values())
    for path in found:
        _warn_of_rectifier(model, path)
    paths = tuple(found)
    return LogitLayer(
        paths[0] if len(paths) == 1 else paths,
        activation="softmax",
        class_axis=1 if convolution else -1,
        population="image locations" if convolution else "images",
    )


def _warn_of_rectifier(model: nn.Module, path: str) -> None:
    """SqueezeNet rectifies its logits, which cuts off what a map moves below zero."""
    parent, _, name = path.rpartition(".")
    siblings = dict(model.get_submodule(parent).named_children())
    follower = type(siblings.get(str(int(name) + 1))).__name__ if name.isdigit() else ""
    if follower.startswith("ReLU"):
        warnings.warn(
            f"{follower} follows `{path}` and cuts off the logits below 0, so a map that lowers them loses some.",
            UserWarning,
            stacklevel=4,
        )
