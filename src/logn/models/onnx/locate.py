"""Finding the class logits of an ONNX model: what goes into the class activation, or an output that has none."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.models.onnx.candidates import Candidate, choose, find_candidates, loose_outputs, named_candidates
from logn.models.onnx.file import Arrays, OnnxFile
from logn.models.onnx.graph import OnnxGraph
from logn.models.onnx.layers import Columns, LinearLayer, Shape, channels_of, cuts_of
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


@dataclass(frozen=True)
class OnnxLogits:
    """Where the class logits of an ONNX model are.

    Attributes:
        tensors: The tensors that hold them: one, or one per level of a pyramid.
        axis: The class axis, counted from the end.
        num_columns: Columns of the logits, the background included.
        dtype: Their precision.
        activation: What follows: "softmax", "sigmoid", or None when the model gives the logits out.
        layers: The layers that compute them, as far as they are known.
        start: How many columns stand before the classes on their axis: box and objectness, where they share a tensor.
        width: Length of the class axis.
    """

    tensors: tuple[str, ...]
    axis: int
    num_columns: int
    dtype: np.dtype[Any]
    activation: str | None
    layers: tuple[LinearLayer, ...]
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


@dataclass(frozen=True)
class Located:
    """The class logits, and the run in which they were found.

    Attributes:
        logits: Where they are.
        inputs: What the model ran on.
        values: The tensors of the logits and all outputs; empty where the model does not run to its end here.
    """

    logits: OnnxLogits
    inputs: Arrays
    values: Arrays


def locate(file: OnnxFile, wanted: Wanted, inputs: Arrays | None = None) -> Located:
    """Find the class logits.

    Args:
        file: The model.
        wanted: What is known about the logits.
        inputs: What to run the model on; by default random values.
    """
    _refuse_unsuited(file.graph, file.path)
    candidates = named_candidates(file.graph, wanted.tensors, file.path) or find_candidates(
        file.graph, wanted.activation
    )
    search = _Search(file, wanted, candidates, *_run(file, candidates, inputs))
    fitting = next(filter(None, map(search.fitting, search.extras)), [])
    if not wanted.tensors and not any(item.origin.layers for item in fitting):
        # No layer of this width: perhaps an output is a sum of several layers' outputs.
        all_outputs = [*candidates, *loose_outputs(file.graph)]
        search = _Search(file, wanted, all_outputs, *_run(file, all_outputs, search.inputs))
    logits = search.attempt()
    if logits is None:
        raise _nothing_found(file.path, candidates, search.values, wanted)
    kept = [*logits.tensors, *file.graph.outputs]
    values = {name: search.values[name] for name in kept} if {*kept} <= search.values.keys() else {}
    return Located(logits, search.inputs, values)


def _run(file: OnnxFile, candidates: Sequence[Candidate], inputs: Arrays | None) -> tuple[Arrays, Arrays]:
    """Run the model to see what the candidates hold; only up to them where the rest does not run here."""
    names = [name for item in candidates for name in (item.tensor, *item.origin.passed)]
    try:
        return file.run(names, inputs)
    except InputError:
        if not names:
            raise
        return file.run(names, inputs, only=True)


@dataclass(frozen=True)
class _Search:
    """A search in one file: what is wanted, what may be it, and what that held in a run."""

    file: OnnxFile
    wanted: Wanted
    candidates: Sequence[Candidate]
    inputs: Arrays
    values: Arrays

    @functools.cached_property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of all that the run gave."""
        return {name: array.shape for name, array in self.values.items() if isinstance(array, np.ndarray)}

    @property
    def extras(self) -> tuple[int, ...]:
        """How many columns may stand before the classes."""
        if self.wanted.start is not None:
            return (self.wanted.start, 0)
        return (0, BOX_AND_OBJECTNESS, OBJECTNESS) if self.wanted.num_columns is not None else (0,)

    def fitting(self, extra: int) -> list[Candidate]:
        """The candidates that have an axis for the classes and `extra` columns before them."""
        return [item for item in self.candidates if self._fits(item, extra)]

    def _fits(self, item: Candidate, extra: int) -> bool:
        shape = self.shapes[item.tensor]
        # Box and objectness may stand before the classes: not in a softmax, and unsaid only before a sigmoid.
        kinds = ("sigmoid",) if self.wanted.start is None else ("sigmoid", None)
        if not shape or (extra and (item.activation not in kinds or not item.origin.layers)):
            return False
        lengths = shape if item.axis is None else [shape[item.axis]]
        if self.wanted.num_columns is not None:
            return self.wanted.num_columns + extra in lengths
        # When the number of classes is not given, only a layer can tell logits from attention.
        return max(lengths) > 1 and bool(item.origin.layers or self.wanted.tensors)

    def attempt(self) -> OnnxLogits | None:
        """The logits with as few columns before the classes as can be; those whose channels are known come first.

        Some other axis may be as long as the map; then it is not that of the channels.
        """
        unsure: list[OnnxLogits] = []
        failures: list[InputError] = []
        for extra in self.extras:
            fitting = self.fitting(extra)
            if not fitting:
                continue
            width = None if self.wanted.num_columns is None else self.wanted.num_columns + extra
            try:
                logits, is_sure = self.describe(self.choose(fitting, width), width)
            except InputError as error:
                failures.append(error)
                continue
            if is_sure:
                return logits
            unsure.append(logits)
        if failures and not unsure:
            raise failures[0]
        return unsure[0] if unsure else None

    def choose(self, fitting: Sequence[Candidate], width: int | None) -> Sequence[Candidate]:
        """The candidates that are the class logits; those that the user named are."""
        if self.wanted.tensors:
            return fitting
        return choose(
            self.file.graph,
            [item for item in fitting if item.parameters & {*self.wanted.parameters}] or fitting,
            self.shapes,
            self.file.path,
            images=max([1, *(array.shape[0] for array in self.inputs.values() if array.ndim == 4)]),
            num_columns=width,
            has_background=self.wanted.has_background,
        )

    def describe(self, chosen: Sequence[Candidate], width: int | None) -> tuple[OnnxLogits, bool]:
        """Where the classes are in the chosen tensors, and whether that is the axis of the layers' channels."""
        arrays, path = [self.values[item.tensor] for item in chosen], self.file.path
        axis = self.known_axis(chosen[0], arrays[0].ndim)
        axis, columns = self.follow(chosen, axis, width)
        if axis is None:
            axis = _likely_axis([array.shape for array in arrays], width, path)
        _refuse_probabilities(chosen, arrays, axis, path)
        width, start = arrays[0].shape[axis], self.start(chosen, axis, list(columns.values()))
        if width - start < 2:
            raise _one_logit(path)
        layers = {layer.output: layer for item in chosen for layer in item.origin.layers}
        logits = OnnxLogits(
            tuple(item.tensor for item in chosen),
            axis,
            width - start,
            arrays[0].dtype,
            chosen[0].activation,
            tuple(layer for output, layer in layers.items() if not columns or output in columns),
            start,
            width,
        )
        return logits, bool(columns)

    def follow(
        self, chosen: Sequence[Candidate], known_axis: int | None, width: int | None
    ) -> tuple[int | None, dict[str, Columns]]:
        """The axis that comes from the channels of layers, and which of each, by its output; else the known axis."""
        rank = min(len(self.shapes[item.tensor]) for item in chosen)
        if any(item.origin.stops or not item.origin.layers for item in chosen):
            return known_axis, {}
        for axis in range(-1, -rank - 1, -1) if known_axis is None else [known_axis]:
            lengths = {self.shapes[item.tensor][axis] for item in chosen}
            if len(lengths) > 1 or lengths <= {0, 1} or (width is not None and lengths != {width}):
                continue
            parts = [channels_of(self.file.graph, item.tensor, axis, self.shapes) for item in chosen]
            if all(parts):
                return axis, {layer.output: columns for part in parts if part for layer, columns in part}
        return known_axis, {}

    def known_axis(self, first: Candidate, rank: int) -> int | None:
        """The class axis, counted from the end, if the user or the activation says which it is."""
        axis = self.wanted.axis if self.wanted.axis is not None else first.axis
        if axis is not None and not -rank <= axis < rank:
            shape = self.shapes[first.tensor]
            raise InputError(f"Expected `axis` to be an axis of logits of shape {shape}, but got {axis}.")
        return axis if axis is None or axis < 0 else axis - rank

    def start(self, chosen: Sequence[Candidate], axis: int, columns: Sequence[Columns]) -> int:
        """How many columns stand before the classes; the graph has to confirm them where the user does not say it."""
        shapes, wanted = [self.shapes[item.tensor] for item in chosen], self.wanted
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
        if not start and kind == "sigmoid" and columns and all(part.first == _BOX for part in columns):
            start = _behind_a_box(self.file.path, columns, width, wanted)
        if wanted.num_columns is not None and width - start != wanted.num_columns:
            raise InputError(
                f"`{self.file.path}` has no class logits{_sought(wanted)}: `{chosen[0].tensor}` has {width - start}."
            )
        return start


