"""Model files with thresholds: folding given ones into a file, and correcting a model with thresholds at once."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.affine import ClassAffine, foreground_names
from logn.calibrators.methods import fit
from logn.calibrators.recommend import DEFAULT_AT, NONE, RECOMMENDED, recommend
from logn.errors import InputError
from logn.evaluate.models.collect import ImageFiles, ImageSource, TorchModel, beside, network_of
from logn.evaluate.models.correct import Correction, correct
from logn.evaluate.models.open import Hints, choose_device, detector, move_to, open_model
from logn.evaluate.store.predict import predict
from logn.evaluate.thresholds.choose import Goal
from logn.evaluate.thresholds.fold import FoldedPoints
from logn.evaluate.thresholds.operating_points import counts_per_class, operating_points, read_detections
from logn.evaluate.thresholds.points import OperatingPoints
from logn.files import check_new
from logn.logits.arrays import foreground_columns
from logn.logits.layer import fingerprint
from logn.statistics.moments import ClassMoments

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
        class_names: ONNX files that do not name their classes: the names, or a file with one per line.
        tensor: ONNX: the tensors that hold the logits, where the search finds several.
        allow_refold: Fold on top of a map that is in the model already.
        overwrite: Replace the output.
        hints: How to open other models: `trust`, `device`.
    """
    name, target = os.fspath(model), Path(output)
    if not target.absolute().parent.is_dir():
        raise InputError(f"Expected the folder of `{target}` to exist, but `{target.parent}` does not.")
    if Path(name).suffix.lower() == ".onnx":
        options = {"allow_refold": allow_refold, "overwrite": overwrite}
        return _fold_onnx(Path(name), thresholds, target, at, class_names, tuple(tensor or ()), options)
    for option, value in (("class_names", class_names), ("tensor", tensor)):
        if value is not None:
            raise InputError(f"Expected `{option}` only with an ONNX file, but got `{name}`.")
    return _fold_torch(name, thresholds, target, at, hints, overwrite=overwrite)


def points_for(thresholds: Any, at: float | None, class_names: Sequence[str] | None, name: str) -> OperatingPoints:
    """The threshold of each class of a model; those of other classes are refused."""
    if isinstance(thresholds, Mapping):
        points = OperatingPoints.from_thresholds(thresholds, DEFAULT_AT if at is None else at, class_names)
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
    columns = logits.num_columns
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


def _fold_torch(
    name: str, thresholds: Any, target: Path, at: float | None, hints: Mapping[str, Any], *, overwrite: bool
) -> FoldedModel:
    check_new(target, overwrite=overwrite)
    source = open_model(name, Hints(**hints))
    if not isinstance(source, TorchModel) or source.class_names is None:
        raise InputError(f"Expected a model that names its classes, but `{name}` does not.")
    if source.layer.activation != "sigmoid":
        raise InputError(_NO_SOFTMAX.format(name=name))
    if target.suffix.lower() != source.traits.suffix:
        raise InputError(f"Expected `output` to be of the kind of `{name}`, but got `{target}`.")
    source.check()
    points = points_for(thresholds, at, source.class_names, name)
    affine = points.affine()
    if affine.source is not None:  # by which the new file is known to hold a map
        affine = affine.with_source(replace(affine.source, fingerprint=fingerprint(source.network)))
    maps = (affine,) * source.layer.num_stages  # YOLO26 has two heads, which share the classes
    noise = np.random.default_rng(0).integers(0, 256, (2, 320, 320, 3), np.uint8)
    with tempfile.TemporaryDirectory(prefix=f".{target.stem}.", suffix=".partial", dir=target.parent) as folder:
        written = Path(folder) / target.name
        proof = source.write(maps, written, ImageFiles([lambda: noise[0], lambda: noise[1]]))
        affine.save(beside(written, "affine", in_folder=not source.traits.suffix))
        for part in sorted(Path(folder).iterdir(), key=lambda part: part.name == target.name):
            os.replace(part, target.with_name(part.name))
    return FoldedModel(target, points, ", ".join(source.layer.paths), proof.largest_difference, proof.rows)


@dataclass(frozen=True)
class ModelThresholds:
    """Thresholds that went into a model with its correction.

    Args:
        points: The thresholds after the correction; their `found_before` is of the corrected model at `at`.
        folded: The map that was folded, with the share of detections that it keeps.
        uncorrected: Objects found and false alarms `(2, F)` of the model as it was, at `at`; None for given thresholds.
    """

    points: OperatingPoints
    folded: FoldedPoints
    uncorrected: npt.NDArray[np.int64] | None = None


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
) -> tuple[Correction, ModelThresholds]:
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
        raise InputError("Expected `labels` (`--data`) to choose thresholds on, but got none.")
    if is_goal:
        Goal.parse(thresholds)
    made: list[ModelThresholds] = []

    def add_thresholds(moments: Sequence[ClassMoments]) -> ClassAffine:
        if len(moments) > 1:
            raise InputError(f"Expected one set of class logits for thresholds, but the model has {len(moments)}.")
        correction = _correction(method, moments[0], at)
        if is_goal:
            source = _detector(model, options)
            made.append(_chosen(source, labels, label_images, thresholds, correction, at))
        else:
            made.append(_given(thresholds, correction, moments[0], at, os.fspath(model)))
        return made[0].folded.affine

    done = correct(model, images, output, method=add_thresholds, at=at, **options)
    return done, made[0]


def _correction(method: str | ClassAffine, moments: ClassMoments, at: float) -> ClassAffine | None:
    """The correction before the thresholds; None where there is little to correct."""
    if isinstance(method, ClassAffine):
        return method
    if method != RECOMMENDED:
        return None if method == NONE else fit(method, moments)
    recommendation = recommend(moments, threshold=at)
    return None if recommendation.method == NONE else recommendation.fit(moments)


def _detector(model: str | os.PathLike[str], options: Mapping[str, Any]) -> Any:
    names = ("trust", "like", "size", "class_names", "activation", "background", "tensor")
    opened = detector(model, **{name: options[name] for name in names if options.get(name) is not None})
    return move_to(opened, str(choose_device(options.get("device", "auto")))) if network_of(opened) else opened


def _chosen(
    source: Any, labels: Any, label_images: Any, goal: str, correction: ClassAffine | None, at: float
) -> ModelThresholds:
    """Thresholds chosen on the predictions for labelled images."""
    with tempfile.TemporaryDirectory(prefix="logn-thresholds-") as folder:
        predict(source, labels, folder, images=label_images)
        points = operating_points(folder, labels, goal, correction, at=at, allow_missing_classes=True)
        plain = read_detections(folder, labels, allow_missing_classes=True).scored
        uncorrected = np.array(counts_per_class(plain, plain.scores >= at))
        return ModelThresholds(points, points.fold(at, folder), uncorrected)


def _given(
    thresholds: Any, correction: ClassAffine | None, moments: ClassMoments, at: float, name: str
) -> ModelThresholds:
    """Thresholds that exist; those of a file that has its own correction keep it."""
    metadata = moments.metadata
    points = points_for(thresholds, at, foreground_names(metadata), name)
    if points.goal == "given":
        columns = np.arange(moments.num_columns)[foreground_columns(moments.num_columns, metadata.background)]
        facts = {"columns": columns.tolist(), "num_columns": moments.num_columns}
        facts["objectness"] = moments.sample_objectness is not None
        points = replace(points, correction=correction, source=metadata, settings=facts)
    return ModelThresholds(points, points.fold(at))
