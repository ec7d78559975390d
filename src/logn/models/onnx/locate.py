"""Finding the class logits of an ONNX model: what goes into the class activation, or an output that has none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.models.onnx.candidates import Candidate, choose, find_candidates, loose_outputs, named_candidates
from logn.models.onnx.description import Description
from logn.models.onnx.file import (
    Arrays,
    OnnxFile,
    OnnxGraph,
    OnnxSession,
    attribute,
    exposing,
    run_somehow,
)
from logn.models.onnx.layers import Layout, LinearLayer, measure_layout
from logn.statistics.head import ACTIVATIONS, probability_kind

# Box and objectness stand before the classes: in all, and without the box.
BOX_AND_OBJECTNESS, OBJECTNESS = 5, 1
# Or a background that sigmoids have no use for, and that is cut off: TensorFlow's SSD.
UNUSED = 1
_BOX = 4

# How far from 1 the probabilities of one row may sum up to: half precision rounds so.
PROBABILITY_SUM = 2e-3
# QuantizeLinear, DequantizeLinear, QLinearConv, QGemm, MatMulInteger, MatMulNBits, DynamicQuantizeMatMul and the like.
_QUANTISED = re.compile(r"Quantize|^QLinear|^QGemm|Integer|NBits")


def first_class_column(graph: OnnxGraph, item: Candidate, axis: int, shape: Sequence[int]) -> int:
    """How many columns stand before the classes: 5 where box, objectness and classes go through one sigmoid, else 0.

    Such a model cuts the box out of the result, to compute with it: columns 0 and 1 are the centre, 2 and 3 the size.
    One where all that is done with the result is to cut the first column off: it is no class.

    Args:
        graph: The graph.
        item: The candidate.
        axis: Its class axis, counted from the end.
        shape: Its shape.
    """
    if item.activation != "sigmoid" or item.activated is None or shape[axis] <= BOX_AND_OBJECTNESS:
        return 0
    cuts = set(_cuts(graph, item.activated, len(shape) + axis, shape))
    if (0, 4) in cuts or {(0, 2), (2, 4)} <= cuts:
        return BOX_AND_OBJECTNESS
    readers = [node.op_type for node, _ in graph.readers.get(item.activated, ()) if node.op_type != "Shape"]
    only_cut = set(readers) == {"Slice"} and item.activated not in graph.outputs
    return UNUSED if only_cut and cuts == {(UNUSED, shape[axis])} else 0


def follows_a_box(layout: Layout) -> bool:
    """Whether the columns of every anchor stand right behind four channels that are none: its box.

    Args:
        layout: Which channel of which layer is which column.

    Example:
        >>> follows_a_box(Layout(-1, 3, {"conv": np.array([-1, -1, -1, -1, 0, 1, 2] * 2)}))
        True
        >>> follows_a_box(Layout(-1, 3, {"conv": np.array([0, 1, 2, -1, -1, -1, -1])}))
        False
    """
    for columns in layout.classes.values():
        starts = np.flatnonzero(columns == 0)
        if not len(starts) or starts[0] != _BOX or any((columns[at - _BOX : at] >= 0).any() for at in starts):
            return False
    return bool(layout.classes)


def _cuts(graph: OnnxGraph, tensor: str, axis: int, shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    """From where to where the readers of a tensor cut it along an axis."""
    waiting = [(tensor, axis, shape)]
    while waiting:
        tensor, axis, shape = waiting.pop()
        for node, position in graph.readers.get(tensor, ()):
            if position != 0:
                continue
            if node.op_type == "Identity":
                waiting.append((node.output[0], axis, shape))
            elif node.op_type == "Transpose" and (order := attribute(node, "perm", None)):
                waiting.append((node.output[0], list(order).index(axis), [shape[place] for place in order]))
            elif node.op_type == "Split":
                yield from _split_cuts(graph, node, axis, shape)
            elif node.op_type == "Slice":
                yield from _slice_cuts(graph, node, axis, shape)


def _split_cuts(graph: OnnxGraph, node: Any, axis: int, shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    if int(attribute(node, "axis", 0)) not in (axis, axis - len(shape)):
        return
    lengths = attribute(node, "split", None)
    if lengths is None and len(node.input) > 1:
        lengths = graph.constant(node.input[1])
    ends = np.cumsum([shape[axis] // len(node.output)] * len(node.output) if lengths is None else list(lengths))
    yield from zip([0, *map(int, ends[:-1])], map(int, ends), strict=True)


def _slice_cuts(graph: OnnxGraph, node: Any, axis: int, shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    names = ("starts", "ends", "axes")
    if len(node.input) > 1:
        parts = [graph.constant(name) if name else None for name in node.input[1:4]]
    else:
        parts = [np.asarray(value) if (value := attribute(node, name, None)) else None for name in names]
    starts, ends, axes = (*parts, None, None, None)[:3]
    if starts is None or ends is None:
        return
    places = range(len(starts)) if axes is None else [int(place) for place in axes.reshape(-1)]
    for place, start, end in zip(places, starts.reshape(-1), ends.reshape(-1), strict=True):
        if place in (axis, axis - len(shape)):
            yield _within(int(start), shape[axis]), _within(int(end), shape[axis])


def _within(place: int, width: int) -> int:
    return max(0, place + width) if place < 0 else min(place, width)


@dataclass(frozen=True)
class OnnxLogits:
    """Where the class logits of an ONNX model are.

    Attributes:
        tensors: The tensors that hold them: one, or one per level of a pyramid.
        axis: The class axis, counted from the end.
        num_columns: Columns of the logits, the background included.
        dtype: Their precision.
        activation: What follows: "softmax", "sigmoid", or None when the model gives the logits out.
        layers: The layers that compute them.
        layout: Which channel of which layer becomes which class; None where that is not one to one.
        reason: Why it is not, else None.
        start: How many columns stand before the classes on their axis: box and objectness, where they share a tensor.
        width: Length of the class axis.
    """

    tensors: tuple[str, ...]
    axis: int
    num_columns: int
    dtype: np.dtype[Any]
    activation: str | None
    layers: tuple[LinearLayer, ...]
    layout: Layout | None
    reason: str | None
    start: int
    width: int

    def rows(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One of the tensors as rows of class logits, its other axes in front."""
        return np.moveaxis(array, self.axis, -1)[..., self.start : self.start + self.num_columns]


