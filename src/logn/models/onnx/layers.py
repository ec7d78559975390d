"""The layers that compute a tensor, and which of their channels its columns are: both by walking back through a graph.

Between a layer and its logits, exporters reshape, transpose, join and cut. None of that computes anything, so columns
of the logits can be followed back, with the shapes of a run, to the channels that they came from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from logn.models.onnx.graph import Node, OnnxGraph

# They change no value. The first input is the data, except for Concat, where all are.
_PLAIN = frozenset(("Identity", "Cast", "Dropout"))
_RESHAPES = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze"))
_GATHERS = frozenset(("Gather", "GatherND", "GatherElements"))
MOVES = _PLAIN | _RESHAPES | _GATHERS | {"Transpose", "Concat", "Split", "Slice"}
_NEUTRAL = {"Mul": 1.0, "Div": 1.0, "Add": 0.0, "Sub": 0.0}
LAYERS = frozenset(("Gemm", "MatMul", "Conv"))
# How the names of numbers begin that a fold stores.
OURS = "logn_"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class LinearLayer:
    """A layer: Gemm, Conv or MatMul, the latter two with or without the Add of a bias.

    Attributes:
        kind: Its operator.
        output: The tensor that leaves it, after its bias.
        weight: Name of its weight.
        bias: Name of its bias, or None.
        axis: The axis of its output that is its channels.
        scaled: Whether stored numbers scale or shift all of its output on the way to the logits, such as a temperature.
    """

    kind: str
    output: str
    weight: str
    bias: str | None
    axis: int
    scaled: bool = False


@dataclass(frozen=True)
class Origin:
    """Where the values of a tensor come from.

    Attributes:
        layers: The layers that were found.
        stops: Operators at which the walk ended without finding a layer.
        passed: The tensors on the way whose shapes it takes to follow columns.
    """

    layers: tuple[LinearLayer, ...]
    stops: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()


def find_layers(graph: OnnxGraph, tensor: str) -> Origin:
    """Walk back from `tensor` to the layers that computed it."""
    layers: dict[str, LinearLayer] = {}
    stops: dict[str, None] = {}
    passed: dict[str, None] = {}
    waiting = [(tensor, False)]
    seen = set(waiting)
    while waiting:
        name, scaled = waiting.pop()
        node = graph.producers.get(name)
        layer = None if node is None else as_layer(graph, node)
        if layer is not None:
            layers.setdefault(layer.output, replace(layer, scaled=scaled))
            continue
        data = None if node is None else data_of(graph, node)
        if node is None or data is None:
            stops[f"the input `{name}`" if node is None else node.operator] = None
            continue
        if node.operator not in _PLAIN and node.operator != "Transpose":
            passed |= dict.fromkeys(part for part in data if part in graph.producers)
        further = {(part, scaled or _scales(graph, node)) for part in data} - seen
        seen |= further
        waiting.extend(sorted(further))
    return Origin(tuple(layers.values()), tuple(stops), tuple(passed))


def data_of(graph: OnnxGraph, node: Node) -> tuple[str, ...] | None:
    """The inputs that are the output of a node, up to their places, a temperature, an offset, or a map folded in."""
    if node.operator == "Concat":
        return node.inputs
    if node.operator in MOVES:
        return node.inputs[:1]
    if node.operator not in _NEUTRAL:
        return None
    if node.inputs[1].startswith(OURS):
        return node.inputs[:1]
    first, second = (graph.scalar(name) for name in node.inputs)
    number = second if second is not None else first
    if (first is None) == (second is None) or (node.operator == "Div" and second is None):
        return None
    return None if number == 0 and node.operator in ("Mul", "Div") else (node.inputs[1 if second is None else 0],)


def _scales(graph: OnnxGraph, node: Node) -> bool:
    """Whether a stored number changes what goes through a node."""
    if node.operator not in _NEUTRAL or node.inputs[1].startswith(OURS):
        return False
    return {graph.scalar(name) for name in node.inputs} != {None, _NEUTRAL[node.operator]}


def as_layer(graph: OnnxGraph, node: Node) -> LinearLayer | None:
    """The layer whose output a node gives; None for any other node.

    A product of two computed tensors (attention) is no layer; one with a weight that is only normalised is.
    """
    if node.operator == "Add":
        return next(filter(None, (_with_bias(graph, node, data, bias) for data, bias in ((0, 1), (1, 0)))), None)
    if node.operator not in LAYERS or node.proto.domain not in ("", "ai.onnx"):
        return None
    if node.operator == "MatMul" and not graph.is_fixed(node.inputs[1]):
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2] else None
    return LinearLayer(node.operator, node.outputs[0], node.inputs[1], bias, 1 if node.operator == "Conv" else -1)


def _with_bias(graph: OnnxGraph, add: Node, data: int, bias: int) -> LinearLayer | None:
    """MatMul + Add or Conv + Add, TensorFlow's with a Transpose between them; None for any other Add."""
    product, value = graph.producers.get(add.inputs[data]), graph.constant(add.inputs[bias])
    transposed = product is not None and product.operator == "Transpose"
    if product is not None and transposed:
        product = graph.producers.get(product.inputs[0]) if (product.attribute("perm", None) or [0])[-1] == 1 else None
    if value is None or product is None or product.operator not in ("Conv", "MatMul")[: 1 if transposed else 2]:
        return None
    layer = as_layer(graph, product)
    if layer is None or layer.bias is not None:
        return None
    channels_last = transposed or layer.kind == "MatMul"
    axis = -1 if channels_last else 1 - len(graph.shape(layer.weight) or ())
    per_channel = value.size == 1 or value.shape[axis:][:1] == (value.size,)
    layer = replace(layer, output=add.outputs[0], bias=add.inputs[bias], axis=-1 if channels_last else 1)
    return layer if per_channel else None


