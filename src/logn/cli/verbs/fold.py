"""`logn fold`: an ONNX file and a correction in, the corrected ONNX file out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, count_of, echo, print_json, print_note
from logn.cli.options.choices import Activation
from logn.cli.paths import OverwriteOption, check_output
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.deploy.onnx_fold import FoldReport


def fold(
    model: Annotated[Path, typer.Argument(help="The ONNX file; it does not change.")],
    affine: Annotated[Path, typer.Argument(help="The correction that `logn fit` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file to write.")],
    tensor: Annotated[
        list[str] | None, typer.Option(help="The logits' name, or their scores'; repeat for several levels.")
    ] = None,
    activation: Annotated[Activation | None, typer.Option(help="Search only for logits before this.")] = None,
    axis: Annotated[int | None, typer.Option(help="The class axis, where it cannot be told.")] = None,
    input_shape: Annotated[
        list[str] | None, typer.Option(help="Shape for the proof, e.g. images=1x3x640x640; repeat for more inputs.")
    ] = None,
    inputs: Annotated[Path | None, typer.Option(help="Inputs for the proof: .npz, an array per input.")] = None,
    insert: Annotated[bool, typer.Option("--insert", help="Put the map behind the layer as two nodes.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Fold on top of a map that is there already.")] = False,
    allow_mismatch: Annotated[
        bool, typer.Option("--allow-mismatch", help="Only warn where the correction was made for another model.")
    ] = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Write a correction into an ONNX file: same inputs, same outputs, same speed.

    The class layer is found by itself. Both models then run in onnxruntime; the file is written only if the new logits
    are scale x logit + shift of the old ones, and the largest difference is printed. A correction that was made for
    another file is refused.

    **Examples**

    `logn fold model.onnx affine.safetensors -o corrected.onnx`

    `logn fold detr.onnx affine.safetensors -o corrected.onnx --activation softmax --input-shape images=1x3x800x800`
    """
    from logn.calibrators.affine import ClassAffine

    _check_kind(model)
    check_output(output, model, affine, overwrite=overwrite)
    correction = ClassAffine.load(affine)
    from logn.deploy.onnx_fold import fold_onnx

    report = fold_onnx(
        model,
        correction,
        output,
        tensor=tensor or None,
        activation=activation.value if activation else None,
        axis=axis,
        inputs=_inputs(model, input_shape or [], inputs),
        insert=insert,
        allow_refold=again,
        allow_mismatch=allow_mismatch,
        overwrite=overwrite,
    )
    if json:
        print_json(asdict(report))
    else:
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


def _inputs(model: Path, shapes: list[str], file: Path | None) -> dict[str, Any] | None:
    """What to run the models on; None for random values of the declared shapes."""
    import numpy as np

    from logn.files import require_file
    from logn.logits.dumped import refusing_damage

    if shapes and file is not None:
        raise InputError("Expected `--input-shape` or `--inputs`, but got both.")
    if file is not None:
        require_file(file)
        with refusing_damage(file), file.open("rb") as stream:  # NumPy leaves a damaged one open that it opens itself
            arrays = np.load(stream, allow_pickle=False) if file.suffix == ".npz" else None
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise InputError(f"Expected `{file}` to be a .npz file with an array per input, but it is another.")
            with arrays:
                return {name: arrays[name] for name in arrays.files}
    if not shapes:
        return None
    from logn.logits.onnx.file import model_inputs, random_inputs, read_onnx, with_shapes

    return random_inputs(with_shapes(model_inputs(read_onnx(model).model), parse_shapes(shapes)))


def parse_shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    """Read shapes such as `images=1x3x640x640`.

    Example:
        >>> parse_shapes(["images=1x3x640x640"])
        {'images': (1, 3, 640, 640)}
    """
    shapes = {}
    for text in texts:
        name, _, lengths = text.rpartition("=")
        if not name or not all(part.isdecimal() and int(part) > 0 for part in lengths.split("x")):
            raise InputError(f"Expected `--input-shape` to be like images=1x3x640x640, but got {text!r}.")
        shapes[name] = tuple(int(part) for part in lengths.split("x"))
    return shapes


def _print(report: FoldReport) -> None:
    if report.way == "weights":
        count = len(report.layers)
        place = f"the weights of {count} layers" if count > 1 else f"`{report.layers[0]}`"
        echo(f"{report.output_path}: the map is in {place}.")
    else:
        echo(f"{report.output_path}: the map is two nodes behind {_listed(report.tensors)}, as {report.reason}.")
    echo(
        f"Proven on {count_of(report.rows, 'row')} of logits at {_listed(report.tensors)}: the largest difference from "
        f"scale x logit + shift is {report.largest_difference:.2g} (logits of up to {report.largest_logit:.3g})."
    )


def _listed(tensors: tuple[str, ...]) -> str:
    return f"`{tensors[0]}`" if len(tensors) == 1 else f"`{tensors[0]}` and {len(tensors) - 1} more"
