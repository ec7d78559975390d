"""Which layers a model returns, read from its forward pass without running it on images (torch.fx)."""

from __future__ import annotations

import copy
import inspect
import itertools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from logn.logits.frameworks.classifiers import is_final_layer
from logn.logits.output_check import container_items, named_parts, named_scores

if TYPE_CHECKING:
    from torch import nn

ACTIVATIONS = {
    "softmax": "softmax",
    "log_softmax": "softmax",
    "sigmoid": "sigmoid",
    "Softmax": "softmax",
    "LogSoftmax": "softmax",
    "Sigmoid": "sigmoid",
}
RECTIFIERS = ("relu", "relu_", "ReLU")
# What treats all classes alike and moves no value from one class to another: shapes, averages, precision.
TRANSPARENT = frozenset(
    (
        *("flatten", "squeeze", "unsqueeze", "reshape", "view", "permute", "transpose", "movedim", "contiguous"),
        *("mean", "adaptive_avg_pool2d", "avg_pool2d", "interpolate", "dropout", "dropout_", "clone", "detach"),
        *("float", "half", "double", "bfloat16", "to", "type_as"),
        *("Identity", "Flatten", "Unflatten", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AdaptiveAvgPool1d"),
        *("AdaptiveAvgPool2d", "AvgPool2d", "Upsample", "UpsamplingBilinear2d"),
    )
)
ARITHMETIC = frozenset(("add", "sub", "mul", "truediv", "div", "add_", "sub_", "mul_", "div_", "iadd", "imul"))
SUMS = frozenset(("add", "add_", "iadd"))


@dataclass(frozen=True)
class Structure:
    """What the forward pass does to the output of its last layers.

    Args:
        paths: The layers that the returned tensor is made of.
        mixed: Whether the tensor is made of several tensors: of these layers, or of some of them and something else.
        summed: Whether it is a sum of the layers, and nothing else.
        activation: What is applied to the logits before they are returned.
        rectified: Whether a ReLU is.
    """

    paths: tuple[str, ...] = ()
    mixed: bool = False
    summed: bool = False
    activation: str | None = None
    rectified: bool = False


def read_structures(model: nn.Module) -> tuple[Structure, ...]:
    """Follow the forward pass of `model`, in evaluation mode, back from what it returns to the layers that make it.

    One structure for each returned tensor of other layers; of tensors whose names say that they are class scores, those
    alone. None at all where that cannot be done: a forward pass that asks for the values or the shapes of its tensors,
    or that does something after its last layer of which is not known here that it treats all classes alike.

    Example:
        >>> from torch import nn
        >>> read_structures(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3), nn.Sigmoid()))
        (Structure(paths=('2',), mixed=False, summed=False, activation='sigmoid', rectified=False),)
    """
    traced = _trace(model)
    if traced is None:
        return ()
    nodes, modules = traced
    parts = [(name, part) for name, part in named_parts(_opened(nodes[-1].args[0])) if hasattr(part, "op")]
    structures: dict[tuple[str, ...], Structure] = {}
    for _, node in named_scores(parts):
        structure = _follow(node, modules)
        if structure is None:
            return ()
        structures.setdefault(structure.paths, structure)
    return tuple(structures.values())


def _opened(returned: Any) -> Any:
    """What is returned, with the objects that are made at the very end (named tuples, dataclasses) as mappings."""
    kind = getattr(returned, "target", None)
    if isinstance(kind, type) and returned.op == "call_function":
        return {**dict(zip(getattr(kind, "_fields", ()), returned.args, strict=False)), **returned.kwargs}
    items = container_items(returned)
    return returned if items is None else {name: _opened(value) for name, value in items}


def _trace(model: nn.Module) -> tuple[list[Any], Mapping[str, Any]] | None:
    """The nodes of the graph and the modules; the model itself is neither run nor changed."""
    import torch
    from torch import fx

    tracer: Any = fx.Tracer()
    standard = tracer.is_leaf_module
    # A head of one's own (a cosine classifier) is one layer, whatever it computes inside.
    tracer.is_leaf_module = lambda module, path: is_final_layer(module) or standard(module, path)
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            twin = _twin(model)
            defaults = {
                name: item.default
                for name, item in inspect.signature(twin.forward).parameters.items()
                if item.default is not inspect.Parameter.empty
            }
            graph = tracer.trace(twin, concrete_args=defaults or None)
    except Exception:
        return None  # forward is anybody's code, and may not bear to be followed for any reason
    return list(graph.nodes), dict(twin.named_modules())


def _twin(model: nn.Module) -> nn.Module:
    """A copy that shares all tensors: what a forward pass writes into its attributes stays out of the model."""
    shared = {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
    twin = copy.deepcopy(model, shared)
    for module in twin.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return twin.eval()


def _follow(node: Any, modules: Mapping[str, Any]) -> Structure | None:
    module = modules.get(str(node.target)) if node.op == "call_module" else None
    if module is not None and is_final_layer(module):
        return Structure((str(node.target),))
    name = _name(node, module)
    inputs = [item for item in (*node.args, *node.kwargs.values()) if hasattr(item, "op")]
    if not inputs:
        return None
    if name in ARITHMETIC:
        return _follow_arithmetic(name, node, inputs, modules)
    if not (name in TRANSPARENT or name in ACTIVATIONS or name in RECTIFIERS):
        return None
    before = _follow(inputs[0], modules)
    if before is None or name in TRANSPARENT:
        return before
    if name in RECTIFIERS:
        return replace(before, rectified=True)
    return replace(before, activation=before.activation or ACTIVATIONS[name])


def _follow_arithmetic(name: str, node: Any, inputs: list[Any], modules: Mapping[str, Any]) -> Structure | None:
    """A number is the same for all classes; two tensors are a mix of what they are made of."""
    numbers = [item for item in node.args if isinstance(item, int | float)]
    if len(inputs) == 1 and numbers:
        before = _follow(inputs[0], modules)
        # After an activation a factor is no longer one on the logits.
        return None if before is not None and before.activation is not None else before
    parts = [_follow(item, modules) for item in inputs]
    known = [part for part in parts if part is not None]
    # A parameter may be a temperature, the same for all classes, or not: only its values tell.
    if not known or any(_is_constant(item) for item in inputs):
        return None
    plain = all(not (part.activation or part.rectified) and (part.summed or not part.mixed) for part in known)
    paths = tuple(dict.fromkeys(path for part in known for path in part.paths))
    summed = name in SUMS and plain and len(known) == len(parts) > 1
    # One layer on several views of an image: what a map does to each it does to their sum.
    return Structure(paths, mixed=not (summed and len(paths) == 1), summed=summed)


def _is_constant(node: Any) -> bool:
    """Whether a node depends on the weights alone, and not on what the model is given."""
    waiting, seen = [node], set()
    while waiting:
        item = waiting.pop()
        if item.op == "placeholder":
            return False
        seen.add(item)
        waiting.extend(set(item.all_input_nodes) - seen)
    return True


def _name(node: Any, module: Any) -> str:
    if module is not None:
        return type(module).__name__
    return str(node.target) if node.op == "call_method" else str(getattr(node.target, "__name__", ""))
