"""Model files with thresholds: folding given ones into a file, and correcting a model with thresholds at once."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from logn.base.arrays import DEFAULT_AT, foreground_columns
from logn.base.files import check_new, require_place
from logn.correction.correct import Correction, correct
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.methods.provenance import foreground_names
from logn.methods.recommend import NONE, RECOMMENDED
from logn.models.foldable import open_to_fold
from logn.models.open import choose_device, detector, move_to
from logn.models.opened import ImageSource, Model, OnnxModel, as_tensor, network_of
from logn.models.proposals import Postprocessing
from logn.predictions.predict import predict
from logn.statistics.moments import ClassMoments
from logn.thresholds.choose import Goal, operating_points, read_detections
from logn.thresholds.points import FoldedPoints, OperatingPoints
from logn.thresholds.scored_detections import DrawnDetections


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
        hints: How to open the model. ONNX: `class_names`, a sequence or a file with one per line, where the file does
            not name its classes; `tensor`, the tensors that hold the logits, where the search finds several. Other
            models: `trust`, `device`.
    """
    name, target = os.fspath(model), Path(output)
    check_new(target, overwrite=overwrite)
    require_place(target)
    file = open_to_fold(name, **hints)
    if file.activation != "sigmoid":
        raise InputError(
            f"`{name}` ends in a softmax, whose thresholds need labelled images: "
            f"`logn correct {name} --data LABELS --thresholds f1`."
        )
    points = points_for(thresholds, at, file.class_names, name)
    if len(points.points) != file.num_columns:
        raise InputError(
            f"`{name}` does not name its {file.num_columns} classes: pass `class_names` (`--class-names`)."
        )
    folded = points.fold(at_output=file.has_objectness)
    return FoldedModel(folded, file.layer, *file.write(folded.affine, target, folded.factors))


def points_for(thresholds: Any, at: float | None, class_names: Sequence[str] | None, name: str) -> OperatingPoints:
    """The threshold of each class of a model; those of other classes are refused."""
    points = OperatingPoints.load(thresholds, at, class_names)
    if class_names is not None and points.class_names != tuple(class_names):
        raise InputError(f"The thresholds and `{name}` are of different classes.")
    return points


def correct_with_thresholds(
    model: str | os.PathLike[str],
    images: ImageSource,
    output: str | os.PathLike[str] | None = None,
    thresholds: Any = "f1",
    *,
    labels: Any = None,
    label_images: str | os.PathLike[str] | None = None,
    at: float = DEFAULT_AT,
    method: str | ClassAffine = RECOMMENDED,
    **options: Any,
) -> tuple[Correction, FoldedPoints]:
    """Correct a model as `logn.correct` does, and fold a threshold per class with the correction.

    Args:
        model: As for `logn.correct`.
        images: Training images, as for `logn.correct`; their labels are not used.
        output: The model to write; None writes nothing.
        thresholds: What to choose them for: "f1", "precision=0.9" or "recall=0.8" in each class, "fppi=1" over all
            classes. Or thresholds that exist, as for `fold_thresholds`; they apply to the corrected scores.
        labels: Labelled images to choose on: COCO, LVIS, YOLO or VOC. Given thresholds need none.
        label_images: Folder that the image paths of `labels` start from; by default that of the labels.
        at: The threshold that the model is used with, before and after.
        method: The correction before the thresholds; "none" for thresholds alone.
        options: As for `logn.correct`: `like`, `trust`, `overwrite`, `size` and so on.
    """
    is_goal = isinstance(thresholds, str) and re.match(r"(f1|precision|recall|fppi)\b", thresholds)
    if is_goal and labels is None:
        raise InputError("Thresholds are chosen on labelled images: pass `labels` (`--data`).")
    if is_goal:
        Goal.parse(thresholds)
    made: list[FoldedPoints] = []

    def add_thresholds(source: Model, moments: Sequence[ClassMoments], maps: Sequence[ClassAffine]) -> ClassAffine:
        if len(moments) > 1:
            raise InputError(f"The model has {len(moments)} sets of class logits; thresholds fit a model with one.")
        correction = None if maps[0].method == NONE else maps[0]
        at_output = isinstance(source, OnnxModel) and moments[0].sample_objectness is not None
        if is_goal:
            with tempfile.TemporaryDirectory(prefix="logn-thresholds-") as folder:
                predict(_detector(model, options), labels, folder, images=label_images)
                points = operating_points(folder, labels, thresholds, correction, at=at, allow_missing_classes=True)
                plain, _ = read_detections(folder, labels, allow_missing_classes=True)
                counts = DrawnDetections.once(plain).at(at)[:2, :, 0]
                folded = replace(points.fold(at, folder, at_output=at_output), uncorrected=counts)
        else:
            points = _given(thresholds, correction, moments[0], at, os.fspath(model))
            if not isinstance(source, OnnxModel):
                points = replace(points, settings={**points.settings, "objectness": _has_objectness(model, options)})
            folded = points.fold(at, at_output=at_output)
        if isinstance(source, OnnxModel):
            source.class_factors = folded.factors
        made.append(folded)
        return folded.affine

    done = correct(model, images, output, method=method, then=add_thresholds, at=at, **options)
    return done, made[0]


def _detector(model: str | os.PathLike[str], options: Mapping[str, Any]) -> Any:
    names = ("trust", "like", "size", "class_names", "activation", "background", "tensor")
    opened = detector(model, **{name: options[name] for name in names if options.get(name) is not None})
    return move_to(opened, str(choose_device(options.get("device", "auto")))) if network_of(opened) else opened


def _has_objectness(model: str | os.PathLike[str], options: Mapping[str, Any]) -> bool:
    """Whether something else multiplies the class scores of a detector, as FCOS's centerness does."""
    with contextlib.suppress(InputError):  # a classifier
        source = _detector(model, options)
        (example,) = source.propose([as_tensor(np.zeros((64, 64, 3), np.uint8))])
        kind = getattr(source, "postprocessing", None) or Postprocessing()
        return example.objectness is not None and kind.objectness != "added"
    return False


def _given(
    thresholds: Any, correction: ClassAffine | None, moments: ClassMoments, at: float, name: str
) -> OperatingPoints:
    """Thresholds that exist; those of a file that has its own correction keep it."""
    metadata = moments.metadata
    points = points_for(thresholds, at, foreground_names(metadata), name)
    if points.goal != "given":
        return points
    columns = np.arange(moments.num_columns)[foreground_columns(moments.num_columns, metadata.background)]
    facts = {"columns": columns.tolist(), "num_columns": moments.num_columns}
    return replace(points, correction=correction, source=metadata, settings=facts)
