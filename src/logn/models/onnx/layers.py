"""The layers of an ONNX graph that compute logits: walking back to them, writing a map into them, measuring them.

Which channel of a class layer becomes which class is measured, not guessed from the graph: the weights of the layers
are set to zero and their biases to numbers that count the channels through. Run like that, a model shows at its logits
which channel each of them came from, whatever reshaping, joining and cutting is in between.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray
from logn.errors import InputError
from logn.models.onnx.file import Arrays, OnnxGraph, OnnxSession, attribute, exposing

# They move, cut or join values and compute nothing; the first input is the data, except for Concat, where all are.
_CUTS = ("Concat", "Split", "Slice", "Gather", "GatherND", "GatherElements")
MOVES = frozenset((*_CUTS, "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast", "Dropout"))
ARITHMETIC = frozenset(("Mul", "Div", "Add", "Sub"))
LAYERS = frozenset(("Gemm", "MatMul", "Conv"))

# Whole numbers up to the base are exact in each precision; larger channel numbers are measured digit by digit.
_BASES = {"float16": 1024, "bfloat16": 128}
_WIDE_BASE = 1 << 20

IntArray = npt.NDArray[np.int64]
Slot = tuple[str, int]  # a node, by the name of its first output, and the position of an input


@dataclass(frozen=True)
class LinearLayer:
    """A layer that computes logits: Gemm, Conv or MatMul, the latter two with or without the Add of a bias.

    Attributes:
        node: Output name of the Gemm, Conv or MatMul node, which identifies it.
        kind: Its operator.
        output: The tensor that leaves the layer; where an Add follows for the bias, the one after it.
        weight: Name of its weight.
        bias: Name of its bias, or None.
        bias_node: Output name of the Add that adds the bias of a MatMul or Conv, or None.
        width: Number of outputs; 0 when the weight is computed.
        factor: What the layer's output is multiplied with on the way to the logits (a fixed temperature).
        offset: What is added to it there.
        reason: Why nothing can be folded into it; None when it can.
    """

    node: str
    kind: str
    output: str
    weight: str
    bias: str | None
    bias_node: str | None
    width: int
    factor: float = 1.0
    offset: float = 0.0
    reason: str | None = None


@dataclass(frozen=True)
class Origin:
    """Where the values of a tensor come from.

    Attributes:
        layers: The layers that were found.
        stops: Operators at which the walk ended without finding a layer.
        chosen: Whether it depends on the values of the input which of the layers' outputs are there (the best of them).
    """

    layers: tuple[LinearLayer, ...]
    stops: tuple[str, ...]
    chosen: bool = False


def find_layers(graph: OnnxGraph, tensor: str) -> Origin:
    """Walk back from `tensor` to the layers that computed it."""
    layers: dict[str, LinearLayer] = {}
    stops: dict[str, None] = {}
    chosen = False
    seen: set[_Place] = set()
    waiting = [_Place(tensor)]
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        node = graph.producers.get(place.tensor)
        layer = None if node is None else _as_layer(graph, node, place)
        steps = None if node is None or layer is not None else _steps(graph, node, place)
        if layer is not None:
            known = layers.setdefault(layer.node, layer)
            if known != layer:
                stops["two paths with different factors"] = None
        elif steps is None:
            stops[node.op_type if node is not None else f"the input `{place.tensor}`"] = None
        else:
            waiting.extend(steps)
            chosen = chosen or (node is not None and _chooses(graph, node))
    return Origin(tuple(layers.values()), tuple(stops), chosen)


def _chooses(graph: OnnxGraph, node: Any) -> bool:
    """Whether a cut takes what the values of the input make it take, not always the same places."""
    return node.op_type in _CUTS and node.op_type != "Concat" and any(map(graph.depends_on_values, node.input[1:]))


class _Place(NamedTuple):
    """A tensor on the way back: the logits are factor * tensor + offset."""

    tensor: str
    factor: float = 1.0
    offset: float = 0.0


def _steps(graph: OnnxGraph, node: Any, place: _Place) -> list[_Place] | None:
    """The tensors to continue with, or None where the walk ends."""
    if node.op_type == "Concat":
        return [place._replace(tensor=name) for name in node.input]
    if node.op_type in MOVES:
        return [place._replace(tensor=node.input[0])]
    if node.op_type not in ARITHMETIC:
        return None
    first, second = graph.scalar(node.input[0]), graph.scalar(node.input[1])
    if (first is None) == (second is None):
        return None
    data = node.input[1 if first is not None else 0]
    return _scalar_step(node.op_type, place._replace(tensor=data), first, second)


def _scalar_step(operator: str, place: _Place, first: float | None, second: float | None) -> list[_Place] | None:
    """Take a fixed temperature or offset into account."""
    number = second if second is not None else first
    factor, offset = place.factor, place.offset
    if number is None or (operator == "Mul" and not number) or (operator == "Div" and not second):
        return None
    if operator == "Mul":
        return [place._replace(factor=factor * number)]
    if operator == "Div":
        return [place._replace(factor=factor / number)]
    if operator == "Add":
        return [place._replace(offset=offset + factor * number)]
    if second is not None:
        return [place._replace(offset=offset - factor * number)]
    return [place._replace(factor=-factor, offset=offset + factor * number)]


def _as_layer(graph: OnnxGraph, node: Any, place: _Place) -> LinearLayer | None:
    if node.op_type == "Add":
        return _product_with_bias(graph, node, place)
    if node.op_type not in LAYERS or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "MatMul":
        return _matmul(graph, node, place)
    bias = node.input[2] if len(node.input) > 2 and node.input[2] else None
    return _described(graph, node, node.output[0], bias, None, place)


def _product_with_bias(graph: OnnxGraph, add: Any, place: _Place) -> LinearLayer | None:
    """MatMul + Add or Conv + Add, the bias on either side of it; None when `add` is something else."""
    for data, bias in ((0, 1), (1, 0)):
        node = graph.producers.get(add.input[data])
        if node is not None and node.op_type == "Transpose":
            node = _behind_transpose(graph, node, add.input[bias])
        elif node is not None and not _adds_bias(graph, node, add.input[bias]):
            node = None
        if node is None:
            continue
        if len(graph.readers[node.output[0]]) > 1 or node.output[0] in graph.outputs:
            return None  # somebody reads the product without its bias
        if not graph.is_fixed(node.input[1]):
            return None
        return _described(graph, node, add.output[0], add.input[bias], add.output[0], place)
    return None


def _behind_transpose(graph: OnnxGraph, transpose: Any, bias: str) -> Any:
    """The Conv whose channels a Transpose puts last, where a bias is added to each (TensorFlow's order); else None."""
    node, order = graph.producers.get(transpose.input[0]), attribute(transpose, "perm", None)
    value, read_once = graph.constant(bias), len(graph.readers[transpose.output[0]]) == 1
    if node is None or node.op_type != "Conv" or (len(node.input) > 2 and node.input[2]) or value is None:
        return None
    weight = _shape(graph, node.input[1])
    fits = weight is not None and value.size == weight[0] and value.shape[-1:] == (weight[0],)
    last = order is not None and order[-1] == 1
    return node if fits and last and read_once and transpose.output[0] not in graph.outputs else None


def _adds_bias(graph: OnnxGraph, node: Any, name: str) -> bool:
    """Whether the tensor `name`, added to what `node` gives, is one number per channel."""
    value = graph.constant(name) if node.op_type in ("MatMul", "Conv") else None
    if value is None:
        return False
    if node.op_type == "MatMul":
        return value.size in (1, *value.shape[-1:])
    weight = _shape(graph, node.input[1])
    if weight is None or (len(node.input) > 2 and node.input[2]):
        return False  # a second bias; the walk ends there
    return value.shape[-len(weight) + 1 :] == (weight[0], *[1] * (len(weight) - 2)) and value.size == weight[0]


def _matmul(graph: OnnxGraph, node: Any, place: _Place) -> LinearLayer | None:
    """A product of two computed tensors (attention) is no layer; one with a weight that only is normalised is."""
    if not graph.is_fixed(node.input[1]):
        return None
    return _described(graph, node, node.output[0], None, None, place)


def _described(
    graph: OnnxGraph, node: Any, output: str, bias: str | None, bias_node: str | None, place: _Place
) -> LinearLayer:
    weight, reason, width = node.input[1], None, 0
    shape = _shape(graph, weight)
    source = graph.producers.get(weight)
    if shape is None:
        made = source.op_type if source is not None else "an input"
        reason = f"the weight of its {node.op_type} is computed ({made})"
    elif bias is not None and graph.constant(bias) is None:
        reason = f"the bias of its {node.op_type} is computed"
    else:
        width = shape[0] if node.op_type == "Conv" or attribute(node, "transB", 0) else shape[-1]
    factor, offset = place.factor, place.offset
    return LinearLayer(node.output[0], node.op_type, output, weight, bias, bias_node, width, factor, offset, reason)


def _shape(graph: OnnxGraph, name: str) -> tuple[int, ...] | None:
    if name in graph.initializers:
        return tuple(graph.initializers[name].dims)
    value = graph.constant(name)
    return None if value is None else value.shape


def map_layers(model: Any, layers: Sequence[LinearLayer], maps: Mapping[str, tuple[FloatArray, FloatArray]]) -> Any:
    """Copy `model` and let each layer give `scale * logit + shift` per channel.

    The arithmetic is float64, rounded once to the precision of the weights. A missing bias is made. An initialiser that
    several of the layers share is changed once; one that is read elsewhere too stays, and the layers get a copy.

    Args:
        model: An `onnx.ModelProto`.
        layers: The layers to change, none of them with a `reason` not to.
        maps: Scale and shift of each channel of each layer, by the layer's `node`.
    """
    copy = type(model)()
    copy.CopyFrom(model)
    graph = OnnxGraph(copy)
    values: dict[Slot, npt.NDArray[Any]] = {}
    for layer in layers:
        scale, shift = maps[layer.node]
        # The logits are factor * z + offset, and factor * z' + offset has to be their map.
        inner_shift = (scale * layer.offset + shift - layer.offset) / layer.factor
        values |= _mapped(graph, layer, scale, inner_shift)
    _write(graph, values)
    return graph.model


def _mapped(graph: OnnxGraph, layer: LinearLayer, scale: FloatArray, shift: FloatArray) -> dict[Slot, Any]:
    """The new weight and bias of a layer, by the slots that they go to; a missing bias is made."""
    node, weight = graph.producers[layer.node], _stored(graph, layer.weight)
    channels_first = layer.kind == "Conv" or bool(attribute(node, "transB", 0))
    factors = scale.reshape(-1, *[1] * (weight.ndim - 1)) if channels_first else scale
    bias = np.zeros(len(scale)) if layer.bias is None else _stored(graph, layer.bias).astype(np.float64)
    if layer.kind == "Gemm":
        bias = bias * attribute(node, "beta", 1.0)
        _set_attribute(node, "beta", 1.0)
    # A bias that a node of its own adds keeps its shape.
    shape = bias.shape if bias.size == len(scale) else scale.shape
    new_bias = bias * scale.reshape(shape) + shift.reshape(shape)
    product, bias_slot = layer.node, (layer.node, 2)
    if layer.bias_node is not None:
        bias_slot = (layer.bias_node, list(graph.producers[layer.bias_node].input).index(str(layer.bias)))
    elif layer.kind == "MatMul":  # an Add takes over the name of its output
        insert_after(graph, layer.node, "Add", f"{layer.node}_logn_bias")
        product, bias_slot = graph.producers[layer.node].input[0], (layer.node, 1)
    return {
        (product, 1): _rounded(weight.astype(np.float64) * factors, weight.dtype, layer.weight),
        bias_slot: _rounded(new_bias, weight.dtype, layer.bias or layer.weight),
    }


def insert_after(graph: OnnxGraph, tensor: str, operator: str, operand: str) -> str:
    """Put `operator(tensor, operand)` behind the node that makes `tensor`; all readers see its result.

    The new node's output has the old name, so that graph outputs keep theirs.
    """
    from onnx import helper

    source = graph.producers[tensor]
    before = unused_name(graph, f"{tensor}_logn_before")
    for position, name in enumerate(source.output):
        if name == tensor:
            source.output[position] = before
    node = helper.make_node(operator, [before, operand], [tensor], name=unused_name(graph, f"{tensor}_logn_{operator}"))
    place = next(index for index, item in enumerate(graph.model.graph.node) if before in item.output) + 1
    graph.model.graph.node.insert(place, node)
    graph.refresh()
    return tensor


def add_initializer(graph: OnnxGraph, name: str, value: npt.NDArray[Any]) -> str:
    """Store an array under `name`, or a similar name that is free, and return that."""
    from onnx import numpy_helper

    free = unused_name(graph, name)
    tensor = numpy_helper.from_array(np.ascontiguousarray(value), free)
    graph.model.graph.initializer.append(tensor)
    graph.initializers[free] = graph.model.graph.initializer[-1]
    return free


def unused_name(graph: OnnxGraph, wish: str) -> str:
    """`wish`, with a number behind it if it is taken."""
    taken = {*graph.initializers, *graph.producers, *graph.input_names, *graph.readers}
    names = (wish if count == 0 else f"{wish}_{count}" for count in range(len(taken) + 1))
    return next(name for name in names if name not in taken)


def _write(graph: OnnxGraph, values: Mapping[Slot, npt.NDArray[Any]]) -> None:
    """Store the new values: in place where all readers get the same, else under a new name."""
    made: list[tuple[str, npt.NDArray[Any], str]] = []
    for (node_name, position), value in values.items():
        node = graph.producers[node_name]
        while len(node.input) <= position:
            node.input.append("")
        current = node.input[position]
        if current in graph.initializers and _readers_agree(graph, current, values, value):
            _overwrite(graph.initializers[current], value)
            continue
        same = next((name for source, known, name in made if source == current and np.array_equal(known, value)), None)
        if same is None or not current:
            wish = f"{current}_logn" if current in graph.initializers else f"{node_name}_logn_{position}"
            same = add_initializer(graph, wish, value)
            made.append((current, value, same))
        node.input[position] = same
    _drop_unread(graph)


def _readers_agree(
    graph: OnnxGraph, name: str, values: Mapping[Slot, npt.NDArray[Any]], value: npt.NDArray[Any]
) -> bool:
    slots = [(node.output[0], position) for node, position in graph.readers.get(name, ())]
    return name not in graph.outputs and all(
        slot in values and np.array_equal(values[slot], value) and values[slot].shape == value.shape for slot in slots
    )


def _overwrite(tensor: Any, value: npt.NDArray[Any]) -> None:
    from onnx import numpy_helper

    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), name))


