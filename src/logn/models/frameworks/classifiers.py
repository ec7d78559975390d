"""What a classifier looks like: no branch for boxes, and a Linear or 1x1 Conv at its end, which timm's models name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logn.base.arrays import is_torch_tensor
from logn.models.layer import LogitLayer, class_axis_of, output_width

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


def declared_by_timm(model: Any) -> tuple[str, ...]:
    """In timm a model names its classifier: the paths of its parts, several where their logits are averaged.

    Example:
        >>> from torch import nn
        >>> declared_by_timm(nn.Linear(4, 3))
        ()
    """
    if not callable(getattr(model, "get_classifier", None)):
        return ()
    declared = model.get_classifier()
    heads = declared if isinstance(declared, tuple | list) or type(declared).__name__ == "ModuleList" else (declared,)
    paths = {id(module): path for path, module in model.named_modules()}
    return tuple(paths[id(head)] for head in heads) if all(id(head) in paths for head in heads) else ()


def last_layers(model: nn.Module, heads: tuple[str, ...]) -> tuple[str, ...] | None:
    """The last layer with weights in each head, and others in it that are as wide; None unless all can be last ones."""
    paths: list[str] = []
    for head in heads:
        inside = [
            (path, module)
            for path, module in model.get_submodule(head).named_modules(prefix=head)
            if next(module.parameters(recurse=False), None) is not None
        ]
        if not inside or not is_final_layer(inside[-1][1]):
            return None
        width = output_width(inside[-1][1])
        paths.extend(path for path, module in inside if is_final_layer(module) and output_width(module) == width)
    return tuple(paths) or None


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
