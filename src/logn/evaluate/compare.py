"""Compare post-hoc methods on the very same proposals: one pass over the predictions, one table."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.evaluate.bootstrap import Interval, draw_weights, paired_interval
from logn.evaluate.class_groups import Groups, groups_of_classes
from logn.evaluate.compare_settings import CompareSettings
from logn.evaluate.comparison import BASELINE, Comparison, Curve, evaluated_classes
from logn.evaluate.decode import available_processors, decode_chunks, decode_many
from logn.evaluate.detection_metrics import evaluate_detections
from logn.evaluate.detections import Detections
from logn.evaluate.fixed_and_pool import FIXED_LIMIT, fixed_protocol, why_fixed_cannot_move
from logn.evaluate.ground_truth import GroundTruth, load_ground_truth, refuse_without_objects
from logn.evaluate.matching import verified_rows
from logn.evaluate.method_maps import aligned_counts, fit_for_store
from logn.evaluate.method_result import Matched, Measurement, MethodDetections, MethodResult
from logn.evaluate.store import PredictionStore
from logn.evaluate.sweep import Sweep, first_half

# A map of logits: a ClassAffine, any callable from logits to logits, or None for no change.
LogitMap = Any
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
            `logn.calibrators.method_spec.fit_method` takes them.
    """
    settings = settings or CompareSettings()
    store = store if isinstance(store, PredictionStore) else PredictionStore(store)
    varied = [Sweep.parse(sweep) if isinstance(sweep, str) else sweep for sweep in sweeps]
    clock = _Clock()
    truth = _ground_truth(store, annotations, settings, masks=mask_maker is not None)
    if group_counts is None and truth.frequency is None and fit_inputs.get("counts") is not None:
        group_counts = aligned_counts(fit_inputs["counts"], store.header).image_counts
    groups, group_source = groups_of_classes(truth, group_counts, settings.bounds)
    clock.lap("ground truth")
    asked = _named(methods)
    maps = _fitted(asked, varied, store, fit_inputs)
    clock.lap("fit")
    decoded = _decoded(store, maps, truth, settings, mask_maker, progress)
    clock.lap("decode")
    curves = tuple(Curve(sweep, {}) for sweep in varied)
    reported = set(maps)
    if settings.split:
        choosing = _choosing_half(truth)
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
        curves=tuple(_with_metrics(curve, [row for row, _ in measured]) for curve in curves),
        seconds=clock.seconds,
        draws=settings.draws,
        confidence=settings.confidence,
        notes=_notes(store, settings),
    )


class _Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, step: str) -> None:
        now = time.perf_counter()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - self._last
        self._last = now


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


def _named(methods: Sequence[str] | Mapping[str, str | LogitMap]) -> dict[str, str | LogitMap]:
    """Methods by name, the uncorrected model first."""
    if isinstance(methods, str):
        raise InputError(f"Expected `methods` to be a list of specifications, but got the text {methods!r}.")
    given = dict(methods) if isinstance(methods, Mapping) else {spec: spec for spec in methods}
    given.pop(BASELINE, None)
    return {BASELINE: None, **given}


def _fitted(
    asked: Mapping[str, str | LogitMap],
    sweeps: Sequence[Sweep],
    store: PredictionStore,
    fit_inputs: Mapping[str, Any],
) -> dict[str, LogitMap]:
    wanted = {**asked, **{spec: spec for sweep in sweeps for spec in sweep.specs if spec not in asked}}
    return {
        name: fit_for_store(method, store.header, **fit_inputs) if isinstance(method, str) else method
        for name, method in wanted.items()
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
        limits = replace(settings.decode, max_detections=None, max_per_class=FIXED_LIMIT)
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


def _choosing_half(truth: GroundTruth) -> npt.NDArray[np.bool_]:
    choosing = first_half(truth.image_ids)
    if choosing.all() or not choosing.any():
        raise InputError(f"Expected enough images for `split` to have some in each half, but got {truth.num_images}.")
    return choosing


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
    objective = []
    for spec in sweep.specs:
        found = by_name[spec].part(choosing).capped
        metrics = evaluate_detections(found, half, protocol, groups=groups)
        if settings.objective not in metrics.values:
            known = ", ".join(metrics.values)
            raise InputError(f"Expected `objective` to be one of {known}, but got {settings.objective!r}.")
        objective.append(metrics[settings.objective])
    best = int(np.nanargmax(objective)) if not np.isnan(objective).all() else 0
    return Curve(sweep, {}, sweep.specs[best], tuple(objective))


def _with_metrics(curve: Curve, rows: Sequence[MethodResult]) -> Curve:
    by_name = {row.name: row for row in rows}
    values = [by_name[spec].metrics.values for spec in curve.sweep.specs]
    return replace(curve, metrics={name: tuple(value[name] for value in values) for name in values[0]})


def _measured(
    decoded: Sequence[MethodDetections], measurement: Measurement, clock: _Clock
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
    first = measured[0][0]
    return [
        replace(result, differences=_differences(first, result, draws[0], drawn, settings.confidence))
        for (result, _), drawn in zip(measured, draws, strict=True)
    ]


def _differences(
    first: MethodResult,
    result: MethodResult,
    baseline: Mapping[str, npt.NDArray[np.float64]],
    draws: Mapping[str, npt.NDArray[np.float64]],
    confidence: float,
) -> dict[str, Interval]:
    nothing = np.empty(0)
    return {
        name: paired_interval(
            baseline.get(name, nothing), draws.get(name, nothing), value - first.values[name], confidence
        )
        for name, value in result.values.items()
    }


def _notes(store: PredictionStore, settings: CompareSettings) -> tuple[str, ...]:
    notes = []
    if not store.is_complete:
        notes.append(f"The store holds {len(store):,} of {store.header.num_images:,} images.")
    if settings.style == "coco":
        notes.append("Every class is taken as annotated in every image.")
    return tuple(notes)
