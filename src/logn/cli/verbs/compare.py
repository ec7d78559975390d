"""`logn compare`: every post-hoc method on the same predictions of a detector or a classifier, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli.console import JsonOption, ProgressOption, WideOption, command, print_note, progress
from logn.cli.first_tries import refuse_model_as_predictions
from logn.cli.kinds import Kind, verb_of
from logn.cli.options import evaluation as options
from logn.cli.options.choices import Task, TaskOption
from logn.cli.verbs.compare_classification import compare_classification
from logn.errors import InputError
from logn.evaluate.detection.protocol import LVIS_CAP, SCORE_THRESHOLD
from logn.files import format_of

if TYPE_CHECKING:
    from logn.classes.counts import ClassCounts


def compare_detection(
    source: options.SourceArgument,
    annotations: options.AnnotationsOption,
    methods: options.MethodsOption = None,
    method: options.MethodOption = None,
    correction: options.CorrectionsOption = None,
    statistics: options.StatisticsOption = None,
    allow_mismatch: options.MismatchOption = False,
    counts: options.CountsOption = None,
    target: options.TargetOption = None,
    dimensions: Annotated[
        Path | None, typer.Option(help="fracal: annotations, .csv column, .npy or JSON list.")
    ] = None,
    weights: options.WeightsOption = None,
    key: options.KeyOption = None,
    sweep: options.SweepOption = None,
    split: options.SplitOption = False,
    objective: options.ObjectiveOption = None,
    bootstrap: options.BootstrapOption = 1000,
    confidence: options.ConfidenceOption = 0.95,
    seed: options.DrawSeedOption = 0,
    protocol: options.ProtocolOption = options.Protocol.auto,
    coco: options.CocoOption = False,
    allow_missing_classes: options.MissingClassesOption = False,
    only_predicted: options.OnlyPredictedOption = False,
    score_threshold: options.MinScoreOption = SCORE_THRESHOLD,
    at: options.ThresholdOption = 0.5,
    nms: options.NmsOption = None,
    nms_iou: options.NmsIouOption = None,
    multi_label: options.MultiLabelOption = None,
    max_detections: options.CapOption = LVIS_CAP,
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
    """Score methods on the very same proposals, without running the detector again."""
    from logn.evaluate.comparison.compare import compare as run
    from logn.evaluate.store.store import PredictionStore

    options.check_numbers(bootstrap, confidence)
    decode = options.decode_options(score_threshold, nms, nms_iou, multi_label, max_detections)
    choices = {
        "style": options.style_of(protocol, coco),
        "allow_missing_classes": allow_missing_classes,
        "num_bootstrap": bootstrap,
        "confidence": confidence,
        "seed": seed,
        "split": split,
        "fixed": fixed,
        "errors": errors,
        "mask_errors": mask_errors,
        "only_predicted": only_predicted,
        "at": at,
        "objective": "AP" if objective is None else objective,
    }
    settings = options.compare_settings(decode, bounds, choices)
    options.make_folder(output)
    store = PredictionStore(source)
    table = options.read_counts(counts)
    chosen = options.read_methods(methods, method or [], correction or [])
    inputs = _fit_inputs(statistics, table, dimensions, (weights, key), store.header.class_names)
    inputs["target"] = options.read_target(target)
    groups = options.group_counts(table, bounds, store.header.class_names)
    with progress("Decoding", len(store), shown=show_progress) as advance:
        comparison = run(
            store,
            annotations,
            chosen,
            settings=settings,
            sweeps=sweep or (),
            progress=advance,
            allow_mismatch=allow_mismatch,
            **inputs,
            **groups,
        )
    options.present(comparison, form, output, as_json=json, wide=wide)
    if output is not None:
        print_note(f"For one page with charts and images: {command('logn', 'report', output, keep=['--images'])}")


LOGIT_FILES = (".npy", ".npz", ".safetensors")
DETECTION = Kind("Detector", "predictions of a detector", compare_detection)
CLASSIFICATION = Kind("Image classifier", "a classifier", compare_classification)


@verb_of(DETECTION, CLASSIFICATION, common="Any predictions")
def compare(source: options.SourceArgument, task: TaskOption = None) -> Kind:
    """Score any number of methods on the very same predictions, without running the model again.

    The table has the difference of each method to the uncorrected model (`none`, always the first row) with an interval
    from paired draws of the images. Methods: none, recommended, logn (the paper's), loga, norcal, fracal, iif,
    tau-norm, temperature, p2p; fitted to the labels of one half, with `--split`: offsets, vector.

    **Detectors**: AP over all classes and over rare, common and frequent ones; recall@n:0.25 is the class-mean recall
    of the n best detections, n as many as `none` has above a score of 0.25. **Classifiers**: accuracy over all rows and
    over many-, medium- and few-shot classes (more than 100, 20 to 100 and up to 19 training samples), the
    calibration error (ECE) and the mean confidence.

    **Examples**

    `logn compare store -s stats.safetensors -a lvis_v1_val.json --methods none,logn,logn:margin=0`

    `logn compare store -s stats.safetensors -a val.json --counts train.json --methods logn,loga,norcal,iif --fixed`

    `logn compare store -s stats.safetensors -a val.json --counts train.json --sweep gamma=0:1.2:0.1 --split`

    `logn compare store -s stats.safetensors -a val.json --method logn:margin=0,use_std=false --format latex`

    `logn compare store -s stats.safetensors -a val.json --methods p2p,offsets:rows=500,offsets,vector --split`

    `logn compare test.npy --labels labels.npy --train-logits train.npy --counts counts.csv`

    `logn compare test.npy --labels labels.npy --train-logits train.npy --sweep tau=0:2:0.25 --split`
    """
    refuse_model_as_predictions(source)
    if task is not None:
        return DETECTION if task is Task.detection else CLASSIFICATION
    if source.is_file() and format_of(source) == "logn.statistics":
        raise InputError(
            f"Expected predictions, but `{source}` holds statistics, which stand behind `-s`: "
            f"`{command('logn', 'compare', 'predictions', '-s', source, '-a', 'val.json')}`."
        )
    if any(source.glob("part-*")):
        return DETECTION
    if source.is_file() or source.suffix in LOGIT_FILES:
        return CLASSIFICATION
    raise InputError(
        f"Expected `{source}` to be what `logn predict` wrote, or a file of logits, but "
        f"{'it is none of them' if source.exists() else 'there is none'}; `logn predict MODEL --data val.json -o "
        "predictions` makes predictions."
    )


def _fit_inputs(
    statistics: Path | None,
    counts: ClassCounts | None,
    dimensions: Path | None,
    classifier: tuple[Path | None, str | None],
    names: tuple[str, ...] | None,
) -> dict[str, Any]:
    from logn.classes.dimensions import read_dimensions
    from logn.cli.verbs.fit import read_classifier
    from logn.statistics.moments import ClassMoments

    weights, key = classifier
    weight, bias = read_classifier(weights, key, None) if weights else (None, None)
    return {
        "moments": ClassMoments.load(statistics) if statistics else None,
        "counts": counts,
        "dimensions": read_dimensions(dimensions, names) if dimensions else None,
        "weight": weight,
        "bias": bias,
    }
