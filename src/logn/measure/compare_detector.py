"""Methods compared on the proposals of a detector: decoded and matched in one pass, measured, drawn."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
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
from logn.matching.match import match_sizes
from logn.matching.outcomes import COLUMNS, Index, JoinedTable, Marks, Outcomes
from logn.measure.comparison import (
    CompareSettings,
    EvaluatedClass,
    MethodResult,
    ReportDetails,
    describe_statistics,
    with_training,
)
from logn.measure.detection import metrics as ap
from logn.measure.detection.bootstrap import DrawnMethod
from logn.measure.detection.example_images import ShownDetections, choose_images, rare_classes
from logn.measure.detection.mask_precision import MaskModel, MaskOutcomes, write_results
from logn.measure.detection.metrics import BestDetections, EvaluationProtocol
from logn.measure.detection.threshold_curve import ThresholdCurve
from logn.measure.detection.tide import ErrorKinds, ErrorTypes, error_kinds, error_types
from logn.measure.fitted_methods import FittedMethods, LogitMap, aligned_counts
from logn.predictions.decoder import Progress, decode_chunks, decode_many
from logn.predictions.detections import Detections
from logn.predictions.store import Predictions
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments


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

    @property
    def looked_at(self) -> Marks:
        """`(I,)` the images whose kinds of error are found."""
        return np.ones(self.truth.num_images, bool) if self.settings.errors else self.shown

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
                "columns": store.head.width,
                "activation": store.head.activation,
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
    train_counts = None if counts is None else aligned_counts(counts, store.head).image_counts
    if counts is None and by_counts:
        train_counts = _counts_of_training(labels, store.head)
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
class LookedAt:
    """Detections of the images whose errors and pictures are asked for.

    Args:
        kind: `(D,)` what is wrong with each, as `ErrorKinds` has it.
        repair: `(D,)` the object that it would find otherwise, likewise.
        boxes: `(D, 4)` corners in pixels.
    """

    kind: npt.NDArray[np.int8]
    repair: npt.NDArray[np.int32]
    boxes: npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class MethodOutcomes:
    """What became of the detections of one method.

    Args:
        outcomes: Of all detections.
        by_size: Of small, medium and large objects.
        looked_at: More of those in the images that are looked at.
    """

    outcomes: Outcomes
    by_size: Outcomes
    looked_at: LookedAt


# The tables of a method, and what has a value per detection in each.
TABLES = {"outcomes": COLUMNS, "by_size": COLUMNS, "looked_at": ("kind", "repair", "boxes")}


@dataclass(frozen=True, eq=False)
class Matching:
    """Matches the detections of some images where they are decoded.

    Args:
        truth: The ground truth.
        protocol: Its limits hold before anything is matched: what is not evaluated uses up places, too.
        looked_at: `(I,)` images that are looked at.
    """

    truth: GroundTruth
    protocol: EvaluationProtocol
    looked_at: Marks

    def __call__(self, methods: list[Detections]) -> list[MethodOutcomes]:
        """Match the detections of each method."""
        matched = []
        for detections in within_limits(methods, self.protocol):
            outcomes, by_size = match_sizes(detections, self.truth)
            rows = np.flatnonzero(self.looked_at[detections.image_index])
            part = detections.take(rows)
            kinds = error_kinds(part, outcomes.take(rows), self.truth)
            matched.append(MethodOutcomes(outcomes, by_size, LookedAt(kinds.kind, kinds.repair, part.boxes)))
        return matched


def within_limits(methods: Sequence[Detections], protocol: EvaluationProtocol) -> Sequence[Detections]:
    """The decoder holds the limit per image; COCO's is per image and class."""
    if protocol.style == "lvis":
        return methods
    return [detections.take(ap.rows_within_limits(detections, protocol)) for detections in methods]


def decode_methods(
    data: DetectionData, transforms: Sequence[LogitMap], progress: Progress | None
) -> list[MethodOutcomes]:
    """Decode and match all images in one pass under all maps."""
    truth = replace(data.truth, images=(), outlines=None)
    matching = Matching(truth, data.protocol, data.looked_at)
    decoding = decode_chunks(data.store, transforms, data.settings.decode, matching, progress=progress)
    methods = [{name: JoinedTable[Any](columns) for name, columns in TABLES.items()} for _ in transforms]
    with contextlib.closing(decoding) as chunks:
        for chunk in chunks:
            for tables, part in zip(methods, chunk, strict=True):
                for name, table in tables.items():
                    table.add(getattr(part, name))
    return [MethodOutcomes(**{name: table.joined() for name, table in tables.items()}) for tables in methods]


def match_masks(
    data: DetectionData,
    maps: Mapping[str, LogitMap],
    model: MaskModel,
    folder: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> list[MaskOutcomes]:
    """Make the masks of the detections of each method, and match by them; with a folder, also write them."""
    decoded = decode_many(data.store, list(maps.values()), data.settings.decode)
    methods = within_limits(decoded, data.protocol)
    masks = model.make(methods, progress or (lambda count: None))
    if folder is not None:
        write_results(folder, maps, methods, masks, data.truth)
    return [MaskOutcomes.of(*pair, data.truth) for pair in zip(methods, masks, strict=True)]


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
    masks: Sequence[MaskOutcomes | None],
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
    by_masks: MaskOutcomes | None,
) -> MeasuredMethod:
    started = time.perf_counter()
    truth, groups, settings, outcomes = data.truth, data.groups, data.settings, method.outcomes
    ranked = outcomes.by_class(truth)
    metrics = ap.average_precision(ranked, method.by_size.by_class(truth), data.protocol, groups)
    best = BestDetections.of(outcomes, wanted, truth)
    recall = ap.recall_at_count(best, outcomes.score, groups)
    values = dict(metrics.values)
    ranked_by_masks = None
    if by_masks is not None:
        ranked_by_masks = by_masks.outcomes.by_class(truth)
        of_masks = ap.average_precision(ranked_by_masks, by_masks.by_size.by_class(truth), data.protocol, groups)
        values |= {f"{metric}-mask": value for metric, value in of_masks.values.items()}
    values |= ap.average_precision_pool(ranked, groups=groups) | ap.calibration_error(ranked, groups=groups)
    values |= {metric: value for point in recall.values() for metric, value in point.values.items()}
    kinds = ErrorKinds(method.looked_at.kind, method.looked_at.repair)
    of_images = outcomes.take(data.looked_at[outcomes.image])
    errors = error_types(of_images, kinds, truth, groups, data.looked_at) if data.looked_at.any() else None
    at, use = settings.at, recall[settings.at].threshold
    shown = data.shown[of_images.image]
    masks = None if by_masks is None else by_masks.masks[data.shown[outcomes.image]]
    detections = ShownDetections.of(of_images.take(shown), method.looked_at.boxes[shown], use, masks)
    row = MethodResult(
        named[0],
        values,
        metrics.per_class,
        transform=named[1],
        recall=recall,
        thresholds=ThresholdCurve.of(outcomes, truth, at, use, estimate),
        errors=errors if settings.errors else None,
        seconds=time.perf_counter() - started,
    )
    return MeasuredMethod(
        row, DrawnMethod(ranked, ranked_by_masks, best), detections, None if settings.errors else errors
    )


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
