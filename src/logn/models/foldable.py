"""Write a map into a model file without running over images: ONNX, Ultralytics or Hugging Face, proven on noise."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from logn.base.arrays import FloatArray
from logn.correction.correct import write_model
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.layer import fingerprint
from logn.models.open import Hints, open_model
from logn.models.opened import ImageFiles, TorchModel


@dataclass(frozen=True)
class Foldable:
    """A model file that takes a map.

    Args:
        num_columns: Columns of its class logits.
        class_names: Their names; None where the file does not say.
        activation: What follows them: "sigmoid" or "softmax".
        has_objectness: Whether users multiply the scores by an objectness that the model gives beside them.
        layer: Where the logits are.
        write: Writes the model with a map, and with factors of its class scores where it has an objectness; gives the
            largest difference from what the logits should be, and the number of rows that were compared.
    """

    num_columns: int
    class_names: tuple[str, ...] | None
    activation: str | None
    has_objectness: bool
    layer: str
    write: Callable[[ClassAffine, Path, FloatArray | None], tuple[float, int]]


def open_to_fold(
    model: str | os.PathLike[str],
    class_names: Sequence[str] | str | os.PathLike[str] | None = None,
    tensor: Sequence[str] | None = None,
    **hints: Any,
) -> Foldable:
    """Open a file to write a map into; one that holds a map already is refused.

    Args:
        model: An `.onnx` file, an Ultralytics `.pt` (with `trust=True`) or a Hugging Face folder.
        class_names: ONNX files that do not name their classes: the names, or a file with one per line.
        tensor: ONNX: the tensors that hold the logits, where the search finds several.
        hints: How to open other models: `trust`, `device`.
    """
    if Path(model).suffix.lower() == ".onnx":
        return _open_onnx(Path(model), class_names, tuple(tensor or ()))
    for option, value in (("class_names", class_names), ("tensor", tensor)):
        if value is not None:
            raise InputError(f"Expected `{option}` only with an ONNX file, but got `{model}`.")
    return _open_torch(os.fspath(model), hints)


def _open_onnx(path: Path, class_names: Any, tensors: tuple[str, ...]) -> Foldable:
    from logn.data.class_tables import read_class_names
    from logn.models.onnx.boxes import find_objectness
    from logn.models.onnx.description import describe
    from logn.models.onnx.file import read_onnx
    from logn.models.onnx.fold import fold_onnx, refuse_folded_file
    from logn.models.onnx.locate import BOX_AND_OBJECTNESS, locate_onnx_logits, trial_values, wanted_of

    file = read_onnx(path)
    refuse_folded_file(file.model, path)
    description = describe(file)
    is_file = isinstance(class_names, str | os.PathLike)
    number = None if class_names is None or is_file else len(class_names)
    logits, inputs = locate_onnx_logits(file, wanted_of(description, number, tensors))
    names = description.names_of(logits.num_columns) if class_names is None else class_names
    names = read_class_names(class_names, logits.num_columns) if is_file else names
    values = trial_values(file, logits, inputs)
    layout = None if values is None else find_objectness(file.graph, logits, values)

    def write(affine: ClassAffine, output: Path, class_factors: FloatArray | None) -> tuple[float, int]:
        options: dict[str, Any] = {"inputs": inputs, "class_factors": class_factors, "overwrite": True}
        report = fold_onnx(file, affine, output, tensor=logits.tensors, **options)
        return report.largest_difference, report.rows

    return Foldable(
        logits.num_columns,
        None if names is None else tuple(names),
        logits.activation or "sigmoid",
        layout is not None or logits.start == BOX_AND_OBJECTNESS,
        ", ".join(logits.tensors),
        write,
    )


def _open_torch(name: str, hints: dict[str, Any]) -> Foldable:
    source = open_model(name, Hints(**hints))
    if not isinstance(source, TorchModel):
        raise InputError(f"`{name}` is not a torch model that a map can be written into.")
    source.check()
    names, layer = source.class_names, source.layer

    def write(affine: ClassAffine, output: Path, class_factors: FloatArray | None) -> tuple[float, int]:
        if output.suffix.lower() != source.traits.suffix:
            raise InputError(f"`{output}` is not of the same kind as `{name}`: choose another name for the output.")
        if affine.source is not None:  # by which the new file is known to hold a map
            affine = affine.with_source(replace(affine.source, fingerprint=fingerprint(source.network)))
        noise = np.random.default_rng(0).integers(0, 256, (2, 320, 320, 3), np.uint8)
        images = ImageFiles([lambda: noise[0], lambda: noise[1]])
        # YOLO26 has two heads, which share the classes.
        proof, _ = write_model(source, (affine,) * layer.num_stages, output, images)
        return proof.largest_difference, proof.rows

    return Foldable(len(names or ()), names, layer.activation, False, ", ".join(layer.paths), write)
