"""`logn compare`: every post-hoc method on the same predictions, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, print_note, progress
from logn.cli.options import evaluation as options
from logn.cli.options.choices import Task
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.calibrators.method_spec import FitInputs
    from logn.classes.counts import ClassCounts
    from logn.evaluate.store.prediction_store import PredictionStore


def compare(
    predictions: Annotated[Path, typer.Option("--predictions", "-p", help="What `logn predict` wrote.")],
    annotations: options.AnnotationsOption,
    task: options.TaskOption = Task.detection,
    methods: Annotated[
        str, typer.Option(help="Separated by commas, with options behind a colon: none,logn,norcal:gamma=0.6.")
    ] = "logn,logn:balanced",
    method: options.MethodOption = None,
    correction: options.CorrectionsOption = None,
    statistics: Annotated[Path | None, typer.Option("--statistics", "-s", help="What `logn collect` wrote.")] = None,
    allow_mismatch: options.MismatchOption = False,
    counts: options.CountsOption = None,
    dimensions: Annotated[
        Path | None, typer.Option(help="fracal: annotations, .csv column, .npy or JSON list.")
    ] = None,
    weights: options.WeightsOption = None,
    key: options.KeyOption = None,
    detector: Annotated[
        Path | None, typer.Option(help="Folder of a trained detector, for mask AP: it makes masks for what is kept.")
    ] = None,
    images: Annotated[Path | None, typer.Option(help="With --detector: folder of the images.")] = None,
    sweep: Annotated[list[str] | None, typer.Option(help="Such as margin=-12:4:1 or gamma=0:1.2:0.1.")] = None,
    split: Annotated[
        bool, typer.Option("--split", help="Choose a sweep's value on one half of the images, report on the other.")
    ] = False,
    objective: options.ObjectiveOption = "AP",
    bootstrap: options.BootstrapOption = 1000,
    confidence: options.ConfidenceOption = 0.95,
    seed: options.DrawSeedOption = 0,
    coco: options.CocoOption = False,
    only_predicted: options.OnlyPredictedOption = False,
    score_threshold: options.ThresholdOption = 1e-4,
    nms: options.NmsOption = 0.5,
    max_detections: options.CapOption = 300,
    bounds: options.BoundsOption = None,
    fixed: options.FixedOption = False,
    errors: options.ErrorsOption = False,
    form: options.FormatOption = options.Format.table,
    output: options.FolderOption = None,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Score any number of methods on the very same proposals, without running the detector again.

    The table has AP over all classes and over rare, common and frequent ones, and the difference of each to the
    uncorrected model (`none`, always the first row) with an interval from paired draws of the images. Which
    methods there are, with their options, `logn fit --help` says.

    **Examples**

    `logn compare -p store -s stats.safetensors -a lvis_v1_val.json --methods none,logn,logn:margin=0`

    `logn compare -p store -s stats.safetensors -a val.json --counts train.json --methods logn,loga,norcal,iif --fixed`

    `logn compare -p store -s stats.safetensors -a val.json --counts train.json --sweep gamma=0:1.2:0.1 --split`

    `logn compare -p store -s stats.safetensors -a val.json --method logn:margin=0,use_std=false --format latex`

    `logn compare --task classification --help` (for the logits of a classifier)
    """
    from logn.evaluate.comparison.compare import compare as run
    from logn.evaluate.store.prediction_store import PredictionStore

    check_numbers(bootstrap, confidence)
    decode = options.decode_options(score_threshold, nms, max_detections)
    choices = {
        "style": "coco" if coco else "lvis",
        "num_bootstrap": bootstrap,
        "confidence": confidence,
        "seed": seed,
        "split": split,
        "fixed": fixed,
        "errors": errors,
        "only_predicted": only_predicted,
        "objective": objective,
    }
    settings = options.compare_settings(decode, bounds, choices)
    options.make_folder(output)
    store = PredictionStore(predictions)
    table = options.read_counts(counts)
    chosen = read_methods(methods, method or [], correction or [])
    inputs = _fit_inputs(statistics, table, dimensions, (weights, key), store.header.class_names)
    groups = options.group_counts(table, bounds, store.header.class_names)
    mask_maker = None if detector is None else _mask_maker(detector, annotations, images, store)
    with progress("Decoding", len(store) * (1 + fixed), shown=show_progress) as advance:
        comparison = run(
            store,
            annotations,
            chosen,
            settings=settings,
            sweeps=sweep or (),
            progress=advance,
            allow_mismatch=allow_mismatch,
            mask_maker=mask_maker,
            inputs=inputs,
            **groups,
        )
    options.present(comparison, form, output, as_json=json)
    if output is not None:
        print_note(f"For one page with charts and images: {options.report_command(output, images)}")


def _mask_maker(detector: Path, annotations: Path, images: Path | None, store: PredictionStore) -> Any:
    from logn.datasets.detection_dataset import DetectionDataset
    from logn.evaluate.decode.masks import mask_maker
    from logn.training.engine.checkpoint import load_detector

    model = load_detector(detector, num_classes=store.num_classes)
    return mask_maker(model, DetectionDataset(annotations, images), store)


def check_numbers(bootstrap: int, confidence: float) -> None:
    """Refuse draws and intervals that make no sense."""
    if bootstrap < 0:
        raise InputError(f"Expected `--bootstrap` to be at least 0, but got {bootstrap}.")
    if not 0 < confidence < 1:
        raise InputError(f"Expected `--confidence` to lie between 0 and 1, but got {confidence:g}.")


def read_methods(listed: str, more: list[str], corrections: list[Path]) -> dict[str, Any]:
    """All methods by name: specifications, and corrections read from files."""
    from logn.calibrators.class_affine import ClassAffine
    from logn.evaluate.comparison.method_fitting import split_methods

    specs = {spec: spec for spec in (*split_methods(listed), *more)}
    return {**specs, **{str(path): ClassAffine.load(path) for path in corrections}}


def _fit_inputs(
    statistics: Path | None,
    counts: ClassCounts | None,
    dimensions: Path | None,
    classifier: tuple[Path | None, str | None],
    names: tuple[str, ...] | None,
) -> FitInputs:
    from logn.calibrators.method_spec import FitInputs
    from logn.classes.dimensions import read_dimensions
    from logn.cli.verbs.fit import read_classifier
    from logn.statistics.moments import ClassMoments

    weights, key = classifier
    weight, bias = read_classifier(weights, key, None) if weights else (None, None)
    return FitInputs(
        moments=ClassMoments.load(statistics) if statistics else None,
        counts=counts,
        dimensions=read_dimensions(dimensions, names) if dimensions else None,
        weight=weight,
        bias=bias,
    )
