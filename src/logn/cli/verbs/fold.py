"""`logn fold`: a model and a correction in, the corrected model out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli import options
from logn.cli.console import count_of, echo, print_json, print_note
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.deploy.onnx_fold import FoldReport


def fold(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx file; it does not change.")],
    correction: Annotated[Path, typer.Argument(metavar="CORRECTION", help="What logn fit wrote.")],
    output: options.Output,
    tensor: options.Tensor = None,
    activation: options.ActivationOption = None,
    size: options.Size = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Write a correction into an ONNX file: same inputs, same outputs, same speed.

    Both files run in onnxruntime, on random images of --size where the model leaves it open. The
    new file is written only if its logits are the corrected ones of the old file.

    Examples:
      logn fold model.onnx affine.safetensors -o corrected.onnx
      logn fold detr.onnx affine.safetensors -o corrected.onnx --activation softmax --size 800
    """
    from logn.calibrators.affine import ClassAffine

    _check_kind(model)
    options.check_output(output, model, correction, overwrite=overwrite)
    affine = ClassAffine.load(correction)
    from logn.deploy.onnx_fold import fold_onnx

    report = fold_onnx(
        model,
        affine,
        output,
        tensor=tensor or None,
        activation=activation,
        inputs=_random_images(model, options.parse_size(size)),
        overwrite=overwrite,
    )
    if json:
        print_json(asdict(report))
        return
    _print(report)
    print_note(f"Use it in the place of {model}; its scores are on another scale, so choose thresholds anew.")


def _check_kind(model: Path) -> None:
    if model.suffix.lower() == ".onnx":
        return
    if model.suffix.lower() in (".pt", ".pth", ".bin", ".safetensors", ".ckpt"):
        raise InputError(
            f"Expected `{model}` to be an ONNX file, but it ends in {model.suffix}: a PyTorch model is folded in "
            "Python, by logn.fold(model, layer, affine)."
        )
    from logn.logits.onnx.file import engine_file

    engine = engine_file(model)
    got = f"it ends in {model.suffix or 'no suffix'}" if engine is None else f"it is {engine}"
    raise InputError(f"Expected `{model}` to be an ONNX file, but {got}.")


def _random_images(model: Path, size: tuple[int, int] | None) -> dict[str, Any] | None:
    """Inputs of `size` to prove the fold on; None for the size that the model declares."""
    if size is None:
        return None
    from logn.logits.images import Preprocessing
    from logn.logits.onnx.file import model_inputs, random_inputs, read_onnx
    from logn.logits.onnx.images import at_size, completed, image_input

    inputs = model_inputs(read_onnx(model).model)
    image = image_input(inputs)
    settled = completed(Preprocessing(size=size), image)
    return random_inputs(at_size(inputs, image, size, settled.layout or "NCHW"))


def _print(report: FoldReport) -> None:
    tensors = f"`{report.tensors[0]}`" + (f" and {len(report.tensors) - 1} more" if len(report.tensors) > 1 else "")
    if report.way == "weights":
        count = len(report.layers)
        place = f"the weights of {count} layers" if count > 1 else f"`{report.layers[0]}`"
        echo(f"{report.output_path}: the correction is in {place}.")
    else:
        echo(f"{report.output_path}: the correction is two nodes behind {tensors}, as {report.reason}.")
    echo(
        f"Proven on {count_of(report.rows, 'row')} of logits at {tensors}: the largest difference from "
        f"scale x logit + shift is {report.largest_difference:.2g} (logits of up to {report.largest_logit:.3g})."
    )
