"""locate_logits: find the layer that gives the class logits, or say what to write."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from logn.base.arrays import is_torch_tensor
from logn.errors import InputError
from logn.models.frameworks.classifiers import classifier_layer, declared_by_timm, last_layers, may_be_classifier
from logn.models.frameworks.known import NAMES, framework_of, locate_by_name
from logn.models.hooks import as_it_was, run_on_batch
from logn.models.layer import (
    LogitLayer,
    candidates,
    check_model,
    class_axis_of,
    count_columns,
    find_modules,
    listed_candidates,
    output_width,
    refuse_single_logit,
    unwrap,
)
from logn.models.output_check import WAY_OUT, OutputCheck, find_by_output, is_comparable

Run = Callable[[], Any]
KNOWN = f"a detector of {NAMES}, a timm model or a classifier that ends in a Linear or 1x1 Conv"
# Sides of the random images on which a classifier is run where none are given.
TRIAL_SIDES = (224, 64, 32, 28, 299)


def locate_logits(
    model: nn.Module,
    num_columns: int | None = None,
    *,
    inputs: Any = None,
    forward: Callable[[Any, Any], Any] | None = None,
) -> LogitLayer:
    """Find where `model` gives its class logits.

    Supports detectors of torchvision, MMDetection, transformers, Ultralytics and RF-DETR, timm models, and any model
    with an attribute `logit_layer`. Other classifiers are run once, on `inputs` or on random images, to find the layer
    whose output they return. Nothing is guessed from the names or the order of layers. DataParallel and
    compiled models are unwrapped.

    Args:
        model: A torch module.
        num_columns: How many columns the logits must have, the background included.
        inputs: A batch of images, as a loader gives it, to run the model on (in evaluation mode; nothing about the
            model changes). A layer that is known by name is then compared with what the model returns, too.
        forward: A function that runs the model on `inputs`, `forward(model, inputs)`, if they are not images, such as
            tokens of a text.

    Raises:
        InputError: When the layer is not found, or the model returns a mix of several; the message lists the
            candidates and the line to write.

    Example:
        >>> from torch import nn
        >>> locate_logits(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))).path
        '2'
    """
    if inputs is None and forward is not None:
        raise InputError("`forward` runs the model on `inputs`: pass them too.")
    check_model(model)
    inner = unwrap(model)
    run: Run | None = None if inputs is None else functools.partial(forward or run_on_batch, model, inputs)
    layer, activation = _known_by_name(inner), None
    # Models of these frameworks are known by name; another is no plain classifier to be run on random images.
    if layer is None and framework_of(inner) is None and may_be_classifier(inner):
        run = run or _random_run(inner)
        heads = last_layers(inner, declared_by_timm(inner))
        layer = _by_output(inner, num_columns, run) if heads is None else classifier_layer(inner, heads)
    if layer is None:
        raise _not_found(inner, num_columns)
    if all(output_width(module) is not None for module in find_modules(inner, layer)):
        columns = count_columns(inner, layer)
        refuse_single_logit(layer, columns)
        if num_columns not in (None, columns):
            raise InputError(
                f"Expected `num_columns` to be {columns}, the columns of `{layer.name}`, but got {num_columns}."
            )
    layer = layer_of(inner, layer)
    if run is not None and is_comparable(layer):
        with as_it_was(inner), OutputCheck(model, layer) as check:
            run()
        activation = check.agreement.activation
    return layer if layer.activation is not None else replace(layer, activation=activation)


def layer_of(model: nn.Module, layer: LogitLayer | str) -> LogitLayer:
    """`layer` with its class axis; for the path of a module what a framework knows of it, else a plain layer.

    Example:
        >>> from torch import nn
        >>> layer = layer_of(nn.Sequential(nn.Linear(8, 4)), "0")
        >>> layer.path, layer.class_axis
        ('0', -1)
        >>> layer_of(nn.Sequential(nn.Conv2d(8, 5, kernel_size=1)), LogitLayer("0")).class_axis
        1
    """
    if isinstance(layer, str):
        check_model(model)
        named = _known_by_name(unwrap(model))
        layer = named if named is not None and named.name == layer else LogitLayer(layer)
    if not isinstance(layer, LogitLayer):
        raise InputError(
            f"Expected `layer` to be a logn.LogitLayer or the path of a module, but got {type(layer).__name__}."
        )
    modules = find_modules(model, layer)
    if layer.class_axis is not None:
        return layer
    # A module that is neither a Linear nor a convolution leaves it open; its output is then asked.
    axes = {path: class_axis_of(module) for path, module in zip(layer.paths, modules, strict=True)}
    if len({*axes.values()}) > 1:
        raise InputError(
            f"The modules of `layer` have their classes on different axes, {axes}; write a layer for each, or pass "
            "`class_axis`."
        )
    return replace(layer, class_axis=axes[layer.paths[0]])


def _known_by_name(model: nn.Module) -> LogitLayer | None:
    """What the model says itself, or what its framework is known for."""
    layer = getattr(model, "logit_layer", None)
    return layer if isinstance(layer, LogitLayer) else locate_by_name(model)


def _by_output(model: nn.Module, num_columns: int | None, run: Run | None) -> LogitLayer | None:
    """The one layer whose logits a classifier returns."""
    if run is None:
        raise _not_found(model, num_columns, "takes none of the random images that were tried (pass inputs=images)")
    verdicts = find_by_output(model, run)
    if not verdicts:
        raise _not_found(
            model,
            num_columns,
            "does not return the logits of one layer, plain or activated: it may return a sum of several, or the same "
            "for all images",
            f"; {WAY_OUT}",
        )
    widths = {path: output_width(model.get_submodule(path)) or 0 for path in verdicts}
    if len(verdicts) > 1:  # several are returned: those of the wanted columns, and of at least two
        widths = {path: width for path, width in widths.items() if width >= 2 and num_columns in (None, width)}
    if len(widths) > 1:
        listed = ", ".join(f"{path} ({width})" for path, width in widths.items())
        raise _not_found(model, num_columns, f"returns the logits of several layers, {listed}")
    for path, width in widths.items():
        if num_columns in (None, width):
            return classifier_layer(model, (path,), verdicts[path].activation)
    return None


def _random_run(model: nn.Module) -> Run | None:
    """Runs the model on the first random images that it takes; None where it takes none."""

    def run_on(shape: tuple[int, ...]) -> Any:
        images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        return model(images.to(next(model.parameters())))

    for shape in _trial_shapes(model):
        try:
            with as_it_was(model):
                run_on(shape)
        except Exception:  # noqa: S112 - forward is anybody's code, and may refuse random images for any reason
            continue
        return functools.partial(run_on, shape)
    return None


def _trial_shapes(model: nn.Module) -> Iterator[tuple[int, ...]]:
    """Shapes of a few random inputs: images for the first convolution, rows for the first Linear, else images."""
    modules: list[Any] = [module for module in model.modules() if is_torch_tensor(getattr(module, "weight", None))]
    if any(module.weight.device.type == "meta" for module in modules):
        return
    convolutions = [module for module in modules if isinstance(getattr(module, "in_channels", None), int)]
    for module in convolutions[:1]:
        yield from ((4, module.in_channels, *[side] * (module.weight.dim() - 2)) for side in TRIAL_SIDES)
    for module in [module for module in modules if isinstance(getattr(module, "in_features", None), int)][:1]:
        yield 8, module.in_features
    if not convolutions:
        yield from ((4, 3, side, side) for side in TRIAL_SIDES)


def _not_found(
    model: nn.Module, num_columns: int | None, reason: str = f"is not {KNOWN}", way_out: str = ""
) -> InputError:
    """The refusal of a model whose class layer the user must name, with the candidates."""
    wanted = "" if num_columns is None else f" with {num_columns} columns"
    widths = [] if num_columns is None else [num_columns]
    if not candidates(model):
        reason = "has no Linear and no Conv"
    else:
        line = f'logn.LogitLayer("{candidates(model, widths)[0][0]}", background=None, activation="softmax")'
        way_out = f"; name their layer, such as {line}{way_out}; the layers are {listed_candidates(model, widths)}"
    return InputError(f"No class logits{wanted} were found in `{type(model).__name__}`, which {reason}{way_out}.")
