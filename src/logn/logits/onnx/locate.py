"""Finding the class logits of an ONNX model: what goes into the class activation, or an output that has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logn.errors import InputError
from logn.logits.onnx.classifiers import TREES
from logn.logits.onnx.file import OnnxFile
from logn.logits.onnx.graph import OnnxGraph, attribute
from logn.logits.onnx.layers import ARITHMETIC, MOVES, QUANTISED_ACTIVATIONS, LinearLayer, Origin, find_layers
from logn.logits.onnx.layout import Layout, measure_layout
from logn.logits.onnx.session import Arrays, OnnxSession, exposing, model_inputs, run_somehow
from logn.logits.probabilities import probability_kind

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


def find_candidates(graph: OnnxGraph, activation: str | None) -> list[Candidate]:
    """All activations but gates, and the outputs that a layer gives without one."""
    found: dict[str, Candidate] = {}
    for node in graph.nodes:
        kind = ACTIVATIONS.get(node.op_type)
        if kind is not None and activation in (None, kind) and not _is_gate(graph, node):
            found.setdefault(node.input[0], _of_activation(graph, node))
    for output in graph.tensor_outputs:
        origin = find_layers(graph, output)
        # What is computed from scores (boxes and scores side by side) is no layer's output.
        straight = not origin.stops and all(layer.kind not in ARITHMETIC for layer in origin.layers)
        if origin.layers and straight and output not in found:
            found[output] = Candidate(output, None, None, None, origin)
    return list(found.values())


def loose_outputs(graph: OnnxGraph) -> list[Candidate]:
    """Outputs that are computed from layers in some way, but are no scores."""
    origins = {output: find_layers(graph, output) for output in graph.tensor_outputs}
    return [
        Candidate(output, None, None, -1, origin)
        for output, origin in origins.items()
        if origin.stops and not {*ACTIVATIONS, *QUANTISED_ACTIVATIONS}.intersection(origin.stops)
    ]


def _of_activation(graph: OnnxGraph, node: Any) -> Candidate:
    axis = None
    if node.op_type != "Sigmoid" and graph.opset >= 13:  # before that the axis meant something else
        axis = int(attribute(node, "axis", -1))
    tensor = node.input[0]
    origin = find_layers(graph, tensor)
    if axis is None and any(layer.kind == TREES for layer in origin.layers):
        axis = -1  # trees give rows of classes
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


# How far from 1 the probabilities of one row may sum up to: half precision rounds so.
PROBABILITY_SUM = 2e-3


@dataclass(frozen=True)
class OnnxLogits:
    """Where the class logits of an ONNX model are.

    Attributes:
        tensors: The tensors that hold them: one, or one per level of a pyramid.
        axis: The class axis, counted from the end.
        num_classes: Its length.
        dtype: Their precision.
        activation: What follows: "softmax", "sigmoid", or None when the model gives the logits out.
        layers: The layers that compute them.
        layout: Which channel of which layer becomes which class; None where that is not one to one.
        reason: Why it is not, else None.
    """

    tensors: tuple[str, ...]
    axis: int
    num_classes: int
    dtype: np.dtype[Any]
    activation: str | None
    layers: tuple[LinearLayer, ...]
    layout: Layout | None
    reason: str | None


@dataclass(frozen=True)
class Wanted:
    """What is known about the logits beforehand.

    Attributes:
        num_classes: Length of the class axis, the background included; None when unknown.
        tensors: Names given by the user; empty to search.
        activation: "softmax" or "sigmoid"; None when unknown.
        axis: The class axis; None when unknown.
        has_background: Whether one column is the background, which speaks for a softmax where the choice is open.
    """

    num_classes: int | None = None
    tensors: tuple[str, ...] = ()
    activation: str | None = None
    axis: int | None = None
    has_background: bool = False

    def __post_init__(self) -> None:
        if self.activation not in (None, "softmax", "sigmoid"):
            raise InputError(f"Expected `activation` to be 'softmax' or 'sigmoid', but got {self.activation!r}.")


def locate_onnx_logits(file: OnnxFile, wanted: Wanted, inputs: Arrays | None = None) -> tuple[OnnxLogits, Arrays]:
    """Find the class logits; what was run to find them is returned too.

    Args:
        file: The model.
        wanted: What is known about the logits.
        inputs: What to run the model on; by default random values.
    """
    graph = OnnxGraph(file.model)
    named = named_candidates(graph, wanted.tensors, file.path)
    candidates = named or find_candidates(graph, wanted.activation)
    fitting, values, inputs = _fitting(file, candidates, wanted, inputs)
    if not wanted.tensors and not any(item.origin.layers for item in fitting):
        # No layer of this width: perhaps an output is a sum of several layers' outputs.
        fitting, values, inputs = _fitting(file, candidates + loose_outputs(graph), wanted, inputs)
    if not fitting:
        _refuse_quantised_activations(graph, file.path)
        raise _nothing_found(file.path, candidates, values, wanted)
    chosen = fitting if wanted.tensors else _choose(graph, fitting, values, wanted, file.path)
    return _describe(file, chosen, [values[item.tensor] for item in chosen], wanted, inputs), inputs


def _fitting(
    file: OnnxFile, candidates: Sequence[Candidate], wanted: Wanted, inputs: Arrays | None
) -> tuple[list[Candidate], Arrays, Arrays]:
    """Run the model to see the shapes, and keep the candidates that fit; with all values, and what it ran on."""
    names = [candidate.tensor for candidate in candidates]
    session = OnnxSession(exposing(file.model, names, only=bool(names)), str(file.path), optimised=False)
    inputs, values = run_somehow(session, model_inputs(file.model), inputs)
    return [item for item in candidates if _fits(item, values[item.tensor].shape, wanted)], values, inputs


def _refuse_quantised_activations(graph: OnnxGraph, path: Path) -> None:
    for node in graph.nodes:
        if node.op_type in QUANTISED_ACTIVATIONS:
            raise InputError(
                f"Expected `{path}` to have class logits in floating point, but they are quantised ({node.op_type}): "
                "take the model before it is quantised."
            )


def _nothing_found(path: Path, candidates: Sequence[Candidate], values: Arrays, wanted: Wanted) -> InputError:
    lengths = {values[item.tensor].shape[-1] for item in candidates if values[item.tensor].ndim}
    if lengths == {1} and wanted.num_classes is None:
        return InputError(
            f"Expected `{path}` to have logits of several classes, but it has one logit, which has no other class to "
            "be compared with."
        )
    listed = ", ".join(map(str, sorted(lengths)))
    found = f"the last axes of what could be logits are {listed} long" if listed else "nothing in it could be logits"
    return InputError(f"Expected `{path}` to have class logits, {_sought(wanted)}, but {found}.")


def _choose(
    graph: OnnxGraph, fitting: Sequence[Candidate], values: Arrays, wanted: Wanted, path: Path
) -> list[Candidate]:
    """The candidates that are the class logits; when several sets of them could be, the user has to say which."""
    behind = {item.tensor: graph.ancestors([item.tensor], values_only=True) for item in fitting}
    last = [item for item in fitting if not _is_upstream(item, fitting, behind, values)]
    known = [item for item in last if item.origin.layers] or last
    groups = _groups(known)
    if len(groups) > 1 and wanted.has_background:
        groups = _groups([item for item in known if item.activation == "softmax"]) or groups
    if len(groups) > 1:
        listed = ", ".join(
            f"`{item.tensor}` ({item.activation or 'output'} {values[item.tensor].shape})" for item in known
        )
        raise InputError(f"Expected one set of class logits in `{path}`, but several fit: {listed}; name its `tensor`.")
    return groups[0]


def _fits(candidate: Candidate, shape: tuple[int, ...], wanted: Wanted) -> bool:
    if not shape:
        return False
    axes = range(len(shape)) if candidate.axis is None else [candidate.axis]
    lengths = [shape[axis] for axis in axes]
    if wanted.num_classes is not None:
        return wanted.num_classes in lengths
    # When the number of classes is not given, only a layer can tell logits from attention.
    return max(lengths) > 1 and bool(candidate.origin.layers or wanted.tensors)


def _is_upstream(
    candidate: Candidate, others: Sequence[Candidate], behind: dict[str, set[str]], values: Arrays
) -> bool:
    """Whether another candidate is computed from this one: then this one is inside of the network (attention)."""
    result = candidate.activated or candidate.tensor
    return any(
        result in behind[other.tensor] and not _may_be_scores(other, candidate, values)
        for other in others
        if other is not candidate and other.tensor != result
    )


def _may_be_scores(output: Candidate, candidate: Candidate, values: Arrays) -> bool:
    """Whether an output may be computed from the scores of a candidate that is as wide; the user has to say."""
    is_class_activation = candidate.activation is not None and bool(candidate.origin.layers)
    wide = values[output.tensor].shape[-1] in values[candidate.tensor].shape
    return output.activation is None and is_class_activation and wide


def _groups(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Sets of candidates that share layers, or their weights: the levels of a pyramid."""
    groups: list[tuple[set[str], list[Candidate]]] = []
    for item in candidates:
        marks = {name for layer in item.origin.layers for name in (layer.node, layer.weight)} or {item.tensor}
        joined = [group for group in groups if group[0] & marks]
        members = [member for group in joined for member in group[1]] + [item]
        groups = [group for group in groups if group not in joined]
        groups.append((marks.union(*(group[0] for group in joined)), members))
    return [members for _, members in groups]