def _drop_unread(graph: OnnxGraph) -> None:
    """Remove initialisers that only the old layers read."""
    before = set(graph.readers)
    graph.refresh()
    kept = graph.model.graph
    for tensor in [item for item in kept.initializer if item.name in before]:
        if tensor.name not in graph.readers and tensor.name not in graph.outputs:
            kept.initializer.remove(tensor)
            for value in [item for item in kept.input if item.name == tensor.name]:
                kept.input.remove(value)
    graph.refresh()


def _stored(graph: OnnxGraph, name: str) -> npt.NDArray[Any]:
    value = graph.constant(name)
    if value is None:
        raise InputError(
            f"`{name}` is computed, not stored in the file (in Python insert=True adds the map behind it)."
        )
    return value


def _rounded(value: FloatArray, dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):
        rounded = value.astype(dtype)
    if not np.isfinite(rounded.astype(np.float64)).all():
        raise InputError(f"The mapped `{name}` overflows {dtype}; correct the model in float32.")
    return rounded


def _set_attribute(node: Any, name: str, value: float) -> None:
    from onnx import helper

    for item in [item for item in node.attribute if item.name == name]:
        node.attribute.remove(item)
    node.attribute.append(helper.make_attribute(name, value))


@dataclass(frozen=True)
class Layout:
    """What becomes of the channels of the class layers.

    Attributes:
        axis: Axis of the logits, counted from the end, that is the class.
        num_columns: Its length.
        classes: Class of each channel, by the layer's `node`, and -1 for a channel that is no logit (a layer may
            compute boxes beside classes); layers that do not reach the logits are left out.
    """

    axis: int
    num_columns: int
    classes: Mapping[str, IntArray]


