"""What is compared on a detector and on a classifier: read the data once under all maps, measure, draw.

Both kinds of task have the same methods, which `compare` calls in turn.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray, ratio
from logn.base.processes import available_processors
from logn.base.strict_json import plain_values
from logn.data.class_counts import ClassCounts
from logn.data.class_names import match_classes
from logn.data.label_sources import find_labels
from logn.errors import InputError, warn
from logn.matching.labels import other_images, truth_of_predictions, write_results
from logn.matching.match import IOU_THRESHOLDS, MatchedDetections, match_detections
from logn.matching.truth import LVIS_BOUNDS, GroundTruth, Groups, groups_of_classes
from logn.measure.classification import metrics as accuracy
from logn.measure.classification.logits import ClassifierLogits, RowOutcomes, open_logits, row_outcomes
from logn.measure.classification.truth import PAPER_BOUNDS, ClassificationTruth, checked_labels, classification_truth
from logn.measure.comparison.comparison import (
    CompareSettings,
    EvaluatedClass,
    MethodResult,
    ReportDetails,
    describe_statistics,
)
from logn.measure.comparison.method_fitting import LogitMap, aligned_counts
from logn.measure.detection import metrics as ap
from logn.measure.detection.bootstrap import DrawnMethod, draw_methods
from logn.measure.detection.example_images import Outcomes, choose_images, rare_classes
from logn.measure.detection.metrics import EvaluationProtocol
from logn.measure.detection.threshold_curve import ThresholdCurve
from logn.measure.detection.tide import error_types
from logn.methods.affine import ClassAffine
from logn.methods.sampled_scores import threshold_after
from logn.predictions.classifier import ClassifierPredictions, is_classifier_file
from logn.predictions.decoder import decode_evaluated
from logn.predictions.detections import Detections, Skipped
from logn.predictions.predict import MaskMaker
from logn.predictions.store import Predictions
from logn.statistics.head import ASSUMED, Head, foreground_columns
from logn.statistics.moments import ClassMoments

Progress = Callable[[int], object]
Drawn = Mapping[str, FloatArray]
# What a strength of the recommendation reaches: metrics, and the score threshold to use.
StrengthValues = tuple[Mapping[str, float], float | None]


@dataclass(frozen=True, eq=False)
class _MethodDetections:
    """What was decoded under one method, within the limits of the protocol."""

    transform: LogitMap
    detections: Detections
    skipped: Skipped
    masks: npt.NDArray[np.object_] | None


@dataclass(frozen=True, eq=False)
class _Measured:
    """One method's numbers, with the matches that they all come from."""

    row: MethodResult
    detections: Detections
    matched: MatchedDetections
    drawn: DrawnMethod
    masks: npt.NDArray[np.object_] | None


