"""Quantisers behind the logits of an ONNX file: their scales were chosen for the values before, and clip others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from logn.calibrators.class_affine import ClassAffine
from logn.errors import InputError
from logn.logits.onnx.candidates import ACTIVATIONS
from logn.logits.onnx.graph import OnnxGraph, attribute
from logn.logits.onnx.layers import MOVES


@dataclass(frozen=True)
class Quantiser:
    """A QuantizeLinear that the corrected values go through.

    Attributes:
        name: Its output.
        low: The lowest value that it can hold.
        high: The highest.
        step: The distance of two values.
        after: The activation between the logits and it; None where it rounds the logits themselves.
    """

    name: str
    low: float
    high: float
    step: float
    after: str | None


class Interval(NamedTuple):
    """The lowest and the highest value that a tensor can have."""

    low: float
    high: float


def refuse_clipping(model: Any, tensors: Sequence[str], affine: ClassAffine, path: Path) -> None:
    """Refuse a map whose results are outside of what a quantiser behind the logits can hold.

    The proof looks at the logits themselves, so it would not notice.

    Args:
        model: An `onnx.ModelProto`, before the map.
        tensors: The tensors that hold the logits.
        affine: The map over all columns.
        path: The file, for the message.
    """
    graph = OnnxGraph(model)
    for tensor in tensors:
        held = interval_of(graph, tensor)
        for quantiser in quantisers_behind(graph, tensor):
            found = _corrected(held, quantiser, affine)
            half = quantiser.step / 2  # what rounding takes anyway
            if found.low < quantiser.low - half or found.high > quantiser.high + half:
                raise InputError(_sentence(path, tensor, quantiser, found))


def _corrected(held: Interval | None, quantiser: Quantiser, affine: ClassAffine) -> Interval:
    """What can come to a quantiser once the map is there."""
    if quantiser.after == "softmax":
        return Interval(0.0, 1.0)
    if held is None:
        if quantiser.after is not None:
            return Interval(0.0, 1.0)
        held = Interval(quantiser.low, quantiser.high)  # what was outside was clipped before, too
    ends = np.outer(affine.scale, held) + affine.shift[:, None]
    low, high = float(ends.min()), float(ends.max())
    return Interval(_sigmoid(low), _sigmoid(high)) if quantiser.after == "sigmoid" else Interval(low, high)


def _sigmoid(value: float) -> float:
    return float(1.0 / (1.0 + np.exp(-np.clip(value, -500.0, 500.0))))


def _sentence(path: Path, tensor: str, quantiser: Quantiser, found: Interval) -> str:
    what = "logits" if quantiser.after is None else "scores"
    way_out = "" if quantiser.after else ", or name the logits behind its DequantizeLinear as `tensor`"
    return (
        f"Expected the scales of `{path}` to have room for the corrected {what}, but `{quantiser.name}` behind "
        f"`{tensor}` holds values from {quantiser.low:.3g} to {quantiser.high:.3g}, and those from {found.low:.3g} to "
        f"{found.high:.3g} can come now and would be clipped: fold the model before it is quantised{way_out}."
    )


def quantisers_behind(graph: OnnxGraph, tensor: str) -> Iterator[Quantiser]:
    """The quantisers that values of `tensor` reach, moved or activated on the way, but not computed with otherwise."""
    seen = {(tensor, "")}
    waiting: list[tuple[str, str | None]] = [(tensor, None)]
    while waiting:
        name, after = waiting.pop()
        for node, position in graph.readers.get(name, []):
            if position != 0 and node.op_type != "Concat":
                continue
            if node.op_type == "QuantizeLinear":
                known = _range(graph, node)
                if known is not None:
                    yield Quantiser(node.output[0], *known, after)
            behind = ACTIVATIONS.get(node.op_type, after) if after is None else after
            passes = node.op_type in (*MOVES, "QuantizeLinear", "DequantizeLinear")
            if not passes and not (after is None and node.op_type in ACTIVATIONS):
                continue
            for output in node.output:
                if output and (output, behind or "") not in seen:
                    seen.add((output, behind or ""))
                    waiting.append((output, behind))


def interval_of(graph: OnnxGraph, tensor: str) -> Interval | None:
    """What a tensor can hold that comes out of DequantizeLinear nodes, moved at most; None where that is not known."""
    node = graph.producers.get(tensor)
    if node is None:
        return None
    if node.op_type == "DequantizeLinear":
        known = _range(graph, node)
        return None if known is None else Interval(known[0], known[1])
    if node.op_type not in MOVES:
        return None
    parts = [interval_of(graph, name) for name in (node.input if node.op_type == "Concat" else node.input[:1])]
    ends = [part for part in parts if part is not None]
    if len(ends) < len(parts) or not ends:
        return None
    return Interval(min(part.low for part in ends), max(part.high for part in ends))


def _range(graph: OnnxGraph, node: Any) -> tuple[float, float, float] | None:
    """Lowest and highest value and the step of a (de)quantiser, the widest where it has one per channel."""
    scale = graph.constant(node.input[1])
    zero = graph.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if scale is None or (zero is None and len(node.input) > 2 and node.input[2]):
        return None
    if zero is None:
        zero = np.zeros((), np.uint8)  # what the operator takes without one
        if attribute(node, "output_dtype", 0):
            return None
    if zero.dtype.kind not in "iu":
        return None
    limits, offset = np.iinfo(zero.dtype), zero.astype(np.float64)
    steps = scale.astype(np.float64)
    low, high = (limits.min - offset) * steps, (limits.max - offset) * steps
    return float(low.min()), float(high.max()), float(steps.max())
