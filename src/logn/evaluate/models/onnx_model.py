"""An ONNX file as `correct` wants it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from logn.calibrators.affine import ClassAffine
from logn.deploy.onnx_fold import TOLERANCE, Proof, fold_onnx, refuse_folded_file
from logn.errors import InputError, LogNWarning
from logn.evaluate.models.model_kinds import Advance, ImageFiles, Traits, preprocessing_in_words
from logn.logits.images import PRESETS, Preprocessing
from logn.logits.onnx.file import OnnxFile, read_onnx
from logn.logits.onnx.images import Description, require_size, settle
from logn.statistics.moments import ClassMoments
from logn.statistics.record_onnx import plan_batches, record_onnx


@dataclass(frozen=True)
class LogitHints:
    """What the user says about the class logits of an ONNX file, None where that is nothing.

    Args:
        activation: "softmax" or "sigmoid".
        background: Place of the background column, 0 or -1.
        tensor: Names of the tensors that hold the logits.
        num_classes: Columns, the background included.
        class_names: Name of each column, or a file of them.
    """

    activation: str | None = None
    background: int | None = None
    tensor: Sequence[str] | None = None
    num_classes: int | None = None
    class_names: Any = None

    def refuse(self, what: str) -> None:
        """Refuse hints about a model that tells all of it but the activation."""
        for name in ("background", "tensor", "num_classes", "class_names"):
            if getattr(self, name) is not None:
                raise InputError(f"Expected `{name}` only with an ONNX file, but got {what}.")


@dataclass
class OnnxModel:
    """An ONNX file, run by onnxruntime.

    Args:
        file: The file, read once.
        like: The name of a preset, where the user gives one.
        preprocessing: How images become inputs.
        description: What is known of the model beside its graph.
        hints: What the user says about its logits.
        traits: What is known of it.
        tensors: Where its logits were found, once it has run.
    """

    file: OnnxFile
    like: str | None
    preprocessing: Preprocessing
    description: Description
    hints: LogitHints
    traits: Traits
    tensors: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse a file that holds a correction already."""
        refuse_folded_file(self.file.model, self.file.path)

    def collect(
        self,
        images: ImageFiles,
        *,
        batch: int | None = None,
        sample_rows: int | None = None,
        progress: Advance = lambda count: None,
    ) -> tuple[ClassMoments, ...]:
        """Run it over the images once."""
        hints, left_out = self.hints, list[Path]()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* could not be read", category=LogNWarning)
            moments = record_onnx(
                self.file,
                images.paths,
                self.preprocessing,
                like=self.like,
                tensor=hints.tensor,
                num_classes=hints.num_classes,
                activation=hints.activation,
                background=hints.background,
                class_names=hints.class_names,
                batch_size=batch or 1,
                sample_rows=4096 if sample_rows is None else sample_rows,
                skip_unreadable=images.skip_unreadable,
                progress=progress,
                skipped=left_out.extend,
            )
        images.unreadable |= dict.fromkeys(left_out, "it cannot be read")
        self.tensors = tuple(str(moments.metadata.layer).split(", "))
        return (moments,)

    def write(self, maps: Sequence[ClassAffine], output: Path, images: ImageFiles) -> Proof:
        """Fold the map into the file and run both files on the images."""
        (affine,) = maps
        batches = plan_batches(self.file.inputs, self.preprocessing, 1)
        runs = [inputs for inputs, _ in islice(batches.read(images.paths, None), len(images.paths))]
        report = fold_onnx(
            self.file,
            affine,
            output,
            tensor=self.tensors,
            inputs=runs,
        )
        return Proof(
            report.largest_difference, report.largest_logit, TOLERANCE * max(1.0, report.largest_logit), report.rows
        )


def open_onnx(path: Path, like: str | None, given: Mapping[str, Any], hints: LogitHints) -> OnnxModel:
    """An ONNX file, with what the file and the user say about it; what nobody says is asked."""
    file = read_onnx(path)
    preprocessing, description = settle(file, like, **given)
    if description.preset is None and not given:
        raise InputError(
            f"Expected `like` for `{path}`, which does not say how its images are prepared: one of "
            f"{', '.join(PRESETS)}; or the points of it one by one (`--size`, `--resize`, `--mean`, `--std`, "
            "`--max-value`, `--channels`)."
        )
    require_size(file, preprocessing)
    said = f" ({description.source})" if description.source else ""
    producer = f", {file.model.producer_name}" if file.model.producer_name else ""
    traits = Traits(f"ONNX{producer}", preprocessing_in_words(preprocessing) + said, ".onnx")
    return OnnxModel(file, like, preprocessing, description, hints, traits)