def first_class_column(graph: OnnxGraph, item: Candidate, axis: int, shape: Shape) -> int:
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
    cuts = set(_cuts_behind(graph, item.activated, axis, shape))
    if (0, 4) in cuts or {(0, 2), (2, 4)} <= cuts:
        return BOX_AND_OBJECTNESS
    readers = {node.operator for node, _ in graph.readers.get(item.activated, ()) if node.operator != "Shape"}
    only_cut = readers == {"Slice"} and item.activated not in graph.outputs
    return UNUSED if only_cut and cuts == {(UNUSED, shape[axis])} else 0


def _cuts_behind(graph: OnnxGraph, tensor: str, axis: int, shape: Shape) -> Iterator[tuple[int, int]]:
    """From where to where the readers of a tensor cut it along an axis."""
    waiting = [(tensor, axis, shape)]
    while waiting:
        tensor, axis, shape = waiting.pop()
        for node, position in graph.readers.get(tensor, ()):
            if position != 0:
                continue
            if node.operator == "Identity":
                waiting.append((node.outputs[0], axis, shape))
            elif node.operator == "Transpose" and (order := node.attribute("perm", None)):
                moved = list(order).index(axis % len(shape)) - len(shape)
                waiting.append((node.outputs[0], moved, tuple(shape[place] for place in order)))
            elif node.operator in ("Split", "Slice"):
                yield from cuts_of(graph, node, axis, shape)


def _refuse_unsuited(graph: OnnxGraph, path: Path) -> None:
    """Refuse classical models, whose logits no tensor holds, and quantised ones, which would clip other logits."""
    for node in graph.nodes:
        if node.proto.domain == "ai.onnx.ml":
            raise InputError(
                f"`{path}` is not a neural network: it has {node.operator} of ai.onnx.ml, as scikit-learn's models do. "
                "Correct its scores with logn.LogitNormalizer instead."
            )
        if _QUANTISED.search(node.operator):
            raise InputError(f"`{path}` is quantised ({node.operator}); correct the float model, then quantise it.")


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
    reason = f"the last axes of what could be logits are {listed} long" if listed else "nothing in it could be logits"
    return InputError(f"`{path}` has no class logits{_sought(wanted)}: {reason}.")


def _behind_a_box(path: Path, columns: Sequence[Columns], width: int, wanted: Wanted) -> int:
    """Anchors have an objectness between box and classes; a head of one box per place may or may not have one."""
    if wanted.num_columns is not None:
        return width - wanted.num_columns
    if max(part.num_blocks for part in columns) > 1:
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


def _likely_axis(shapes: Sequence[Shape], width: int | None, path: Path) -> int:
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
