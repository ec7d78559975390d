"""Comparing methods on the proposals of a detector: what the engine asks of this task."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.evaluate.comparison.comparison import AddDetails, DetectionScope, EvaluatedClass, detection_classes
from logn.evaluate.comparison.engine import Mask, Progress
from logn.evaluate.comparison.method_fitting import LogitMap, map_for_store
from logn.evaluate.comparison.method_result import MethodResult
from logn.evaluate.comparison.provenance import Provenance, describe_statistics
from logn.evaluate.comparison.report_details import ReportDetails, evenly_spaced
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.comparison.sweep import choosing_half
from logn.evaluate.decode.decoder import Purpose, available_processors, decode_for
from logn.evaluate.decode.detections import Detections
from logn.evaluate.decode.image_decoder import Decoded
from logn.evaluate.detection.before_after import BeforeAfter
from logn.evaluate.detection.class_groups import Groups
from logn.evaluate.detection.draw_methods import draw_methods
from logn.evaluate.detection.fixed_and_pool import FIXED_LIMIT, FIXED_THRESHOLD, fixed_protocol, why_fixed_cannot_move
from logn.evaluate.detection.ground_truth import GroundTruth, load_ground_truth, refuse_without_objects
from logn.evaluate.detection.matching import verified_rows
from logn.evaluate.detection.measurement import Matched, Measurement, MethodDetections, renumbered
from logn.evaluate.detection.metrics import evaluate_detections
from logn.evaluate.detection.outcomes import DetectionMatches, find_matches
from logn.evaluate.detection.recall_at_count import NONE_UNVERIFIED, SHOWN_AT, UnverifiedScores, counts_above
from logn.evaluate.detection.tide import ErrorTypes, error_types
from logn.evaluate.store.store import PredictionStore
from logn.labels.annotation_columns import fingerprint_images, image_names
from logn.labels.sources import find_labels
from logn.logits.arrays import FloatArray

# From one set of detections per method to the run-length encoded masks of each.
MaskMaker = Callable[[Sequence[Detections]], Sequence[Sequence[Any]]]


@dataclass(frozen=True, eq=False)
class DetectionTask:
    """Methods on the proposals of a store, held against annotated images.

    Args:
        store: The proposals.
        truth: The ground truth of the images that are measured.
        groups: `(F,)` "r", "c" or "f"; None when unknown.
        group_source: Where the groups come from.
        settings: What is measured, and how.
        inputs: What methods are fitted from, by name: keyword arguments of `logn.methods.fit`.
        train_counts: `(F,)` training images of each class; None when unknown.
        mask_maker: Makes the masks of the detections of each method.
        first_notes: What is to be known before anything is measured.
        allow_mismatch: Only warn of maps and statistics of another model.
    """

    store: PredictionStore
    truth: GroundTruth
    groups: Groups | None
    group_source: str | None
    settings: CompareSettings
    inputs: Mapping[str, Any]
    train_counts: FloatArray | None = None
    mask_maker: MaskMaker | None = None
    first_notes: tuple[str, ...] = ()
    allow_mismatch: bool = False

    unit: ClassVar[str] = "images"
    reading: ClassVar[str] = "decode"
    default_objective: ClassVar[str] = "AP"
    least_is_best: ClassVar[tuple[str, ...]] = ()

    @property
    def unit_ids(self) -> npt.NDArray[np.int64]:
        """The ids of the images."""
        return self.truth.image_ids

    def map_of(self, name: str, method: str | LogitMap) -> LogitMap:
        """The map of a method, for the logits of the store."""
        return map_for_store(name, method, self.store.header, self.inputs, allow_mismatch=self.allow_mismatch)

    def outcomes(self, maps: Mapping[str, LogitMap], progress: Progress | None) -> dict[str, MethodDetections]:
        """Decode all images in one pass, for AP and, where it is asked for, for AP-Fixed."""
        transforms, settings = list(maps.values()), self.settings
        looked_at = evenly_spaced(self._reported(), settings.report_images)
        verified = self.truth.verified
        # What is not evaluated goes at once; only the errors, and the images that the report looks at, need it.
        kept = None if settings.errors or verified is None else verified | looked_at[:, None]
        purposes = [Purpose(settings.decode, kept)]
        if settings.fixed:
            lowest = min(settings.decode.score_threshold, FIXED_THRESHOLD)
            limits = replace(settings.decode, max_detections=None, max_per_class=FIXED_LIMIT, score_threshold=lowest)
            purposes.append(Purpose(limits, verified))
        decoded = decode_for(self.store, transforms, purposes, progress=progress)
        found, unverified = [one.detections for one in decoded[0]], self._unverified(decoded[0])
        looks = [of_method.take(looked_at[of_method.image_index]) for of_method in found]
        capped = found if settings.errors else [self._verified(of_method) for of_method in found]
        fixed: Sequence[Detections | None] = [None] * len(capped)
        if settings.fixed:
            fixed = [one.detections for one in decoded[1]]
        masks: Sequence[Any] = self.mask_maker(capped) if self.mask_maker else [None] * len(capped)
        return {
            name: MethodDetections(
                name,
                capped[place],
                fixed[place],
                masks[place],
                looks[place] if settings.report_images else None,
                transform,
                self._method_notes(transform),
                unverified[place],
            )
            for place, (name, transform) in enumerate(maps.items())
        }

    def _verified(self, found: Detections) -> Detections:
        return found.take(verified_rows(found.image_index, found.labels, self.truth))

    def _unverified(self, decoded: Sequence[Decoded]) -> list[UnverifiedScores]:
        """The detections that the federated labels leave out, as far as they can be among as many as are counted."""
        if self.settings.errors or self.truth.verified is None:
            return [NONE_UNVERIFIED] * len(decoded)
        most = 0
        result: list[UnverifiedScores] = []
        for place, one in enumerate(decoded):
            found = one.detections
            others = found.take(~self.truth.verified[found.image_index, found.labels])
            unverified = UnverifiedScores(others.image_index, others.scores)
            unverified = UnverifiedScores.concatenate(
                unverified, UnverifiedScores(one.skipped.image_index, one.skipped.scores)
            )
            scores = np.concatenate([self._verified(found).scores, unverified.scores])
            if place == 0:
                most = max(counts_above(scores).values()) + 1
            if most < len(scores) and not self.settings.split:  # of a half others may be among the best
                unverified = unverified.take(unverified.scores >= np.partition(scores, -most)[-most])
            result.append(unverified)
        return result

    def _reported(self) -> Mask:
        if not self.settings.split:
            return np.ones(self.truth.num_images, bool)
        return ~choosing_half(self.unit_ids, self.unit)

    def _method_notes(self, transform: LogitMap) -> tuple[str, ...]:
        if not self.settings.fixed:
            return ()
        activation = self.settings.decode.activation
        activation = self.store.header.activation if activation == "recorded" else activation
        reason = why_fixed_cannot_move(activation, transform)
        return (reason,) if reason else ()

    def part(self, units: Mask) -> Self:
        """The task on some images."""
        return replace(self, truth=self.truth.part(units))

    def outcome_part(self, outcome: MethodDetections, units: Mask) -> MethodDetections:
        """The detections of some images."""
        return outcome.part(units)

    def other_units(self, maps: Mapping[str, LogitMap]) -> None:
        """There are no images but those of the store."""

    def metrics(self, outcome: MethodDetections) -> Mapping[str, float]:
        """AP by class group and size."""
        protocol = self.settings.protocol(self.truth, None)
        return evaluate_detections(outcome.capped, self.truth, protocol, groups=self.groups).values

    @property
    def measurement(self) -> Measurement:
        """How each method is measured."""
        settings = self.settings
        protocol = settings.protocol(self.truth, self.group_source)
        return Measurement(
            self.truth,
            protocol,
            fixed_protocol(protocol),
            self.groups,
            settings.errors,
            settings.at,
            mask_errors=settings.mask_errors,
        )

    def measure(
        self, outcomes: Mapping[str, MethodDetections], maps: Mapping[str, LogitMap]
    ) -> dict[str, tuple[MethodResult, Matched]]:
        """All metrics of each method; the matches are kept for the bootstrap."""
        measurement = self.measurement
        counts = measurement.counts(next(iter(outcomes.values())))
        with ThreadPoolExecutor(available_processors()) as pool:
            measured = list(pool.map(lambda method: measurement.measure(method, counts), outcomes.values()))
        return {result.name: (result, matched) for result, matched in measured}

    def bootstrap(self, bases: Sequence[Matched]) -> list[Mapping[str, FloatArray]]:
        """AP of each method over the same bootstrap samples of images."""
        return [*draw_methods(self.measurement, bases, self.settings.num_bootstrap, self.settings.seed)]

    def details(self, outcomes: Mapping[str, MethodDetections]) -> AddDetails | None:
        """Add scores, thresholds, kinds of error and pictures of some images, next to those of the first method.

        Only the detections of these images are kept for it.
        """
        images = evenly_spaced(np.ones(self.truth.num_images, bool), self.settings.report_images)
        if not images.any() or len(outcomes) < 2:
            return None
        found = {
            name: renumbered(outcome.looked_at, images)
            for name, outcome in outcomes.items()
            if outcome.looked_at is not None
        }
        part = replace(self, truth=self.truth.part(images))
        return partial(_with_details, part, found, self.truth.num_images)

    def scope(self) -> DetectionScope:
        """The protocols."""
        masks, measurement = self.mask_maker is not None, self.measurement
        return DetectionScope(measurement.protocol, measurement.protocols(masks=masks, fixed=self.settings.fixed))

    def classes(self) -> tuple[EvaluatedClass, ...]:
        """The classes of the annotations."""
        return detection_classes(self.truth, self.groups, self.train_counts, self.inputs.get("moments"))

    def notes(self, specs: Sequence[Any]) -> tuple[str, ...]:
        """What to know before reading the numbers."""
        notes = [*self.first_notes, *filter(None, [self.truth.note])]
        if not self.store.is_complete:
            notes.append(f"The store holds {len(self.store):,} of {self.store.header.num_images:,} images.")
        if self.truth.style == "coco":
            notes.append("Every class is taken as annotated in every image.")
        return tuple(notes)

    def provenance(self) -> Provenance:
        """When, with what and from what."""
        store, moments = self.store, self.inputs.get("moments")
        source = find_labels(self.truth.source)
        return Provenance.now(
            {
                "predictions": {
                    "path": str(store.path),
                    "images": len(store),
                    "proposals": store.num_proposals,
                    "columns": store.num_columns,
                    "model": store.header.metadata.get("model"),
                    "model_words": store.header.metadata.get("model_words"),
                },
                "annotations": self.truth.source,
                "image_root": str(source.root.absolute()) if source.path.exists() else None,
                "statistics": None if moments is None else describe_statistics(moments),
                "fitted_from": list(self.inputs),
            }
        )


def _with_details(
    task: DetectionTask, found: Mapping[str, Detections], of_images: int, rows: Sequence[MethodResult]
) -> list[MethodResult]:
    """Look at the detections of the images of `task` under each method."""
    protocol = task.settings.protocol(task.truth, None)

    def look(row: MethodResult) -> tuple[DetectionMatches, ErrorTypes | None]:
        detections = found[row.name]
        errors = None if row.errors else error_types(detections, task.truth, protocol, groups=task.groups)
        return find_matches(detections, task.truth), errors

    with ThreadPoolExecutor(available_processors()) as pool:
        looks = list(pool.map(look, rows))
    before = looks[0][0]
    pairs = [BeforeAfter(task.truth, before, after, task.groups) for after, _ in looks]
    return [
        replace(row, details=ReportDetails.of(pair, of_images, errors, row.recall[SHOWN_AT]))
        for row, pair, (_, errors) in zip(rows, pairs, looks, strict=True)
    ]


def read_truth(
    store: PredictionStore,
    annotations: str | os.PathLike[str] | Mapping[str, Any],
    settings: CompareSettings,
    *,
    masks: bool,
) -> GroundTruth:
    """The ground truth of the images of a store; a store without images and truth without objects are refused."""
    if not len(store):
        raise InputError(f"Expected `{store.path}` to hold the predictions of some images, but it holds none.")
    truth = load_ground_truth(
        annotations,
        style=settings.style,
        image_ids=store.image_ids.tolist(),
        category_ids=store.header.category_ids,
        class_names=store.header.class_names,
        num_classes=store.num_classes,
        only_predicted=settings.only_predicted,
        masks=masks,
        allow_missing_classes=settings.allow_missing_classes,
    )
    return refuse_without_objects(truth)


def other_images(store: PredictionStore, truth: GroundTruth) -> str:
    """A sentence if the annotated images have the ids of the predicted ones and yet are others."""
    metadata = store.header.metadata
    if "images" not in metadata or not store.is_complete:
        return ""
    annotated = [(image["id"], image_names(image)) for image in truth.dataset["images"]]
    if not all(names for _, names in annotated) or fingerprint_images(annotated) == metadata["images"]:
        return ""
    return (
        f"The images of `{truth.source}` have the ids of the predicted ones but other file names (the predictions were "
        f"made from `{metadata.get('data', 'another file')}`): check that it is the same split."
    )
