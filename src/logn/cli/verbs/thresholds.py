"""`logn thresholds`: a score threshold per class, chosen on labelled images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from logn.cli.console import COMMAND_LINE, JsonOption, command, echo, print_json, print_note, print_text, progress
from logn.cli.console import text_style as terminal_style
from logn.cli.paths import OverwriteOption, check_output
from logn.errors import InputError

GoalOption = Annotated[
    str,
    typer.Option(
        "--thresholds",
        help="What they are for. In each class: f1, precision=0.9 or recall=0.8. Over all classes: fppi=1 (false "
        "alarms per image).",
    ),
]
AtOption = Annotated[
    float, typer.Option("--at", help="The threshold you use now, which will act as the thresholds per class.")
]


def thresholds(
    predictions: Annotated[Path, typer.Argument(help="What `logn predict` wrote, or a COCO results file of any tool.")],
    data: Annotated[
        Path,
        typer.Option(
            "--data", "-d", "-a", help="Labels of the images: COCO or LVIS .json, YOLO data.yaml, or a VOC folder."
        ),
    ],
    goal: GoalOption = "f1",
    at: AtOption = 0.25,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the thresholds: .json or .csv.")
    ] = None,
    overwrite: OverwriteOption = False,
    affine: Annotated[
        Path | None,
        typer.Option(help="File for the map that folds them, solved on the predictions: for softmax heads."),
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="A correction that comes first, such as recommended.")
    ] = None,
    correction: Annotated[Path | None, typer.Option(help="Or a correction that `logn fit` wrote.")] = None,
    statistics: Annotated[Path | None, typer.Option("--statistics", "-s", help="Statistics for --method.")] = None,
    counts: Annotated[Path | None, typer.Option(help="Class counts or training labels for --method.")] = None,
    iou: Annotated[float, typer.Option(help="Overlap (IoU) from which a detection is right.")] = 0.5,
    bootstrap: Annotated[int, typer.Option(help="Draws of images for shrinking and intervals; 0: neither.")] = 200,
    json: JsonOption = False,
) -> None:
    """Choose a score threshold for each class on labelled images.

    A class's own threshold is shrunk towards the common one by as much as it is uncertain; a class with too few
    objects, or whose own is no better on held-out images, keeps the common one. The numbers printed are of held-out
    images. `logn fold MODEL --thresholds FILE` then puts them into the model.

    **Examples**

    `logn thresholds results.json -d val.json -o thresholds.json`

    `logn thresholds predictions -d data.yaml --thresholds fppi=1`

    `logn thresholds predictions -d val.json --at 0.4 --affine map.safetensors`
    """
    from logn.evaluate.thresholds.operating_points import operating_points
    from logn.evaluate.thresholds.points import write_points

    inputs = (data, correction, statistics, counts)
    if output is not None:
        check_output(output, *inputs, overwrite=overwrite)
    if affine is not None:
        check_output(affine, *inputs, holds="logn.affine", overwrite=overwrite)
    first = _correction(correction, method, predictions, statistics, counts)
    with progress("Decoding", None) as advance:
        points = operating_points(
            predictions, data, goal, first, at=at, iou=iou, num_bootstrap=bootstrap, progress=advance
        )
    folded = None if affine is None else points.fold(at, predictions if predictions.is_dir() else None)
    if output is not None:
        points.save(output)
    if folded is not None and affine is not None:
        folded.affine.save(affine)
    if json:
        shares = None if folded is None else {"at": folded.at, "kept": folded.kept, "capped": folded.capped}
        print_json({**points.to_dict(), "folded": shares})
        return
    echo(write_points(points, terminal_style()))
    if folded is not None:
        print_text(folded.describe())
    print_note(f"To put them into a model: {_next(points.activation, affine, output, at)}")


def _next(activation: str, affine: Path | None, output: Path | None, at: float) -> str:
    if affine is not None:
        return command("logn", "fold", "MODEL.onnx", affine, "-o", "NEW.onnx")
    if activation == "softmax":
        return command(*COMMAND_LINE.get(), "--affine", "map.safetensors")
    if output is None:
        return command(*COMMAND_LINE.get(), "-o", "thresholds.json")
    return command("logn", "fold", "MODEL", "--thresholds", output, "--at", f"{at:g}", "-o", "NEW")


def _correction(
    file: Path | None, method: str | None, predictions: Path, statistics: Path | None, counts: Path | None
) -> Any:
    """The correction that comes first: from a file, or what a method gives for the logits of a store."""
    if file is not None:
        from logn.calibrators.affine import ClassAffine

        if method is not None:
            raise InputError("Expected one of `--method` and `--correction`, but got both.")
        return ClassAffine.load(file)
    if method is None:
        return None
    from logn.cli.options.evaluation import read_counts
    from logn.evaluate.comparison.method_fitting import fit_for_store
    from logn.evaluate.store.store import PredictionStore
    from logn.statistics.moments import ClassMoments

    if not predictions.is_dir():
        raise InputError(f"Expected predictions of `logn predict` for `--method`, but `{predictions}` is a file.")
    moments = None if statistics is None else ClassMoments.load(statistics)
    return fit_for_store(method, PredictionStore(predictions).header, moments=moments, counts=read_counts(counts))
