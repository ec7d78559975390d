"""Writing a per-channel affine map into the layers of an ONNX model, on a copy of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import FloatArray
from logn.logits.onnx.graph import OnnxGraph, attribute
from logn.logits.onnx.layers import LinearLayer

Slot = tuple[str, int]  # a node, by the name of its first output, and the position of an input


def map_layers(model: Any, layers: Sequence[LinearLayer], maps: Mapping[str, tuple[FloatArray, FloatArray]]) -> Any:
    """Copy `model` and let each layer give `scale * logit + shift` per channel.

    The arithmetic is float64, rounded once to the precision of the weights. A missing bias is made. An initialiser that
    several of the layers share is changed once; one that is read elsewhere too stays, and the layers get a copy.

    Args:
        model: An `onnx.ModelProto`.
        layers: The layers to change, none of them with a `reason` not to.
        maps: Scale and shift of each channel of each layer, by the layer's `node`.
    """
    graph = OnnxGraph(_copied(model))
    values: dict[Slot, npt.NDArray[Any]] = {}
    for layer in layers:
        scale, shift = maps[layer.node]
        # The logits are factor * z + offset, and factor * z' + offset has to be their map.
        inner_shift = (scale * layer.offset + shift - layer.offset) / layer.factor
        values |= _MAPPERS[layer.kind](graph, layer, scale, inner_shift)
    _write(graph, values)
    return graph.model


def _copied(model: Any) -> Any:
    copy = type(model)()
    copy.CopyFrom(model)
    return copy


def _map_gemm(graph: OnnxGraph, layer: LinearLayer, scale: FloatArray, shift: FloatArray) -> dict[Slot, Any]:
    node = graph.producers[layer.node]
    weight = _stored(graph, layer.weight)
    factors = scale[:, None] if attribute(node, "transB", 0) else scale
    bias = np.zeros(1) if layer.bias is None else attribute(node, "beta", 1.0) * _wide(_stored(graph, layer.bias))
    _set_attribute(node, "beta", 1.0)
    return {
        (layer.node, 1): _rounded(_wide(weight) * factors, weight.dtype, layer.weight),
        (layer.node, 2): _rounded(bias * scale + shift, weight.dtype, layer.bias or layer.weight),
    }


def _map_conv(graph: OnnxGraph, layer: LinearLayer, scale: FloatArray, shift: FloatArray) -> dict[Slot, Any]:
    weight = _stored(graph, layer.weight)
    factors = scale.reshape(-1, *[1] * (weight.ndim - 1))
    new_weight = _rounded(_wide(weight) * factors, weight.dtype, layer.weight)
    if layer.bias_node is not None and layer.bias is not None:  # the bias is added by a node of its own
        bias = _wide(_stored(graph, layer.bias))
        new_bias = bias * scale.reshape(bias.shape) + shift.reshape(bias.shape)
        position = list(graph.producers[layer.bias_node].input).index(layer.bias)
        return {
            (layer.node, 1): new_weight,
            (layer.bias_node, position): _rounded(new_bias, weight.dtype, layer.bias),
        }
    bias = np.zeros(len(scale)) if layer.bias is None else _wide(_stored(graph, layer.bias))
    return {
        (layer.node, 1): new_weight,
        (layer.node, 2): _rounded(bias * scale + shift, weight.dtype, layer.bias or layer.weight),
    }


def _map_matmul(graph: OnnxGraph, layer: LinearLayer, scale: FloatArray, shift: FloatArray) -> dict[Slot, Any]:
    weight = _stored(graph, layer.weight)
    bias = np.zeros(len(scale)) if layer.bias is None else _wide(_stored(graph, layer.bias))
    new_bias = _rounded(bias * scale + shift, weight.dtype, layer.bias or layer.weight)
    if layer.bias_node is None:
        add, position = insert_after(graph, layer.node, "Add", f"{layer.node}_logn_bias"), 1
    else:
        add = layer.bias_node
        position = list(graph.producers[add].input).index(str(layer.bias))
    # An Add that was put in takes over the output name of the MatMul.
    product = graph.producers[add].input[1 - position] if layer.bias_node is None else layer.node
    return {(product, 1): _rounded(_wide(weight) * scale, weight.dtype, layer.weight), (add, position): new_bias}


_MAPPERS = {"Gemm": _map_gemm, "Conv": _map_conv, "MatMul": _map_matmul}


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
        raise InputError(f"Expected `{name}` to be stored in the file, but it is computed.")
    return value


def _wide(array: npt.NDArray[Any]) -> FloatArray:
    return array.astype(np.float64)


def _rounded(value: FloatArray, dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):
        rounded = value.astype(dtype)
    if not np.isfinite(rounded.astype(np.float64)).all():
        raise InputError(f"Expected the mapped `{name}` to fit into {dtype}, but it overflows.")
    return rounded


def _set_attribute(node: Any, name: str, value: float) -> None:
    from onnx import helper

    for item in [item for item in node.attribute if item.name == name]:
        node.attribute.remove(item)
    node.attribute.append(helper.make_attribute(name, value))
