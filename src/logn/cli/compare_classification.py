"""`logn compare --task classification`: every post-hoc method on the logits of a classifier, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli import evaluation_options as options
from logn.cli.choices import Task
from logn.cli.compare import check_numbers, read_methods
from logn.cli.console import JsonOption, ProgressOption, print_json, progress
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.evaluate.classification_comparison import ClassificationComparison

LOGITS_HELP = ".npy, .npz or .safetensors of (rows, classes)."
LABELS_HELP = ".npy, .json, .csv with a column `label`, or .txt whose lines end in the class."


def compare_classification(
    logits: Annotated[Path, typer.Option("--logits", "-l", help=f"Of the test images: {LOGITS_HELP}")],
    labels: Annotated[Path, typer.Option(help=f"Of the test images: {LABELS_HELP}")],
    task: options.TaskOption = Task.classification,
    methods: Annotated[
        str, typer.Option(help="Separated by commas, with options behind a colon: none,logn,loga:tau=0.5.")
    ] = "logn,logn:balanced",
    method: Annotated[list[str] | None, typer.Option(help="One more method; can be repeated.")] = None,
    correction: Annotated[
        list[Path] | None, typer.Option(help="One more method, as `logn fit` wrote it; can be repeated.")
    ] = None,
    statistics: Annotated[
        Path | None, typer.Option("--statistics", "-s", help="What `logn collect` wrote of the training logits.")
    ] = None,
    train_logits: Annotated[
        Path | None, typer.Option(help=f"Or the training logits themselves, without labels: {LOGITS_HELP}")
    ] = None,
    counts: options.CountsOption = None,
    weights: Annotated[Path | None, typer.Option(help="tau-norm: the weight, .npy or .safetensors.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Name of the weight in its file; its bias is found beside it.")
    ] = None,
    bias: Annotated[Path | None, typer.Option(help="The bias, when it is not beside the weight.")] = None,
    class_names: Annotated[Path | None, typer.Option(help="Text file (a name per line) or JSON list.")] = None,
    families: Annotated[
        Path | None, typer.Option(help="Look-alikes: .csv with a column `family`, .npy or JSON list.")
    ] = None,
    sweep: Annotated[list[str] | None, typer.Option(help="Such as tau=0:2:0.25 or tau-norm:tau=0:1:0.1.")] = None,
    dev_logits: Annotated[
        Path | None, typer.Option(help="Rows to choose the values of sweeps on, and for keep_confidence=true.")
    ] = None,
    dev_labels: Annotated[Path | None, typer.Option(help="Their labels, for sweeps.")] = None,
    split: Annotated[
        bool, typer.Option("--split", help="Or choose on one half of the rows, report on the other.")
    ] = False,
    objective: Annotated[str, typer.Option(help="The metric by which a sweep's value is chosen.")] = "top-1",
    bootstrap: Annotated[int, typer.Option(help="Draws for the intervals; 0: none.")] = 1000,
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    bounds: Annotated[
        str | None, typer.Option(help="Last few-shot, last medium-shot training count; default 19,100.")
    ] = None,
    form: options.FormatOption = options.Format.table,
    output: options.FolderOption = None,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Score any number of methods on the logits of a classifier.

    The table has the accuracy over all rows and over many-, medium- and few-shot classes (more than 100, 20 to 100 and
    up to 19 training samples), the difference of each to the uncorrected model (`none`, always the first row) with an
    interval from paired draws of the rows, the calibration error (ECE) and the mean confidence. Methods: none, logn,
    loga, norcal, fracal, iif, tau-norm, temperature.

    **Examples**

    `logn compare --task classification -l test.npy --labels labels.npy --train-logits train.npy --counts counts.csv`

    `logn compare --task classification -l test.npy --labels ImageNet_LT_test.txt -s stats.safetensors --counts
    counts.csv --methods logn,logn:balanced,loga,iif`

    `logn compare --task classification -l test.npy --labels labels.npy --counts counts.csv --methods loga --sweep
    tau=0:2:0.25 --dev-logits dev.npy --dev-labels dev_labels.npy`
    """
    from logn.evaluate.compare_classification import compare_classification as run
    from logn.logits.array_files import locate_array

    check_numbers(bootstrap, confidence)
    if dev_logits is None and dev_labels is not None:
        raise InputError("Expected `--dev-logits` with `--dev-labels`, but got none.")
    options.make_folder(output)
    test = locate_array(logits)
    names = _class_names(class_names, test.num_classes)
    with progress("Comparing", test.rows, shown=show_progress) as advance:
        comparison = run(
            logits,
            labels,
            read_methods(methods, method or [], correction or []),
            moments=statistics,
            train_logits=train_logits,
            class_names=names,
            sweeps=sweep or (),
            dev=(dev_logits, dev_labels) if dev_logits else None,
            split=split,
            objective=objective,
            bounds=options.parse_bounds(bounds or "19,100"),
            draws=bootstrap,
            confidence=confidence,
            seed=seed,
            progress=advance,
            **_read_inputs(counts, families, (weights, key, bias), names),
        )
    _present(comparison, form, output, as_json=json)


def _class_names(path: Path | None, num_classes: int) -> tuple[str, ...] | None:
    from logn.statistics.class_names import read_class_names

    return read_class_names(path, num_classes) if path else None


def _read_inputs(
    counts: Path | None,
    families: Path | None,
    classifier: tuple[Path | None, str | None, Path | None],
    names: tuple[str, ...] | None,
) -> dict[str, Any]:
    from logn.cli.fit import read_classifier
    from logn.evaluate.classification_files import read_families
    from logn.statistics.class_counts import ClassCounts

    weights, key, bias = classifier
    weight, offset = read_classifier(weights, key, bias) if weights else (None, None)
    return {
        # Not raised to 1 as for detectors: a class that was never trained belongs to no group.
        "counts": ClassCounts.load(counts) if counts else None,
        "families": read_families(families, names) if families else None,
        "weight": weight,
        "bias": offset,
    }


def _present(comparison: ClassificationComparison, form: options.Format, folder: Path | None, *, as_json: bool) -> None:
    """Print a comparison and, where a folder is given, write it in all forms."""
    from logn.evaluate.classification_tables import save_classification, write_classification

    if folder is not None:
        save_classification(comparison, folder)
    if as_json:
        print_json(comparison.to_dict())
        return
    typer.echo(write_classification(comparison, form.value))
    if form is options.Format.table and len(comparison.rows) > 1:
        typer.echo("")
        for row in comparison.rows[1:]:
            typer.echo(comparison.verdict(row.name))
