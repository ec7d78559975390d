"""Thresholds that exist, written into a model file with sigmoid scores: no images, no labels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from logn.base.files import require_place
from logn.data.class_names import names_differ
from logn.errors import InputError
from logn.models.hints import Hints
from logn.models.open import open_correctable
from logn.models.write import check_suffix, check_target, write_model
from logn.thresholds.points import FoldedPoints, OperatingPoints


@dataclass(frozen=True)
class FoldedModel:
    """What `fold_thresholds` did.

    Args:
        folded: The thresholds that were folded, and what stays and what changes.
        layer: The class layer.
        largest_difference: Largest distance of the new logits from what they should be.
        rows: How many rows of logits were compared.
    """

    folded: FoldedPoints
    layer: str
    largest_difference: float
    rows: int


def fold_thresholds(
    model: str | os.PathLike[str],
    thresholds: str | os.PathLike[str] | Mapping[str, float] | OperatingPoints,
    output: str | os.PathLike[str],
    *,
    at: float | None = None,
    overwrite: bool = False,
    **hints: Any,
) -> FoldedModel:
    """Write thresholds per class into a model with sigmoid scores, so that one threshold acts as all of them.

    Nothing else is needed: no images, no labels. The model is written under a temporary name, read back and run on
    noise, and gets its name only if its logits are those of the old one, shifted.

    Args:
        model: An `.onnx` file, an Ultralytics `.pt` (with `trust=True`) or a Hugging Face folder.
        thresholds: Thresholds by class name, JSON text, a .json or .csv file, or `OperatingPoints`. Classes that are
            not named have `at`, or the threshold of the key "default".
        output: The model to write, of the same kind.
        at: The one threshold that acts as all of them; by default what `thresholds` says, else 0.25.
        overwrite: Replace the output.
        hints: Fields of `logn.Hints`. ONNX: `class_names`, a sequence or a file with one per line, where the file does
            not name its classes; `tensor`, the tensors that hold the logits, where the search finds several. Other
            models: `trust`, `device`.
    """
    name, target = os.fspath(model), Path(output)
    require_place(target)
    check_target(name, target, overwrite=overwrite)
    opened = open_correctable(name, Hints(**hints))
    check_suffix(opened, target)
    opened.check()
    head = opened.head
    if head.activation is None:
        raise InputError(f'`{name}` does not say what follows its logits: pass activation="sigmoid" if sigmoids do.')
    if head.activation != "sigmoid":
        raise InputError(
            f"`{name}` ends in a softmax, whose thresholds need labelled images: "
            f"`logn correct {name} --data LABELS --thresholds f1`."
        )
    points = points_for(thresholds, at, head.class_names, name)
    if len(points.points) != head.num_classes:
        raise InputError(f"`{name}` does not name its {head.num_classes} classes: pass `class_names`.")
    if points.head is not None:
        for sentence in points.head.fits(replace(head, source=None), "the thresholds", f"`{name}`"):
            raise InputError(f"{sentence}; choose thresholds for this model.")
    folded = replace(points, head=head).fold(at_output=head.objectness and opened.scales_scores)
    maps = (folded.affine,) * opened.num_stages  # YOLO26 has two heads, which share the classes
    sides = {} if opened.marks_itself else {"affine": maps}
    proof, _ = write_model(opened, maps, target, sides=sides, overwrite=overwrite, class_factors=folded.factors)
    return FoldedModel(folded, str(head.layer), proof.largest_difference, proof.rows)


def points_for(thresholds: Any, at: float | None, class_names: Sequence[str] | None, name: str) -> OperatingPoints:
    """The threshold of each class of a model; those of other classes are refused."""
    points = OperatingPoints.load(thresholds, at, class_names)
    if class_names is not None and (
        difference := names_differ(points.class_names, "the thresholds", class_names, f"`{name}`")
    ):
        raise InputError(f"{difference}; choose thresholds for this model.")
    return points
