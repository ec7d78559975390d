"""`logn compare` of image classifiers: every post-hoc method on the same logits, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, WideOption, command, print_note, progress
from logn.cli.options import evaluation as options
from logn.cli.options.choices import ClassNamesOption
from logn.errors import InputError

LOGITS_HELP = ".npy, .npz or .safetensors of (rows, classes)."
LABELS_HELP = ".npy, .json, .csv with a column `label`, or .txt whose lines end in the class."


def compare_classification(
    source: options.SourceArgument,
    labels: Annotated[Path | None, typer.Option(help=f"Labels of the test logits: {LABELS_HELP}")] = None,
    statistics: options.StatisticsOption = None,
    train_logits: Annotated[
        Path | None, typer.Option(help=f"Or the training logits themselves, without labels: {LOGITS_HELP}")
    ] = None,
    counts: options.CountsOption = None,
    target: options.TargetOption = None,
    class_names: ClassNamesOption = None,
    families: Annotated[
        Path | None,
        typer.Option(help="Look-alikes: .csv with a column `family`, .npy, JSON list, or glyph classes' classes.json."),
    ] = None,
    methods: options.MethodsOption = None,
    method: options.MethodOption = None,
    correction: options.CorrectionsOption = None,
    allow_mismatch: options.MismatchOption = False,
    weights: options.WeightsOption = None,
    key: options.KeyOption = None,
    bias: Annotated[Path | None, typer.Option(help="The bias, when it is not beside the weight.")] = None,
    sweep: options.SweepOption = None,
    dev_logits: Annotated[
        Path | None,
        typer.Option(help="Rows to choose sweeps' values on and to fit methods to that need labels."),
    ] = None,
    dev_labels: Annotated[Path | None, typer.Option(help="Their labels, for sweeps, offsets and vector.")] = None,
    split: options.SplitOption = False,
    objective: options.ObjectiveOption = None,
    bootstrap: options.BootstrapOption = 1000,
    confidence: options.ConfidenceOption = 0.95,
    seed: options.DrawSeedOption = 0,
    bounds: options.BoundsOption = None,
    form: options.FormatOption = options.Format.table,
    output: options.FolderOption = None,
    wide: WideOption = False,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Score methods on the logits of a classifier."""
    from logn.evaluate.classification.compare import compare_classification as run
    from logn.evaluate.comparison.settings import CompareSettings

    options.check_numbers(bootstrap, confidence)
    settings = CompareSettings(
        num_bootstrap=bootstrap,
        confidence=confidence,
        seed=seed,
        split=split,
        bounds=None if bounds is None else options.parse_bounds(bounds),
        objective="top-1" if objective is None else objective,
    )
    options.make_folder(output)
    chosen = options.read_methods(methods, method or [], correction or [])
    if labels is None:
        raise InputError(f"Expected `--labels` with the logits `{source}`, but got none.")
    files = {"logits": source, "labels": labels, "moments": statistics, "train_logits": train_logits}
    names = {"counts": counts, "families": families, "class_names": class_names}
    given = _given(files, names, (weights, key, bias), (dev_logits, dev_labels))
    if target is not None:
        given["target"] = options.read_target(target)
    with progress("Comparing", None, shown=show_progress) as advance:
        comparison = run(
            given.pop("logits"),
            given.pop("labels"),
            chosen,
            sweeps=sweep or (),
            settings=settings,
            progress=advance,
            allow_mismatch=allow_mismatch,
            **given,
        )
    options.present(comparison, form, output, as_json=json, wide=wide)
    if output is not None:
        print_note(f"For one page with charts: {command('logn', 'report', output)}")


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
    from logn.logits.dumped import locate_array

    if (dev[0] is None) != (dev[1] is None):
        raise InputError("`--dev-logits` and `--dev-labels` go together: give both or neither.")
    given: dict[str, Any] = {name: path for name, path in files.items() if path is not None}
    if tables["class_names"] and files["logits"]:
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
