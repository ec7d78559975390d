"""Proving that a folded ONNX model does what it should: both models run in onnxruntime and are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from logn.calibrators.class_affine import ClassAffine
from logn.deploy.onnx_outputs import check_outputs
from logn.errors import InputError
from logn.logits.arrays import FloatArray
from logn.logits.onnx.file import read_onnx
from logn.logits.onnx.graph import OnnxGraph
from logn.logits.onnx.session import Arrays, OnnxSession, exposing

# How far a logit may be off, relative to the largest one (or to 1).
TOLERANCE = 1e-4
HALF_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Proof:
    """What the comparison of two models gave.

    Attributes:
        largest_difference: Largest distance between the new logits and scale * old logits + shift.
        largest_logit: Largest magnitude of the latter.
        tolerance: What the difference may be at most.
        rows: How many rows of logits were compared; rows with NaN before the fold are not.
    """

    largest_difference: float
    largest_logit: float
    tolerance: float
    rows: int

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.largest_difference <= self.tolerance


def prove(
    original: Any,
    written: Path,
    tensors: Sequence[str],
    axis: int,
    affine: ClassAffine,
    inputs: Arrays | Sequence[Arrays],
    *,
    half: bool = False,
    layers: Sequence[str] = (),
    mapped: Any = None,
) -> Proof:
    """Run the original model and the file that was written, and compare their logits and all their outputs.

    Args:
        original: The `onnx.ModelProto` before the fold.
        written: The file after it.
        tensors: The tensors that hold the logits.
        axis: The class axis, counted from the end.
        affine: The map.
        inputs: What to run them on, once or several times.
        half: Whether the map was rounded to half precision.
        layers: The layers whose weights changed, by their node; empty where nodes were put in.
        mapped: The `onnx.ModelProto` with the map as nodes; None where the file is that.
    """
    session = OnnxSession(written, str(written.name))
    before = OnnxSession(exposing(original, tensors), "the model")
    _check_interface(before, session, original)
    after = OnnxSession(exposing(read_onnx(written).model, tensors), "the folded model")
    reference = after if mapped is None else OnnxSession(exposing(mapped, ()), "the model with the map as nodes")
    graph, proofs = OnnxGraph(original), []
    for run in [inputs] if isinstance(inputs, dict) else inputs:
        old, new = before.run(run), after.run(run)
        proofs.append(compare_logits(old, new, tensors, axis, affine, half=half))
        if proofs[-1].holds:
            tolerance = HALF_TOLERANCE if half else TOLERANCE
            check_outputs(graph, tensors, layers, old, new if mapped is None else reference.run(run), new, tolerance)
    worst = max(proofs, key=lambda proof: proof.largest_difference / proof.tolerance)
    return replace(worst, rows=sum(proof.rows for proof in proofs))


def compare_logits(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    tensors: Sequence[str],
    axis: int,
    affine: ClassAffine,
    *,
    half: bool = False,
) -> Proof:
    """Compare logits after the fold with the map of those before it, in float64.

    Example:
        >>> logits, affine = np.array([[1.0, 2.0]]), ClassAffine([2.0, 1.0], [0.0, 1.0])
        >>> compare_logits({"z": logits}, {"z": affine(logits)}, ["z"], -1, affine).holds
        True
    """
    difference, largest, rows = 0.0, 0.0, 0
    for tensor in tensors:
        old, new = before[tensor], after[tensor]
        if old.shape != new.shape:
            raise InputError(f"Expected `{tensor}` to keep its shape {old.shape}, but it became {new.shape}.")
        expected, found = affine(old.astype(np.float64), axis=axis), new.astype(np.float64)
        known = ~np.isnan(expected)  # where the model itself gives no number, there is nothing to compare
        difference = max(difference, _largest_difference(found[known], expected[known]))
        largest = max(largest, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
        rows += int(known.all(axis=axis).sum())
    tolerance = (HALF_TOLERANCE if half else TOLERANCE) * max(1.0, largest)
    return Proof(difference, largest, tolerance, rows)


def _largest_difference(found: FloatArray, expected: FloatArray) -> float:
    """Equal infinities differ by nothing; NaN for a number differs by infinity, though `max` would pass it over."""
    with np.errstate(invalid="ignore"):
        difference = np.where(found == expected, 0.0, np.abs(found - expected))
    return float(np.nan_to_num(difference, nan=np.inf, posinf=np.inf).max(initial=0.0))


def _check_interface(before: OnnxSession, after: OnnxSession, original: Any) -> None:
    """Refuse a model whose inputs or outputs changed."""
    names = [value.name for value in original.graph.output]
    if after.outputs != names:
        raise InputError(f"Expected the outputs {names} to stay, but they became {after.outputs}.")
    for kind in ("inputs", "outputs"):
        old, new = (_described(session, kind) for session in (before, after))
        changed = [name for name, shape in new.items() if old.get(name) != shape]
        if changed or (kind == "inputs" and set(old) != set(new)):
            raise InputError(f"Expected the {kind} to stay as they are, but {changed or sorted(set(old))} changed.")


def _described(session: OnnxSession, kind: str) -> dict[str, tuple[Any, ...]]:
    """Type and shape by name; what an open length is called does not count."""
    values = session.inputs if kind == "inputs" else session.output_values
    return {
        value.name: (value.type, *(length if isinstance(length, int) else None for length in value.shape))
        for value in values
    }
