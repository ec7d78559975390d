"""`logn thresholds`: a score threshold per class, chosen on labelled images, and the map that folds them all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from logn.cli.console import (
    JsonOption,
    ProgressOption,
    WideOption,
    echo,
    print_json,
    print_text,
    progress,
    text_style,
)
from logn.cli.first_tries import refuse_model_as_predictions
from logn.cli.kinds import Kind, formerly, verb_of
from logn.cli.options import evaluation as options
from logn.cli.options.choices import Task, TaskOption, complete_methods
from logn.cli.paths import OverwriteOption, check_output
from logn.cli.statistics_summary import print_fold
from logn.cli.verbs.compare import LOGIT_FILES
from logn.errors import InputError
from logn.evaluate.detection.protocol import SCORE_THRESHOLD

REPORT, FOLD = "Report on other images", "Fold them"
DEFAULT_AT = 0.25

TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        help="What to aim at. In each class: f1, f-beta=2, precision=0.9, recall=0.8, keep-counts=0.5 (as many as "
        "uncorrected at 0.5). "
        "Over all classes: fppi=1 (false alarms per image), total-precision=0.9.",
    ),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="File for the points: .json.", show_default=False)
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="A correction before the thresholds, such as recommended.",
        rich_help_panel="Methods",
        autocompletion=complete_methods,
    ),
]
CorrectionOption = Annotated[
    Path | None,
    typer.Option("--correction", help="Or a correction that `logn fit` wrote.", rich_help_panel="Methods"),
]
SplitOption = Annotated[
    bool,
    typer.Option(
        "--split", help="Choose on one half of the images or rows, report on the other.", rich_help_panel=REPORT
    ),
]
TestOption = Annotated[
    Path | None, typer.Option("--test", help="Predictions of other images, to report on.", rich_help_panel=REPORT)
]
AtOption = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        help="The one threshold that acts as all of them; default 0.25, for a softmax the common threshold.",
        rich_help_panel=FOLD,
    ),
    formerly("--at"),
]
AffineOption = Annotated[
    Path | None,
    typer.Option(
        "--affine", help="File for the map, correction included, that `logn fold` takes.", rich_help_panel=FOLD
    ),
]
LeastOption = Annotated[
    float | None,
    typer.Option(
        "--at-least",
        help="Share of detections that one threshold must keep; default: what another draw of the images keeps.",
        rich_help_panel=FOLD,
    ),
]
DrawsOption = Annotated[
    int,
    typer.Option("--bootstrap", help="Draws for intervals and for shrinking; 0: neither.", rich_help_panel="Intervals"),
]


def detector_thresholds(
    source: options.SourceArgument,
    annotations: options.AnnotationsOption,
    target: TargetOption = "f1",
    output: OutputOption = None,
    overwrite: OverwriteOption = False,
    method: MethodOption = None,
    correction: CorrectionOption = None,
    statistics: options.StatisticsOption = None,
    counts: options.CountsOption = None,
    allow_mismatch: options.MismatchOption = False,
    split: SplitOption = False,
    test: TestOption = None,
    test_annotations: Annotated[Path | None, typer.Option(help="Their ground truth.", rich_help_panel=REPORT)] = None,
    at: AtOption = None,
    affine_output: AffineOption = None,
    at_least: LeastOption = None,
    iou: Annotated[float, typer.Option(help="Overlap (IoU) at which a detection counts as right.")] = 0.5,
    coco: options.CocoOption = False,
    allow_missing_classes: options.MissingClassesOption = False,
    only_predicted: options.OnlyPredictedOption = False,
    nms: options.NmsOption = None,
    nms_iou: options.NmsIouOption = None,
    multi_label: options.MultiLabelOption = None,
    max_detections: options.CapOption = 300,
    bootstrap: DrawsOption = 200,
    confidence: options.ConfidenceOption = 0.95,
    seed: options.DrawSeedOption = 0,
    wide: WideOption = False,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Thresholds of a detector, from what `logn predict` wrote."""
    _check_outputs(output, affine_output, overwrite, annotations, correction, statistics, test_annotations)
    given = {
        "iou": iou,
        "style": "coco" if coco else "auto",
        "decode": options.decode_options(SCORE_THRESHOLD, nms, nms_iou, multi_label, max_detections),
        "only_predicted": only_predicted,
        "allow_missing_classes": allow_missing_classes,
        **_fit_inputs(statistics, counts),
    }
    choices = _choices(split, bootstrap, confidence, seed, allow_mismatch)
    other = _test(test, test_annotations, "--test-annotations")
    _run(source, annotations, target, (method, correction), other, {**given, **choices}, show_progress).finish(
        source, output, affine_output, at, at_least, as_json=json, wide=wide
    )