def measure_layout(
    model: Any,
    layers: Sequence[LinearLayer],
    tensors: Sequence[str],
    inputs: Arrays,
    axis: int | None = None,
    num_columns: int | None = None,
    *,
    partial: bool = False,
) -> Layout | str:
    """Find out which channel becomes which class, or say why the channels do not belong to one class each.

    Args:
        model: An `onnx.ModelProto`.
        layers: The layers behind the logits, all of them with stored weights.
        tensors: The tensors that hold the logits.
        inputs: What to run the model on.
        axis: The class axis, counted from the end, where it is known.
        num_columns: Its length, where it is known.
        partial: Whether a channel that is not seen is known to be no logit.
    """
    measured = measure_channels(model, layers, tensors, inputs)
    return layout_of([measured[tensor] for tensor in tensors], layers, axis, num_columns, partial=partial)


def layout_of(
    measured: Sequence[IntArray | None],
    layers: Sequence[LinearLayer],
    axis: int | None = None,
    num_columns: int | None = None,
    *,
    partial: bool = False,
) -> Layout | str:
    """The layout that channel numbers show, or why they show none.

    Args:
        measured: What `measure_channels` gave for each tensor.
        layers: The layers whose channels were numbered, in that order.
        axis: The class axis, counted from the end, where it is known.
        num_columns: Its length, where it is known.
        partial: Whether a channel that is not seen is known to be no logit.
    """
    numbers = [array for array in measured if array is not None]
    if len(numbers) < len(measured):
        return "something else than the class layer adds to the logits"
    rank = min(array.ndim for array in numbers)
    axes = [axis] if axis is not None else [-1 - place for place in range(rank)]
    reasons = []
    for place in axes:
        lengths = {array.shape[place] for array in numbers}
        if len(lengths) > 1 or lengths <= {0, 1} or not lengths <= {num_columns or max(lengths)}:
            continue
        layout = _layout_on(place, numbers, layers, partial)
        if isinstance(layout, Layout):
            return layout
        reasons.append(layout)
    return reasons[0] if reasons else "no axis of the logits has the length of the map"


