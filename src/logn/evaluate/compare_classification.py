"""Compare post-hoc methods on the logits of a classifier: one pass over the logits, one table."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.evaluate.bootstrap import paired_differences
from logn.evaluate.classification import metrics_of_outcomes
from logn.evaluate.classification_comparison import ClassificationComparison, ClassifierResult
from logn.evaluate.classification_draws import drawn_metrics
from logn.evaluate.classification_logits import RowOutcomes, open_logits, row_outcomes
from logn.evaluate.classification_methods import ClassifierFit, classifier_statistics
from logn.evaluate.classification_truth import (
    PAPER_BOUNDS,
    ClassificationTruth,
    Labels,
    checked_labels,
    classification_truth,
)
from logn.evaluate.comparison import Curve
from logn.evaluate.method_maps import LogitMap, named_methods
from logn.evaluate.step_clock import StepClock
from logn.evaluate.sweep import Sweep, choosing_half, parse_sweeps, with_sweeps
from logn.logits.arrays import FloatArray
from logn.statistics.class_counts import ClassCounts
from logn.statistics.moments import ClassMoments

DEFAULT_METHODS = ("logn", "logn:balanced")


def compare_classification(
    logits: Any,
    labels: Labels,
    methods: Sequence[str] | Mapping[str, str | LogitMap] = DEFAULT_METHODS,
    *,
    moments: ClassMoments | str | os.PathLike[str] | None = None,
    train_logits: Any = None,
    counts: ClassCounts | npt.ArrayLike | None = None,
    weight: Any = None,
    bias: Any = None,
    families: Sequence[Hashable] | npt.ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    sweeps: Sequence[Sweep | str] = (),
    dev: tuple[Any, Labels | None] | None = None,
    split: bool = False,
    objective: str = "top-1",
    bounds: tuple[int, int] = PAPER_BOUNDS,
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int], object] = lambda rows: None,
    allow_mismatch: bool = False,
) -> ClassificationComparison:
    """Measure methods on the same logits, with their differences to the uncorrected classifier.

    Args:
        logits: `(rows, classes)` of test images: an array, a tensor, or the path of a `.npy`, `.npz` or `.safetensors`
            file, which is mapped and read in blocks.
        labels: The class of each row, from 0; or a `.npy`, `.json`, `.csv` or `.txt` file with them.
        methods: Specifications such as "logn", "logn:balanced" or "loga:tau=0.5", or a mapping from a name to a
            specification or to a map of logits made elsewhere. The uncorrected model, "none", is always measured.
        moments: Statistics of the training images' logits, or their file; or give `train_logits`.
        train_logits: Logits of training images, in the same forms as `logits`; their labels are not needed.
        counts: Training samples of each class: for many, medium and few, and for methods that use them.
        weight: Weight of the last layer, for tau-norm.
        bias: Its bias.
        families: One look-alike family for each class, to say how many errors stay within one.
        class_names: One name for each class; puts counts with names in order. By default those of the statistics.
        sweeps: Parameters to vary, such as "tau=0:2:0.25". With `dev` or `split` the best value there is reported;
            without them all values are reported, none is chosen.
        dev: Logits and labels of other rows, that were not trained on either. Values of sweeps are chosen on them, and
            `keep_confidence=true` keeps the mean confidence there; that needs no labels, so they can be None.
        split: Choose on one half of the rows and report on the other.
        objective: The metric by which the value of a sweep is chosen.
        bounds: The most training samples of a few-shot and of a medium-shot class.
        draws: How often rows are drawn anew for the intervals; 0 for no intervals.
        confidence: Of the intervals.
        seed: Of the draws.
        progress: Called with the number of test rows that were done since the last call.
        allow_mismatch: Only warn where a map that was made elsewhere is of other classes.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.integers(0, 3, 300)
        >>> scores = 2 * np.eye(3)[labels] + rng.normal(size=(300, 3)) + [3.0, 1.0, 0.0]
        >>> found = compare_classification(scores, labels, ["logn"], train_logits=scores, counts=[900, 90, 9])
        >>> [round(row["few"], 2) for row in found.rows]
        [0.25, 0.82]
    """
    _check_choices(dev, split, draws, confidence)
    clock = StepClock()
    opened = open_logits(logits)
    classes = checked_labels(labels, opened.num_classes)
    opened.check_labels(classes)  # before the training logits are read, which may take long
    statistics = classifier_statistics(moments, train_logits, opened.num_classes)
    clock.lap("statistics")
    truth = classification_truth(
        classes,
        opened.num_classes,
        train_counts=counts,
        families=families,
        class_names=class_names or _known_names(statistics, counts),
        bounds=bounds,
    )
    varied = parse_sweeps(sweeps)
    asked = named_methods(methods)
    specs = with_sweeps(asked, varied)
    fit = ClassifierFit(truth, statistics, weight, bias, None if dev is None else dev[0], allow_mismatch)
    maps = fit.maps(specs)
    clock.lap("fit")
    found = dict(zip(maps, row_outcomes(opened, truth.labels, list(maps.values()), progress), strict=True))
    clock.lap("logits")
    curves = tuple(Curve(sweep, {}) for sweep in varied)
    if varied and (dev is not None or split):
        choosing = _Choice.of(dev, truth, found, maps, objective)
        curves = tuple(choosing.curve(sweep) for sweep in varied)
    if split:
        half = ~choosing_half(np.arange(len(truth.labels)), "rows")
        truth, found = truth.part(half), {name: outcomes.part(half) for name, outcomes in found.items()}
    clock.lap("choices")
    reported = set(maps) if not any(curve.chosen for curve in curves) else {*asked, *(curve.chosen for curve in curves)}
    measured = {name: metrics_of_outcomes(outcomes, truth) for name, outcomes in found.items()}
    rows = [
        ClassifierResult(name, measured[name], {}, getattr(transform, "settings", {}))
        for name, transform in maps.items()
        if name in reported
    ]
    rows = _with_differences(rows, found, truth, draws, confidence, seed)
    clock.lap("metrics")
    return ClassificationComparison(
        rows=tuple(rows),
        truth=truth,
        curves=tuple(curve.with_metrics({spec: measured[spec].values for spec in measured}) for curve in curves),
        seconds=clock.seconds,
        draws=draws,
        confidence=confidence,
        notes=(*_notes(statistics, truth, split=split), *fit.notes(specs.values())),
    )


def _known_names(statistics: ClassMoments | None, counts: Any) -> tuple[str, ...] | None:
    recorded = statistics.metadata.class_names if statistics else None
    return recorded or (counts.names if isinstance(counts, ClassCounts) else None)


def _check_choices(dev: Any, split: bool, draws: int, confidence: float) -> None:
    if dev is not None and split:
        raise InputError("Expected one of `dev` and `split`, but got both.")
    if draws < 0:
        raise InputError(f"Expected `draws` to be at least 0, but got {draws}.")
    if not 0 < confidence < 1:
        raise InputError(f"Expected `confidence` to lie between 0 and 1, but got {confidence:g}.")


@dataclass(frozen=True, eq=False)
class _Choice:
    """The rows on which the values of sweeps are chosen; they are not reported on."""

    truth: ClassificationTruth
    found: Mapping[str, RowOutcomes]
    objective: str

    @classmethod
    def of(
        cls,
        dev: tuple[Any, Labels | None] | None,
        truth: ClassificationTruth,
        found: Mapping[str, RowOutcomes],
        maps: Mapping[str, LogitMap],
        objective: str,
    ) -> _Choice:
        if dev is None:
            half = choosing_half(np.arange(len(truth.labels)), "rows")
            return cls(truth.part(half), {name: outcomes.part(half) for name, outcomes in found.items()}, objective)
        opened = open_logits(dev[0], "dev logits")
        if opened.num_classes != truth.num_classes:
            raise InputError(
                f"Expected the logits of `dev` to be of {truth.num_classes} classes, but got {opened.num_classes}."
            )
        if dev[1] is None:
            raise InputError("Expected labels of `dev` (`--dev-labels`) to choose the values of sweeps, but got none.")
        labels = checked_labels(dev[1], truth.num_classes)
        outcomes = row_outcomes(opened, labels, list(maps.values()))
        return cls(replace(truth, labels=labels), dict(zip(maps, outcomes, strict=True)), objective)

    def curve(self, sweep: Sweep) -> Curve:
        measured = (metrics_of_outcomes(self.found[spec], self.truth).values for spec in sweep.specs)
        return Curve.chosen_by(sweep, self.objective, measured, least=self.objective in ("ECE", "NLL"))


def _with_differences(
    rows: Sequence[ClassifierResult],
    found: Mapping[str, RowOutcomes],
    truth: ClassificationTruth,
    draws: int,
    confidence: float,
    seed: int,
) -> list[ClassifierResult]:
    """Add to each method its differences to the first, over the same draws of rows."""
    drawn: list[dict[str, FloatArray]] = [{}] * len(rows)
    if draws:
        drawn = drawn_metrics([found[row.name] for row in rows], truth, draws, seed)
    first = rows[0].values
    return [
        replace(row, differences=paired_differences(row.values, first, own, drawn[0], confidence))
        for row, own in zip(rows, drawn, strict=True)
    ]


def _notes(statistics: ClassMoments | None, truth: ClassificationTruth, *, split: bool) -> tuple[str, ...]:
    notes = []
    if statistics is not None:
        notes.append(f"Statistics of {int(statistics.count.max()):,} training rows.")
    if split:
        notes.append("One half of the rows; choices were made on the other.")
    present = truth.rows_per_class[truth.rows_per_class > 0]
    if present.min() != present.max():
        notes.append(f"Classes have {present.min():,} to {present.max():,} rows, so top-1 and balanced differ.")
    absent = int((truth.rows_per_class == 0).sum())
    if absent:
        notes.append(f"{absent:,} classes have no row and count nowhere.")
    return tuple(notes)