@dataclass(frozen=True, eq=False)
class DetectionTask:
    """Methods on the proposals of a store, held against annotated images.

    Args:
        store: The proposals.
        truth: The ground truth.
        groups: `(F,)` "r", "c" or "f"; None when unknown.
        group_source: Where the groups come from.
        train_counts: `(F,)` training images of each class; None when unknown.
        moments: Statistics of the training logits; None when unknown.
        settings: What is measured, and how.
        mask_maker: Makes the masks of the detections of each method.
        mask_results: Folder for a file of results with masks per method.
        notes: What to know before reading the numbers.
    """

    store: Predictions
    truth: GroundTruth
    groups: Groups | None
    group_source: str | None
    train_counts: FloatArray | None
    moments: ClassMoments | None
    settings: CompareSettings
    mask_maker: MaskMaker | None = None
    mask_results: str | os.PathLike[str] | None = None
    notes: tuple[str, ...] = ()

    kind: ClassVar[str] = "detection"
    reading: ClassVar[str] = "decode"

    @classmethod
    def open(
        cls,
        store: Predictions,
        annotations: Any,
        settings: CompareSettings,
        moments: ClassMoments | None,
        counts: Any,
        mask_maker: MaskMaker | None = None,
        mask_results: str | os.PathLike[str] | None = None,
    ) -> DetectionTask:
        """Read the ground truth of the images of a store, and check that it fits."""
        names = ("style", "only_predicted", "allow_missing_classes")
        how = {name: getattr(settings, name) for name in names}
        truth = truth_of_predictions(annotations, store, masks=mask_maker is not None, **how)
        if mask_maker is not None:
            _ = truth.masks  # labels without masks are refused before the model runs
        decode = settings.decode.resolved(store.header)
        settings = replace(settings, decode=decode, style=truth.style)
        notes = [*filter(None, [other_images(store, truth)])]
        for doubt in notes:
            warn(doubt)
        by_counts = truth.frequency is None or settings.bounds is not None
        train_counts = None if counts is None else aligned_counts(counts, store.header.head).image_counts
        if counts is None and by_counts:
            train_counts = _counts_of_training(annotations, store.header.head)
        groups, source = groups_of_classes(truth, train_counts if by_counts else None, settings.bounds or LVIS_BOUNDS)
        notes += filter(None, [truth.note])
        if not store.is_complete:
            notes.append(f"The store holds {len(store):,} of {store.header.num_images:,} images.")
        if truth.style == "coco":
            notes.append("Every class is taken as annotated in every image.")
        known = (store, truth, groups, source, train_counts, moments, settings)
        return cls(*known, mask_maker, mask_results, tuple(notes))

    @property
    def head(self) -> Head:
        """What is known of the logits."""
        return self.store.header.head

    @cached_property
    def protocols(self) -> dict[str, EvaluationProtocol]:
        """The protocol of AP, and of the metrics that have one of their own."""
        truth, decode = self.truth, self.settings.decode
        every = truth.style == "lvis" and truth.verified is not None and truth.verified.all()
        protocol = EvaluationProtocol(
            style=truth.style,
            max_detections=decode.max_detections if truth.style == "lvis" else ap.COCO_CAP,
            score_threshold=decode.score_threshold,
            nms_iou=decode.nms_iou if decode.nms != "none" else None,
            groups=self.group_source,
            images=f"{truth.num_images:,} images" + (", every class verified in each" if every else ""),
            nms=decode.nms or "class-wise",
            multi_label=decode.multi_label is not False,
        )
        return {"AP": protocol} | ({"mask": replace(protocol, iou_type="segm")} if self.mask_maker else {})

    @cached_property
    def looked_at(self) -> npt.NDArray[np.bool_]:
        """`(I,)` the images that the report looks at, evenly spaced."""
        number, wanted = self.truth.num_images, self.settings.report_images
        chosen = np.zeros(number, bool)
        chosen[np.linspace(0, number - 1, min(wanted, number)).round().astype(np.intp)] = True
        return chosen

    def outcomes(
        self, maps: Mapping[str, LogitMap], others: Sequence[LogitMap], progress: Progress | None
    ) -> list[_MethodDetections]:
        """Decode all images in one pass under all maps."""
        settings, verified = self.settings, self.truth.verified
        # What is not evaluated goes at once; only the errors, and the images that the report looks at, need it.
        evaluated = None if settings.errors or verified is None else verified | self.looked_at[:, None]
        together = [*maps.values(), *others]
        decoded = decode_evaluated(self.store, together, settings.decode, evaluated, progress=progress)
        detections = [self._within_limits(of_method.detections) for of_method in decoded]
        skipped = self._few_skipped(detections, [of_method.skipped for of_method in decoded])
        masks: Sequence[Any] = self.mask_maker(detections[: len(maps)]) if self.mask_maker else []
        if self.mask_results is not None:
            self._write_masks(Path(self.mask_results), list(maps), detections, masks)
        columns = zip_longest(together, detections, skipped, masks)
        return [_MethodDetections(*of_method) for of_method in columns]

    def _write_masks(
        self, folder: Path, names: Sequence[str], detections: Sequence[Detections], masks: Sequence[Any]
    ) -> None:
        """One results file per method, named by it."""
        folder.mkdir(parents=True, exist_ok=True)
        for place, name in enumerate(names):
            file = folder / (re.sub(r"[^\w.=,-]+", "-", name) + ".json")
            write_results(file, detections[place], masks[place], self.truth)

    def _within_limits(self, detections: Detections) -> Detections:
        """The decoder holds the limit per image; COCO's is per image and class."""
        if self.truth.style == "lvis":
            return detections
        return detections.take(ap.rows_within_limits(detections, self.protocols["AP"]))

    def _few_skipped(self, detections: Sequence[Detections], skipped: Sequence[Skipped]) -> list[Skipped]:
        """Detections that are not evaluated, as far as they are ranked."""
        most = ap.most_ranked(self._wanted(detections[0], skipped[0]))
        few = []
        for evaluated, others in zip(detections, skipped, strict=True):
            scores = np.concatenate([evaluated.scores, others.scores])
            least = np.partition(scores, -most)[-most] if most < len(scores) else -1.0
            few.append(others.take(others.scores >= least))
        return few

    def _wanted(self, detections: Detections, skipped: Skipped) -> dict[float, npt.NDArray[np.intp]]:
        """How many detections of the uncorrected model are above each threshold in each image, the user's included."""
        images = np.concatenate([detections.image_index, skipped.image_index])
        scores = np.concatenate([detections.scores, skipped.scores])
        return ap.counts_per_image(images, scores, (*ap.COUNTED_AT, self.settings.at), self.truth.num_images)

    def measure(self, names: Sequence[str], outcomes: Sequence[_MethodDetections]) -> list[_Measured]:
        """All metrics of each method, and what the report shows of it."""
        first = outcomes[0]
        wanted = self._wanted(first.detections, first.skipped)
        with ThreadPoolExecutor(available_processors()) as pool:
            measured = list(pool.map(partial(self._measure, wanted), names, outcomes))
            if len(measured) < 2 or not self.looked_at.any():
                return measured
            details = list(pool.map(partial(self._details, measured[0]), measured))
        pairs = zip(measured, details, strict=True)
        return [replace(method, row=replace(method.row, details=of_method)) for method, of_method in pairs]

    def _measure(self, wanted: Mapping[float, npt.NDArray[np.intp]], name: str, method: _MethodDetections) -> _Measured:
        started = time.perf_counter()
        truth, groups, detections = self.truth, self.groups, method.detections
        matched = match_detections(detections, truth)
        metrics = ap.average_precision(matched, truth, self.protocols["AP"], groups)
        matched = replace(matched, pairs=None)
        skipped = self._with_unverified(detections, matched, method.skipped)
        ranking, at = ap.Ranking.of(matched, skipped, wanted, truth), self.settings.at
        recall = ap.recall_at_count(ranking, np.concatenate([matched.scores, skipped.scores]), truth, groups)
        masks = None
        others: dict[str, float] = {}
        if method.masks is not None:
            masks = match_detections(detections, truth, masks=method.masks.tolist())
            of_masks = ap.average_precision(masks, truth, self.protocols["mask"], groups).values
            others |= {f"{metric}-mask": value for metric, value in of_masks.items()}
        others |= ap.average_precision_pool(matched, truth, groups=groups)
        others |= ap.calibration_error(matched, groups=groups)
        others |= {metric: value for point in recall.values() for metric, value in point.values.items()}
        row = MethodResult(
            name,
            {**metrics.values, **others},
            metrics.per_class,
            transform=method.transform,
            recall=recall,
            thresholds=ThresholdCurve.of(matched, truth, at, recall[at].threshold, self._estimated(method.transform)),
            errors=error_types(detections, truth, matched, groups) if self.settings.errors else None,
            seconds=time.perf_counter() - started,
        )
        return _Measured(row, detections, matched, DrawnMethod(matched, masks, ranking), method.masks)

    def strength_values(
        self, outcomes: Sequence[_MethodDetections], measured: Sequence[_Measured]
    ) -> list[tuple[LogitMap, StrengthValues]]:
        """What every map reaches at an equal number of detections; only the methods were measured before."""
        at, first = self.settings.at, outcomes[0]
        points = [method.row.recall[at] for method in measured]
        wanted = {at: self._wanted(first.detections, first.skipped)[at]}
        with ThreadPoolExecutor(available_processors()) as pool:
            points += pool.map(partial(self._at_count, wanted), outcomes[len(measured) :])
        transforms = [outcome.transform for outcome in outcomes]
        return [(transform, (p.values, p.threshold)) for transform, p in zip(transforms, points, strict=True)]

    def _at_count(self, wanted: Mapping[float, npt.NDArray[np.intp]], method: _MethodDetections) -> ap.RecallAtCount:
        """What is found at an equal number, from the detections alone that may be among so many."""
        scores = np.concatenate([method.detections.scores, method.skipped.scores])
        most = ap.most_ranked(wanted)
        least = np.partition(scores, -most)[-most] if most < len(scores) else -1.0
        kept = method.detections.take(method.detections.scores >= least)
        matched = match_detections(kept, self.truth, thresholds=IOU_THRESHOLDS[:1])
        skipped = self._with_unverified(kept, matched, method.skipped)
        ranking = ap.Ranking.of(matched, skipped, wanted, self.truth)
        (point,) = ap.recall_at_count(ranking, scores, self.truth, self.groups).values()
        return point

    @staticmethod
    def _with_unverified(detections: Detections, matched: MatchedDetections, skipped: Skipped) -> Skipped:
        """What is not evaluated, with the detections whose class nobody looked for in their image."""
        others = detections.take(np.setdiff1d(np.arange(len(detections)), matched.rows))
        return Skipped.concatenate([skipped, Skipped(others.image_index, others.labels, others.scores)])

    def _estimated(self, transform: LogitMap) -> float | None:
        """The threshold that the training statistics give, as `logn correct` prints it."""
        if self.moments is None or not isinstance(transform, ClassAffine):
            return None
        activation = str(self.head.activation)
        estimate = threshold_after(transform, self.moments, self.settings.at, activation=activation)
        return None if estimate is None else estimate.use

    def _details(self, baseline: _Measured, method: _Measured) -> ReportDetails:
        """Kinds of error and pictures of the images that the report looks at."""
        images, truth = self.looked_at, self.truth
        before, after = (
            Outcomes.of(side.detections, side.matched, side.masks).take(images[side.detections.image_index])
            for side in (baseline, method)
        )
        rare, errors = rare_classes(truth, self.groups), None
        curve, at = method.row.thresholds, self.settings.at
        thresholds = (at, curve.use if curve else at)
        if method.row.errors is None:
            part = method.matched.part(images, method.detections, truth)
            position = (np.cumsum(images) - 1).astype(np.int32)
            shown = replace(after.detections, image_index=position[after.detections.image_index])
            errors = error_types(shown, truth.part(images), part, self.groups)
        return ReportDetails(
            images=int(images.sum()),
            of_images=truth.num_images,
            gallery=choose_images(truth, before, after, thresholds, rare),
            errors=errors,
        )

    def draw(self, measured: Sequence[_Measured]) -> list[Drawn]:
        """AP and recall of each method over the same bootstrap samples of images."""
        settings, drawn = self.settings, [method.drawn for method in measured]
        return [*draw_methods(drawn, self.truth, self.groups, settings.num_bootstrap, settings.seed)]

    @property
    def description(self) -> str:
        """What was measured on what."""
        return self.protocols["AP"].describe()

    def classes(self) -> tuple[EvaluatedClass, ...]:
        """The classes of the annotations."""
        truth = self.truth
        columns = zip(truth.category_ids.tolist(), truth.class_names, truth.boxes_per_class.tolist(), strict=True)
        listed = [
            EvaluatedClass(number, name, None if self.groups is None else str(self.groups[index]) or None, boxes)
            for index, (number, name, boxes) in enumerate(columns)
        ]
        return _with_training(listed, self.train_counts, self.moments)

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


