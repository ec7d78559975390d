"""Compare post-hoc methods on the very same predictions: one pass over the data, one table.

The steps are the same for detectors and classifiers: read the truth, fit the methods, go through the predictions once
under all of them, measure each, and draw images or rows for intervals.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from logn.data.class_counts import ClassCounts
from logn.data.dataset import DetectionDataset
from logn.errors import InputError
from logn.measure.classification.logits import moments_of_logits
from logn.measure.comparison.comparison import (
    CompareSettings,
    Comparison,
    MethodResult,
    Provenance,
    StrengthPoint,
)
from logn.measure.comparison.method_fitting import (
    DEFAULT_METHODS,
    LogitMap,
    Methods,
    is_same_map,
    map_for_store,
    named_methods,
    strength_maps,
)
from logn.measure.comparison.tasks import ClassificationTask, DetectionTask, Drawn, StrengthValues
from logn.measure.detection.bootstrap import paired_differences
from logn.methods.affine import ClassAffine
from logn.methods.catalog import checked_inputs, parse
from logn.predictions.classifier import is_classifier_file
from logn.predictions.predict import mask_maker
from logn.predictions.store import Predictions, is_store
from logn.statistics.moments import ClassMoments


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
    clock = _StepClock()
    settings = settings or CompareSettings()
    inputs = checked_inputs(inputs)
    detector = is_store(predictions)
    of_other = {"train_logits": train_logits, "class_names": class_names} if detector else {"masks": masks}
    for name, value in of_other.items():
        if value is not None:
            other = "the logits of a classifier" if detector else "the predictions of a detector"
            raise InputError(f"`{name}` is only for {other}. Leave it out.")
    for name, value in (("images", images), ("mask_results", mask_results)):
        if masks is None and value is not None:
            raise InputError(f"`{name}` is only for masks: pass the model too, as `masks`.")
    if labels is None and not is_classifier_file(predictions):
        wanted = "the annotations" if detector else "the class of each row"
        raise InputError(f"Pass {wanted} as `labels`.")
    task: DetectionTask | ClassificationTask
    if detector:
        statistics = _statistics(moments, None)
        store = predictions if isinstance(predictions, Predictions) else Predictions(predictions)
        maker = None
        if masks is not None:
            is_folder = images is None or isinstance(images, str | os.PathLike)
            if is_folder and not isinstance(labels, str | os.PathLike):
                raise InputError("These annotations are not a file: pass the images as a data set, `images`.")
            data = DetectionDataset(labels, images) if is_folder else images
            maker = mask_maker(masks, data, store, progress=progress)
        task = DetectionTask.open(store, labels, settings, statistics, counts, maker, mask_results)
    else:
        task = ClassificationTask.open(
            predictions, labels, settings, lambda: _statistics(moments, train_logits), counts, class_names
        )
        if task.truth.train_counts is not None:
            # Every image has one class, so the sum of the counts is the number of images.
            train_counts = task.truth.train_counts
            counts = ClassCounts(train_counts, num_images=int(train_counts.sum()))
    clock.lap("ground truth")
    inputs = {"moments": task.moments, "counts": counts, **inputs}
    named, allow_mismatch = named_methods(methods), settings.allow_mismatch
    maps = {
        name: map_for_store(name, _at(method, settings), task.head, inputs, allow_mismatch=allow_mismatch)
        for name, method in named.items()
    }
    strengths = strength_maps(named, task.head, inputs, at=settings.at, allow_mismatch=allow_mismatch)
    others = [affine for _, affine in strengths.values() if not any(is_same_map(affine, one) for one in maps.values())]
    fitted_from = [name for name, value in inputs.items() if value is not None]
    clock.lap("fit")
    outcomes: Any = task.outcomes(maps, others, progress)
    clock.lap(task.reading)
    measured: Any = task.measure(list(maps), outcomes[: len(maps)])
    curve = _strength_points(strengths, task.strength_values(outcomes, measured))
    clock.lap("metrics")
    drawn: Sequence[Drawn] = task.draw(measured) if settings.num_bootstrap else [{}] * len(maps)
    clock.lap("bootstrap")
    share = clock.seconds[task.reading] / len(maps)
    return Comparison(
        rows=_with_differences([method.row for method in measured], drawn, settings.confidence, share),
        task=task.kind,
        description=task.description,
        classes=task.classes(),
        protocols=task.protocols,
        settings=task.settings,
        seconds=clock.seconds,
        notes=task.notes,
        provenance=Provenance.now({**task.inputs(), "fitted_from": fitted_from}),
        strengths=curve,
    )


def _at(method: Any, settings: CompareSettings) -> Any:
    """A specification with the user's score threshold, where the method takes one, as `logn correct` fits it."""
    return parse(method).with_options(threshold=settings.at) if isinstance(method, str) else method


def _strength_points(
    strengths: Mapping[float, tuple[str, ClassAffine]], measured: Sequence[tuple[LogitMap, StrengthValues]]
) -> tuple[StrengthPoint, ...]:
    """What each strength reaches: one that is among the methods was measured there."""
    points = []
    for strength, (spec, affine) in strengths.items():
        values, threshold = next(reached for transform, reached in measured if is_same_map(affine, transform))
        points.append(StrengthPoint(strength, spec, values, threshold))
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
