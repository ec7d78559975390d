"""locate_logits: find the layer that gives the class logits, or say what to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from logn.errors import InputError
from logn.logits.frameworks import class_names
from logn.logits.frameworks.classifiers import classifier_layer, declared_by_timm, last_layers, may_be_classifier
from logn.logits.frameworks.detectron2 import locate_in_detectron2
from logn.logits.frameworks.mmdetection import locate_in_mmdetection
from logn.logits.frameworks.rfdetr import locate_in_rfdetr
from logn.logits.frameworks.torchvision import locate_in_torchvision
from logn.logits.frameworks.transformers import locate_in_transformers
from logn.logits.frameworks.ultralytics import locate_in_ultralytics
from logn.logits.hooks import run_on_batch
from logn.logits.layer import (
    LogitLayer,
    candidates,
    check_model,
    count_columns,
    find_modules,
    listed_candidates,
    output_width,
    refuse_single_logit,
    unwrap,
    with_class_axis,
)
from logn.logits.output_check import WAY_OUT, OutputCheck, as_it_was, find_by_output, warn_of_rectifier, with_activation
from logn.logits.structure import Structure, read_structures

if TYPE_CHECKING:
    from torch import nn

FoundT = TypeVar("FoundT")

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


def locate_logits(model: nn.Module, num_classes: int | None = None, *, inputs: Any = None) -> LogitLayer:
    """Find where `model` gives its class logits.

    Knows the detectors of torchvision, MMDetection, Detectron2, Hugging Face's transformers and Ultralytics, RF-DETR,
    timm's models, and models that say it themselves in an attribute `logit_layer`. In any other classifier it is the
    Linear or 1x1 Conv whose output the forward pass returns, as read from its code (torch.fx) or, with `inputs`, from
    what it returns. Nothing is guessed from names or from the order of the layers. Wrappers of torch (data parallel,
    compiled) are looked through.

    Args:
        model: A torch module.
        num_classes: How many columns the logits must have, the background included.
        inputs: A batch of images, as a loader gives it, to run the model on (in evaluation mode; nothing about the
            model changes). A classifier's layer is then compared with what the model returns.

    Raises:
        InputError: When the layer is not found, or the model returns a mix of several; the message lists the
            candidates and the line to write.

    Example:
        >>> from torch import nn
        >>> locate_logits(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))).path
        '2'
    """
    if inputs is None:
        return find_layer(model, num_classes)

    def run() -> Any:
        return run_on_batch(model, inputs)

    layer = find_layer(model, num_classes, run)
    with as_it_was(unwrap(model)), OutputCheck(model, layer) as check:
        run()
    return with_activation(layer, check.verdict)


def find_layer(model: nn.Module, num_classes: int | None = None, run: Callable[[], Any] | None = None) -> LogitLayer:
    """The class logits of `model`; `run` runs it on some images where its code does not show it."""
    check_model(model)
    inner = unwrap(model)
    for locate in (_declared, *LOCATORS):
        layer = locate(inner, num_classes)
        if layer is not None:
            break
    else:
        layer = _in_classifier(inner, num_classes, run)
    if layer is None:
        raise InputError(_not_found(inner, num_classes))
    if all(output_width(module) is not None for module in find_modules(inner, layer)):
        columns = count_columns(inner, layer)
        refuse_single_logit(layer, columns)
        _check_columns(layer, columns, num_classes)
    return layer if layer.class_axis is not None else with_class_axis(inner, layer)


def _declared(model: nn.Module, num_classes: int | None) -> LogitLayer | None:
    layer = getattr(model, "logit_layer", None)
    return layer if isinstance(layer, LogitLayer) else None


def _in_classifier(model: nn.Module, num_classes: int | None, run: Callable[[], Any] | None) -> LogitLayer | None:
    """The layer that a classifier returns, by its code, by timm's word for it, or by what it returns."""
    if any(class_names(model, package) for package in NEVER_GUESSED) or not may_be_classifier(model):
        return None
    structures = _wide_enough(model, {part.paths: part for part in read_structures(model)}, num_classes)
    structure = next(iter(structures.values()), None)
    if len(structures) > 1:
        raise _several(model, [path for paths in structures for path in paths])
    paths = _agreed(model, structure)
    if paths is not None:
        layer = classifier_layer(model, paths, structure.activation if structure else None)
        if structure is not None and structure.rectified:
            warn_of_rectifier(layer.name)
    elif run is not None:
        layer = _found_by_output(model, num_classes, run)
    else:
        raise InputError(_unknown_layer(model, structure, num_classes))
    return layer if num_classes in (None, count_columns(model, layer)) else None


