"""Tensors of an ONNX graph that may hold class logits, and choosing among them by what they are for in the graph.

Detectors have several activations side by side. Levels of a pyramid are one class layer; one column is an objectness;
what goes on into another layer (attention, gates, the expectation of a box distribution) are no scores; a layer may
give boxes beside classes. Where more than one set of tensors is left, the user has to say which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logn.errors import InputError
from logn.models.onnx.file import Arrays, OnnxFile, OnnxGraph, attribute
from logn.models.onnx.layers import LAYERS, MOVES, Layout, Origin, find_layers, layout_of, measure_channels

ACTIVATIONS = {"Softmax": "softmax", "LogSoftmax": "softmax", "Sigmoid": "sigmoid"}

BOX = re.compile("box", re.IGNORECASE)
# What exporters call the class scores where a model has several outputs.
_SCORES = re.compile(r"((pred|class|cls)_)?(logits?|scores?|class(es)?)", re.IGNORECASE)
# A box has so many numbers.
BOX_WIDTH = 4


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
        if origin.layers and not origin.stops and output not in found:
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
            raise InputError(f"`{path}` has no tensor `{name}`; its outputs are {listed}.")
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


@dataclass(frozen=True)
class Group:
    """Candidates that are levels of one class layer.

    Attributes:
        members: The candidates.
        width: Length of their class axis; None where that could not be measured.
    """

    members: tuple[Candidate, ...]
    width: int | None

    @property
    def activation(self) -> str | None:
        """What follows them."""
        return self.members[0].activation

    @property
    def nodes(self) -> set[str]:
        """The layers behind them."""
        return {layer.node for item in self.members for layer in item.origin.layers}


def choose(
    file: OnnxFile,
    fitting: Sequence[Candidate],
    values: Arrays,
    inputs: Arrays,
    *,
    num_columns: int | None = None,
    has_background: bool = False,
    parameters: Collection[str] = (),
) -> list[Candidate]:
    """The candidates that are the class logits.

    Args:
        file: The model.
        fitting: The candidates that may be.
        values: What each of them held in a run.
        inputs: What that run was on.
        num_columns: How long the class axis is; None when unknown.
        has_background: Whether one column is the background, which speaks for a softmax where the choice is open.
        parameters: Names of the weights and biases of the layer that is meant, as torch has them; empty when unknown.
    """
    graph = file.graph
    fitting = [item for item in fitting if item.is_of(parameters)] or fitting
    behind = {item.tensor: graph.ancestors([item.tensor], values_only=True) for item in fitting}
    last = [item for item in fitting if not _is_upstream(graph, item, fitting, behind, values)]
    known = [item for item in last if item.origin.layers] or last
    widths = _widths(file, known, inputs) if len(known) > 1 else {}
    groups = _groups(known, widths, values)
    images = max([1, *(array.shape[0] for array in inputs.values() if array.ndim == 4)])
    for wrong in _rules(graph, values, images, num_columns, has_background):
        groups = [group for group in groups if not wrong(group, groups)] or groups
    if len(groups) > 1:
        listed = ", ".join(
            f"`{item.tensor}` ({item.activation or 'output'} {values[item.tensor].shape})"
            for group in groups
            for item in group.members
        )
        raise InputError(f"`{file.path}` has several tensors that may be class logits; name one as `tensor`: {listed}.")
    return list(groups[0].members)


Rule = Callable[[Group, Sequence[Group]], bool]


def _rules(
    graph: OnnxGraph, values: Arrays, images: int, num_columns: int | None, has_background: bool
) -> Iterable[Rule]:
    """Why a group is not the class logits where there are others; from what is certain to what is only likely."""
    if num_columns is not None:
        yield lambda group, groups: group.width not in (None, num_columns)
    yield lambda group, groups: not _is_called_scores(graph, group)
    yield lambda group, groups: _is_inside(graph, group, groups)
    yield lambda group, groups: group.width == 1
    yield lambda group, groups: _proposes_regions(graph, group, groups)
    yield lambda group, groups: group.width == BOX_WIDTH and _is_called_box(graph, group)
    yield _is_rest_of_layer
    yield lambda group, groups: _stands_beside_scores(group, groups, values, images)
    if has_background:
        yield lambda group, groups: group.activation != "softmax"


def _is_inside(graph: OnnxGraph, group: Group, groups: Sequence[Group]) -> bool:
    """Whether a layer computes on with all that these become, and not to give another set of tensors as wide."""
    results = {item.activated or item.tensor for item in group.members}
    if any(_is_output(graph, item) for item in group.members):
        return False
    later = [
        item.tensor for other in groups if other is not group and other.width == group.width for item in other.members
    ]
    if results & graph.ancestors(later, values_only=True):
        return False
    return any(_feeds_a_layer(graph, item) for item in group.members)


def _proposes_regions(graph: OnnxGraph, group: Group, groups: Sequence[Group]) -> bool:
    """Whether these are sigmoids by which boxes are chosen that a softmax then tells the class of: an objectness."""
    results = {item.activated or item.tensor for item in group.members}
    later = [item.tensor for other in groups if other.activation == "softmax" for item in other.members]
    return group.activation == "sigmoid" and bool(results & graph.ancestors(later))


def _feeds_a_layer(graph: OnnxGraph, item: Candidate) -> bool:
    """Whether a layer computes on: attention, a gate, or the expectation of a box distribution."""
    waiting = [item.activated] if item.activated is not None else []
    seen = set(waiting)
    while waiting:
        for node, position in graph.readers.get(waiting.pop(), ()):
            if position > 0 and node.op_type not in ("Concat", "Mul", "Add", "Sub", "Div", "MatMul"):
                continue  # an index, a shape: no value
            if node.op_type in LAYERS:
                return True
            if node.op_type not in ("TopK", "NonMaxSuppression", "ArgMax", "Shape"):
                waiting.extend(name for name in node.output if name not in seen)
                seen.update(node.output)
    return False


def _is_called_scores(graph: OnnxGraph, group: Group) -> bool:
    """Whether the output that these values become is called by a usual name of class scores."""
    tensors = [name for item in group.members for name in (item.tensor, item.activated)]
    return any(_SCORES.fullmatch(name) for name in score_outputs(graph, tensors))


def _is_called_box(graph: OnnxGraph, group: Group) -> bool:
    """Whether a name says that these are boxes: of a weight, of the tensor, or of an output that it becomes."""
    names = [layer.weight for item in group.members for layer in item.origin.layers]
    for item in group.members:
        places = [item.activated or item.tensor]
        names.extend((item.tensor, *places))
        while places:
            found = graph.readers.get(places.pop(), ())
            outputs = [node.output[0] for node, _ in found if node.op_type not in LAYERS and node.output]
            names.extend(name for name in outputs if name in graph.outputs)
            places.extend(name for name in outputs if name not in names)
            names.extend(outputs)
    return any(BOX.search(name) for name in names)


def _is_rest_of_layer(group: Group, groups: Sequence[Group]) -> bool:
    """Whether this output is the other part of a layer whose classes go through an activation."""
    return group.activation is None and any(
        other.activation is not None and other.nodes & group.nodes and other.width != group.width for other in groups
    )


def _stands_beside_scores(group: Group, groups: Sequence[Group], values: Arrays, images: int) -> bool:
    """Whether this is a detector's raw output, and another set of tensors, too wide for boxes, has an activation.

    A row of a classifier's outputs is an image: a raw output beside a softmax may be the other's coarse classes.
    """
    shapes = [values[item.tensor].shape for item in group.members]
    several_rows = all(len(shape) > 2 or shape[:1] > (images,) for shape in shapes)
    return (
        several_rows
        and group.activation is None
        and any(other.activation is not None and other.width not in (None, BOX_WIDTH, group.width) for other in groups)
    )


def _widths(file: OnnxFile, candidates: Sequence[Candidate], inputs: Arrays) -> dict[str, int]:
    """The length of each candidate's class axis, by its tensor, where it can be measured; 1 for an objectness."""
    sound = [item for item in candidates if not item.origin.stops and item.origin.layers]
    sound = [item for item in sound if all(layer.reason is None for layer in item.origin.layers)]
    by_node = {layer.node: layer for item in sound for layer in item.origin.layers}
    layers = sorted(by_node.values(), key=lambda layer: file.graph.order[layer.node])
    if not layers:
        return {}
    numbers = measure_channels(file.model, layers, [item.tensor for item in sound], inputs)
    widths = {}
    for item in sound:
        measured = numbers[item.tensor]
        layout = layout_of([measured], layers, item.axis, partial=True)
        if isinstance(layout, Layout):
            widths[item.tensor] = layout.num_columns
        elif measured is not None and 1 in measured.shape[1:]:
            widths[item.tensor] = 1
    return widths


