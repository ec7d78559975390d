"""The record that a fold leaves in an ONNX file, so that no map is folded in twice by accident."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from logn.calibrators.class_affine import ClassAffine
from logn.errors import InputError
from logn.strict_json import parse_json

METADATA_KEY = "logn.folded"


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
