"""Compare post-hoc methods on the very same predictions: one pass over the data, one table.

The steps are the same for detectors and classifiers: read the truth, fit the methods, go through the predictions once
under all of them, measure each, and draw images or rows for intervals.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from logn.base.arrays import FloatArray
from logn.base.processes import available_processors
from logn.data.class_counts import ClassCounts
from logn.data.dataset import DetectionDataset
from logn.errors import InputError
from logn.measure.classification.accuracy import bootstrap_metrics
from logn.measure.classification.rows import moments_of_logits, row_outcomes
from logn.measure.compare_classifier import ClassifierData, measure_rows, open_classifier, strength_values
from logn.measure.compare_detector import (
    DetectionData,
    decode_methods,
    match_masks,
    measure_methods,
    open_detections,
    recall_of_best,
)
from logn.measure.comparison import (
    CLASSIFICATION,
    DETECTION,
    CompareSettings,
    Comparison,
    MethodResult,
    Provenance,
    StrengthPoint,
)
from logn.measure.detection.bootstrap import draw_methods, paired_differences
from logn.measure.detection.mask_precision import MaskModel, MaskOutcomes
from logn.measure.fitted_methods import (
    DEFAULT_METHODS,
    FittedMethods,
    Methods,
    fit_methods,
    is_same_map,
    named_methods,
)
from logn.methods.catalog import checked_inputs
from logn.predictions.classifier import is_classifier_file
from logn.predictions.store import Predictions, is_store
from logn.statistics.moments import ClassMoments

# The metrics of a method over the draws.
Drawn = Mapping[str, FloatArray]


def compare(
    predictions: Any,
    labels: Any = None,
    methods: Methods = DEFAULT_METHODS,
    *,
    moments: ClassMoments | str | os.PathLike[str] | None = None,
    counts: Any = None,
    settings: CompareSettings | None = None,
    progress: Callable[[int], object] | None = None,
    train_logits: Any = None,
    class_names: Sequence[str] | None = None,
    masks: Any = None,
    images: Any = None,
    mask_results: str | os.PathLike[str] | None = None,
    **inputs: Any,
) -> Comparison:
    """Measure methods on the same predictions, with their differences to the uncorrected model.

    Args:
        predictions: Of a detector a `Predictions` or its folder. Of a classifier the file that `logn.predict`
            wrote, or logits `(rows, classes)`: an array, a tensor, or a `.npy`, `.npz` or `.safetensors` file, which is
            mapped and read in blocks.
        labels: Of a detector the annotations of the same images (LVIS, COCO or YOLO, or the content of a file). Of
            a classifier the class of each row, from 0, or a `.npy`, `.json`, `.csv` or `.txt` file with them; a file of
            `logn.predict` has them.
        methods: Specifications such as "logn" or "norcal:gamma=0.6", or a mapping from a name to a specification or to
            a map of logits made elsewhere. The uncorrected model, "none", is always measured. By default what LogN
            recommends ("recommended") and the paper's LogN ("logn").
        moments: Statistics of the training images' logits, or their file.
        counts: Training images of each class, for methods that use them and for rare, common and frequent classes
            (unless the annotations say which are) or few-, medium- and many-shot ones.
        settings: What is measured, and how.
        progress: Called with the number of images or rows that were done since the last call.
        train_logits: Of a classifier, instead of `moments`: logits of training images; their labels are not needed.
        class_names: Of a classifier: one name for each class; puts counts with names in order.
        masks: Of a detector: the model that was predicted with, for mask AP, as `logn.detector` takes it. It runs once
            more over the images, for the masks alone.
        images: With `masks`: folder that the image paths of the annotations start from, by default theirs; or a data
            set as `logn.predict` takes it.
        mask_results: With `masks`: folder for one LVIS results file per method, with run-length encoded masks.
        inputs: What else methods are fitted from: `dimensions`, `weight`, `bias`, `target`, as `logn.methods.fit` takes
            them.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.integers(0, 3, 300)
        >>> logits = 2 * np.eye(3)[labels] + rng.normal(size=(300, 3)) + [3.0, 1.0, 0.0]
        >>> comparison = compare(logits, labels, ["logn"], train_logits=logits, counts=[900, 90, 9])
        >>> [round(row["few"], 2) for row in comparison.rows]
        [0.25, 0.82]
    """
    settings = settings or CompareSettings()
    inputs = checked_inputs(inputs)
    is_detector = is_store(predictions)
    of_other = {"train_logits": train_logits, "class_names": class_names} if is_detector else {"masks": masks}
    for name, value in of_other.items():
        if value is not None:
            other = "the logits of a classifier" if is_detector else "the predictions of a detector"
            raise InputError(f"`{name}` is only for {other}. Leave it out.")
    for name, value in (("images", images), ("mask_results", mask_results)):
        if masks is None and value is not None:
            raise InputError(f"`{name}` is only for masks: pass the model too, as `masks`.")
    if labels is None and not is_classifier_file(predictions):
        wanted = "the annotations" if is_detector else "the class of each row"
        raise InputError(f"Pass {wanted} as `labels`.")
    named, clock = named_methods(methods), _StepClock()
    if not is_detector:
        statistics = partial(_statistics, moments, train_logits)
        rows = open_classifier(predictions, labels, settings, statistics, counts, class_names)
        if (train_counts := rows.truth.train_counts) is not None:
            # Every image has one class, so the sum of the counts is the number of images.
            counts = ClassCounts(train_counts, num_images=int(train_counts.sum()))
        clock.lap("ground truth")
        fitted = fit_methods(named, rows.head, {"moments": rows.moments, "counts": counts, **inputs}, settings)
        return _compare_rows(rows, fitted, settings, clock, progress)
    store = predictions if isinstance(predictions, Predictions) else Predictions(predictions)
    model = None
    if masks is not None:
        is_folder = images is None or isinstance(images, str | os.PathLike)
        if is_folder and not isinstance(labels, str | os.PathLike):
            raise InputError("These annotations are not a file: pass the images as a data set, `images`.")
        model = MaskModel.of(masks, DetectionDataset(labels, images) if is_folder else images, store)
    statistics_of_detector = _statistics(moments, None)
    data = open_detections(store, labels, settings, statistics_of_detector, counts, with_masks=model is not None)
    clock.lap("ground truth")
    inputs = {"moments": statistics_of_detector, "counts": counts, **inputs}
    fitted = fit_methods(named, store.head, inputs, settings)
    return _compare_detections(data, fitted, clock, progress, model, mask_results)


def _compare_detections(
    data: DetectionData,
    fitted: FittedMethods,
    clock: _StepClock,
    progress: Callable[[int], object] | None,
    model: MaskModel | None,
    mask_results: str | os.PathLike[str] | None,
) -> Comparison:
    settings = data.settings
    clock.lap("fit")
    outcomes = decode_methods(data, fitted.transforms, progress)
    masks: Sequence[MaskOutcomes | None] = [None] * len(fitted.maps)
    if model is not None:
        masks = match_masks(data, fitted.maps, model, mask_results, progress)
    clock.lap("decode")
    measured = measure_methods(data, fitted, outcomes[: len(fitted.maps)], masks)
    with ThreadPoolExecutor(available_processors()) as pool:
        first, others = outcomes[0].outcomes, [other.outcomes for other in outcomes[len(fitted.maps) :]]
        reached = [method.row.recall[settings.at] for method in measured]
        reached += pool.map(lambda other: recall_of_best(data, other, first), others)
    clock.lap("metrics")
    drawn: list[Drawn] = [{}] * len(measured)
    if settings.num_bootstrap:
        of_methods = [method.drawn for method in measured]
        drawn = [*draw_methods(of_methods, data.truth, data.groups, settings.num_bootstrap, settings.seed)]
    clock.lap("bootstrap")
    protocols = {"AP": data.protocol} | ({"mask": replace(data.protocol, iou_type="segm")} if model else {})
    share = clock.seconds["decode"] / len(measured)
    return Comparison(
        rows=_with_differences([method.row for method in measured], drawn, settings.confidence, share),
        task=DETECTION,
        description=data.protocol.describe(),
        classes=data.classes(),
        protocols=protocols,
        settings=settings,
        seconds=clock.seconds,
        notes=data.notes,
        provenance=Provenance.now({**data.inputs(), "fitted_from": list(fitted.inputs)}),
        strengths=_strength_points(fitted, [(point.values, point.threshold) for point in reached]),
    )


def _compare_rows(
    data: ClassifierData,
    fitted: FittedMethods,
    settings: CompareSettings,
    clock: _StepClock,
    progress: Callable[[int], object] | None,
) -> Comparison:
    clock.lap("fit")
    outcomes = row_outcomes(data.logits, data.truth.labels, fitted.transforms, progress or (lambda rows: None))
    of_methods = outcomes[: len(fitted.maps)]
    clock.lap("logits")
    rows = measure_rows(data, fitted.maps, of_methods)
    reached = [(strength_values(data, outcome), None) for outcome in outcomes]
    clock.lap("metrics")
    drawn: list[Drawn] = [{}] * len(rows)
    if settings.num_bootstrap:
        drawn = [*bootstrap_metrics(of_methods, data.truth, settings.num_bootstrap, settings.seed)]
    clock.lap("bootstrap")
    return Comparison(
        rows=_with_differences(rows, drawn, settings.confidence, clock.seconds["logits"] / len(rows)),
        task=CLASSIFICATION,
        description=data.truth.describe(),
        classes=data.classes(),
        settings=settings,
        seconds=clock.seconds,
        notes=data.notes(),
        provenance=Provenance.now({**data.inputs(), "fitted_from": list(fitted.inputs)}),
        strengths=_strength_points(fitted, reached),
    )


def _strength_points(
    fitted: FittedMethods, reached: Sequence[tuple[Mapping[str, float], float | None]]
) -> tuple[StrengthPoint, ...]:
    """What each strength reaches, from what each map reaches: metrics, and the score threshold to use."""
    points = []
    for strength, (spec, affine) in fitted.strengths.items():
        place = next(place for place, other in enumerate(fitted.transforms) if is_same_map(affine, other))
        points.append(StrengthPoint(strength, spec, *reached[place]))
    return tuple(points)


def _statistics(moments: Any, train_logits: Any) -> ClassMoments | None:
    """Moments from an object, from a file or from the training logits themselves; None when nothing is given."""
    if moments is not None and train_logits is not None:
        raise InputError("Pass `moments` or `train_logits`, not both.")
    if train_logits is not None:
        return moments_of_logits(train_logits)
    if isinstance(moments, str | os.PathLike):
        return ClassMoments.load(moments)
    statistics: ClassMoments | None = moments
    return statistics


def _with_differences(
    rows: Sequence[MethodResult], drawn: Sequence[Drawn], confidence: float, seconds: float
) -> tuple[MethodResult, ...]:
    """The rows with their differences to the first, over the same draws, and their share of reading the data."""
    first = rows[0].values
    return tuple(
        replace(
            row,
            differences=paired_differences(row.values, first, own, drawn[0], confidence),
            seconds=row.seconds + seconds,
        )
        for row, own in zip(rows, drawn, strict=True)
    )


class _StepClock:
    """Seconds by step, each counted from the end of the one before."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, step: str) -> None:
        """Count the time since the last step as this one's."""
        now = time.perf_counter()
        self.seconds[step] = now - self._last
        self._last = now