@dataclass(frozen=True)
class Wanted:
    """What is known about the logits beforehand.

    Attributes:
        num_columns: Length of the class axis, the background included; None when unknown.
        tensors: Names given by the user; empty to search.
        activation: "softmax" or "sigmoid"; None when unknown.
        axis: The class axis; None when unknown.
        has_background: Whether one column is the background, which speaks for a softmax where the choice is open.
        start: How many columns stand before the classes on their axis; None to see it from the graph.
        parameters: Names of the weights and biases of the class layer, as torch has them; empty when unknown.
    """

    num_columns: int | None = None
    tensors: tuple[str, ...] = ()
    activation: str | None = None
    axis: int | None = None
    has_background: bool = False
    start: int | None = None
    parameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.activation not in (None, *ACTIVATIONS):
            raise InputError(f"Expected `activation` to be 'softmax' or 'sigmoid', but got {self.activation!r}.")


def wanted_of(
    description: Description,
    tensors: tuple[str, ...] = (),
    activation: str | None = None,
    *,
    num_columns: int | None = None,
    has_background: bool = False,
) -> Wanted:
    """What the user says of the logits, and what is known of the model where the user says nothing."""
    preset = description.preset
    with_background = preset is not None and preset.background is not None
    if num_columns is None and not tensors and description.class_names is not None and not with_background:
        num_columns = len(description.class_names)
    start = None if preset is None else preset.start
    return Wanted(num_columns, tensors, activation, None, has_background, start)


class Located(NamedTuple):
    """What a search found, and what its run gave."""

    logits: OnnxLogits
    inputs: Arrays
    values: Arrays

    def serves(self, wanted: Wanted) -> bool:
        """Whether these are the wanted tensors."""
        same = {*wanted.tensors} == {*self.logits.tensors}
        return same and wanted.num_columns in (None, self.logits.num_columns)