def measure_channels(
    model: Any, layers: Sequence[LinearLayer], tensors: Sequence[str], inputs: Arrays
) -> dict[str, IntArray | None]:
    """Each tensor with the number of the channel that every value came from; None where those are no whole numbers.

    Channels are counted through over all layers, in their order.
    """
    total = sum(layer.width for layer in layers)
    base = _base(model, layers)
    digits = max(1, math.ceil(math.log(total) / math.log(base) - 1e-9)) if total > 1 else 1
    numbers: dict[str, IntArray | None] = {}
    for digit in range(digits):
        maps, start = {}, 0
        for layer in layers:
            channel = np.arange(start, start + layer.width)
            maps[layer.node] = (np.zeros(layer.width), (channel // base**digit % base).astype(np.float64))
            start += layer.width
        probe = exposing(map_layers(model, layers, maps), tensors, only=True)
        measured = OnnxSession(probe, "the probe", optimised=False).run(inputs, tensors)
        for tensor in tensors:
            whole, known = _whole(measured[tensor]), numbers.get(tensor, np.int64(0))
            numbers[tensor] = None if whole is None or known is None else known + whole * base**digit
    return numbers


def _whole(values: npt.NDArray[Any]) -> IntArray | None:
    values = values.astype(np.float64)
    rounded = np.rint(values)
    if not np.isfinite(values).all() or np.abs(values - rounded).max(initial=0) > 0.25:
        return None
    whole: IntArray = rounded.astype(np.int64)
    return whole


def _base(model: Any, layers: Sequence[LinearLayer]) -> int:
    graph = OnnxGraph(model)
    kinds = [graph.constant(layer.weight) for layer in layers]
    return min((_BASES.get(str(array.dtype), _WIDE_BASE) for array in kinds if array is not None), default=_WIDE_BASE)


def _layout_on(axis: int, numbers: Sequence[IntArray], layers: Sequence[LinearLayer], partial: bool) -> Layout | str:
    """The layout if `axis` is the class axis, else why it is not."""
    num_columns = numbers[0].shape[axis]
    total = sum(layer.width for layer in layers)
    seen = np.zeros((total, num_columns), bool)
    for array in numbers:
        rows = np.moveaxis(array, axis, -1).reshape(-1, num_columns)
        if rows.size and (rows.min() < 0 or rows.max() >= total):
            return "something else than the class layer adds to the logits"
        seen[rows, np.arange(num_columns)] = True
    if (seen.sum(axis=1) > 1).any():
        return "a channel of the class layer serves several classes"
    classes, start = {}, 0
    for layer in layers:
        part = seen[start : start + layer.width]
        start += layer.width
        if not part.any():
            continue
        if not partial and not part.any(axis=1).all():
            return "only a part of the class layer's channels are logits"
        classes[layer.node] = np.where(part.any(axis=1), part.argmax(axis=1), -1)
    return Layout(axis, num_columns, classes)
