"""`logn compare --task classification`: every post-hoc method on the logits of a classifier, in one table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, print_note, progress
from logn.cli.options import evaluation as options
from logn.cli.options.choices import LABELLED_IMAGES, ClassNamesOption, Task
from logn.cli.options.classifier_inputs import ClassifierRun, inputs_of_predictions
from logn.cli.verbs.compare import check_numbers, read_methods
from logn.errors import InputError

LOGITS_HELP = ".npy, .npz or .safetensors of (rows, classes)."
LABELS_HELP = ".npy, .json, .csv with a column `label`, or .txt whose lines end in the class."
SOURCE = "Where the logits come from: one of --logits, --predictions and --model"


def _source(help_line: str) -> Any:
    return typer.Option(help=help_line, rich_help_panel=SOURCE)


def compare_classification(
    logits: Annotated[
        Path | None, typer.Option("--logits", "-l", help=f"Of the test images: {LOGITS_HELP}", rich_help_panel=SOURCE)
    ] = None,
    labels: Annotated[Path | None, _source(f"Of the test images: {LABELS_HELP}")] = None,
    predictions: Annotated[
        Path | None,
        typer.Option("--predictions", "-p", help="Or: what `logn predict-classifier` wrote.", rich_help_panel=SOURCE),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", help="Or: what `logn train-classifier` wrote.", rich_help_panel=SOURCE),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help=f"With --model. {LABELLED_IMAGES}", rich_help_panel=SOURCE)
    ] = None,
    root: Annotated[Path | None, _source("With --model: folder that the paths of a list start from.")] = None,
    statistics: Annotated[
        Path | None, typer.Option("--statistics", "-s", help="What `logn collect` wrote of the training logits.")
    ] = None,
    train_logits: Annotated[
        Path | None, typer.Option(help=f"Or the training logits themselves, without labels: {LOGITS_HELP}")
    ] = None,
    counts: options.CountsOption = None,
    class_names: ClassNamesOption = None,
    families: Annotated[
        Path | None,
        typer.Option(help="Look-alikes: .csv with a column `family`, .npy, JSON list, or glyph classes' classes.json."),
    ] = None,
    task: options.TaskOption = Task.classification,
    methods: Annotated[
        str, typer.Option(help="Separated by commas, with options behind a colon: none,logn,loga:tau=0.5.")
    ] = "logn,logn:balanced",
    method: options.MethodOption = None,
    correction: options.CorrectionsOption = None,
    allow_mismatch: options.MismatchOption = False,
    weights: options.WeightsOption = None,
    key: options.KeyOption = None,
    bias: Annotated[Path | None, typer.Option(help="The bias, when it is not beside the weight.")] = None,
    sweep: Annotated[list[str] | None, typer.Option(help="Such as tau=0:2:0.25 or tau-norm:tau=0:1:0.1.")] = None,
    dev_logits: Annotated[
        Path | None, typer.Option(help="Rows to choose the values of sweeps on, and for keep_confidence=true.")
    ] = None,
    dev_labels: Annotated[Path | None, typer.Option(help="Their labels, for sweeps.")] = None,
    split: Annotated[
        bool, typer.Option("--split", help="Or choose on one half of the rows, report on the other.")
    ] = False,
    objective: options.ObjectiveOption = "top-1",
    bootstrap: options.BootstrapOption = 1000,
    confidence: options.ConfidenceOption = 0.95,
    seed: options.DrawSeedOption = 0,
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
    interval from paired draws of the rows, the calibration error (ECE) and the mean confidence. Which methods
    there are, with their options, `logn fit --help` says.

    **Examples**

    `logn compare --task classification -l test.npy --labels labels.npy --train-logits train.npy --counts counts.csv`

    `logn compare --task classification -l test.npy --labels ImageNet_LT_test.txt -s stats.safetensors --counts
    counts.csv --methods logn,logn:balanced,loga,iif`

    `logn compare --task classification -p logits --methods logn,loga,tau-norm --sweep tau=0:2:0.25 --split`

    `logn compare --task classification --model runs/softmax --data classes --methods logn,logn:balanced,loga`
    """
    from logn.evaluate.classification.compare import compare_classification as run
    from logn.evaluate.comparison.settings import CompareSettings

    check_numbers(bootstrap, confidence)
    settings = CompareSettings(
        num_bootstrap=bootstrap,
        confidence=confidence,
        seed=seed,
        split=split,
        bounds=None if bounds is None else options.parse_bounds(bounds),
        objective=objective,
    )
    options.make_folder(output)
    chosen = read_methods(methods, method or [], correction or [])
    files = {"logits": logits, "labels": labels, "moments": statistics, "train_logits": train_logits}
    names = {"counts": counts, "families": families, "class_names": class_names}
    given = _given(files, names, (weights, key, bias), (dev_logits, dev_labels))
    wants_dev = "dev" not in given and not split and bool(sweep or any("keep_confidence" in spec for spec in chosen))
    with progress("Comparing", None, shown=show_progress) as advance:
        inputs = _of_source(predictions, _run(model, data, root, class_names), given, wants_dev, advance)
        if split:
            inputs.pop("dev", None)
        comparison = run(
            inputs.pop("logits"),
            inputs.pop("labels"),
            chosen,
            sweeps=sweep or (),
            settings=settings,
            progress=advance,
            allow_mismatch=allow_mismatch,
            **inputs,
        )
    options.present(comparison, form, output, as_json=json)
    if output is not None:
        print_note(f"For one page with charts: {options.report_command(output)}")


