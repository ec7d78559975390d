"""The graph of an ONNX file as an index: who makes and who reads each tensor, and what depends on what."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# What can stand between an initialiser and the layer that reads it without computing anything.
_CONSTANT_STEPS = ("Identity", "Transpose", "Cast")
# Choices by comparing values: what follows depends on which samples were chosen, not smoothly on the values.
_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
_LENGTHS = ("Shape", "Size")
_WEIGHTED = frozenset(("Gemm", "MatMul", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN"))
SELECTIONS = frozenset(("TopK", "NonMaxSuppression", "ArgMax", "ArgMin", "NonZero", *_LENGTHS, *_COMPARISONS))
# Their other inputs say where to take values from, and are no values themselves.
PLACED = frozenset(
    ("Gather", "GatherND", "GatherElements", "Slice", "Split", "Reshape", "Expand", "Tile", "Pad", "Resize", "RoiAlign")
)
# How a value reaches a tensor: as it is, as the choice of other values, or through another layer.
VALUE, CHOICE, LAYER = "value", "choice", "layer"


@dataclass(frozen=True, eq=False)
class Node:
    """An operator of a graph.

    Attributes:
        operator: Its name.
        inputs: The tensors that it reads, in order; an empty name for one that is left out.
        outputs: The tensors that it makes.
        captured: What the graphs inside of it (If, Loop, Scan) read, from outside or inside of them.
        proto: The `onnx.NodeProto`.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captured: tuple[str, ...]
    proto: Any

    @classmethod
    def of(cls, proto: Any) -> Node:
        """The node that a `onnx.NodeProto` describes."""
        return cls(proto.op_type, tuple(proto.input), tuple(proto.output), tuple(_captured(proto)), proto)

    def attribute(self, name: str, default: Any) -> Any:
        """The value of an attribute, or `default` when it is not there."""
        from onnx import helper

        return next((helper.get_attribute_value(item) for item in self.proto.attribute if item.name == name), default)


def _subgraphs(proto: Any) -> Iterator[Any]:
    """The graphs inside of a node: the branches of an If, the body of a Loop or Scan."""
    for item in proto.attribute:
        yield from (item.g, *item.graphs) if item.HasField("g") or item.graphs else ()


def _captured(proto: Any) -> Iterator[str]:
    for graph in _subgraphs(proto):
        yield from (value.name for value in graph.output)
        for inner in graph.node:
            yield from inner.input
            yield from _captured(inner)


