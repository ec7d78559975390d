"""Score thresholds: one per class, chosen on labelled images or given, and folded into the model.

For a sigmoid head a threshold per class is a shift of its logit, `logit(at) - logit(threshold)`: after it, the one
threshold `at` acts as all of them, before NMS, in any engine.

Example:
    >>> import numpy as np
    >>> points = OperatingPoints.from_thresholds({"car": 0.5, "person": 0.2}, at=0.25)
    >>> logits = np.array([[0.1, -1.0], [-0.1, -2.0]])  # scores 0.52, 0.27 and 0.48, 0.12
    >>> (1 / (1 + np.exp(-points.affine()(logits))) >= 0.25).tolist()
    [[True, True], [False, False]]
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from logn.errors import InputError
from logn.evaluate.thresholds.choose import Goal as Goal
from logn.evaluate.thresholds.fold import FoldedPoints as FoldedPoints
from logn.evaluate.thresholds.operating_points import operating_points as operating_points
from logn.evaluate.thresholds.points import ClassPoint as ClassPoint
from logn.evaluate.thresholds.points import OperatingPoints as OperatingPoints
from logn.files import check_new

__all__ = [
    "ClassPoint",
    "FoldedModel",
    "FoldedPoints",
    "Goal",
    "OperatingPoints",
    "fold_thresholds",
    "operating_points",
]
_NO_SOFTMAX = (
    "Expected a model with sigmoid scores for thresholds without images, but `{name}` ends in a softmax: choose them "
    "on labelled images, with `logn correct {name} --data LABELS --thresholds f1`."
)


@dataclass(frozen=True)
class FoldedModel:
    """What `fold_thresholds` did.

    Args:
        output: The model that was written.
        points: The threshold of each class.
        layer: The class layer, or the output that was scaled.
        largest_difference: Largest distance of the new logits (or scores) from what they should be.
        rows: How many rows of logits were compared.
        notes: What to know about it.
    """

    output: Path
    points: OperatingPoints
    layer: str
    largest_difference: float
    rows: int
    notes: tuple[str, ...] = ()


def fold_thresholds(
    model: str | os.PathLike[str],
    thresholds: str | os.PathLike[str] | Mapping[str, float] | OperatingPoints,
    output: str | os.PathLike[str],
    *,
    at: float | None = None,
    class_names: Sequence[str] | str | os.PathLike[str] | None = None,
    tensor: Sequence[str] | None = None,
    allow_refold: bool = False,
    overwrite: bool = False,
) -> FoldedModel:
    """Write thresholds per class into a model with sigmoid scores, so that one threshold acts as all of them.

    Nothing else is needed: no images, no labels. The model is written under a temporary name, read back and run on
    noise, and gets its name only if its logits are those of the old one, shifted.

    Args:
        model: An `.onnx` file.
        thresholds: Thresholds by class name, JSON text, a .json or .csv file, or `OperatingPoints`. Classes that are
            not named have `at`, or the threshold of the key "default".
        output: The model to write, of the same kind.
        at: The one threshold that acts as all of them; by default what `thresholds` says, else 0.25.
        class_names: ONNX files that do not name their classes: the names, or a file with one per line.
        tensor: ONNX: the tensors that hold the logits, where the search finds several.
        allow_refold: Fold on top of a map that is in the model already.
        overwrite: Replace the output.
    """
    name, target = os.fspath(model), Path(output)
    if not target.absolute().parent.is_dir():
        raise InputError(f"Expected the folder of `{target}` to exist, but `{target.parent}` does not.")
    if Path(name).suffix.lower() == ".onnx":
        options = {"allow_refold": allow_refold, "overwrite": overwrite}
        return _fold_onnx(Path(name), thresholds, target, at, class_names, tuple(tensor or ()), options)
    raise InputError(f"Expected an ONNX file, but got `{name}`.")


def points_for(thresholds: Any, at: float | None, class_names: Sequence[str] | None, name: str) -> OperatingPoints:
    """The threshold of each class of a model; those of other classes are refused."""
    if isinstance(thresholds, Mapping):
        points = OperatingPoints.from_thresholds(thresholds, 0.25 if at is None else at, class_names)
    elif isinstance(thresholds, OperatingPoints):
        points = thresholds if at is None else replace(thresholds, at=at)
    else:
        points = OperatingPoints.load(thresholds, at, class_names)
    if class_names is not None and points.class_names != tuple(class_names):
        raise InputError(f"Expected thresholds of the classes of `{name}`, but they are of other classes.")
    return points


def _fold_onnx(
    path: Path,
    thresholds: Any,
    target: Path,
    at: float | None,
    class_names: Any,
    tensors: tuple[str, ...],
    options: dict[str, bool],
) -> FoldedModel:
    from logn.classes.tables import read_class_names
    from logn.deploy.onnx_fold import fold_onnx, refuse_folded_file
    from logn.logits.onnx.boxes import find_objectness
    from logn.logits.onnx.file import OnnxGraph, OnnxSession, exposing, read_onnx
    from logn.logits.onnx.images import describe
    from logn.logits.onnx.locate import BOX_AND_OBJECTNESS, locate_onnx_logits, wanted_of

    file = read_onnx(path)
    if not options["allow_refold"]:
        refuse_folded_file(file.model, path)
    description = describe(file)
    number = None if class_names is None or isinstance(class_names, str | os.PathLike) else len(class_names)
    logits, inputs = locate_onnx_logits(file, wanted_of(description, number, tensors))
    if logits.activation == "softmax":
        raise InputError(_NO_SOFTMAX.format(name=path))
    columns = logits.num_classes
    names = description.names_of(columns) if class_names is None else class_names
    names = read_class_names(names, columns) if isinstance(names, str | os.PathLike) else names
    points = points_for(thresholds, at, names, str(path))
    if len(points.points) != columns:
        raise InputError(
            f"Expected the {columns} class names of `{path}`, which does not name them: pass `class_names` "
            "(`--class-names FILE`)."
        )
    values = OnnxSession(exposing(file.model, logits.tensors), str(path)).run(inputs)
    rows = all(values[tensor].ndim >= 3 for tensor in logits.tensors)
    layout = find_objectness(OnnxGraph(file.model), logits, values) if rows else None
    if layout is not None:
        check_new(target, overwrite=options["overwrite"])
        return _scale_scores(file, layout, points, target, inputs)
    if logits.start == BOX_AND_OBJECTNESS:
        raise InputError(f"Expected `{path}` to give its boxes with their objectness and scores in one output.")
    refold, overwrite = options["allow_refold"], options["overwrite"]
    report = fold_onnx(
        path,
        points.affine(),
        target,
        tensor=logits.tensors,
        inputs=inputs,
        allow_refold=refold,
        allow_mismatch=refold,
        overwrite=overwrite,
    )
    return FoldedModel(target, points, ", ".join(report.tensors), report.largest_difference, report.rows)


def _scale_scores(file: Any, layout: Any, points: OperatingPoints, target: Path, inputs: Any) -> FoldedModel:
    """Scale the class scores of an output: the user multiplies them by the objectness, so this is exact, a shift not.

    `objectness * score >= threshold` is the same as `objectness * (score * at / threshold) >= at`.
    """
    import onnx

    from logn.deploy.onnx_fold import write_fold
    from logn.logits.onnx.file import OnnxGraph, OnnxSession
    from logn.logits.onnx.layers import add_initializer, insert_after

    if layout.raw_objectness or points.correction is not None:
        raise InputError(
            f"Expected sigmoid scores and no correction before the thresholds, since `{file.path}` has an objectness."
        )
    (output,) = layout.outputs
    before = OnnxSession(file.model, str(file.path)).run(inputs)[output]
    factors = np.concatenate([np.ones(layout.objectness + 1), points.at / points.thresholds])
    factors = factors[:, None] if layout.transposed else factors
    graph = OnnxGraph(file.model)
    insert_after(graph, output, "Mul", add_initializer(graph, "logn_thresholds", factors.astype(before.dtype)))
    write_fold(file.model, points.affine(), (output,), "scores")
    with tempfile.TemporaryDirectory(prefix=f".{target.stem}.", suffix=".partial", dir=target.parent) as folder:
        written = Path(folder) / target.name
        onnx.save_model(file.model, str(written))
        after = OnnxSession(onnx.load(str(written)), str(target)).run(inputs)[output]
        difference = float(np.abs(after - before * factors).max())
        if not difference <= 1e-5 * max(1.0, float(np.abs(before).max())):
            raise InputError(f"Expected the scores of `{target}` to be scaled, but they are off by {difference:.3g}.")
        os.replace(written, target)
    notes = ["The model has an objectness: its class scores are scaled (one Mul at the output), which is exact."]
    if points.thresholds.min() < points.at:
        notes.append(f"Scores may exceed 1, since a threshold is below {points.at:g}; a lower `at` avoids that.")
    rows = after.size // factors.size
    return FoldedModel(target, points, output, difference, rows, tuple(notes))
