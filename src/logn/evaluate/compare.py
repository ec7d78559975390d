"""Compare post-hoc methods on the very same proposals: one pass over the predictions, one table."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.datasets.annotation_columns import fingerprint_images, image_names
from logn.errors import InputError, LogNWarning
from logn.evaluate.bootstrap import draw_weights, paired_differences
from logn.evaluate.class_groups import Groups, groups_of_classes
from logn.evaluate.compare_settings import CompareSettings
from logn.evaluate.comparison import Comparison, Curve, evaluated_classes
from logn.evaluate.decode import available_processors, decode_chunks, decode_many
from logn.evaluate.detection_metrics import evaluate_detections
from logn.evaluate.detections import Detections
from logn.evaluate.fixed_and_pool import FIXED_LIMIT, FIXED_THRESHOLD, fixed_protocol, why_fixed_cannot_move
from logn.evaluate.ground_truth import GroundTruth, load_ground_truth, refuse_without_objects
from logn.evaluate.matching import verified_rows
from logn.evaluate.method_maps import LogitMap, aligned_counts, map_for_store, named_methods
from logn.evaluate.method_result import Matched, Measurement, MethodDetections, MethodResult
from logn.evaluate.step_clock import StepClock
from logn.evaluate.store import PredictionStore
from logn.evaluate.sweep import Sweep, choosing_half, parse_sweeps, with_sweeps

# From one set of detections per method to the run-length encoded masks of each.
MaskMaker = Callable[[Sequence[Detections]], Sequence[Sequence[Any]]]


def compare(
    store: PredictionStore | str | os.PathLike[str],
    annotations: str | os.PathLike[str] | Mapping[str, Any],
    methods: Sequence[str] | Mapping[str, str | LogitMap],
    *,
    settings: CompareSettings | None = None,
    sweeps: Sequence[Sweep | str] = (),
    group_counts: npt.ArrayLike | None = None,
    mask_maker: MaskMaker | None = None,
    progress: Callable[[int], object] | None = None,
    **fit_inputs: Any,
) -> Comparison:
    """Measure methods on the same proposals, with their differences to the uncorrected model.

    Args:
        store: The proposals of all images, or the path of their store.
        annotations: LVIS or COCO ground truth of the same images: a file or its content.
        methods: Specifications such as "logn" or "norcal:gamma=0.6", or a mapping from a name to a
            specification or to a map of logits made elsewhere. The uncorrected model, "none", is always
            measured.
        settings: What is measured, and how.
        sweeps: Parameters to vary, such as "margin=-12:4:1". With `split` the best value by the first half of
            the images is reported on the second half; without it all values are reported, none is chosen.
        group_counts: Training images of each class, for the groups; by default the field `frequency` of the
            annotations says them, and without it `counts`.
        mask_maker: Makes the masks of the detections of each method, for mask AP.
        progress: Called with the number of images that were decoded since the last call.
        fit_inputs: What the specifications need: `moments`, `counts` and so on, as
            `logn.calibrators.method_spec.fit_method` takes them; and `allow_mismatch=True` to be only warned of maps
            and statistics of another model.
    """
    settings = settings or CompareSettings()
    store = store if isinstance(store, PredictionStore) else PredictionStore(store)
    varied = parse_sweeps(sweeps)
    clock = StepClock()
    truth = _ground_truth(store, annotations, settings, masks=mask_maker is not None)
    if other_images := _other_images(store, truth):
        warnings.warn(other_images, LogNWarning, stacklevel=2)
    if group_counts is None and truth.frequency is None and fit_inputs.get("counts") is not None:
        group_counts = aligned_counts(fit_inputs["counts"], store.header).image_counts
    groups, group_source = groups_of_classes(truth, group_counts, settings.bounds)
    clock.lap("ground truth")
    asked = named_methods(methods)
    maps = _fitted(asked, varied, store, fit_inputs)
    clock.lap("fit")
    decoded = _decoded(store, maps, truth, settings, mask_maker, progress)
    clock.lap("decode")
    curves = tuple(Curve(sweep, {}) for sweep in varied)
    reported = set(maps)
    if settings.split:
        choosing = choosing_half(truth.image_ids, "images")
        curves = tuple(_chosen(sweep, decoded, truth, choosing, settings, groups) for sweep in varied)
        decoded = [method.part(~choosing) for method in decoded]
        truth = truth.part(~choosing)
        reported = {*asked, *(curve.chosen for curve in curves if curve.chosen)}
        clock.lap("choices")
    protocol = settings.protocol(truth, group_source)
    measurement = Measurement(truth, protocol, fixed_protocol(protocol), groups, settings.errors)
    measured = _measured(decoded, measurement, clock)
    rows = _with_differences([row for row in measured if row[0].name in reported], measurement, settings)
    clock.lap("bootstrap")
    share = clock.seconds["decode"] / len(maps)
    return Comparison(
        rows=tuple(replace(row, seconds=row.seconds + share) for row in rows),
        protocol=protocol,
        classes=evaluated_classes(truth, groups),
        protocols=measurement.protocols(masks=mask_maker is not None, fixed=settings.fixed),
        curves=tuple(curve.with_metrics({row.name: row.metrics.values for row, _ in measured}) for curve in curves),
        seconds=clock.seconds,
        draws=settings.draws,
        confidence=settings.confidence,
        notes=_notes(store, settings, other_images),
    )


def _ground_truth(store: PredictionStore, annotations: Any, settings: CompareSettings, *, masks: bool) -> GroundTruth:
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
    )
    return refuse_without_objects(truth)


def _other_images(store: PredictionStore, truth: GroundTruth) -> str:
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


def _fitted(
    asked: Mapping[str, str | LogitMap],
    sweeps: Sequence[Sweep],
    store: PredictionStore,
    fit_inputs: Mapping[str, Any],
) -> dict[str, LogitMap]:
    return {
        name: map_for_store(name, method, store.header, **fit_inputs)
        for name, method in with_sweeps(asked, sweeps).items()
    }


def _decoded(
    store: PredictionStore,
    maps: Mapping[str, LogitMap],
    truth: GroundTruth,
    settings: CompareSettings,
    mask_maker: MaskMaker | None,
    progress: Callable[[int], object] | None,
) -> list[MethodDetections]:
    transforms = list(maps.values())
    parts: list[list[Detections]] = [[] for _ in transforms]
    for chunk in decode_chunks(store, transforms, settings.decode, progress=progress):
        for part, found in zip(parts, chunk, strict=True):
            # Limits have been applied, so what is not evaluated can go at once; only the errors need it.
            rows = verified_rows(found.image_index, found.labels, truth)
            part.append(found if settings.errors else found.take(rows))
    capped = [Detections.concatenate(part) for part in parts]
    fixed: Sequence[Detections | None] = [None] * len(capped)
    if settings.fixed:
        lowest = min(settings.decode.score_threshold, FIXED_THRESHOLD)
        limits = replace(settings.decode, max_detections=None, max_per_class=FIXED_LIMIT, score_threshold=lowest)
        fixed = decode_many(store, transforms, limits, progress=progress)
    masks: Sequence[Any] = mask_maker(capped) if mask_maker else [None] * len(capped)
    activation = settings.decode.activation
    activation = store.header.activation if activation == "recorded" else activation
    return [
        MethodDetections(
            name,
            capped[place],
            fixed[place],
            masks[place],
            settings=getattr(transform, "settings", {}),
            notes=_method_notes(activation, transform) if settings.fixed else (),
        )
        for place, (name, transform) in enumerate(maps.items())
    ]


def _method_notes(activation: str, transform: LogitMap) -> tuple[str, ...]:
    reason = why_fixed_cannot_move(activation, transform)
    return (reason,) if reason else ()


def _chosen(
    sweep: Sweep,
    decoded: Sequence[MethodDetections],
    truth: GroundTruth,
    choosing: npt.NDArray[np.bool_],
    settings: CompareSettings,
    groups: Groups | None,
) -> Curve:
    """Choose the value of a sweep on the images of `choosing`, which are not reported on."""
    half = truth.part(choosing)
    protocol = settings.protocol(half, None)
    by_name = {method.name: method for method in decoded}
    measured = (
        evaluate_detections(by_name[spec].part(choosing).capped, half, protocol, groups=groups).values
        for spec in sweep.specs
    )
    return Curve.chosen_by(sweep, settings.objective, measured)


def _measured(
    decoded: Sequence[MethodDetections], measurement: Measurement, clock: StepClock
) -> list[tuple[MethodResult, Matched]]:
    with ThreadPoolExecutor(available_processors()) as pool:
        measured = list(pool.map(measurement.measure, decoded))
    clock.lap("metrics")
    return measured


def _with_differences(
    measured: Sequence[tuple[MethodResult, Matched]], measurement: Measurement, settings: CompareSettings
) -> list[MethodResult]:
    """Add to each method its differences to the first, over the same draws of images."""
    draws: list[Mapping[str, npt.NDArray[np.float64]]] = [{}] * len(measured)
    if settings.draws:
        weights = draw_weights(measurement.truth.num_images, settings.draws, settings.seed)
        with ThreadPoolExecutor(available_processors()) as pool:
            draws = list(pool.map(lambda found: measurement.draw(found[1], weights), measured))
    first = measured[0][0].values
    return [
        replace(result, differences=paired_differences(result.values, first, drawn, draws[0], settings.confidence))
        for (result, _), drawn in zip(measured, draws, strict=True)
    ]


def _notes(store: PredictionStore, settings: CompareSettings, other_images: str) -> tuple[str, ...]:
    notes = [other_images] if other_images else []
    if not store.is_complete:
        notes.append(f"The store holds {len(store):,} of {store.header.num_images:,} images.")
    if settings.style == "coco":
        notes.append("Every class is taken as annotated in every image.")
    return tuple(notes)