def _wide_enough(
    model: nn.Module, found: Mapping[tuple[str, ...], FoundT], num_classes: int | None
) -> Mapping[tuple[str, ...], FoundT]:
    """Of several layers those that have the wanted columns, and at least two; a single one is left to later checks."""
    if len(found) < 2:
        return found
    widths = {paths: output_width(model.get_submodule(paths[0])) or 0 for paths in found}
    return {paths: item for paths, item in found.items() if widths[paths] >= 2 and num_classes in (None, widths[paths])}


def _agreed(model: nn.Module, structure: Structure | None) -> tuple[str, ...] | None:
    """The paths that the code shows, or timm where it does not; None where neither does, or the code shows a mix."""
    heads = declared_by_timm(model)
    if structure is None:
        return last_layers(model, heads)
    if not structure.mixed:
        return structure.paths
    # The two heads of a distilled transformer take one map, so that their average is mapped as well.
    averaged = structure.summed and all(
        f"{path}.".startswith(tuple(f"{head}." for head in heads)) for path in structure.paths
    )
    return structure.paths if averaged else None


def _found_by_output(model: nn.Module, num_classes: int | None, run: Callable[[], Any]) -> LogitLayer:
    outputs = find_by_output(model, run)
    verdicts: dict[tuple[str, ...], Any] = {(path,): verdict for path, verdict in outputs.items()}
    found = _wide_enough(model, verdicts, num_classes)
    if len(found) > 1:
        raise _several(model, [path for paths in found for path in paths])
    for paths, verdict in found.items():
        return classifier_layer(model, paths, verdict.activation)
    raise InputError(
        f"Expected the model to return the logits of one layer, perhaps activated, but {type(model).__name__} returns "
        f"something else (a sum of several, or the same for all images); {WAY_OUT}; its layers are: "
        f"{listed_candidates(model)}."
    )


def _several(model: nn.Module, paths: Sequence[str]) -> InputError:
    """The error for a model that returns the outputs of several layers, without names that tell the class scores."""
    listed = ", ".join(f"{path} ({output_width(model.get_submodule(path))})" for path in dict.fromkeys(paths))
    return InputError(
        f"Expected the model to return the logits of one layer, but {type(model).__name__} returns several tensors "
        f'that fit, of the layers {listed}; name the one of the classes: layer=logn.LogitLayer("{paths[0]}").'
    )


def _check_columns(layer: LogitLayer, columns: int, num_classes: int | None) -> None:
    if num_classes not in (None, columns):
        raise InputError(
            f"Expected `num_classes` to be {columns}, the columns of `{layer.name}`, but got {num_classes}."
        )


def _unknown_layer(model: nn.Module, structure: Structure | None, num_classes: int | None) -> str:
    """The message for a classifier whose code does not show its layer."""
    kind = type(model).__name__
    if structure is not None:
        parts = " and ".join(f"`{path}`" for path in structure.paths)
        parts = parts if len(structure.paths) > 1 else f"{parts} and something else"
        return f"Expected the model to return the logits of one layer, but {kind} returns a mix of {parts}; {WAY_OUT}."
    if not candidates(model):
        return _not_found(model, num_classes)
    return (
        f"Expected `inputs`, a batch of images to run {kind} on, since its code does not show which layer gives what "
        f"it returns; write logn.locate_logits(model, inputs=images), or {_name_it(model, num_classes)}."
    )


def _not_found(model: nn.Module, num_classes: int | None) -> str:
    """The message for a model that is not known, with the candidates."""
    wanted = "" if num_classes is None else f" with {num_classes} columns"
    expected = f"Expected `model` to be {KNOWN}{wanted}, but got {type(model).__name__}"
    if not candidates(model):
        return f"{expected}, which has no Linear and no Conv."
    return f"{expected}; {_name_it(model, num_classes)}."


def _name_it(model: nn.Module, num_classes: int | None) -> str:
    widths = [] if num_classes is None else [num_classes]
    line = f'logn.LogitLayer("{candidates(model, widths)[0][0]}", background=None)'
    return f"name the layer of the class logits yourself, as in {line}, out of: {listed_candidates(model, widths)}"
