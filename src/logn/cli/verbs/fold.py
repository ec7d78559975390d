"""`logn fold`: a model and a correction in, the corrected model out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.base.arrays import DEFAULT_AT
from logn.cli import options
from logn.cli.console import count_of, print_json, print_note, print_text
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.models.onnx.fold import FoldReport


def fold(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx, .pt or Hugging Face model; not changed.")],
    output: options.Output,
    correction: Annotated[Path | None, typer.Argument(metavar="CORRECTION", help="File from logn fit.")] = None,
    thresholds: options.OptionalThresholds = None,
    at: options.At = DEFAULT_AT,
    class_names: options.ClassNames = None,
    tensor: options.Tensor = None,
    activation: options.ActivationOption = None,
    size: options.Size = None,
    trust: options.Trust = False,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Write a correction, or a threshold per class, into a model: same inputs, outputs and speed.

    A correction goes into ONNX files. Thresholds by class name go into .onnx,
    Ultralytics .pt and Hugging Face models with sigmoid scores, so that the one
    threshold --at acts as all of them: your own, or those of LibreYOLO, Roboflow
    or a .csv. The new file is written only after it was proven on random inputs.

    Examples:
      logn fold model.onnx affine.safetensors -o corrected.onnx
      logn fold best.onnx --thresholds '{"car": 0.5, "person": 0.2}' --at 0.25 -o shipped.onnx
      logn fold best.pt --trust --thresholds thresholds.json -o shipped.pt
    """
    from logn.methods.affine import ClassAffine

    if thresholds is not None:
        options.check_output(output, model, thresholds, class_names, overwrite=overwrite)
        hints: dict[str, Any] = {"trust": trust} if model.suffix.lower() != ".onnx" else {}
        if correction is not None:
            raise InputError("Pass a correction or `--thresholds`, not both.")
        given = {"class_names": class_names, "tensor": tensor, "overwrite": overwrite, **hints}
        _fold_thresholds(model, thresholds, output, at, json, **given)
        return
    if correction is None:
        raise InputError("Pass a correction, which is a file from `logn fit`, or `--thresholds`.")
    _check_kind(model)
    options.check_output(output, model, correction, class_names, overwrite=overwrite)
    affine = ClassAffine.load(correction)
    from logn.models.onnx.fold import fold_onnx

    report = fold_onnx(
        model,
        affine,
        output,
        tensor=tensor or None,
        activation=activation,
        inputs=_random_images(model, options.parse_size(size)),
        class_names=class_names,
        overwrite=overwrite,
    )
    if json:
        print_json(asdict(report))
        return
    _print(report)
    print_note(f"Use it instead of {model}. Its scores have changed: choose score thresholds again.")


def _fold_thresholds(model: Path, thresholds: str, output: Path, at: float, as_json: bool, **given: Any) -> None:
    from logn.thresholds import fold_thresholds

    done = fold_thresholds(model, thresholds, output, at=at, **given)
    if as_json:
        numbers = {"largest_difference": done.largest_difference, "rows": done.rows, "notes": done.folded.points.notes}
        named = dict(zip(done.folded.points.class_names, done.folded.points.thresholds.tolist(), strict=True))
        print_json({"output": output, "at": done.folded.points.at, "thresholds": named, "layer": done.layer, **numbers})
        return
    for note in done.folded.points.notes:
        print_note(note)
    print_text(
        f"{output}: a threshold per class is in {options.listed(done.layer.split(', '), 1)}, proven on "
        f"{count_of(done.rows, 'row')} of logits (largest difference {done.largest_difference:.2g})."
    )
    print_text(done.folded.describe())
    print_text(f"Keep using {done.folded.points.at:g}: it now acts as your per-class thresholds.")


def _check_kind(model: Path) -> None:
    if model.suffix.lower() == ".onnx":
        return
    if model.suffix.lower() in (".pt", ".pth", ".bin", ".safetensors", ".ckpt"):
        raise InputError(
            f"`{model}` is not an ONNX file: fold a PyTorch model in Python with logn.fold(model, layer, affine)."
        )
    from logn.models.onnx.file import engine_file

    engine = engine_file(model)
    what = "pass one that ends in .onnx" if engine is None else f"it is {engine}"
    raise InputError(f"`{model}` is not an ONNX file: {what}.")


def _random_images(model: Path, size: tuple[int, int] | None) -> dict[str, Any] | None:
    """Inputs of `size` to prove the fold on; None for the size that the model declares."""
    if size is None:
        return None
    from logn.models.onnx.file import ImageInput, read_onnx
    from logn.models.preprocessing import Preprocessing

    return ImageInput(read_onnx(model).inputs, Preprocessing(size=size)).random()


def _print(report: FoldReport) -> None:
    tensors = f"`{report.tensors[0]}`" + (f" and {len(report.tensors) - 1} more" if len(report.tensors) > 1 else "")
    print_text(f"{report.output_path}: the correction is two nodes behind {tensors}.")
    print_text(
        f"Proven on {count_of(report.rows, 'row')} of logits at {tensors}: the largest difference from "
        f"scale x logit + shift is {report.largest_difference:.2g} (logits of up to {report.largest_logit:.3g})."
    )
