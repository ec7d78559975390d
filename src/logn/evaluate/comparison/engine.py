"""The steps of every comparison, whatever is compared: fit, read the data once, choose, measure, draw."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from logn.evaluate.classification.truth import ClassificationTruth
from logn.evaluate.comparison.comparison import AddDetails, Comparison, DetectionScope, EvaluatedClass
from logn.evaluate.comparison.method_fitting import LogitMap, named_methods
from logn.evaluate.comparison.method_result import MethodResult
from logn.evaluate.comparison.provenance import Provenance
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.comparison.sweep import Curve, Sweep, choosing_half, parse_sweeps, with_sweeps
from logn.evaluate.detection.bootstrap import paired_differences
from logn.logits.arrays import FloatArray


class StepClock:
    """Seconds by step, each counted from the end of the one before.

    Example:
        >>> clock = StepClock()
        >>> clock.lap("fit")
        >>> list(clock.seconds)
        ['fit']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, step: str) -> None:
        """Count the time since the last step as this one's."""
        now = time.perf_counter()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - self._last
        self._last = now


Mask = npt.NDArray[np.bool_]
Progress = Callable[[int], object]
# What a task finds out about its units under one method: detections of images, predictions of rows.
Outcome = TypeVar("Outcome")
# What is left of an outcome for the bootstrap: matched detections, or the outcome itself.
Basis = TypeVar("Basis")


class ComparedTask(Protocol[Outcome, Basis]):
    """What the engine asks of a task; its units are images or rows."""

    unit: ClassVar[str]  # what a unit is called: "images", "rows"
    reading: ClassVar[str]  # what going through the data is called among the times
    default_objective: ClassVar[str]  # the metric by which values of sweeps are chosen
    least_is_best: ClassVar[tuple[str, ...]]  # metrics of which the least is the best

    @property
    def unit_ids(self) -> npt.NDArray[np.int64]:
        """What says to which half a unit belongs, in every run."""

    def map_of(self, name: str, method: str | LogitMap) -> LogitMap:
        """The map of a method: fitted where it is a specification, checked where it was made elsewhere."""

    def outcomes(self, maps: Mapping[str, LogitMap], progress: Progress | None) -> dict[str, Outcome]:
        """Go through the data once, under all maps."""

    def part(self, units: Mask) -> Self:
        """The task on some of its units."""

    def outcome_part(self, outcome: Outcome, units: Mask) -> Outcome:
        """The outcome of some of the units."""

    def other_units(self, maps: Mapping[str, LogitMap]) -> tuple[Self, Mapping[str, Outcome]] | None:
        """Units held out to choose values of sweeps on, with their outcomes; None where there are none."""

    def metrics(self, outcome: Outcome) -> Mapping[str, float]:
        """The metrics by which a value may be chosen."""

    def measure(
        self, outcomes: Mapping[str, Outcome], maps: Mapping[str, LogitMap]
    ) -> dict[str, tuple[MethodResult, Basis]]:
        """Everything that is measured of each method, without differences, and what the bootstrap resamples."""

    def bootstrap(self, bases: Sequence[Basis]) -> list[Mapping[str, FloatArray]]:
        """The metrics of several methods over the same bootstrap samples of units."""

    def details(self, outcomes: Mapping[str, Outcome]) -> AddDetails | None:
        """A function that adds to results what else the report shows; None where there is nothing."""

    def scope(self) -> DetectionScope | ClassificationTruth:
        """What the metrics were measured under."""

    def classes(self) -> tuple[EvaluatedClass, ...]:
        """The classes."""

    def notes(self, specs: Sequence[Any]) -> tuple[str, ...]:
        """What to know before reading the numbers."""

    def provenance(self) -> Provenance:
        """How the comparison was made."""


def run_comparison(
    task: ComparedTask[Outcome, Basis],
    methods: Sequence[str] | Mapping[str, str | LogitMap],
    settings: CompareSettings,
    *,
    sweeps: Sequence[Sweep | str] = (),
    clock: StepClock | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Measure methods on the same data, with their differences to the uncorrected model.

    Args:
        task: What is measured on which data.
        methods: Specifications, or a mapping from a name to a specification or to a map of logits.
        settings: What is measured, and how.
        sweeps: Parameters to vary.
        clock: Continues the times of the steps that came before.
        progress: Called with the number of units that were read since the last call.
    """
    clock = clock or StepClock()
    varied, asked = parse_sweeps(sweeps), named_methods(methods)
    specs = with_sweeps(asked, varied)
    maps = {name: task.map_of(name, method) for name, method in specs.items()}
    clock.lap("fit")
    found: Mapping[str, Outcome] = task.outcomes(maps, progress)
    clock.lap(task.reading)
    curves = _curves(task, found, maps, varied, settings)
    if settings.split:
        task, found = _half(task, found, ~choosing_half(task.unit_ids, task.unit))
    clock.lap("choices")
    chosen = [curve.chosen for curve in curves if curve.chosen]
    reported = [name for name in maps if not chosen or name in asked or name in chosen]
    measured = task.measure(found, maps)
    clock.lap("metrics")
    rows = _with_differences(task, [measured[name] for name in reported], settings)
    clock.lap("bootstrap")
    share = clock.seconds[task.reading] / len(maps)
    values = {name: row.metrics.values for name, (row, _) in measured.items()}
    return Comparison(
        # A task that does not time its methods has no share to add to.
        rows=tuple(replace(row, seconds=row.seconds + share) if row.seconds else row for row in rows),
        scope=task.scope(),
        classes=task.classes(),
        curves=tuple(curve.with_metrics(values) for curve in curves),
        settings=settings,
        seconds=clock.seconds,
        notes=task.notes(list(specs.values())),
        provenance=task.provenance(),
        add_details=task.details(found),
    )


def _curves(
    task: ComparedTask[Outcome, Basis],
    found: Mapping[str, Outcome],
    maps: Mapping[str, LogitMap],
    sweeps: Sequence[Sweep],
    settings: CompareSettings,
) -> tuple[Curve, ...]:
    """Choose the value of each sweep on units that are not reported on, where there are such units."""
    if not sweeps:
        return ()
    outcomes: Mapping[str, Outcome]
    if settings.split:
        other, outcomes = _half(task, found, choosing_half(task.unit_ids, task.unit))
    elif (apart := task.other_units(maps)) is not None:
        other, outcomes = apart
    else:
        return tuple(Curve(sweep, {}) for sweep in sweeps)
    objective = settings.objective or task.default_objective
    return tuple(
        Curve.chosen_by(
            sweep,
            objective,
            (other.metrics(outcomes[spec]) for spec in sweep.specs),
            least=objective in task.least_is_best,
        )
        for sweep in sweeps
    )


def _half(
    task: ComparedTask[Outcome, Basis], found: Mapping[str, Outcome], units: Mask
) -> tuple[ComparedTask[Outcome, Basis], dict[str, Outcome]]:
    return task.part(units), {name: task.outcome_part(outcome, units) for name, outcome in found.items()}


def _with_differences(
    task: ComparedTask[Outcome, Basis], measured: Sequence[tuple[MethodResult, Basis]], settings: CompareSettings
) -> list[MethodResult]:
    """Add to each method its differences to the first, over the same bootstrap samples of units."""
    drawn: Sequence[Mapping[str, FloatArray]] = [{}] * len(measured)
    if settings.num_bootstrap:
        drawn = task.bootstrap([basis for _, basis in measured])
    first = measured[0][0].values
    return [
        replace(row, differences=paired_differences(row.values, first, own, drawn[0], settings.confidence))
        for (row, _), own in zip(measured, drawn, strict=True)
    ]