def _describe(
    file: OnnxFile, chosen: Sequence[Candidate], values: Sequence[Any], wanted: Wanted, inputs: Arrays
) -> OnnxLogits:
    shapes = [array.shape for array in values]
    order = OnnxGraph(file.model).order
    found = {layer.node: layer for item in chosen for layer in item.origin.layers}
    layers = tuple(sorted(found.values(), key=lambda layer: order[layer.node]))
    tensors = tuple(item.tensor for item in chosen)
    axis = _known_axis(chosen, shapes, wanted)
    layout: Layout | str | None = _why_not(chosen, layers)
    if layout is None:
        layout = measure_layout(file.model, layers, tensors, inputs, axis, wanted.num_classes)
    reason = layout if isinstance(layout, str) else None
    measured = layout if isinstance(layout, Layout) else None
    if measured is not None:
        axis, layers = measured.axis, tuple(layer for layer in layers if layer.node in measured.classes)
    elif axis is None:
        axis = _likely_axis(shapes, wanted, file.path)
    _refuse_probabilities(chosen, values, axis, file.path)
    length = shapes[0][axis]
    return OnnxLogits(tensors, axis, length, values[0].dtype, chosen[0].activation, layers, measured, reason)


def _refuse_probabilities(chosen: Sequence[Candidate], values: Sequence[Any], axis: int, path: Path) -> None:
    """Refuse an output whose rows sum to 1: its activation is in the graph in another guise."""
    for item, array in zip(chosen, values, strict=True):
        rows = np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])
        if item.activation is None and probability_kind(rows, tolerance=PROBABILITY_SUM) == "softmax":
            made = item.origin.layers[0].kind if item.origin.layers else ", ".join(item.origin.stops)
            raise InputError(
                f"Expected `{path}` to have class logits, but `{item.tensor}` holds probabilities (each row sums to 1, "
                f"made by {made}), and a map of those would give scores above 1; name the raw scores before them by "
                "their `tensor`, or export the model with raw scores."
            )