def locate_onnx_logits(file: OnnxFile, wanted: Wanted, inputs: Arrays | None = None) -> tuple[OnnxLogits, Arrays]:
    """Find the class logits; what was run to find them is returned too.

    A file in which the wanted tensors were found before is not searched again.

    Args:
        file: The model.
        wanted: What is known about the logits.
        inputs: What to run the model on; by default random values.
    """
    known = file.located
    if known is not None and known.serves(wanted):
        return known.logits, known.inputs if inputs is None else inputs
    _refuse_unsuited(file.graph, file.path)
    candidates = named_candidates(file.graph, wanted.tensors, file.path) or find_candidates(
        file.graph, wanted.activation
    )
    search = _Search(file, wanted, *_run(file, candidates, inputs))
    if not wanted.tensors and not any(item.origin.layers for item in search.fitting(candidates)):
        # No layer of this width: perhaps an output is a sum of several layers' outputs.
        loose = loose_outputs(file.graph)
        search = _Search(file, wanted, *_run(file, [*candidates, *loose], search.inputs))
        logits = search.attempt([*candidates, *loose])
    else:
        logits = search.attempt(candidates)
    if logits is None:
        raise _nothing_found(file.path, candidates, search.values, wanted)
    file.located = Located(logits, search.inputs, search.values)
    return logits, search.inputs


def trial_values(file: OnnxFile, logits: OnnxLogits, inputs: Arrays) -> Arrays | None:
    """The outputs of the model and the tensors of its logits on `inputs`; None where it does not run to its end here.

    What the search has run already is not run again.
    """
    wanted = [*dict.fromkeys((*file.graph.outputs, *logits.tensors))]
    known = file.located
    if known is not None and known.inputs is inputs and known.values.keys() >= {*wanted}:
        return {name: known.values[name] for name in wanted}
    try:
        return OnnxSession(exposing(file.model, logits.tensors), str(file.path), optimised=False).run(inputs, wanted)
    except InputError:  # an operator of another runtime
        return None


def _run(file: OnnxFile, candidates: Sequence[Candidate], inputs: Arrays | None) -> tuple[Arrays, Arrays]:
    """Run the model to see what the candidates hold; only up to them where the rest does not run here."""
    names = [candidate.tensor for candidate in candidates]
    try:
        session = OnnxSession(exposing(file.model, names), str(file.path), optimised=False)
        return run_somehow(session, file.inputs, inputs)
    except InputError:
        if not names:
            raise
        session = OnnxSession(exposing(file.model, names, only=True), str(file.path), optimised=False)
        return run_somehow(session, file.inputs, inputs)


