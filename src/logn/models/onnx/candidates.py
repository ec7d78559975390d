"""Tensors of an ONNX graph that may hold class logits, and choosing among them by what they are for in the graph.

Detectors have several activations side by side. Levels of a pyramid are one class layer; one column is an objectness;
what goes on into another layer (attention, gates, the expectation of a box distribution) are no scores; a layer may
give boxes beside classes. Where more than one set of tensors is left, the user has to say which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from logn.errors import InputError
from logn.models.onnx.graph import Node, OnnxGraph
from logn.models.onnx.layers import LAYERS, MOVES, Origin, Shape, channels_of, find_layers

ACTIVATIONS = {"Softmax": "softmax", "LogSoftmax": "softmax", "Sigmoid": "sigmoid"}

BOX = re.compile("box", re.IGNORECASE)
# What exporters call the class scores where a model has several outputs.
_SCORES = re.compile(r"((pred|class|cls)_)?(logits?|scores?|class(es)?)", re.IGNORECASE)
# A box has so many numbers.
BOX_WIDTH = 4
# They take scores and give something else: places, lengths.
_ENDS = ("TopK", "NonMaxSuppression", "ArgMax", "Shape")
_COMBINES = ("Concat", "Mul", "Add", "Sub", "Div", "MatMul")


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

    @property
    def result(self) -> str:
        """What the rest of the graph reads: behind the activation, if there is one."""
        return self.activated or self.tensor

    @property
    def parameters(self) -> set[str]:
        """Names of the weights and biases of the layers behind it."""
        return {name for layer in self.origin.layers for name in (layer.weight, layer.bias) if name}


def find_candidates(graph: OnnxGraph, activation: str | None) -> list[Candidate]:
    """All activations but gates, and the outputs that a layer gives without one."""
    candidates: dict[str, Candidate] = {}
    for node in graph.nodes:
        kind = ACTIVATIONS.get(node.operator)
        if kind is not None and activation in (None, kind) and not _is_gate(graph, node):
            candidates.setdefault(node.inputs[0], _of_activation(graph, node))
    for output in graph.outputs:
        origin = find_layers(graph, output)
        # What is computed from scores (boxes and scores side by side) is no layer's output.
        if origin.layers and not origin.stops and output not in candidates:
            candidates[output] = Candidate(output, None, None, None, origin)
    return list(candidates.values())


def loose_outputs(graph: OnnxGraph) -> list[Candidate]:
    """Outputs that are computed from layers in some way, but are no scores."""
    origins = {output: find_layers(graph, output) for output in graph.outputs}
    return [
        Candidate(output, None, None, -1, origin)
        for output, origin in origins.items()
        if origin.stops and ACTIVATIONS.keys().isdisjoint(origin.stops)
    ]


def _of_activation(graph: OnnxGraph, node: Node) -> Candidate:
    axis = None
    if node.operator != "Sigmoid" and graph.opset >= 13:  # before that the axis meant something else
        axis = int(node.attribute("axis", -1))
    tensor = node.inputs[0]
    return Candidate(tensor, ACTIVATIONS[node.operator], node.outputs[0], axis, find_layers(graph, tensor))


def _is_gate(graph: OnnxGraph, node: Node) -> bool:
    """Whether this is the sigmoid of x * sigmoid(x), which is an activation inside of networks."""
    return node.operator == "Sigmoid" and any(
        reader.operator == "Mul" and node.inputs[0] in reader.inputs
        for reader, _ in graph.readers.get(node.outputs[0], ())
    )


def named_candidates(graph: OnnxGraph, tensors: Sequence[str], path: Path) -> list[Candidate]:
    """The tensors that the user named; of one behind an activation, what goes into it."""
    candidates = []
    for name in tensors:
        if name not in graph.producers:
            raise InputError(f"`{path}` has no tensor `{name}`; its outputs are {', '.join(graph.outputs)}.")
        node: Node | None = graph.producers[name]
        while node is not None and node.operator in MOVES - {"Concat"}:
            node = graph.producers.get(node.inputs[0])
        if node is None or node.operator not in ACTIVATIONS:
            readers = graph.readers.get(name, ())
            node = next((reader for reader, _ in readers if reader.operator in ACTIVATIONS), None)
        plain = Candidate(name, None, None, None, find_layers(graph, name))
        candidates.append(plain if node is None else _of_activation(graph, node))
    return candidates


@dataclass(frozen=True)
class Group:
    """Candidates that are levels of one class layer.

    Attributes:
        members: The candidates.
        width: Length of their class axis, 1 for an objectness; None where it is not known.
    """

    members: tuple[Candidate, ...]
    width: int | None

    @property
    def activation(self) -> str | None:
        """What follows them."""
        return self.members[0].activation

    @property
    def layers(self) -> set[str]:
        """The outputs of the layers behind them."""
        return {layer.output for item in self.members for layer in item.origin.layers}

    @property
    def results(self) -> set[str]:
        """What the rest of the graph reads."""
        return {item.result for item in self.members}


def choose(
    graph: OnnxGraph,
    fitting: Sequence[Candidate],
    shapes: Mapping[str, Shape],
    path: Path,
    *,
    images: int = 1,
    num_columns: int | None = None,
    has_background: bool = False,
) -> list[Candidate]:
    """The candidates that are the class logits.

    Args:
        graph: The graph.
        fitting: The candidates that may be.
        shapes: The shapes of them and of the tensors that they came from, in a run.
        path: The file, for messages.
        images: On how many images that was.
        num_columns: How long the class axis is; None when unknown.
        has_background: Whether one column is the background, which speaks for a softmax where the choice is open.
    """
    behind = {item.tensor: graph.ancestors([item.tensor], values_only=True) for item in fitting}
    last = [item for item in fitting if not _is_upstream(graph, item, fitting, behind, shapes)]
    groups = _groups([item for item in last if item.origin.layers] or last, graph, shapes)
    for is_wrong in _rules(graph, shapes, images, num_columns, has_background):
        groups = [group for group in groups if not is_wrong(group, groups)] or groups
    if len(groups) > 1:
        listed = ", ".join(
            f"`{item.tensor}` ({item.activation or 'output'} {shapes[item.tensor]})"
            for group in groups
            for item in group.members
        )
        raise InputError(f"`{path}` has several tensors that may be class logits; name one as `tensor`: {listed}.")
    return list(groups[0].members)


Rule = Callable[[Group, Sequence[Group]], bool]


def _rules(
    graph: OnnxGraph, shapes: Mapping[str, Shape], images: int, num_columns: int | None, has_background: bool
) -> Iterator[Rule]:
    """Why a group is not the class logits where there are others; from what is certain to what is only likely."""
    if num_columns is not None:
        yield lambda group, groups: group.width not in (None, num_columns)
    yield lambda group, groups: not _is_called_scores(graph, group)
    yield lambda group, groups: _is_inside(graph, group, groups)
    yield lambda group, groups: group.width == 1
    yield lambda group, groups: _proposes_regions(graph, group, groups)
    yield lambda group, groups: group.width == BOX_WIDTH and _is_called_box(graph, group)
    yield _is_rest_of_layer
    yield lambda group, groups: _stands_beside_scores(group, groups, shapes, images)
    if has_background:
        yield lambda group, groups: group.activation != "softmax"


def _is_inside(graph: OnnxGraph, group: Group, groups: Sequence[Group]) -> bool:
    """Whether a layer computes on with all that these become, and not to give another set of tensors as wide.

    Such are attention, a gate, or the expectation of a box distribution.
    """
    if any(_is_output(graph, item) for item in group.members):
        return False
    later = [
        item.tensor for other in groups if other is not group and other.width == group.width for item in other.members
    ]
    if group.results & graph.ancestors(later, values_only=True):
        return False
    activated = [item.activated for item in group.members if item.activated is not None]
    return any(node.operator in LAYERS for node in graph.descendants(activated, _carries_values))


def _carries_values(node: Node, position: int) -> bool:
    """Whether the results of a node are values that come from this input, not places, lengths or indices."""
    return node.operator not in _ENDS and (position <= 0 or node.operator in _COMBINES)


def _proposes_regions(graph: OnnxGraph, group: Group, groups: Sequence[Group]) -> bool:
    """Whether these are sigmoids by which boxes are chosen that a softmax then tells the class of: an objectness."""
    later = [item.tensor for other in groups if other.activation == "softmax" for item in other.members]
    return group.activation == "sigmoid" and bool(group.results & graph.ancestors(later))


def _is_called_scores(graph: OnnxGraph, group: Group) -> bool:
    """Whether the output that these values become is called by a usual name of class scores."""
    tensors = [name for item in group.members for name in (item.tensor, item.result)]
    return any(_SCORES.fullmatch(name) for name in score_outputs(graph, tensors))


def _is_called_box(graph: OnnxGraph, group: Group) -> bool:
    """Whether a name says that these are boxes: of a weight, of the tensor, or of what it becomes before a layer."""
    after = graph.descendants(group.results, lambda node, _: node.operator not in LAYERS)
    names = {name for node in after for name in node.outputs[:1]}
    weights = {layer.weight for item in group.members for layer in item.origin.layers}
    return any(BOX.search(name) for name in (*names, *weights, *group.results, *(m.tensor for m in group.members)))


def _is_rest_of_layer(group: Group, groups: Sequence[Group]) -> bool:
    """Whether this output is the other part of a layer whose classes go through an activation."""
    return group.activation is None and any(
        other.activation is not None and other.layers & group.layers and other.width != group.width for other in groups
    )


def _stands_beside_scores(group: Group, groups: Sequence[Group], shapes: Mapping[str, Shape], images: int) -> bool:
    """Whether this is a detector's raw output, and another set of tensors, too wide for boxes, has an activation.

    A row of a classifier's outputs is an image: a raw output beside a softmax may be the other's coarse classes.
    """
    own = [shapes[item.tensor] for item in group.members]
    several_rows = all(len(shape) > 2 or shape[:1] > (images,) for shape in own)
    return (
        several_rows
        and group.activation is None
        and any(other.activation is not None and other.width not in (None, BOX_WIDTH, group.width) for other in groups)
    )


def _groups(candidates: Sequence[Candidate], graph: OnnxGraph, shapes: Mapping[str, Shape]) -> list[Group]:
    """Sets of candidates that are levels of one class layer."""
    groups: list[Group] = []
    for item in candidates:
        single = Group((item,), _width(graph, item, shapes) if len(candidates) > 1 else None)
        joined = [group for group in groups if _belong_together(group, single, shapes)]
        groups = [group for group in groups if group not in joined]
        groups.append(Group(tuple(member for group in (*joined, single) for member in group.members), single.width))
    return groups


def _width(graph: OnnxGraph, item: Candidate, shapes: Mapping[str, Shape]) -> int | None:
    """The length of a candidate's class axis, the one that its channels are on."""
    shape = shapes[item.tensor]
    if item.origin.stops or not item.origin.layers:
        return None
    axes = [item.axis] if item.axis is not None else range(-1, -len(shape) - 1, -1)
    for axis in axes:
        if shape[axis] > 1 and channels_of(graph, item.tensor, axis if axis < 0 else axis - len(shape), shapes):
            return shape[axis]
    return 1 if 1 in shape[1:] else None