@dataclass(frozen=True)
class Columns:
    """Columns side by side on an axis of a tensor, each `stride` places wide.

    Attributes:
        tensor: Its name.
        shape: Its shape.
        axis: The axis, counted from the end.
        first: How many columns stand before them.
        count: How many they are.
        block: How many columns there are in all; more than once where the axis is longer (a block per anchor).
        stride: The distance from one to the next.
    """

    tensor: str
    shape: Shape
    axis: int
    first: int
    count: int
    block: int
    stride: int = 1

    @property
    def num_blocks(self) -> int:
        """How many blocks the axis holds: the number of anchors."""
        return self.shape[self.axis] // self.block


def channels_of(
    graph: OnnxGraph, tensor: str, axis: int, shapes: Mapping[str, Shape]
) -> list[tuple[LinearLayer, Columns]] | None:
    """Follow the columns on an axis of a tensor back to the channels of layers; None where they are something else.

    Args:
        graph: The graph.
        tensor: The tensor.
        axis: The axis, counted from the end.
        shapes: The shapes of it and of all that `Origin.passed` names, from a run.
    """
    shape = shapes[tensor]
    waiting = [Columns(tensor, shape, axis, 0, shape[axis], shape[axis])]
    seen, reached = set(waiting), []
    while waiting:
        at = waiting.pop()
        node = graph.producers.get(at.tensor)
        layer = None if node is None else as_layer(graph, node)
        if layer is not None:
            if layer.axis % len(at.shape) != at.axis % len(at.shape):
                return None
            reached.append((layer, at))
            continue
        before = None if node is None else _before(graph, node, at, shapes)
        if before is None:
            return None
        further = {*before} - seen
        seen |= further
        waiting.extend(further)
    return reached


def _before(graph: OnnxGraph, node: Node, at: Columns, shapes: Mapping[str, Shape]) -> list[Columns] | None:
    """Where columns were before a node that moves them; None where it made them of something else."""
    data = data_of(graph, node)
    if data is None:
        return None
    if node.operator == "Transpose":
        return [before_transpose(node, replace(at, tensor=data[0]))]
    if node.operator not in MOVES or node.operator in _PLAIN:
        return [replace(at, tensor=data[0])]
    if any(name not in shapes for name in data):
        return None
    if node.operator == "Concat":
        return _before_concat(node, at, shapes)
    if node.operator in ("Split", "Slice"):
        return _before_cut(graph, node, at, shapes[data[0]])
    before = replace(at, tensor=data[0], shape=shapes[data[0]])
    return _before_reshape(at, before) if node.operator in _RESHAPES else _before_gather(node, at, before)


