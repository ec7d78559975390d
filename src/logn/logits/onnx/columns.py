"""Where the classes begin in a tensor that holds box, objectness and classes side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from logn.logits.onnx.candidates import Candidate
from logn.logits.onnx.graph import OnnxGraph, attribute
from logn.logits.onnx.layout import Layout

# Box and objectness stand before the classes: in all, and without the box.
BOX_AND_OBJECTNESS, OBJECTNESS = 5, 1
# Or a background that sigmoids have no use for, and that is cut off: TensorFlow's SSD.
UNUSED = 1
_BOX = 4


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
