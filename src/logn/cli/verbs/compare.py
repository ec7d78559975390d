"""`logn compare`: every post-hoc method on the same predictions of a detector or a classifier, in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logn.base.arrays import DEFAULT_AT
from logn.base.commands import values_of
from logn.base.files import format_of, refuse_inputs, require_file
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
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.measure.comparison import Comparison
    from logn.models.hints import Hints

LOGIT_FILES = (".npy", ".npz", ".safetensors")
# The metrics of the short table, by their titles; the first is shown with its difference.
DETECTOR = {"AP": "AP", "APr": "APr", "APc": "APc", "APf": "APf"}
MASKS = {"mask AP": "AP-mask", "APr": "APr-mask", "APc": "APc-mask", "APf": "APf-mask"}
# At an equal number of detections; the last two are of rare classes.
AT_COUNT = {"recall": "recall", "precision": "precision", "F1": "F1", "found": "found"}
RARE = {"rare right": "found-r", "rare false": "false-alarms-r"}
CLASSIFIER = {"top-1": "top-1", "many": "many", "medium": "medium", "few": "few", "ECE": "ECE"}
NAME_WIDTH = 22


def compare(
    source: options.Predictions,
    data: options.OptionalData = None,
    methods: options.Methods = None,
    statistics: options.Statistics = None,
    counts: options.Counts = None,
    target: options.Target = None,
    labels: options.Labels = None,
    train_logits: options.TrainLogits = None,
    class_names: options.ClassNames = None,
    masks: options.Masks = None,
    mask_results: options.MaskResults = None,
    images: options.Images = None,
    trust: options.Trust = False,
    at: options.At = DEFAULT_AT,
    bootstrap: options.Bootstrap = 1000,
    output: options.OptionalOutput = None,
    overwrite: options.Overwrite = False,
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> None:
    """Score any number of methods on the same predictions; only --masks runs the model again.

    Each is compared with none, the uncorrected model. --masks runs the model of the
    predictions once more, as logn predict did; --images and --trust are for it.

    Examples:
      logn compare predictions -d val.json -s stats.safetensors -o comparison
      logn compare predictions -d val.json -s stats.safetensors --masks models.py:mask_rcnn
      logn compare test.safetensors -s stats.safetensors --counts imagenet/train
      logn compare test.npy --labels labels.npy --train-logits train.npy --counts counts.csv
    """
    from logn.measure.compare import compare as run
    from logn.measure.comparison import CompareSettings
    from logn.measure.fitted_methods import DEFAULT_METHODS
    from logn.predictions.store import Predictions

    classifier = is_classifier(source)
    if masks is None or classifier:
        _refuse_mask_options(masks, mask_results, images, trust)
    _check_options(classifier, source, data, labels, train_logits, class_names)
    chosen = list(DEFAULT_METHODS) if statistics or train_logits else []
    chosen = options.split_methods(methods) if methods else chosen
    inputs = (source, data, statistics, counts, target, labels, train_logits, class_names, *chosen)
    _make_folder(output, *inputs, overwrite=overwrite)
    given: dict[str, Any] = {"target": options.read_target(target)} if target else {}
    if classifier:
        given |= _classifier_inputs(source, statistics, counts, train_logits, class_names)
        settings = CompareSettings(num_bootstrap=bootstrap)
    else:
        given |= _detector_inputs(statistics, counts)
        # What is left out is in the notes of the comparison, which are printed.
        leave_out: dict[str, Any] = {"only_predicted": True, "allow_missing_classes": True}
        settings = CompareSettings(num_bootstrap=bootstrap, at=at, **leave_out)
    store = None if classifier else Predictions(source)
    if masks is not None and store is not None:
        from logn.models.open import open_model

        hints = _hints_of(store.header.metadata.get("model_words") or [], trust=trust)
        given |= {"masks": open_model(masks, hints).detector, "images": images, "mask_results": mask_results}
    total = None if store is None else len(store) * (1 if masks is None else 2)
    with progress("Comparing", total) as advance:
        comparison = run(
            source if store is None else store,
            labels if classifier else data,
            {spec: options.read_method(spec) for spec in chosen},
            settings=settings,
            progress=advance,
            **given,
        )
    comparison = comparison.made_by(COMMAND_LINE.get())
    if output is not None:
        comparison.save(output, overwrite=overwrite)
    if json:
        print_json(comparison.to_dict())
        return
    _print_all(comparison) if verbose else _print_short(comparison)
    if output is not None and len(comparison.rows) > 1:
        print_note(f"For one page with charts: {command('logn', 'report', output, keep=['--images'])}")


def is_classifier(source: Path) -> bool:
    """Whether predictions are a file of logits; refuses what is neither that nor a folder of `logn predict`."""
    from logn.predictions.store import HEADER_NAME

    options.refuse_model(source, "predictions", "predict", "--data", "val.json", "-o", "predictions")
    if source.is_file() and format_of(source) == "logn.statistics":
        raise InputError(f"`{source}` holds statistics, not predictions: pass it as `-s {source}`.")
    if (source / HEADER_NAME).is_file():
        return False
    if source.is_file() and source.suffix.lower() == ".json":
        raise InputError(
            f"`{source}` is a JSON file, which holds scores but no logits. Make predictions with `logn predict MODEL "
            "--data val.json -o predictions`; `logn thresholds` takes COCO results."
        )
    if source.is_file() or source.suffix in LOGIT_FILES:
        require_file(source)
        return True
    what = "is neither a folder from `logn predict` nor a file of logits" if source.exists() else "does not exist"
    raise InputError(f"`{source}` {what}. Make predictions with `logn predict MODEL --data val.json -o predictions`.")


def _check_options(
    classifier: bool,
    source: Path,
    data: Path | None,
    labels: Path | None,
    train_logits: Path | None,
    class_names: Path | None,
) -> None:
    """Refuse options of the other kind of model, and ask for the labels, unless the predictions have them."""
    from logn.predictions.classifier import is_classifier_file

    others = {"--labels": labels, "--train-logits": train_logits, "--class-names": class_names}
    others = {"--data": data} if classifier else others
    kind, other = ("classifier", "detector") if classifier else ("detector", "classifier")
    for name, value in others.items():
        if value is not None:
            raise InputError(f"`{name}` is for {other}s, but `{source}` is of a {kind}: leave it out.")
    if (labels if classifier else data) is None and not is_classifier_file(source):
        wanted = "the class of each row" if classifier else "the annotations"
        raise InputError(f"Pass {wanted} of `{source}`: {'--labels' if classifier else '--data'} FILE.")


def _refuse_mask_options(masks: str | None, *values: object) -> None:
    """Refuse `--masks` for a classifier, and without it the options of its model."""
    if masks is not None:
        raise InputError("`--masks` is for the predictions of a detector: leave it out.")
    for name, value in zip(("--mask-results", "--images", "--trust"), values, strict=True):
        if value:
            raise InputError(f"`{name}` is for the model of `--masks`: name that too, or leave `{name}` out.")


def _hints_of(words: Sequence[str], *, trust: bool) -> Hints:
    """How `logn predict` opened a model, by what was typed there; whether to trust it is asked again."""

    def typed(option: str) -> Any:
        return next(values_of(words, option), None)

    names = ("like", "size", "background", "activation", "class_names")
    given = {name: typed(f"--{name.replace('_', '-')}") for name in names}
    tensors, device = list(values_of(words, "--tensor")), typed("--device") or "auto"
    return options.hints_of(**given, tensor=tensors, device=device, trust=trust)


def _make_folder(folder: Path | None, *inputs: str | Path | None, overwrite: bool) -> None:
    """Make the folder for the results before the work begins."""
    if folder is None:
        return
    from logn.measure.comparison import check_comparison_folder

    if folder.exists() and not folder.is_dir():
        raise InputError(f"`{folder}` is a file, but the comparison is a folder: choose another `--output`.")
    refuse_inputs(check_comparison_folder(folder, overwrite=overwrite), inputs)
    folder.mkdir(parents=True, exist_ok=True)


def _detector_inputs(statistics: Path | None, counts: Path | None) -> dict[str, Any]:
    from logn.statistics.moments import ClassMoments

    moments = None if statistics is None else ClassMoments.load(statistics)
    return {"moments": moments, "counts": options.read_counts(counts)}


def _classifier_inputs(
    logits: Path, statistics: Path | None, counts: Path | None, train_logits: Path | None, class_names: Path | None
) -> dict[str, Any]:
    from logn.data.class_counts import ClassCounts
    from logn.data.class_tables import read_class_names
    from logn.data.logit_files import locate_array

    files = {"moments": statistics, "train_logits": train_logits}
    given: dict[str, Any] = {name: path for name, path in files.items() if path is not None}
    if class_names is not None:
        given["class_names"] = read_class_names(class_names, locate_array(logits).num_columns)
    if counts is not None:
        # Not raised to 1 as for detectors: a class that was never trained belongs to no group.
        given["counts"] = ClassCounts.load(counts)
    return given


def _print_short(comparison: Comparison) -> None:
    """One line per method, of at most 80 columns, and one verdict."""
    from logn.measure.comparison import CLASSIFICATION

    _print_table(comparison, CLASSIFIER if comparison.task == CLASSIFICATION else DETECTOR)
    if "mask" in comparison.protocols:
        _print_table(comparison, MASKS)
    if comparison.baseline.recall:
        _print_at_count(comparison)
    if len(comparison.rows) > 1:
        print_text(comparison.verdict())
    for note in comparison.notes:
        print_note(f"Note: {note}")


def _print_table(comparison: Comparison, shown: Mapping[str, str]) -> None:
    from logn.base.text_table import write_table
    from logn.measure.tables import change_text, points

    (main, first), *others = [(title, name) for title, name in shown.items() if name in comparison.metric_names]
    compared = len(comparison.rows) > 1
    header = ["method", main, *(["change"] if compared else []), *(title for title, _ in others)]
    rows = []
    for place, row in enumerate(comparison.rows):
        change = [change_text(row.differences[first]) if place else ""] if compared else []
        rows.append([_short(row.name), points(row[first]), *change, *(points(row[metric]) for _, metric in others)])
    print_tables(lambda style: write_table(header, rows, replace(style, width=None)))


def _print_at_count(comparison: Comparison) -> None:
    """What each method finds with as many detections as the uncorrected model has."""
    from logn.base.text_table import write_table
    from logn.measure.detection.metrics import count_name
    from logn.measure.tables import metric_text

    at = comparison.settings.at
    shown = {title: count_name(name, at) for title, name in (AT_COUNT | RARE).items()}
    shown = {title: name for title, name in shown.items() if name in comparison.metric_names}
    rows = [[_short(row.name), *(metric_text(name, row[name]) for name in shown.values())] for row in comparison.rows]
    print_text(f"With {comparison.baseline.recall[at].detections:,} detections, as many as none has above {at:g}:")
    print_tables(lambda style: write_table(["method", *shown], rows, replace(style, width=None)))


def _short(name: str) -> str:
    return name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 1]}…"


def _print_all(comparison: Comparison) -> None:
    from logn.measure.tables import write_comparison

    print_tables(lambda style: write_comparison(comparison, style=style))
    for row in comparison.rows[1:]:
        print_text(comparison.verdict(row.name), indent="  ")
