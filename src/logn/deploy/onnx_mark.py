"""The record that a fold leaves in an ONNX file, so that no map is folded in twice by accident."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.errors import InputError
from logn.logits.onnx.graph import OnnxGraph
from logn.logits.onnx.layers import LinearLayer
from logn.strict_json import parse_json

METADATA_KEY = "logn.folds"
# The mark that logn.fold leaves in the weights themselves (logn.deploy.fold_mark), which an export carries over.
_MARK_BITS = 64
_FEWEST_MARK_BITS = 24


def affine_digest(affine: ClassAffine) -> str:
    """SHA-256 of the numbers of a map.

    Example:
        >>> affine_digest(ClassAffine([1.0, 2.0], [0.0, 0.0]))[:8]
        '1e95e50c'
    """
    numbers = np.concatenate([affine.scale, affine.shift]).astype("<f8")
    return hashlib.sha256(f"{affine.background}".encode() + numbers.tobytes()).hexdigest()


def folds_of(model: Any) -> list[dict[str, Any]]:
    """The folds that a model has behind it, as its metadata records."""
    for entry in model.metadata_props:
        if entry.key == METADATA_KEY:
            with contextlib.suppress(ValueError):
                folds = parse_json(entry.value)
                if isinstance(folds, list) and all(isinstance(fold, dict) for fold in folds):
                    return folds
            return [{"method": "unreadable"}]
    return []


def write_fold(model: Any, affine: ClassAffine, tensors: Sequence[str], way: str) -> None:
    """Add a fold to the metadata of `model`."""
    record = {
        "method": affine.method,
        "settings": dict(affine.settings),
        "affine_sha256": affine_digest(affine),
        "num_classes": affine.num_classes,
        "background": affine.background,
        "tensors": list(tensors),
        "way": way,
    }
    folds = [*folds_of(model), record]
    for entry in [entry for entry in model.metadata_props if entry.key == METADATA_KEY]:
        model.metadata_props.remove(entry)
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, json.dumps(folds, sort_keys=True)


def refuse_folded_file(model: Any, path: Path) -> None:
    """Refuse a model whose metadata records a fold."""
    folds = folds_of(model)
    if folds:
        method = folds[-1].get("method") or "a map"
        raise InputError(
            f"Expected `{path}` to have no map folded into it, but it has one ({method}); fold the model that it was "
            "made from, or pass allow_refold=True (`--again`) to put another map on top."
        )


def refuse_folded_weights(graph: OnnxGraph, layers: Sequence[LinearLayer], path: Path) -> None:
    """Refuse weights that `logn.fold` changed before the model was exported."""
    for layer in layers:
        weight = graph.constant(layer.weight) if layer.reason is None else None
        if weight is None:
            continue
        # A MatMul holds the transpose of what PyTorch had.
        orders = [weight] if layer.kind == "Conv" else [weight, weight.T]
        if any(_has_mark(np.ascontiguousarray(array)) for array in orders):
            raise InputError(
                f"Expected `{path}` to have no map folded into it, but `{layer.weight}` was folded before the export; "
                "pass allow_refold=True (`--again`) to put another map on top."
            )


def _has_mark(weight: npt.NDArray[Any]) -> bool:
    kinds = {2: np.uint16, 4: np.uint32, 8: np.uint64}
    if weight.dtype.kind != "f":
        return False
    flat = weight.reshape(-1)
    places = np.flatnonzero(np.abs(flat) >= np.finfo(flat.dtype).tiny)[:_MARK_BITS]
    if len(places) < _FEWEST_MARK_BITS:
        return False
    digest = np.frombuffer(hashlib.sha256(b"logn.folded").digest(), np.uint8)
    pattern = np.unpackbits(digest, bitorder="little")[: len(places)]
    return bool(((flat[places].view(kinds[flat.dtype.itemsize]) & 1) == pattern).all())
