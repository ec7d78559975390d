"""Methods compared on the proposals of a detector: decoded and matched in one pass, measured, drawn."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray
from logn.base.processes import available_processors
from logn.data.class_counts import ClassCounts
from logn.data.class_names import match_classes
from logn.data.label_sources import find_labels
from logn.errors import InputError, warn
from logn.matching.ground_truth import (
    LVIS_BOUNDS,
    GroundTruth,
    Groups,
    groups_of_classes,
    other_images,
    truth_of_predictions,
)
from logn.matching.match import match_detections, match_sizes
from logn.matching.outcomes import COLUMNS, IOU_THRESHOLDS, Index, JoinedTable, Marks, Outcomes
from logn.matching.results import write_results
from logn.measure.comparison.comparison import (
    CompareSettings,
    EvaluatedClass,
    MethodResult,
    ReportDetails,
    describe_statistics,
    with_training,
)
from logn.measure.comparison.method_fitting import FittedMethods, LogitMap, aligned_counts
from logn.measure.detection import metrics as ap
from logn.measure.detection.bootstrap import DrawnMethod
from logn.measure.detection.example_images import ShownDetections, choose_images, rare_classes
from logn.measure.detection.metrics import BestDetections, EvaluationProtocol
from logn.measure.detection.threshold_curve import ThresholdCurve
from logn.measure.detection.tide import ErrorKinds, ErrorTypes, error_kinds, error_types
from logn.predictions.decoder import Progress, decode_chunks
from logn.predictions.detections import Detections
from logn.predictions.predict import MaskMaker
from logn.predictions.store import Predictions
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments

# The masks of the detections of a method.
Masks = npt.NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class DetectionData:
    """Predictions of a detector, and what they are held against.

    Args:
        store: The proposals.
        truth: The ground truth.
        groups: `(F,)` "r", "c" or "f"; None when unknown.
        group_source: Where the groups come from.
        train_counts: `(F,)` training images of each class; None when unknown.
        moments: Statistics of the training logits; None when unknown.
        settings: What is measured, and how, with what the store says of decoding.
        notes: What to know before reading the numbers.
    """

    store: Predictions
    truth: GroundTruth
    groups: Groups | None
    group_source: str | None
    train_counts: FloatArray | None
    moments: ClassMoments | None
    settings: CompareSettings
    notes: tuple[str, ...] = ()

    @property
    def protocol(self) -> EvaluationProtocol:
        """The protocol of AP."""
        truth, decode = self.truth, self.settings.decode
        every = truth.style == "lvis" and truth.verified is not None and truth.verified.all()
        return EvaluationProtocol(
            style=truth.style,
            max_detections=decode.max_detections if truth.style == "lvis" else ap.COCO_CAP,
            score_threshold=decode.score_threshold,
            nms_iou=decode.nms_iou if decode.nms != "none" else None,
            groups=self.group_source,
            images=f"{truth.num_images:,} images" + (", every class verified in each" if every else ""),
            nms=decode.nms or "class-wise",
            multi_label=decode.multi_label is not False,
        )

    @property
    def shown(self) -> Marks:
        """`(I,)` the images that the report looks at, evenly spaced."""
        number = self.truth.num_images
        chosen = np.zeros(number, bool)
        chosen[np.linspace(0, number - 1, min(self.settings.report_images, number)).round().astype(np.intp)] = True
        return chosen

    def classes(self) -> tuple[EvaluatedClass, ...]:
        """The classes of the annotations."""
        truth = self.truth
        columns = zip(truth.category_ids.tolist(), truth.class_names, truth.boxes_per_class.tolist(), strict=True)
        classes = [
            EvaluatedClass(number, name, None if self.groups is None else str(self.groups[index]) or None, boxes)
            for index, (number, name, boxes) in enumerate(columns)
        ]
        return with_training(classes, self.train_counts, self.moments)

    def inputs(self) -> dict[str, Any]:
        """What is known of the inputs, for the record."""
        store, source = self.store, find_labels(self.truth.source)
        return {
            "predictions": {
                "path": str(store.path),
                "images": len(store),
                "proposals": store.num_proposals,
                "columns": store.num_columns,
                "activation": store.header.head.activation,
                "model": store.header.metadata.get("model"),
                "model_words": store.header.metadata.get("model_words"),
            },
            "annotations": self.truth.source,
            "image_root": str(source.root.absolute()) if source.path.exists() else None,
            "statistics": describe_statistics(self.moments),
        }


def open_detections(
    store: Predictions,
    labels: Any,
    settings: CompareSettings,
    moments: ClassMoments | None,
    counts: Any,
    *,
    with_masks: bool,
) -> DetectionData:
    """Read the ground truth of the images of a store, and check that it fits."""
    truth = truth_of_predictions(
        labels,
        store,
        masks=with_masks,
        style=settings.style,
        only_predicted=settings.only_predicted,
        allow_missing_classes=settings.allow_missing_classes,
    )
    if with_masks:
        _ = truth.masks  # labels without masks are refused before the model runs
    notes = [*filter(None, [other_images(store, truth)])]
    for doubt in notes:
        warn(doubt)
    by_counts = truth.frequency is None or settings.bounds is not None
    train_counts = None if counts is None else aligned_counts(counts, store.header.head).image_counts
    if counts is None and by_counts:
        train_counts = _counts_of_training(labels, store.header.head)
    groups, source = groups_of_classes(truth, train_counts if by_counts else None, settings.bounds or LVIS_BOUNDS)
    notes += filter(None, [truth.note])
    if not store.is_complete:
        notes.append(f"The store holds {len(store):,} of {store.header.num_images:,} images.")
    if truth.style == "coco":
        notes.append("Every class is taken as annotated in every image.")
    settings = replace(settings, decode=settings.decode.resolved(store.header), style=truth.style)
    return DetectionData(store, truth, groups, source, train_counts, moments, settings, tuple(notes))


def _counts_of_training(labels: Any, head: Head) -> FloatArray | None:
    """The training images of each class, where labels have a split of training that can be read; else None."""
    source = find_labels(labels) if isinstance(labels, str | os.PathLike) else None
    if source is None or not source.has_splits or head.class_names is None:
        return None
    try:
        counts = ClassCounts.load(source.path)
        label_of_class = match_classes(head.class_names, counts.names or ()).label_of_model
    except InputError:  # the images of training may be elsewhere
        return None
    # Classes that the labels lack are not measured.
    return np.where(label_of_class >= 0, counts.image_counts[label_of_class], 0.0)


@dataclass(frozen=True, eq=False)
class ShownBoxes:
    """Boxes `(N, 4)` of the detections of the images that the report looks at."""

    boxes: npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class MethodOutcomes:
    """What became of the detections of one method.

    Args:
        outcomes: Of all detections.
        by_size: Of small, medium and large objects.
        kinds: What is wrong with the detections of the images whose errors are asked for.
        shown: Where the detections are in the images that the report looks at.
        detections: All detections, where masks are to be made of them; else none.
    """

    outcomes: Outcomes
    by_size: Outcomes
    kinds: ErrorKinds
    shown: ShownBoxes
    detections: Detections


# The tables of a method, and what has a value per detection in each.
TABLES = {
    "outcomes": COLUMNS,
    "by_size": COLUMNS,
    "kinds": ("kind", "repair"),
    "shown": ("boxes",),
    "detections": ("image_index", "labels", "scores", "boxes", "proposal"),
}
# Of the methods, and of the other maps, of which only the best detections count.
DecodedMethods = tuple[list[MethodOutcomes], list[Outcomes]]


@dataclass(frozen=True, eq=False)
class Matching:
    """Matches the detections of some images where they are decoded.

    Args:
        truth: The ground truth.
        protocol: Its limits hold before anything is matched: what is not evaluated uses up places, too.
        diagnosed: `(I,)` images whose errors are asked for.
        shown: `(I,)` images whose boxes are kept.
        num_methods: How many of the maps are methods; the others are matched at the first overlap alone.
        keep_detections: Whether masks are to be made.
    """

    truth: GroundTruth
    protocol: EvaluationProtocol
    diagnosed: Marks
    shown: Marks
    num_methods: int
    keep_detections: bool

    def __call__(self, detections: list[Detections]) -> DecodedMethods:
        """Match the detections of each map."""
        if self.protocol.style == "coco":  # the decoder holds a limit per image; this one is per image and class
            detections = [part.take(ap.rows_within_limits(part, self.protocol)) for part in detections]
        methods = [self._matched(part) for part in detections[: self.num_methods]]
        others = detections[self.num_methods :]
        return methods, [match_detections(part, self.truth, thresholds=IOU_THRESHOLDS[:1]) for part in others]

    def _matched(self, detections: Detections) -> MethodOutcomes:
        outcomes, by_size = match_sizes(detections, self.truth)
        rows = np.flatnonzero(self.diagnosed[detections.image_index])
        kinds = error_kinds(detections.take(rows), outcomes.take(rows), self.truth)
        shown = ShownBoxes(detections.boxes[self.shown[detections.image_index]])
        kept = detections if self.keep_detections else detections.take(slice(0, 0))
        return MethodOutcomes(outcomes, by_size, kinds, shown, kept)


def decode_methods(
    data: DetectionData, fitted: FittedMethods, progress: Progress | None, *, keep_detections: bool
) -> DecodedMethods:
    """Decode and match all images in one pass under all maps."""
    truth, settings, shown = replace(data.truth, images=(), outlines=None), data.settings, data.shown
    diagnosed = np.ones_like(shown) if settings.errors else shown
    matching = Matching(truth, data.protocol, diagnosed, shown, len(fitted.maps), keep_detections)
    decoding = decode_chunks(data.store, fitted.transforms, settings.decode, matching, progress=progress)
    methods = [{name: JoinedTable[Any](columns) for name, columns in TABLES.items()} for _ in fitted.maps]
    others = [JoinedTable[Outcomes](COLUMNS) for _ in fitted.others]
    with contextlib.closing(decoding) as chunks:
        for of_methods, of_others in chunks:
            for tables, part in zip(methods, of_methods, strict=True):
                for name, table in tables.items():
                    table.add(getattr(part, name))
            for table, outcomes in zip(others, of_others, strict=True):
                table.add(outcomes)
    joined = [MethodOutcomes(**{name: table.joined() for name, table in tables.items()}) for tables in methods]
    return joined, [table.joined() for table in others]


def make_masks(
    maker: MaskMaker,
    names: Iterable[str],
    methods: Sequence[MethodOutcomes],
    truth: GroundTruth,
    folder: str | os.PathLike[str] | None,
) -> list[Masks]:
    """The masks of all detections of each method; with a folder, also as one file of results per method."""
    detections = [method.detections for method in methods]
    masks = maker(detections)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, of_method, encoded in zip(names, detections, masks, strict=True):
            file = Path(folder) / (re.sub(r"[^\w.=,-]+", "-", name) + ".json")
            write_results(file, of_method, encoded.tolist(), truth)
    return masks


@dataclass(frozen=True, eq=False)
class MeasuredMethod:
    """One method's numbers, with what is drawn and shown of it.

    Args:
        row: The numbers.
        drawn: What is drawn.
        shown: The detections of the images that the report looks at.
        errors: The kinds of error in these images.
    """

    row: MethodResult
    drawn: DrawnMethod
    shown: ShownDetections
    errors: ErrorTypes | None


def measure_methods(
    data: DetectionData,
    fitted: FittedMethods,
    methods: Sequence[MethodOutcomes],
    masks: Sequence[Masks | None],
) -> list[MeasuredMethod]:
    """All metrics of each method, and what the report shows of it."""
    wanted = wanted_detections(data, methods[0].outcomes)
    with ThreadPoolExecutor(available_processors()) as pool:
        work = partial(_measure_method, data, wanted)
        measured = list(pool.map(work, fitted.maps.items(), fitted.estimates, methods, masks))
        if len(measured) < 2 or not data.shown.any():
            return measured
        details = list(pool.map(partial(_report_details, data, measured[0]), measured))
    return [
        replace(method, row=replace(method.row, details=of_method))
        for method, of_method in zip(measured, details, strict=True)
    ]


def wanted_detections(data: DetectionData, outcomes: Outcomes) -> dict[float, Index]:
    """How many detections of the uncorrected model are above each threshold in each image, the user's included."""
    return ap.counts_per_image(outcomes, (*ap.COUNTED_AT, data.settings.at), data.truth.num_images)


