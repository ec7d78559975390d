"""`logn evaluate`: the metrics of one set of predictions or of one result file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, WideOption, progress
from logn.cli.first_tries import refuse_model_as_predictions
from logn.cli.kinds import Kind, formerly, verb_of
from logn.cli.options import evaluation as options
from logn.evaluate.detection.protocol import SCORE_THRESHOLD

SourceArgument = Annotated[
    Path,
    typer.Argument(help="The folder that `logn predict` wrote, or a COCO-style result file (.json) of any tool."),
    formerly("--predictions", "-p"),
    formerly("--results", "-r"),
]


def evaluate_store(
    source: SourceArgument,
    annotations: options.AnnotationsOption,
    correction: Annotated[Path | None, typer.Option(help="A correction to apply, as `logn fit` wrote it.")] = None,
    counts: options.CountsOption = None,
    protocol: options.ProtocolOption = options.Protocol.auto,
    coco: options.CocoOption = False,
    allow_missing_classes: options.MissingClassesOption = False,
    only_predicted: options.OnlyPredictedOption = False,
    score_threshold: options.MinScoreOption = SCORE_THRESHOLD,
    nms: options.NmsOption = None,
    nms_iou: options.NmsIouOption = None,
    multi_label: options.MultiLabelOption = None,
    max_detections: options.CapOption = 300,
    bounds: options.BoundsOption = None,
    fixed: options.FixedOption = False,
    errors: options.ErrorsOption = False,
    form: options.FormatOption = options.Format.table,
    output: options.FolderOption = None,
    wide: WideOption = False,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Decode and measure what `logn predict` wrote."""
    from logn.calibrators.affine import ClassAffine
    from logn.evaluate.comparison.compare import compare
    from logn.evaluate.store.store import PredictionStore

    decode = options.decode_options(score_threshold, nms, nms_iou, multi_label, max_detections)
    choices = _choices(options.style_of(protocol, coco), only_predicted, fixed, errors)
    choices["allow_missing_classes"] = allow_missing_classes
    settings = options.compare_settings(decode, bounds, choices)
    options.make_folder(output)
    table = options.read_counts(counts)
    store = PredictionStore(source)
    groups = options.group_counts(table, bounds, store.header.class_names)
    methods = {} if correction is None else {str(correction): ClassAffine.load(correction)}
    with progress("Decoding", None, shown=show_progress) as advance:
        comparison = compare(store, annotations, methods, settings=settings, progress=advance, counts=table, **groups)
    options.present(comparison, form, output, as_json=json, wide=wide)


def evaluate_file(
    source: SourceArgument,
    annotations: options.AnnotationsOption,
    counts: options.CountsOption = None,
    protocol: options.ProtocolOption = options.Protocol.auto,
    coco: options.CocoOption = False,
    only_predicted: options.OnlyPredictedOption = False,
    max_detections: options.CapOption = 300,
    bounds: options.BoundsOption = None,
    fixed: options.FixedOption = False,
    errors: options.ErrorsOption = False,
    mask_errors: options.MaskErrorsOption = False,
    form: options.FormatOption = options.Format.table,
    output: options.FolderOption = None,
    wide: WideOption = False,
    show_progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Measure the result file of any tool, whose boxes were decoded there."""
    from logn.evaluate.detection.result_file import evaluate_results

    decode = options.decode_options(SCORE_THRESHOLD, None, None, None, max_detections)
    choices = _choices(options.style_of(protocol, coco), only_predicted, fixed, errors)
    choices["mask_errors"] = mask_errors
    settings = options.compare_settings(decode, bounds, choices)
    options.make_folder(output)
    table = options.read_counts(counts)
    groups = options.group_counts(table, bounds, None)
    with progress("Measuring", None, shown=show_progress):
        comparison = evaluate_results(source, annotations, settings=settings, counts=table, **groups)
    options.present(comparison, form, output, as_json=json, wide=wide)


def _choices(style: str, only_predicted: bool, fixed: bool, errors: bool) -> dict[str, Any]:
    return {
        "style": style,
        "num_bootstrap": 0,
        "fixed": fixed,
        "errors": errors,
        "only_predicted": only_predicted,
        "report_images": 0,  # there is no page of a single model
    }


STORE = Kind("Predictions", "predictions of `logn predict`", evaluate_store)
RESULTS = Kind("Result file", "a result file", evaluate_file)


@verb_of(STORE, RESULTS, common="Any predictions")
def evaluate(source: SourceArgument) -> Kind:
    """Evaluate predictions by the protocol of LVIS, or of COCO: which of them is seen from the annotations.

    AP, AP50, AP75, by size and by class frequency, AP-Pool and the calibration error of the scores; the AP of every
    class goes into the folder given by `--output`.

    **Examples**

    `logn evaluate store -a lvis_v1_val.json`

    `logn evaluate store --correction affine.safetensors -a lvis_v1_val.json --fixed --errors`

    `logn evaluate results.json -a instances_val2017.json --json`

    `logn evaluate store -a data.yaml:test`
    """
    refuse_model_as_predictions(source)
    return RESULTS if source.suffix.lower() == ".json" or source.is_file() else STORE
