"""A cascade whose stages are corrected one by one, each by its own statistics, before their logits are averaged."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from logn.calibrators.affine import ClassAffine
from logn.deploy.attach import attach
from logn.errors import InputError
from logn.logits.layer import fingerprint


def stage_file(path: Path, stage: int) -> Path:
    """The file of a stage: its number stands before the suffix.

    Example:
        >>> stage_file(Path("statistics.safetensors"), 1).name
        'statistics.1.safetensors'
    """
    return path.with_suffix(f".{stage}{path.suffix}")


def correct_stages(detector: Any, maps: Sequence[ClassAffine]) -> str:
    """Attach a map to each stage of a cascade; `propose` then averages corrected logits, as the official code does.

    Args:
        detector: A cascade.
        maps: One for each stage, in their order.

    Returns:
        The fingerprint of the corrected detector: its logits are others than those of the weights alone, so that
        neither statistics nor maps of these are taken for its own.
    """
    layer = detector.logit_layer
    if not layer.stages:
        raise InputError(f"Expected a cascade to correct stage by stage, but `{layer.name}` is the only class layer.")
    digest = hashlib.sha256(fingerprint(detector).encode())
    attach(detector, layer, list(maps))  # refuses another number of maps, and those of other weights
    for affine in maps:
        digest.update(affine.scale.tobytes() + affine.shift.tobytes())
    return f"stages:{digest.hexdigest()}"
