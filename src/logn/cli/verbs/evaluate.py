"""`logn evaluate`: the metrics of one set of predictions or of one result file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, progress
from logn.cli.options import evaluation as options
from logn.errors import InputError


def evaluate(
    annotations: options.AnnotationsOption,
    predictions: Annotated[Path | None, typer.Option("--predictions", "-p", help="What `logn predict` wrote.")] = None,
    correction: Annotated[
        Path | None, typer.Option(help="With --predictions: a correction, as `logn fit` wrote it.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option("--results", "-r", help="Or: a COCO-style result file of any tool.")
    ] = None,
    counts: options.CountsOption = None,
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
    """Evaluate predictions by the protocol of LVIS, or of COCO.

    AP, AP50, AP75, by size and by class frequency, AP-Pool and the calibration error of the scores; the AP of every
    class goes into the folder given by `--output`.

    **Examples**

    `logn evaluate -p store -a lvis_v1_val.json`

    `logn evaluate -p store --correction affine.safetensors -a lvis_v1_val.json --fixed --errors`

    `logn evaluate -r results.json -a instances_val2017.json --coco --json`
    """
    if (predictions is None) == (results is None):
        raise InputError("Expected one of `--predictions` and `--results`, but got both or neither.")
    if results is not None and correction is not None:
        raise InputError("Expected `--correction` only with `--predictions`, but got `--results`.")
    decode = options.decode_options(score_threshold, nms, max_detections)
    choices = {
        "style": "coco" if coco else "lvis",
        "num_bootstrap": 0,
        "fixed": fixed,
        "errors": errors,
        "only_predicted": only_predicted,
        "report_images": 0,  # there is no page of a single model
    }
    settings = options.compare_settings(decode, bounds, choices)
    options.make_folder(output)
    table = options.read_counts(counts)
    if results is not None:
        groups = options.group_counts(table, bounds, None)
        comparison = _of_results(results, annotations, settings, {"counts": table, **groups})
    else:
        with progress("Decoding", None, shown=show_progress) as advance:
            comparison = _of_predictions(predictions, correction, annotations, settings, (table, bounds), advance)
    options.present(comparison, form, output, as_json=json)


def _of_results(results: Path, annotations: Path, settings: Any, groups: dict[str, Any]) -> Any:
    from logn.evaluate.detection.result_file import evaluate_results

    return evaluate_results(results, annotations, settings=settings, **groups)


def _of_predictions(
    predictions: Any, correction: Path | None, annotations: Path, settings: Any, grouping: Any, advance: Any
) -> Any:
    from logn.calibrators.class_affine import ClassAffine
    from logn.evaluate.comparison.compare import compare
    from logn.evaluate.store.prediction_store import PredictionStore

    store = PredictionStore(predictions)
    counts, bounds = grouping
    groups = options.group_counts(counts, bounds, store.header.class_names)
    methods = {} if correction is None else {str(correction): ClassAffine.load(correction)}
    return compare(store, annotations, methods, settings=settings, progress=advance, counts=counts, **groups)
