"""What a classifier looks like: no branch for boxes, and a Linear or 1x1 Conv at its end, which timm's models name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logn.logits.arrays import is_torch_tensor
from logn.logits.layer import LogitLayer, class_axis_of, output_width

if TYPE_CHECKING:
    from torch import nn

# Words in the names of box, mask and query branches: a model that has them is no plain classifier.
DETECTOR_WORDS = ("bbox", "box", "rpn", "roi", "anchor", "mask", "keypoint", "query", "centerness")
# The projection in torch's attention, which looks like a classifier at the end of a headless transformer.
NOT_CLASSIFIERS = ("NonDynamicallyQuantizableLinear",)


def may_be_classifier(model: nn.Module) -> bool:
    """Whether `model` has no branch for boxes, masks or queries, or names its classifier as timm's models do."""
    if callable(getattr(model, "get_classifier", None)):
        return True
    return not any(word in path.lower() for path, _ in model.named_modules() for word in DETECTOR_WORDS)


def declared_by_timm(model: Any) -> tuple[str, ...] | None:
    """In timm a model names its classifier; a distilled transformer has two, whose logits are averaged.

    Example:
        >>> from torch import nn
        >>> declared_by_timm(nn.Linear(4, 3)) is None
        True
    """
    if not callable(getattr(model, "get_classifier", None)):
        return None
    declared = model.get_classifier()
    paths = {id(module): path for path, module in model.named_modules()}
    found = []
    for head in declared if isinstance(declared, tuple | list) else (declared,):
        inside = _last_layer(head) if id(head) in paths else None
        if inside is None:
            return None
        found.append(paths[id(inside)])
    return tuple(found)


def classifier_layer(model: nn.Module, paths: tuple[str, ...], activation: str | None = None) -> LogitLayer:
    """The logits of the layers at `paths`, one or several whose logits are averaged."""
    convolution = any(class_axis_of(model.get_submodule(path)) == 1 for path in paths)
    return LogitLayer(
        paths[0] if len(paths) == 1 else paths,
        activation=activation,
        class_axis=1 if convolution else -1,
        population="image locations" if convolution else "images",
    )


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


def _last_layer(head: nn.Module) -> nn.Module | None:
    """The last module with weights in a head, if it is a Linear or 1x1 Conv."""
    weighted = [module for module in head.modules() if next(module.parameters(recurse=False), None) is not None]
    return weighted[-1] if weighted and is_final_layer(weighted[-1]) else None
