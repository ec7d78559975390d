"""Tensors of an ONNX graph that may hold class logits: what goes into an activation, or an output without one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logn.errors import InputError
from logn.logits.onnx.graph import OnnxGraph, attribute
from logn.logits.onnx.layers import ARITHMETIC, MOVES, Origin, find_layers

ACTIVATIONS = {"Softmax": "softmax", "LogSoftmax": "softmax", "Sigmoid": "sigmoid"}


@dataclass(frozen=True)
class Candidate:
    """A tensor that may hold class logits.

    Attributes:
        tensor: Its name.
        activation: "softmax", "sigmoid", or None for an output without activation.
        activated: The tensor behind the activation, or None.
        axis: The axis that the activation itself names, or None.
        origin: The layers behind the tensor.
    """

    tensor: str
    activation: str | None
    activated: str | None
    axis: int | None
    origin: Origin

    def is_of(self, parameters: Collection[str]) -> bool:
        """Whether a layer behind it has one of these weights or biases."""
        return any(name in parameters for layer in self.origin.layers for name in (layer.weight, layer.bias))


def find_candidates(graph: OnnxGraph, activation: str | None) -> list[Candidate]:
    """All activations but gates, and the outputs that a layer gives without one."""
    found: dict[str, Candidate] = {}
    for node in graph.nodes:
        kind = ACTIVATIONS.get(node.op_type)
        if kind is not None and activation in (None, kind) and not _is_gate(graph, node):
            found.setdefault(node.input[0], _of_activation(graph, node))
    for output in graph.outputs:
        origin = find_layers(graph, output)
        # What is computed from scores (boxes and scores side by side) is no layer's output.
        straight = not origin.stops and all(layer.kind not in ARITHMETIC for layer in origin.layers)
        if origin.layers and straight and output not in found:
            found[output] = Candidate(output, None, None, None, origin)
    return list(found.values())


def loose_outputs(graph: OnnxGraph) -> list[Candidate]:
    """Outputs that are computed from layers in some way, but are no scores."""
    origins = {output: find_layers(graph, output) for output in graph.outputs}
    return [
        Candidate(output, None, None, -1, origin)
        for output, origin in origins.items()
        if origin.stops and not ACTIVATIONS.keys() & set(origin.stops)
    ]


def _of_activation(graph: OnnxGraph, node: Any) -> Candidate:
    axis = None
    if node.op_type != "Sigmoid" and graph.opset >= 13:  # before that the axis meant something else
        axis = int(attribute(node, "axis", -1))
    tensor = node.input[0]
    origin = find_layers(graph, tensor)
    return Candidate(tensor, ACTIVATIONS[node.op_type], node.output[0], axis, origin)


def _is_gate(graph: OnnxGraph, node: Any) -> bool:
    """Whether this is the sigmoid of x * sigmoid(x), which is an activation inside of networks."""
    readers = graph.readers.get(node.output[0], [])
    return node.op_type == "Sigmoid" and any(
        reader.op_type == "Mul" and node.input[0] in reader.input for reader, _ in readers
    )


def named_candidates(graph: OnnxGraph, tensors: Sequence[str], path: Path) -> list[Candidate]:
    """The tensors that the user named; of one behind an activation, what goes into it."""
    found = []
    for name in tensors:
        if name not in graph.producers:
            listed = ", ".join(graph.outputs)
            raise InputError(
                f"Expected `tensor` to be a tensor of `{path}`, but it has no `{name}`; outputs: {listed}."
            )
        place = name
        while graph.producers.get(place) is not None and graph.producers[place].op_type in MOVES - {"Concat"}:
            place = graph.producers[place].input[0]
        node = graph.producers.get(place)
        if node is not None and node.op_type in ACTIVATIONS:
            found.append(_of_activation(graph, node))
            continue
        reader = next((user for user, _ in graph.readers.get(name, []) if user.op_type in ACTIVATIONS), None)
        given = Candidate(name, None, None, None, find_layers(graph, name))
        found.append(_of_activation(graph, reader) if reader is not None else given)
    return found
