"""Measuring which channel of a class layer becomes which class: the layout is not guessed from the graph.

The weights of the layers are set to zero and their biases to numbers that count the channels through. Run like that, a
model shows at its logits which channel each of them came from, whatever reshaping, joining and cutting is in between.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.logits.onnx.file import Arrays, OnnxSession, exposing
from logn.logits.onnx.layers import LinearLayer, map_layers

IntArray = npt.NDArray[np.int64]

# Whole numbers up to the base are exact in each precision; larger channel numbers are measured digit by digit.
_BASES = {"float16": 1024, "bfloat16": 128}
_WIDE_BASE = 1 << 20


@dataclass(frozen=True)
class Layout:
    """What becomes of the channels of the class layers.

    Attributes:
        axis: Axis of the logits, counted from the end, that is the class.
        num_classes: Its length.
        classes: Class of each channel, by the layer's `node`, and -1 for a channel that is no logit (a layer may
            compute boxes beside classes); layers that do not reach the logits are left out.
    """

    axis: int
    num_classes: int
    classes: Mapping[str, IntArray]


def measure_layout(
    model: Any,
    layers: Sequence[LinearLayer],
    tensors: Sequence[str],
    inputs: Arrays,
    axis: int | None = None,
    num_classes: int | None = None,
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
        num_classes: Its length, where it is known.
        partial: Whether a channel that is not seen is known to be no logit.
    """
    measured = measure_channels(model, layers, tensors, inputs)
    return layout_of([measured[tensor] for tensor in tensors], layers, axis, num_classes, partial=partial)


def layout_of(
    measured: Sequence[IntArray | None],
    layers: Sequence[LinearLayer],
    axis: int | None = None,
    num_classes: int | None = None,
    *,
    partial: bool = False,
) -> Layout | str:
    """The layout that channel numbers show, or why they show none.

    Args:
        measured: What `measure_channels` gave for each tensor.
        layers: The layers whose channels were numbered, in that order.
        axis: The class axis, counted from the end, where it is known.
        num_classes: Its length, where it is known.
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
        if len(lengths) > 1 or lengths <= {0, 1} or not lengths <= {num_classes or max(lengths)}:
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
    from logn.logits.onnx.file import OnnxGraph

    graph = OnnxGraph(model)
    kinds = [graph.constant(layer.weight) for layer in layers]
    return min((_BASES.get(str(array.dtype), _WIDE_BASE) for array in kinds if array is not None), default=_WIDE_BASE)


def _layout_on(axis: int, numbers: Sequence[IntArray], layers: Sequence[LinearLayer], partial: bool) -> Layout | str:
    """The layout if `axis` is the class axis, else why it is not."""
    num_classes = numbers[0].shape[axis]
    total = sum(layer.width for layer in layers)
    seen = np.zeros((total, num_classes), bool)
    for array in numbers:
        rows = np.moveaxis(array, axis, -1).reshape(-1, num_classes)
        if rows.size and (rows.min() < 0 or rows.max() >= total):
            return "something else than the class layer adds to the logits"
        seen[rows, np.arange(num_classes)] = True
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
    return Layout(axis, num_classes, classes)