@dataclass(frozen=True)
class _Search:
    """A search in one file: what is wanted, what the model ran on, and what its candidates held then."""

    file: OnnxFile
    wanted: Wanted
    inputs: Arrays
    values: Arrays

    @property
    def extras(self) -> tuple[int, ...]:
        """How many columns may stand before the classes."""
        if self.wanted.start is not None:
            return (self.wanted.start, 0)
        return (0, BOX_AND_OBJECTNESS, OBJECTNESS) if self.wanted.num_columns is not None else (0,)

    def fitting(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates that have an axis of the right length, with as few columns before the classes as can be."""
        options = ([item for item in candidates if self.fits(item, extra)] for extra in self.extras)
        return next(filter(None, options), [])

    def fits(self, item: Candidate, extra: int) -> bool:
        """Whether a candidate has an axis for the classes and `extra` columns before them."""
        shape = self.values[item.tensor].shape
        # Box and objectness may stand before the classes: not in a softmax, and unsaid only before a sigmoid.
        kinds = ("sigmoid",) if self.wanted.start is None else ("sigmoid", None)
        if not shape or (extra and (item.activation not in kinds or not item.origin.layers)):
            return False
        lengths = shape if item.axis is None else [shape[item.axis]]
        if self.wanted.num_columns is not None:
            return self.wanted.num_columns + extra in lengths
        # When the number of classes is not given, only a layer can tell logits from attention.
        return max(lengths) > 1 and bool(item.origin.layers or self.wanted.tensors)

    def attempt(self, candidates: Sequence[Candidate]) -> OnnxLogits | None:
        """The logits with as few columns before the classes as can be; those whose layout is measured come first.

        Some other axis may be as long as the map; then no channel belongs to one class.
        """
        unmeasured: list[OnnxLogits] = []
        failures: list[InputError] = []
        for extra in self.extras:
            fitting = [item for item in candidates if self.fits(item, extra)]
            if not fitting:
                continue
            width = None if self.wanted.num_columns is None else self.wanted.num_columns + extra
            try:
                logits = self.describe(self.choose(fitting, width), width)
            except InputError as error:
                failures.append(error)
                continue
            if logits.layout is not None:
                return logits
            unmeasured.append(logits)
        if failures and not unmeasured:
            raise failures[0]
        return unmeasured[0] if unmeasured else None

    def choose(self, fitting: Sequence[Candidate], width: int | None) -> Sequence[Candidate]:
        """The candidates that are the class logits; those that the user named are."""
        if self.wanted.tensors:
            return fitting
        return choose(
            self.file,
            fitting,
            self.values,
            self.inputs,
            num_columns=width,
            has_background=self.wanted.has_background,
            parameters=self.wanted.parameters,
        )

    def describe(self, chosen: Sequence[Candidate], width: int | None) -> OnnxLogits:
        """Where the classes are in the chosen tensors, and which channel of which layer each is."""
        arrays, tensors = [self.values[item.tensor] for item in chosen], tuple(item.tensor for item in chosen)
        by_node = {layer.node: layer for item in chosen for layer in item.origin.layers}
        layers = tuple(sorted(by_node.values(), key=lambda layer: self.file.graph.order[layer.node]))
        axis = self.known_axis(chosen[0], arrays[0].ndim)
        layout: Layout | str | None = _why_not(chosen, layers)
        if layout is None:
            partial = not any(item.origin.chosen for item in chosen)
            layout = measure_layout(self.file.model, layers, tensors, self.inputs, axis, width, partial=partial)
        reason = layout if isinstance(layout, str) else None
        measured = layout if isinstance(layout, Layout) else None
        if measured is not None:
            axis, layers = measured.axis, tuple(layer for layer in layers if layer.node in measured.classes)
        elif axis is None:
            axis = _likely_axis([array.shape for array in arrays], width, self.file.path)
        _refuse_probabilities(chosen, arrays, axis, self.file.path)
        width, start = arrays[0].shape[axis], self.start(chosen, axis, measured)
        if width - start < 2:
            raise _one_logit(self.file.path)
        kind = chosen[0].activation
        return OnnxLogits(tensors, axis, width - start, arrays[0].dtype, kind, layers, measured, reason, start, width)

    def known_axis(self, first: Candidate, rank: int) -> int | None:
        """The class axis, counted from the end, if the user or the activation says which it is."""
        axis = self.wanted.axis if self.wanted.axis is not None else first.axis
        if axis is not None and not -rank <= axis < rank:
            shape = self.values[first.tensor].shape
            raise InputError(f"Expected `axis` to be an axis of logits of shape {shape}, but got {axis}.")
        return axis if axis is None or axis < 0 else axis - rank

    def start(self, chosen: Sequence[Candidate], axis: int, layout: Layout | None) -> int:
        """How many columns stand before the classes; the graph has to confirm them where the user does not say it."""
        shapes, wanted = [self.values[item.tensor].shape for item in chosen], self.wanted
        width, kind = shapes[0][axis], chosen[0].activation
        if width == wanted.num_columns:
            return 0
        said = wanted.start if kind is None and wanted.num_columns in (None, width - (wanted.start or 0)) else None
        if said is not None and width > said:
            return said
        graph = self.file.graph
        start = max(first_class_column(graph, item, axis, shape) for item, shape in zip(chosen, shapes, strict=True))
        if start == UNUSED and wanted.has_background:
            start = 0  # the user counts that column
        if not start and kind == "sigmoid" and layout is not None and follows_a_box(layout):
            start = _behind_a_box(self.file.path, layout, width, wanted)
        if wanted.num_columns is not None and width - start != wanted.num_columns:
            raise InputError(
                f"`{self.file.path}` has no class logits{_sought(wanted)}: `{chosen[0].tensor}` has {width - start}."
            )
        return start


def _refuse_unsuited(graph: OnnxGraph, path: Path) -> None:
    """Refuse classical models, whose logits no tensor holds, and quantised ones, which would clip other logits."""
    for node in graph.nodes:
        if node.domain == "ai.onnx.ml":
            raise InputError(
                f"`{path}` is not a neural network: it has {node.op_type} of ai.onnx.ml, as scikit-learn's models do. "
                "Correct its scores with logn.LogitNormalizer instead."
            )
        if _QUANTISED.search(node.op_type):
            raise InputError(f"`{path}` is quantised ({node.op_type}); correct the float model, then quantise it.")


def _nothing_found(path: Path, candidates: Sequence[Candidate], values: Arrays, wanted: Wanted) -> InputError:
    lengths = {values[item.tensor].shape[-1] for item in candidates if values[item.tensor].ndim}
    if lengths == {1} and wanted.num_columns is None:
        return _one_logit(path)
    if wanted.num_columns is None and (loose := [item for item in candidates if not item.origin.layers]):
        item = loose[-1]
        return InputError(
            f"`{path}` has no class logits that come from a layer: `{item.tensor}` ({item.activation or 'output'} "
            f"{values[item.tensor].shape}) comes from {item.origin.stops[0]}. If these are the logits, name it as "
            "`tensor`."
        )
    listed = ", ".join(map(str, sorted(lengths)))
    found = f"the last axes of what could be logits are {listed} long" if listed else "nothing in it could be logits"
    return InputError(f"`{path}` has no class logits{_sought(wanted)}: {found}.")


def _behind_a_box(path: Path, layout: Layout, width: int, wanted: Wanted) -> int:
    """Anchors have an objectness between box and classes; a head of one box per place may or may not have one."""
    anchors = max(int((columns == 0).sum()) for columns in layout.classes.values())
    if wanted.num_columns is not None:
        return width - wanted.num_columns
    if anchors > 1:
        return OBJECTNESS
    raise InputError(
        f"The layer of `{path}` gives a box and {width} scores: {width} classes, or an objectness and {width - 1} "
        "classes. Pass `num_columns`, or write `class_names` into the metadata of the file."
    )


def _one_logit(path: Path) -> InputError:
    return InputError(
        f"`{path}` gives a single logit, so there are no classes to balance; choose a score threshold on validation "
        "images instead."
    )


def _refuse_probabilities(chosen: Sequence[Candidate], values: Sequence[Any], axis: int, path: Path) -> None:
    """Refuse an output whose rows sum to 1: its activation is in the graph in another guise."""
    for item, array in zip(chosen, values, strict=True):
        rows = np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])
        if item.activation is None and probability_kind(rows, tolerance=PROBABILITY_SUM) == "softmax":
            made = item.origin.layers[0].kind if item.origin.layers else ", ".join(item.origin.stops)
            raise InputError(
                f"`{item.tensor}` of `{path}` holds probabilities, not logits (each row sums to 1, made by {made}). "
                "Name the raw scores before them as `tensor`, or export the model with raw scores."
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


def _likely_axis(shapes: Sequence[tuple[int, ...]], width: int | None, path: Path) -> int:
    """The only axis that has the length of the map."""
    rank = min(len(shape) for shape in shapes)
    axes = [-1 - place for place in range(rank) if all(shape[-1 - place] == width for shape in shapes)]
    if len(axes) != 1:
        raise InputError(
            f"It is not clear which axis of the logits in `{path}`, of shape {shapes[0]}, holds the classes; pass "
            "`axis`."
        )
    return axes[0]


def _sought(wanted: Wanted) -> str:
    columns = f" of {wanted.num_columns} columns" if wanted.num_columns is not None else ""
    return f"{columns} before a {wanted.activation} or an output" if wanted.activation else columns