def _groups(candidates: Sequence[Candidate], widths: dict[str, int], values: Arrays) -> list[Group]:
    """Sets of candidates that are levels of one class layer."""
    groups: list[Group] = []
    for item in candidates:
        single = Group((item,), widths.get(item.tensor))
        joined = [group for group in groups if _belong_together(group, single, values)]
        groups = [group for group in groups if group not in joined]
        groups.append(Group(tuple(member for group in (*joined, single) for member in group.members), single.width))
    return groups


def _belong_together(group: Group, single: Group, values: Arrays) -> bool:
    """Whether the two share their weights, or are as wide and come from convolutions over maps of several sizes."""
    if (group.activation, group.width) != (single.activation, single.width):
        return False
    if _marks(group) & _marks(single):
        return True
    shapes = [values[item.tensor].shape for item in (*group.members, *single.members)]
    layers = [layer for item in (*group.members, *single.members) for layer in item.origin.layers]
    return (
        single.width is not None
        and len(set(shapes)) == len(shapes)
        and len({len(shape) for shape in shapes}) == 1
        and all(layer.kind == "Conv" for layer in layers)
    )


def _marks(group: Group) -> set[str]:
    weights = {layer.weight for item in group.members for layer in item.origin.layers if layer.weight}
    return group.nodes | weights