def classifier_thresholds(
    source: options.SourceArgument,
    labels: Annotated[
        Path,
        typer.Option(
            help="Labels of the rows: .npy, .json, .csv or .txt; for several labels a .npy matrix of 1, 0 and -1."
        ),
    ],
    target: TargetOption = "f1",
    output: OutputOption = None,
    overwrite: OverwriteOption = False,
    method: MethodOption = None,
    correction: CorrectionOption = None,
    statistics: options.StatisticsOption = None,
    counts: options.CountsOption = None,
    allow_mismatch: options.MismatchOption = False,
    split: SplitOption = False,
    test: TestOption = None,
    test_labels: Annotated[Path | None, typer.Option(help="Their labels.", rich_help_panel=REPORT)] = None,
    at: AtOption = None,
    affine_output: AffineOption = None,
    at_least: LeastOption = None,
    bootstrap: DrawsOption = 200,
    confidence: options.ConfidenceOption = 0.95,
    seed: options.DrawSeedOption = 0,
    wide: WideOption = False,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Thresholds of a classifier: top-1 with rejection, or several labels."""
    _check_outputs(output, affine_output, overwrite, source, labels, correction, statistics, test, test_labels)
    given = _fit_inputs(statistics, counts)
    choices = _choices(split, bootstrap, confidence, seed, allow_mismatch)
    other = _test(test, test_labels, "--test-labels")
    _run(source, labels, target, (method, correction), other, {**given, **choices}, show_progress).finish(
        source, output, affine_output, at, at_least, as_json=json, wide=wide
    )


DETECTION = Kind("Detector", "predictions of a detector", detector_thresholds)
CLASSIFICATION = Kind("Image classifier", "a classifier", classifier_thresholds)


@verb_of(DETECTION, CLASSIFICATION, common="Any predictions")
def thresholds(source: options.SourceArgument, task: TaskOption = None) -> Kind:
    """Choose a score threshold for each class, with intervals, and a map that makes one threshold act as all.

    Classes with few objects are drawn towards the common threshold by as much as their own is unsure (empirical Bayes;
    the column `weight` says how much of their own is left); with fewer than 5 right detections, or for F-scores where
    their own is no better on held-out images, they keep it. Numbers are what to expect on as many new images; `--split`
    and `--test` measure it.

    `--affine` writes the map for `logn fold`: for sigmoids the folded model decides exactly as the thresholds do, for a
    softmax the share of detections that stay is printed, and too small a share is refused.

    **Examples**

    `logn thresholds store -a dev.json --target f1 -o points.json`

    `logn thresholds store -a dev.json --target fppi=1 --method recommended -s stats.safetensors --split`

    `logn thresholds store -a dev.json --target precision=0.9 --threshold 0.25 --affine points.safetensors`

    `logn thresholds dev.npy --labels dev_labels.npy --target precision=0.95 --test test.npy --test-labels labels.npy`
    """
    refuse_model_as_predictions(source)
    if task is not None:
        return DETECTION if task is Task.detection else CLASSIFICATION
    return CLASSIFICATION if source.is_file() or source.suffix in LOGIT_FILES else DETECTION


def _check_outputs(output: Path | None, affine_output: Path | None, overwrite: bool, *inputs: Path | None) -> None:
    """Refuse, before any work, what cannot be written."""
    if output is not None:
        check_output(output, *inputs, overwrite=overwrite)
    if affine_output is not None:
        check_output(affine_output, *inputs, holds="logn.affine", overwrite=overwrite)


def _choices(split: bool, bootstrap: int, confidence: float, seed: int, allow_mismatch: bool) -> dict[str, Any]:
    options.check_numbers(bootstrap, confidence)
    names = {"split": split, "num_bootstrap": bootstrap, "confidence": confidence, "seed": seed}
    return {**names, "allow_mismatch": allow_mismatch}


def _test(predictions: Path | None, labels: Path | None, option: str) -> tuple[Path, Path] | None:
    if predictions is None and labels is None:
        return None
    if predictions is None:
        raise InputError(f"Expected `--test` with `{option}`, but got none.")
    if labels is None:
        raise InputError(f"Expected `{option}` with `--test`, but got none.")
    return predictions, labels


def _fit_inputs(statistics: Path | None, counts: Path | None) -> dict[str, Any]:
    from logn.statistics.moments import ClassMoments

    return {
        "moments": None if statistics is None else ClassMoments.load(statistics),
        "counts": options.read_counts(counts),
    }


def _run(
    source: Path,
    labels: Path,
    target: str,
    correction: tuple[str | None, Path | None],
    test: tuple[Path, Path] | None,
    given: dict[str, Any],
    shown: bool | None,
) -> _Result:
    from logn.calibrators.class_affine import ClassAffine
    from logn.evaluate.thresholds.operating_points import operating_points

    method, file = correction
    if method is not None and file is not None:
        raise InputError("Expected one of `--method` and `--correction`, but got both.")
    before: Any = method if file is None else ClassAffine.load(file)
    with progress("Decoding", None, shown=shown) as advance:
        return _Result(operating_points(source, labels, target, before, test=test, progress=advance, **given))


class _Result:
    """The points, and what is written of them."""

    def __init__(self, points: Any) -> None:
        self.points = points

    def finish(
        self,
        source: Path,
        output: Path | None,
        affine_output: Path | None,
        at: float | None,
        at_least: float | None,
        *,
        as_json: bool,
        wide: bool,
    ) -> None:
        """Fold, write and print."""
        from logn.evaluate.operating.tables import write_points

        if at is None:
            at = DEFAULT_AT if self.points.activation == "sigmoid" else round(self.points.common, 3)
        folded = self.points.fold(at, source, at_least=at_least) if affine_output is not None else None
        if output is not None:
            self.points.save(output)
        if folded is not None and affine_output is not None:
            folded.affine.save(affine_output)
        if as_json:
            shares = None if folded is None else {"at": folded.at, "kept": folded.kept, "limited": folded.limited}
            print_json({**self.points.to_dict(), "folded": shares})
            return
        echo(write_points(self.points, style=text_style(wide=wide)))
        if folded is not None and affine_output is not None:
            echo("")
            print_text(folded.describe())
            print_fold(folded.affine, affine_output)