def before_transpose(node: Node, at: Columns) -> Columns:
    """The same columns before a Transpose."""
    rank = len(at.shape)
    order = node.attribute("perm", None) or range(rank)[::-1]
    lengths = dict(zip(order, at.shape, strict=True))
    return replace(at, shape=tuple(lengths[axis] for axis in range(rank)), axis=order[at.axis] - rank)


def _before_concat(node: Node, at: Columns, shapes: Mapping[str, Shape]) -> list[Columns] | None:
    if int(node.attribute("axis", 0)) % len(at.shape) != at.axis % len(at.shape):
        return [replace(at, tensor=name, shape=shapes[name]) for name in node.inputs]
    if at.block != at.shape[at.axis]:
        return None
    parts, end = [], 0
    for name in node.inputs:
        start, end = end, end + shapes[name][at.axis]
        first, last = max(at.first, start), min(at.first + at.count, end)
        if first < last:
            parts.append(Columns(name, shapes[name], at.axis, first - start, last - first, end - start))
    return parts


def _before_cut(graph: OnnxGraph, node: Node, at: Columns, shape: Shape) -> list[Columns] | None:
    before = replace(at, tensor=node.inputs[0], shape=shape)
    if shape[at.axis] == at.shape[at.axis]:
        return [before]
    cuts = cuts_of(graph, node, at.axis, shape)
    start, end = cuts[node.outputs.index(at.tensor)] if cuts else (0, 0)
    if at.block != at.shape[at.axis] or end - start != at.block:
        return None
    return [replace(before, first=at.first + start, block=shape[at.axis])]


def _before_reshape(at: Columns, before: Columns) -> list[Columns] | None:
    """The axis of the same elements, in whose order a reshape changes nothing, that steps from column to column."""
    distance = at.stride * math.prod(at.shape[at.axis :][1:])
    for axis in range(-1, -len(before.shape) - 1, -1):
        step = math.prod(before.shape[axis:][1:])
        length = step * before.shape[axis]
        if step <= distance < length:
            whole = distance % step == 0 and length % (distance * at.block) == 0
            return [replace(before, axis=axis, stride=distance // step)] if whole else None
    return None


def _before_gather(node: Node, at: Columns, before: Columns) -> list[Columns] | None:
    """The same columns where rows are chosen; None where it is columns that are chosen."""
    rank = len(before.shape)
    chosen = node.operator != "GatherND" and int(node.attribute("axis", 0)) % rank == at.axis % rank
    return None if chosen or before.shape[at.axis :][:1] != at.shape[at.axis :][:1] else [before]


def cuts_of(graph: OnnxGraph, node: Node, axis: int, shape: Shape) -> list[tuple[int, int]]:
    """From where to where a Split or Slice cuts an axis, counted from the end; nothing where it cuts others.

    Args:
        graph: The graph.
        node: The Split or Slice.
        axis: The axis.
        shape: The shape of what it cuts.
    """
    length, places = shape[axis], (axis, axis + len(shape))
    stored = [None if not name else graph.constant(name) for name in node.inputs[1:4]]
    if node.operator == "Split":
        if int(node.attribute("axis", 0)) not in places:
            return []
        parts = stored[0] if stored else node.attribute("split", None)
        ends = np.cumsum([length // len(node.outputs)] * len(node.outputs) if parts is None else list(parts)).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))
    starts, ends, axes = (
        [*stored, None][:3] if stored else [node.attribute(name, None) for name in ("starts", "ends", "axes")]
    )
    if starts is None or ends is None:
        return []
    spans = (slice(int(start), int(end)).indices(length) for start, end in zip(starts, ends, strict=True))
    cut = range(len(starts)) if axes is None else axes
    return [(start, end) for place, (start, end, _) in zip(cut, spans, strict=True) if int(place) in places]