def _is_upstream(
    graph: OnnxGraph,
    candidate: Candidate,
    others: Sequence[Candidate],
    behind: dict[str, set[str]],
    values: Arrays,
) -> bool:
    """Whether another candidate is computed from this one: then this one is inside of the network (attention).

    An output of the model may be what the user means (coarse classes that finer ones are computed from), unless the
    other holds the same logits on another scale: before and after a temperature.
    """
    result = candidate.activated or candidate.tensor
    own = {layer.node for layer in candidate.origin.layers}
    return any(
        result in behind[other.tensor]
        and not _may_be_scores(other, candidate, values)
        and (not _is_output(graph, candidate) or own == {layer.node for layer in other.origin.layers})
        for other in others
        if other is not candidate and other.tensor != result
    )


def _is_output(graph: OnnxGraph, candidate: Candidate) -> bool:
    """Whether the model gives these values out, as they are or behind their activation, and a layer computed them."""
    results = {candidate.tensor, candidate.activated}
    return bool(candidate.origin.layers) and not results.isdisjoint(graph.outputs)


def score_outputs(graph: OnnxGraph, tensors: Iterable[str | None]) -> set[str]:
    """Names of the outputs that hold the values of these tensors, moved or activated at most."""
    waiting = [name for name in tensors if name is not None]
    seen = set(waiting)
    while waiting:
        for node, position in graph.readers.get(waiting.pop(), ()):
            moves = node.op_type in MOVES and (position == 0 or node.op_type == "Concat")
            if moves or node.op_type in ACTIVATIONS:
                waiting.extend(output for output in node.output if output and output not in seen)
                seen.update(node.output)
    return seen.intersection(graph.outputs)


def _may_be_scores(output: Candidate, candidate: Candidate, values: Arrays) -> bool:
    """Whether an output may be computed from the scores of a candidate that is as wide; the user has to say."""
    is_class_activation = candidate.activation is not None and bool(candidate.origin.layers)
    wide = values[output.tensor].shape[-1] in values[candidate.tensor].shape
    return output.activation is None and is_class_activation and wide