def _why_not(chosen: Sequence[Candidate], layers: Sequence[LinearLayer]) -> str | None:
    """Why no layer can take the map, as far as the graph shows."""
    stops = [stop for item in chosen for stop in item.origin.stops]
    reasons = [layer.reason for layer in layers if layer.reason is not None]
    if stops:
        return f"the logits do not come straight from a layer but from {stops[0]}"
    kinds: dict[str, tuple[float, float]] = {}
    for item in chosen:
        for layer in item.origin.layers:
            if kinds.setdefault(layer.node, (layer.factor, layer.offset)) != (layer.factor, layer.offset):
                return "one layer gives logits on two scales"
    return reasons[0] if reasons else (None if layers else "no layer was found behind the logits")


def _known_axis(chosen: Sequence[Candidate], shapes: Sequence[tuple[int, ...]], wanted: Wanted) -> int | None:
    """The class axis, counted from the end, if the user or the activation says which it is."""
    axis = wanted.axis if wanted.axis is not None else chosen[0].axis
    if axis is None:
        return None
    rank = len(shapes[0])
    if not -rank <= axis < rank:
        raise InputError(f"Expected `axis` to be an axis of logits of shape {shapes[0]}, but got {axis}.")
    return axis if axis < 0 else axis - rank


def _likely_axis(shapes: Sequence[tuple[int, ...]], wanted: Wanted, path: Path) -> int:
    """The only axis that has the length of the map."""
    rank = min(len(shape) for shape in shapes)
    axes = [-1 - place for place in range(rank) if all(shape[-1 - place] == wanted.num_classes for shape in shapes)]
    if len(axes) != 1:
        raise InputError(
            f"Expected `axis` to say which axis of the logits in `{path}` (shape {shapes[0]}) is the class."
        )
    return axes[0]


def _sought(wanted: Wanted) -> str:
    classes = f"of {wanted.num_classes} classes" if wanted.num_classes is not None else "of any number of classes"
    return f"{classes} before a {wanted.activation} or an output" if wanted.activation else classes