def _counts_of_training(labels: Any, head: Head) -> FloatArray | None:
    """The training images of each class, where labels have a split of training that can be read; else None."""
    source = find_labels(labels) if isinstance(labels, str | os.PathLike) else None
    if source is None or not source.has_splits or head.class_names is None:
        return None
    try:
        counts = ClassCounts.load(source.path)
        places = match_classes(head.class_names, counts.names or ()).label_of_model
    except InputError:  # the images of training may be elsewhere
        return None
    return np.where(places >= 0, counts.image_counts[places], 0.0)  # classes that the labels lack are not measured


@dataclass(frozen=True, eq=False)
class _MeasuredRows:
    """One method's numbers on the rows of a classifier."""

    row: MethodResult
    outcome: RowOutcomes


@dataclass(frozen=True, eq=False)
class ClassificationTask:
    """Methods on the logits of test rows, held against their labels.

    Args:
        logits: Of all test rows.
        truth: The labels, and what is known about their classes.
        moments: Statistics of the training logits; None when unknown.
        settings: What is measured, and how.
        head: What the logits are; a classifier that was trained with sigmoids says so itself or in statistics.
        model: The model that the file of `logn predict` names.
        protocols: None: accuracies have no limits.
    """

    logits: ClassifierLogits
    truth: ClassificationTruth
    moments: ClassMoments | None
    settings: CompareSettings
    head: Head
    model: str | None = None
    protocols: Mapping[str, EvaluationProtocol] = field(default_factory=dict)

    kind: ClassVar[str] = "classification"
    reading: ClassVar[str] = "logits"

    @classmethod
    def open(
        cls,
        logits: Any,
        labels: Any,
        settings: CompareSettings,
        moments: Callable[[], ClassMoments | None],
        counts: Any,
        class_names: Sequence[str] | None,
    ) -> ClassificationTask:
        """Open logits and labels, and check that they fit; then the statistics, whose reading may take long."""
        recorded, model = Head(), None
        opened = open_logits(logits)
        if is_classifier_file(logits):
            stored = ClassifierPredictions.load(logits)
            for name, value in (("labels", labels), ("class_names", class_names and stored.head.names)):
                if value is not None:
                    raise InputError(f"`{logits}` has `{name}` of its own: leave them out.")
            labels, class_names = stored.labels, class_names or stored.head.names
            recorded, model = stored.head, stored.metadata.get("model")
        classes = checked_labels(labels, opened.num_classes)
        opened.check_labels(classes)
        statistics = moments()
        names = class_names or (None if statistics is None else statistics.head.names)
        truth = classification_truth(
            classes,
            opened.num_classes,
            train_counts=counts,
            class_names=names,
            bounds=settings.bounds or PAPER_BOUNDS,
        )
        if names is None and isinstance(counts, ClassCounts):
            truth = replace(truth, class_names=counts.names)
        activation = recorded.activation or (None if statistics is None else statistics.head.activation) or ASSUMED
        head = Head(truth.num_classes, truth.class_names, activation=activation, source=recorded.source)
        return cls(opened, truth, statistics, settings, head, model)

    def outcomes(
        self, maps: Mapping[str, LogitMap], others: Sequence[LogitMap], progress: Progress | None
    ) -> list[tuple[LogitMap, RowOutcomes]]:
        """Read the logits once, under all maps."""
        transforms = [*maps.values(), *others]
        outcomes = row_outcomes(self.logits, self.truth.labels, transforms, progress or (lambda rows: None))
        return list(zip(transforms, outcomes, strict=True))

    def strength_values(
        self, outcomes: Sequence[tuple[LogitMap, RowOutcomes]], measured: Sequence[_MeasuredRows]
    ) -> list[tuple[LogitMap, StrengthValues]]:
        """Accuracy of every map; only the methods were measured before."""
        rows: list[Any] = [method.row for method in measured]
        rows += [accuracy.metrics_of_outcomes(outcome, self.truth) for _, outcome in outcomes[len(rows) :]]
        counts = self.truth.train_counts
        reached: list[tuple[LogitMap, StrengthValues]] = []
        for (transform, _), row in zip(outcomes, rows, strict=True):
            values = {name: row[name] for name in ("balanced", "top-1", "few") if name in row.values}
            if counts is not None:
                known = ~np.isnan(row.per_class)
                values["long-tailed"] = float(ratio((counts * row.per_class)[known].sum(), counts[known].sum()))
            reached.append((transform, (values, None)))
        return reached

    def measure(self, names: Sequence[str], outcomes: Sequence[tuple[LogitMap, RowOutcomes]]) -> list[_MeasuredRows]:
        """All metrics of each method."""
        truth, measured = self.truth, []
        worst = accuracy.metrics_of_outcomes(outcomes[0][1], truth).confused
        for name, (transform, outcome) in zip(names, outcomes, strict=True):
            metrics = accuracy.metrics_of_outcomes(outcome, truth)
            row = MethodResult(
                name,
                metrics.values,
                metrics.per_class,
                transform=transform,
                predictions_per_class=metrics.predictions_per_class,
                confused=accuracy.same_confusions(outcome.predicted, truth, worst),
                reliability=accuracy.Reliability.of(outcome, truth.labels),
            )
            measured.append(_MeasuredRows(row, outcome))
        return measured

    def draw(self, measured: Sequence[_MeasuredRows]) -> list[Drawn]:
        """The metrics of each method over the same bootstrap samples of rows."""
        outcomes = [method.outcome for method in measured]
        return [*accuracy.bootstrap_metrics(outcomes, self.truth, self.settings.num_bootstrap, self.settings.seed)]

    @property
    def description(self) -> str:
        """What was measured on what."""
        return self.truth.describe()

    def classes(self) -> tuple[EvaluatedClass, ...]:
        """The columns of the logits."""
        listed = [
            EvaluatedClass(label, self.truth.name(label), self.truth.group_of(label), rows)
            for label, rows in enumerate(self.truth.rows_per_class.tolist())
        ]
        return _with_training(listed, self.truth.train_counts, self.moments)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before reading the numbers."""
        notes, rows = [], self.truth.rows_per_class
        if self.moments is not None:
            notes.append(f"Statistics of {int(self.moments.count.max()):,} training rows.")
        present = rows[rows > 0]
        if present.min() != present.max():
            notes.append(f"Classes have {present.min():,} to {present.max():,} rows, so top-1 and balanced differ.")
        if absent := int((rows == 0).sum()):
            notes.append(f"{absent:,} classes have no row and count nowhere.")
        return tuple(notes)

    def inputs(self) -> dict[str, Any]:
        """What is known of the inputs, for the record."""
        logits = {"name": self.logits.name, "rows": len(self.logits), "columns": self.logits.num_classes}
        return {"logits": logits | {"model": self.model}, "statistics": describe_statistics(self.moments)}


def _with_training(
    classes: list[EvaluatedClass], train_counts: FloatArray | None, moments: ClassMoments | None
) -> tuple[EvaluatedClass, ...]:
    """The classes with what is known from training."""
    if train_counts is not None:
        classes = [replace(entry, train_count=float(n)) for entry, n in zip(classes, train_counts, strict=True)]
    if moments is None:
        return tuple(classes)
    foreground = foreground_columns(moments.num_columns, moments.head.background)
    mean = np.where(moments.count[foreground] > 0, moments.mean[foreground], np.nan)
    if len(mean) != len(classes):
        return tuple(classes)
    columns = zip(classes, plain_values(mean), plain_values(moments.std[foreground]), strict=True)
    return tuple(replace(entry, mean=middle, std=spread) for entry, middle, spread in columns)
