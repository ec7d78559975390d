"""Which outputs of an ONNX file a fold may change: the class scores and what they select, nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from logn.errors import InputError
from logn.logits.onnx.choose import BOX, score_outputs
from logn.logits.onnx.graph import PLACED, SELECTIONS, OnnxGraph, captured_names
from logn.logits.onnx.layers import LAYERS

# How the logits reach a tensor: as values, as the choice of other values, or through another layer.
VALUE, CHOICE, LAYER = "value", "choice", "layer"
_LENGTHS = ("Shape", "Size")
_LAYERS = LAYERS | {"ConvTranspose", "Einsum", "LSTM", "GRU", "RNN"}


def reached_from(graph: OnnxGraph, tensors: Iterable[str]) -> dict[str, set[str]]:
    """All tensors that depend on `tensors`, and how: by VALUE, CHOICE or LAYER.

    Args:
        graph: The graph, whose nodes stand in the order in which they run.
        tensors: Where to start.
    """
    reached: dict[str, set[str]] = {name: {VALUE} for name in tensors}
    for node in graph.nodes:
        ways: set[str] = set()
        for position, name in enumerate(node.input):
            ways |= _passed_on(graph, node, position, reached.get(name, set()))
        if any(name in reached for name in captured_names(node)):
            ways.add(CHOICE)  # a Loop or an If over scores chooses boxes
        for name in node.output if ways else ():
            reached[name] = reached.get(name, set()) | ways
    return reached


def _passed_on(graph: OnnxGraph, node: Any, position: int, ways: set[str]) -> set[str]:
    if not ways:
        return ways
    if node.op_type in _LENGTHS:
        return ways & {CHOICE}  # a map changes no shape, a choice may
    if node.op_type in SELECTIONS or (node.op_type in PLACED and position > 0):
        return {CHOICE}
    if VALUE in ways and node.op_type in _LAYERS:
        others = [name for place, name in enumerate(node.input) if name and place != position]
        if any(graph.is_fixed(name) for name in others):  # with a weight; a product of two results is none
            return ways | {LAYER}
    return ways


def check_outputs(
    graph: OnnxGraph,
    tensors: Iterable[str],
    layers: Iterable[str],
    before: Mapping[str, Any],
    expected: Mapping[str, Any],
    after: Mapping[str, Any],
    tolerance: float,
) -> None:
    """Refuse a fold that changes any output other than the class scores, or those in another way than the map does.

    What the scores select (boxes behind a suppression) is in another order afterwards, and cannot be compared.

    Args:
        graph: The graph before the fold.
        tensors: The tensors that hold the logits.
        layers: The layers whose weights changed, by their node; empty where nodes were put in.
        before: The outputs before the fold.
        expected: Those of the file with the map as two nodes behind the logits.
        after: Those after the fold.
        tolerance: Largest difference, relative to the largest value of an output (or to 1).
    """
    tensors = list(tensors)
    reached = reached_from(graph, tensors)
    # The logits before a temperature are class scores too, on another scale; the proof at the logits holds for them.
    scaled = set(reached_from(graph, layers)) & graph.ancestors(tensors)
    scores = score_outputs(graph, tensors)
    for name in graph.outputs:
        ways = reached.get(name, set())
        if LAYER in ways:
            raise InputError(
                f"Expected only the class scores to change, but the output `{name}` is computed from the logits "
                f"`{tensors[0]}` by another layer, and would change too; export the model with separate heads."
            )
        if CHOICE in ways or name in scaled:
            continue
        if not _is_same(after[name], expected[name] if ways else before[name], tolerance):
            raise InputError(
                f"Expected only the class scores to change, but the output `{name}` would change as well, since it "
                "reads the class layer too; insert=True (`--insert`) puts the map behind the logits alone."
            )
        if ways and name not in scores and BOX.search(name) and not _is_same(after[name], before[name], tolerance):
            raise InputError(
                f"Expected only the class scores to change, but the output `{name}` is computed from the logits "
                f"`{tensors[0]}`, and would change too; name the class logits as `tensor`."
            )


def _is_same(found: Any, expected: Any, tolerance: float) -> bool:
    if not isinstance(found, np.ndarray) or found.dtype.kind != "f":
        return bool(np.array_equal(found, expected))
    if found.shape != expected.shape:
        return False
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    known = ~np.isnan(expected)
    largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=1.0))
    with np.errstate(invalid="ignore"):
        difference = np.where(found == expected, 0.0, np.abs(found - expected))[known]
    return bool((difference <= tolerance * largest).all())
