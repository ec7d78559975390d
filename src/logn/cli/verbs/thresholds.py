"""`logn thresholds`: a score threshold per class, chosen on labelled images."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.base.arrays import DEFAULT_AT
from logn.base.commands import corrected_name, free_name, kept_words
from logn.base.files import refuse_inputs
from logn.cli import options
from logn.cli.console import (
    COMMAND_LINE,
    command,
    print_json,
    print_note,
    print_tables,
    print_text,
    progress,
)
from logn.cli.verbs.fit import print_fold
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.predictions.store import Predictions


def thresholds(
    predictions: Annotated[
        Path, typer.Argument(metavar="PREDICTIONS", help="Folder from logn predict, or COCO results of any tool.")
    ],
    data: options.Data,
    aim: options.Thresholds = "f1",
    at: options.At = DEFAULT_AT,
    output: options.OptionalOutput = None,
    overwrite: options.Overwrite = False,
    affine: Annotated[
        Path | None, options.option("--affine", metavar="FILE", help="Also write the correction that logn fold takes.")
    ] = None,
    method: options.Method = None,
    statistics: options.Statistics = None,
    counts: options.Counts = None,
    bootstrap: options.Bootstrap = 200,
    json: options.Json = False,
) -> None:
    """Choose a score threshold for each class on labelled images.

    A class's own threshold is shrunk towards the common one by as much as it is
    uncertain; a class with too few objects keeps the common one. The printed
    numbers are of held-out images.

    Examples:
      logn thresholds results.json -d val.json -o thresholds.json
      logn thresholds predictions -d data.yaml --thresholds fppi=1
      logn thresholds predictions -d val.json --at 0.4 --affine map.safetensors
    """
    options.refuse_model(predictions, "predictions", "predict", "--data", "val.json", "-o", "predictions")
    from logn.predictions.classifier import is_classifier_file
    from logn.predictions.store import Predictions
    from logn.thresholds.choose import operating_points
    from logn.thresholds.points import write_points

    if is_classifier_file(predictions):
        raise InputError(
            f"`{predictions}` is of a classifier, whose top class counts: thresholds are for detectors. `logn compare "
            f"{predictions}` measures corrections."
        )
    outputs = [path for path in (output, affine) if path is not None]
    refuse_inputs(outputs, ())
    for path in outputs:
        options.check_output(path, predictions, data, aim, method, statistics, counts, overwrite=overwrite)
    store = Predictions(predictions) if predictions.is_dir() else None
    first = None if method is None else _correction(method, store, predictions, statistics, counts)
    source = predictions if store is None else store
    with progress("Decoding", None) as advance:
        points = operating_points(source, data, aim, first, at=at, num_bootstrap=bootstrap, progress=advance)
    folded = None if affine is None else points.fold(at, store)
    if output is not None:
        options.save(output, points.save, overwrite)
    if folded is not None and affine is not None:
        options.save(affine, folded.affine.save, overwrite)
    if json:
        shares = None if folded is None else {"at": folded.at, "kept": folded.kept, "capped": folded.capped}
        print_json({**points.to_dict(), "folded": shares})
        return
    print_tables(partial(write_points, points))
    if output is not None:
        print_text(f"Wrote the thresholds to {output}.")
    if folded is not None and affine is not None:
        print_text(folded.describe())
        print_fold(folded.affine, affine)
    elif output is None:
        print_note(f"To save them: {command(*COMMAND_LINE.get(), '-o', free_name('thresholds.json'))}")
    elif points.activation == "softmax":
        print_note(
            "To put them into a model, add --affine FILE: the shifts of a softmax are solved and measured first."
        )
    else:
        _print_fold(store, output, at)


def _print_fold(store: Predictions | None, thresholds: Path, at: float) -> None:
    """The command that writes thresholds of sigmoids into the model of the predictions, or into an example."""
    from logn.models.open import FUNCTION

    model, *how = (store and store.header.metadata.get("model_words")) or ["model.onnx"]
    if FUNCTION.fullmatch(model):  # a model in Python, which is no file to fold into
        return
    words = ["--thresholds", thresholds, *(() if at == DEFAULT_AT else ("--at", f"{at:g}"))]
    kept = kept_words(("--class-names", "--tensor", "--trust"), how)
    output = free_name(corrected_name(model).replace("corrected", "shipped"))
    print_note(f"To put them into the model: {command('logn', 'fold', model, *words, *kept, '-o', output)}")


def _correction(
    method: str, store: Predictions | None, predictions: Path, statistics: Path | None, counts: Path | None
) -> Any:
    """The correction that comes first: from a file, or what a method gives for the logits of a store."""
    correction = options.read_method(method)
    if not isinstance(correction, str):
        return correction
    from logn.measure.fitted_methods import fit_for_store
    from logn.statistics.moments import ClassMoments

    if store is None:
        raise InputError(f"`--method` needs logits, but `{predictions}` is a file of scores: run `logn predict` first.")
    moments = None if statistics is None else ClassMoments.load(statistics)
    return fit_for_store(method, store.head, moments=moments, counts=options.read_counts(counts))