class OnnxGraph:
    """An index over the main graph of a model, which must not change afterwards.

    Args:
        model: An `onnx.ModelProto` with all weights in memory, its nodes in the order in which they run.
    """

    def __init__(self, model: Any) -> None:
        graph = model.graph
        self.nodes = [Node.of(proto) for proto in graph.node]
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.input_names = {value.name for value in graph.input} - self.initializers.keys()
        self.outputs = [value.name for value in graph.output]
        self.producers = {name: node for node in self.nodes for name in node.outputs if name}
        # The nodes that read each tensor, with the position; -1 for a reader inside of the node.
        self.readers: dict[str, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for position, name in enumerate((*node.inputs, *node.captured)):
                self.readers.setdefault(name, []).append((node, position if position < len(node.inputs) else -1))
        versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
        self.opset = int(versions[0]) if versions else 1

    def operators(self) -> set[str]:
        """The operators of all nodes, and of all that is inside of them."""
        names, waiting = set(), [node.proto for node in self.nodes]
        while waiting:
            proto = waiting.pop()
            names.add(str(proto.op_type))
            waiting.extend(inner for graph in _subgraphs(proto) for inner in graph.node)
        return names

    def constant(self, name: str) -> npt.NDArray[Any] | None:
        """The value of a tensor that is stored in the file, or None when it is computed."""
        from onnx import helper

        steps: list[Node] = []
        while (node := self.producers.get(name)) is not None and node.operator in _CONSTANT_STEPS:
            steps.append(node)
            name = node.inputs[0]
        value = self._stored(name)
        for step in reversed(steps):
            if value is not None and step.operator == "Transpose":
                value = value.transpose(step.attribute("perm", None))
            elif value is not None and step.operator == "Cast":
                value = value.astype(helper.tensor_dtype_to_np_dtype(step.attribute("to", 1)))
        return value

    def _stored(self, name: str) -> npt.NDArray[Any] | None:
        from onnx import numpy_helper

        node, tensor = self.producers.get(name), self.initializers.get(name)
        if node is not None and node.operator == "Constant":
            for kind in ("value_float", "value_floats", "value_int", "value_ints"):
                if (numbers := node.attribute(kind, None)) is not None:
                    return np.asarray(numbers)
            tensor = node.attribute("value", None)
        return None if tensor is None else np.asarray(numpy_helper.to_array(tensor))

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor that is stored in the file, or None when it is computed."""
        if name in self.initializers:  # without unpacking large weights
            return tuple(self.initializers[name].dims)
        value = self.constant(name)
        return None if value is None else value.shape

    def scalar(self, name: str) -> float | None:
        """The value of a stored tensor of one element, else None."""
        shape = self.shape(name)
        value = None if shape is None or int(np.prod(shape)) != 1 else self.constant(name)
        return None if value is None or not np.issubdtype(value.dtype, np.number) else float(value.reshape(()))

    @functools.cached_property
    def _dependent(self) -> set[str]:
        """All tensors that depend on an input."""
        dependent = set(self.input_names)
        for node in self.nodes:
            if not dependent.isdisjoint((*node.inputs, *node.captured)):
                dependent.update(node.outputs)
        return dependent

    def is_fixed(self, name: str) -> bool:
        """Whether a tensor is the same for all inputs: nothing on the way to it depends on them."""
        return name not in self._dependent

    def ancestors(self, names: Iterable[str], *, values_only: bool = False) -> set[str]:
        """All tensors that `names` are computed from, themselves included.

        Args:
            names: Where to start.
            values_only: Leave out what only decides where values are taken from: indices, shapes, boxes.
        """
        seen, waiting = set(names), list(names)
        while waiting:
            node = self.producers.get(waiting.pop())
            if node is None or (values_only and node.operator in SELECTIONS):
                continue
            placed = values_only and node.operator in PLACED
            for name in node.inputs[:1] if placed else (*node.inputs, *node.captured):
                if name and name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return seen

    def descendants(self, tensors: Iterable[str], passes: Callable[[Node, int], bool]) -> Iterator[Node]:
        """The nodes that values of `tensors` go through, as far as `passes` lets them from an input to the outputs."""
        waiting = list(tensors)
        seen = set(waiting)
        while waiting:
            for node, position in self.readers.get(waiting.pop(), ()):
                if passes(node, position):
                    yield node
                    waiting.extend(name for name in node.outputs if name and name not in seen)
                    seen.update(node.outputs)

    def reached_from(self, tensors: Iterable[str]) -> dict[str, set[str]]:
        """All tensors that depend on `tensors`, and how: by VALUE, CHOICE or LAYER."""
        reached = {name: {VALUE} for name in tensors}
        for node in self.nodes:
            ways: set[str] = set()
            for position, name in enumerate(node.inputs):
                ways |= self._passed_on(node, position, reached.get(name, set()))
            if not reached.keys().isdisjoint(node.captured):
                ways.add(CHOICE)  # a Loop or an If over scores chooses boxes
            for name in node.outputs if ways else ():
                reached[name] = reached.get(name, set()) | ways
        return reached

    def _passed_on(self, node: Node, position: int, ways: set[str]) -> set[str]:
        if not ways or node.operator in _LENGTHS:
            return ways & {CHOICE}  # a map changes no shape, a choice may
        if node.operator in SELECTIONS or (node.operator in PLACED and position > 0):
            return {CHOICE}
        others = [name for place, name in enumerate(node.inputs) if name and place != position]
        # With a weight; a product of two results is none.
        through_layer = VALUE in ways and node.operator in _WEIGHTED and any(map(self.is_fixed, others))
        return ways | {LAYER} if through_layer else ways