def _belong_together(group: Group, single: Group, shapes: Mapping[str, Shape]) -> bool:
    """Whether the two share their weights, or are as wide and come from convolutions over maps of several sizes."""
    if (group.activation, group.width) != (single.activation, single.width):
        return False
    members = (*group.members, *single.members)
    layers = [layer for item in members for layer in item.origin.layers]
    weights = [{layer.weight for item in part.members for layer in item.origin.layers} for part in (group, single)]
    if group.layers & single.layers or weights[0] & weights[1]:
        return True
    own = [shapes[item.tensor] for item in members]
    return (
        single.width is not None
        and len(set(own)) == len(own)
        and len({len(shape) for shape in own}) == 1
        and all(layer.kind == "Conv" for layer in layers)
    )


def _is_upstream(
    graph: OnnxGraph,
    candidate: Candidate,
    others: Sequence[Candidate],
    behind: Mapping[str, set[str]],
    shapes: Mapping[str, Shape],
) -> bool:
    """Whether another candidate is computed from this one: then this one is inside of the network (attention).

    An output of the model may be what the user means (coarse classes that finer ones are computed from), unless the
    other holds the same logits on another scale: before and after a temperature.
    """
    own = {layer.output for layer in candidate.origin.layers}
    return any(
        candidate.result in behind[other.tensor]
        and not _may_be_scores(other, candidate, shapes)
        and (not _is_output(graph, candidate) or own == {layer.output for layer in other.origin.layers})
        for other in others
        if other is not candidate and other.tensor != candidate.result
    )


def _is_output(graph: OnnxGraph, candidate: Candidate) -> bool:
    """Whether the model gives these values out, as they are or behind their activation, and a layer computed them."""
    return bool(candidate.origin.layers) and not {candidate.tensor, candidate.result}.isdisjoint(graph.outputs)


def score_outputs(graph: OnnxGraph, tensors: Iterable[str]) -> set[str]:
    """Names of the outputs that hold the values of these tensors, moved or activated at most."""
    values = {*tensors}

    def passes(node: Node, position: int) -> bool:
        moves = node.operator in MOVES and (position == 0 or node.operator == "Concat")
        return moves or node.operator in ACTIVATIONS

    values.update(name for node in graph.descendants([*values], passes) for name in node.outputs)
    return values.intersection(graph.outputs)


def _may_be_scores(output: Candidate, candidate: Candidate, shapes: Mapping[str, Shape]) -> bool:
    """Whether an output may be computed from the scores of a candidate that is as wide; the user has to say."""
    is_class_activation = candidate.activation is not None and bool(candidate.origin.layers)
    wide = shapes[output.tensor][-1:] and shapes[output.tensor][-1] in shapes[candidate.tensor]
    return output.activation is None and is_class_activation and bool(wide)