def _run(model: Path | None, data: Path | None, root: Path | None, class_names: Path | None) -> ClassifierRun | None:
    if model is None and (data is not None or root is not None):
        raise InputError("Expected `--data` and `--root` only with `--model`, but got none.")
    if model is None:
        return None
    if data is None:
        raise InputError("Expected `--data` with `--model`, but got none.")
    return ClassifierRun(model, data, root, class_names)


def _of_source(
    predictions: Path | None,
    trained: ClassifierRun | None,
    given: dict[str, Any],
    wants_dev: bool,
    advance: Callable[[int], object],
) -> dict[str, Any]:
    """What the folder or the run brings, and over it what was given by hand."""
    if [predictions, trained, given.get("logits")].count(None) != 2:
        raise InputError("Expected one of `--logits`, `--predictions` and `--model`, but got several or none.")
    if "logits" in given:
        if "labels" not in given:
            raise InputError("Expected `--labels` with `--logits`, but got none.")
        return given
    if predictions is not None:
        brought = inputs_of_predictions(predictions)
    else:
        brought = trained.inputs(dev=wants_dev, advance=advance) if trained else {}
    if "train_logits" in given:
        brought.pop("moments", None)
    return {**brought, **given}


def _given(
    files: dict[str, Path | None],
    tables: dict[str, Path | None],
    classifier: tuple[Path | None, str | None, Path | None],
    dev: tuple[Path | None, Path | None],
) -> dict[str, Any]:
    """The arguments of the comparison that the options name, files of classes read."""
    from logn.classes.counts import ClassCounts
    from logn.classes.names import read_class_names
    from logn.cli.verbs.fit import read_classifier
    from logn.evaluate.classification.truth import read_families
    from logn.logits.array_files import locate_array

    if dev[0] is None and dev[1] is not None:
        raise InputError("Expected `--dev-logits` with `--dev-labels`, but got none.")
    given: dict[str, Any] = {name: path for name, path in files.items() if path is not None}
    if tables["class_names"] and files["logits"]:  # a folder or a run has names of its own
        given["class_names"] = read_class_names(tables["class_names"], locate_array(files["logits"]).num_classes)
    if tables["counts"]:
        # Not raised to 1 as for detectors: a class that was never trained belongs to no group.
        given["counts"] = ClassCounts.load(tables["counts"])
    if tables["families"]:
        given["families"] = read_families(tables["families"], given.get("class_names"))
    weights, key, bias = classifier
    if weights:
        given["weight"], given["bias"] = read_classifier(weights, key, bias)
    if dev[0]:
        given["dev"] = dev
    return given