def _measure_method(
    data: DetectionData,
    wanted: Mapping[float, Index],
    named: tuple[str, LogitMap],
    estimate: float | None,
    method: MethodOutcomes,
    masks: Masks | None,
) -> MeasuredMethod:
    started = time.perf_counter()
    truth, groups, settings, outcomes = data.truth, data.groups, data.settings, method.outcomes
    ranked = outcomes.by_class(truth)
    metrics = ap.average_precision(ranked, method.by_size.by_class(truth), data.protocol, groups)
    best = BestDetections.of(outcomes, wanted, truth)
    recall = ap.recall_at_count(best, outcomes.score, groups)
    values = dict(metrics.values)
    ranked_by_masks = None
    if masks is not None:
        by_masks, sizes_by_masks = match_sizes(method.detections, truth, masks=masks.tolist())
        ranked_by_masks = by_masks.by_class(truth)
        of_masks = ap.average_precision(ranked_by_masks, sizes_by_masks.by_class(truth), data.protocol, groups).values
        values |= {f"{metric}-mask": value for metric, value in of_masks.items()}
    values |= ap.average_precision_pool(ranked, groups=groups) | ap.calibration_error(ranked, groups=groups)
    values |= {metric: value for point in recall.values() for metric, value in point.values.items()}
    shown = data.shown[outcomes.image]
    of_shown = outcomes.take(shown)
    errors = errors_shown = None
    if settings.errors:
        errors = error_types(outcomes, method.kinds, truth, groups)
    elif data.shown.any():
        errors_shown = error_types(of_shown, method.kinds, truth, groups, data.shown)
    at, use = settings.at, recall[settings.at].threshold
    detections = ShownDetections.of(of_shown, method.shown.boxes, use, None if masks is None else masks[shown])
    row = MethodResult(
        named[0],
        values,
        metrics.per_class,
        transform=named[1],
        recall=recall,
        thresholds=ThresholdCurve.of(outcomes, truth, at, use, estimate),
        errors=errors,
        seconds=time.perf_counter() - started,
    )
    return MeasuredMethod(row, DrawnMethod(ranked, ranked_by_masks, best), detections, errors_shown)


def _report_details(data: DetectionData, baseline: MeasuredMethod, method: MeasuredMethod) -> ReportDetails:
    """Kinds of error and pictures of the images that the report looks at."""
    rare = rare_classes(data.truth, data.groups)
    return ReportDetails(
        images=int(data.shown.sum()),
        of_images=data.truth.num_images,
        gallery=choose_images(data.truth, baseline.shown, method.shown, rare),
        errors=method.errors,
    )


def recall_of_best(data: DetectionData, outcomes: Outcomes, first: Outcomes) -> ap.RecallAtCount:
    """What is found with as many detections as the uncorrected model has above the user's threshold.

    Args:
        data: The data.
        outcomes: Of some map.
        first: Of the uncorrected model.
    """
    at = data.settings.at
    wanted = ap.counts_per_image(first, (at,), data.truth.num_images)
    return ap.recall_at_count(BestDetections.of(outcomes, wanted, data.truth), outcomes.score, data.groups)[at]
