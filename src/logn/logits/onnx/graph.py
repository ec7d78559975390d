"""OnnxGraph: who makes and who reads each tensor of an ONNX graph, and which tensors are constants."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

# What can stand between an initialiser and the layer that reads it without computing anything.
_CONSTANT_STEPS = ("Identity", "Transpose", "Cast")
# Choices by comparing values: what follows depends on which samples were chosen, not smoothly on the values.
_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
SELECTIONS = frozenset(("TopK", "NonMaxSuppression", "ArgMax", "ArgMin", "NonZero", "Shape", "Size", *_COMPARISONS))
# What only detectors have that choose among their boxes.
SUPPRESSION = "NonMaxSuppression"
# Their other inputs say where to take values from, and are no values themselves.
PLACED = frozenset(
    ("Gather", "GatherND", "GatherElements", "Slice", "Split", "Reshape", "Expand", "Tile", "Pad", "Resize", "RoiAlign")
)


class OnnxGraph:
    """An index over the main graph of a model, which it does not change by itself.

    Args:
        model: An `onnx.ModelProto` with all weights in memory.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.refresh()

    def refresh(self) -> None:
        """Read the graph again, after a change of its nodes."""
        model = self.model
        for cached in ("readers", "input_names"):
            self.__dict__.pop(cached, None)
        self.nodes = list(model.graph.node)
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self.producers = {name: node for node in self.nodes for name in node.output if name}
        self.order = {name: index for index, node in enumerate(self.nodes) for name in node.output if name}
        self.inputs = [value for value in model.graph.input if value.name not in self.initializers]
        self.outputs = [value.name for value in model.graph.output]

    @functools.cached_property
    def readers(self) -> dict[str, list[tuple[Any, int]]]:
        """The nodes that read each tensor, with the position; a reader inside a subgraph counts for its outer node."""
        readers: dict[str, list[tuple[Any, int]]] = {}
        for node in self.nodes:
            for position, name in enumerate(node.input):
                readers.setdefault(name, []).append((node, position))
            for name in captured_names(node):
                readers.setdefault(name, []).append((node, -1))
        return readers

    @functools.cached_property
    def opset(self) -> int:
        """Version of the standard operators."""
        versions = [entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")]
        return int(versions[0]) if versions else 1

    def constant(self, name: str) -> npt.NDArray[Any] | None:
        """The value of a tensor that is stored in the file, or None when it is computed."""
        from onnx import numpy_helper

        steps: list[Any] = []
        while name not in self.initializers:
            node = self.producers.get(name)
            if node is None or node.domain not in ("", "ai.onnx"):
                return None
            if node.op_type == "Constant":
                value = constant_of_node(node)
                break
            if node.op_type not in _CONSTANT_STEPS:
                return None
            steps.append(node)
            name = node.input[0]
        else:
            value = np.asarray(numpy_helper.to_array(self.initializers[name]))
        for node in reversed(steps):
            value = None if value is None else _constant_step(node, value)
        return value

    def scalar(self, name: str) -> float | None:
        """The value of a stored tensor of one element, else None."""
        stored = self.initializers.get(name)
        if stored is not None and int(np.prod(stored.dims)) != 1:  # do not unpack large weights to find this out
            return None
        value = self.constant(name)
        if value is None or value.size != 1 or not np.issubdtype(value.dtype, np.number):
            return None
        return float(value.reshape(()))

    def is_fixed(self, name: str) -> bool:
        """Whether a tensor is the same for all inputs: nothing on the way to it depends on them."""
        return not self.input_names & self.ancestors([name])

    def depends_on_values(self, name: str) -> bool:
        """Whether a tensor depends on the values of an input, and not only on the shape of it."""
        found, waiting = {name}, [name]
        while waiting:
            place = waiting.pop()
            if place in self.input_names:
                return True
            node = self.producers.get(place)
            if node is not None and node.op_type not in ("Shape", "Size"):
                waiting.extend(new for new in _all_inputs(node) if new and new not in found)
                found.update(_all_inputs(node))
        return False

    @functools.cached_property
    def input_names(self) -> set[str]:
        """Names of the model's inputs."""
        return {value.name for value in self.inputs}

    def ancestors(self, names: Iterable[str], *, values_only: bool = False) -> set[str]:
        """All tensors that `names` are computed from, themselves included.

        Args:
            names: Where to start.
            values_only: Leave out what only decides where values are taken from: indices, shapes, boxes.
        """
        found, waiting = set(names), list(names)
        while waiting:
            node = self.producers.get(waiting.pop())
            for name in () if node is None else _value_inputs(node) if values_only else _all_inputs(node):
                if name and name not in found:
                    found.add(name)
                    waiting.append(name)
        return found


def _all_inputs(node: Any) -> Iterator[str]:
    yield from node.input
    yield from captured_names(node)


def _value_inputs(node: Any) -> Iterator[str]:
    if node.op_type in PLACED:
        yield node.input[0]
    elif node.op_type not in SELECTIONS:
        yield from _all_inputs(node)


def attribute(node: Any, name: str, default: Any) -> Any:
    """The value of a node's attribute, or `default` when it is not there."""
    from onnx import helper

    for item in node.attribute:
        if item.name == name:
            return helper.get_attribute_value(item)
    return default


def constant_of_node(node: Any) -> npt.NDArray[Any] | None:
    """The array of a Constant node; None for kinds that are no numbers."""
    from onnx import numpy_helper

    for item in node.attribute:
        if item.name == "value":
            return np.asarray(numpy_helper.to_array(item.t))
        if item.name in ("value_float", "value_floats", "value_int", "value_ints"):
            return np.asarray(attribute(node, item.name, None))
    return None


def subgraphs(node: Any) -> Iterator[Any]:
    """The graphs inside of a node: the branches of an If, the body of a Loop or Scan."""
    for item in node.attribute:
        yield from (item.g, *item.graphs) if item.HasField("g") or item.graphs else ()


def captured_names(node: Any) -> Iterator[str]:
    """Names that the subgraphs of a node (If, Loop, Scan) read from outside or inside of them."""
    for graph in subgraphs(node):
        yield from (value.name for value in graph.output)
        for inner in graph.node:
            yield from inner.input
            yield from captured_names(inner)


def operators(nodes: Iterable[Any]) -> Iterator[str]:
    """The operators of nodes, and of all that is inside of them."""
    for node in nodes:
        yield node.op_type
        for graph in subgraphs(node):
            yield from operators(graph.node)


def _constant_step(node: Any, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    from onnx import helper

    if node.op_type == "Transpose":
        return value.transpose(attribute(node, "perm", None))
    if node.op_type == "Cast":
        return value.astype(helper.tensor_dtype_to_np_dtype(attribute(node, "to", 1)))
    return value
