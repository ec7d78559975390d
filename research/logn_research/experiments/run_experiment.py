"""Run a table of the bench: train what is missing, measure what is missing, and put the rows together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from logn_research.experiments.artifact_cache import ArtifactCache
from logn_research.experiments.bench_detectors import BenchLength
from logn_research.experiments.detector_spec import DetectorSpec
from logn_research.experiments.experiment import (
    NOT_TRAINED,
    BenchResult,
    BenchRow,
    BenchSection,
    Correction,
    Experiment,
    RowResult,
    SectionResult,
)
from logn_research.experiments.measurements import (
    EXPECTED_ERRORS,
    Record,
    inference_cost,
    known_numbers,
    measure,
    training_cost,
)


@dataclass
class DetectorOutcome:
    """What is known of one trained detector: measurements and failures by correction, a failure of the whole, cost."""

    records: Mapping[str, Record] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    failure: str | None = None
    relative_cost: float | None = None
    logged_seconds: float = float("nan")
    training_seconds: float = float("nan")
    total_seconds: float = float("nan")


def run_experiment(
    experiment: Experiment,
    cache: ArtifactCache,
    *,
    length: BenchLength,
    seeds: Sequence[int],
    train: bool = True,
) -> BenchResult:
    """Run a table; what is there already is not done again, and a row that fails does not hold up the others.

    Args:
        experiment: The table.
        cache: Where everything is kept.
        length: Size of the problem and length of the training.
        seeds: Of data and training; the table has their mean and range.
        train: Whether to train what is missing; otherwise those rows are reported as not trained.
    """
    plans = {seed: tuple(experiment.sections(length, seed)) for seed in seeds}
    wanted = _corrections(row for plan in plans.values() for section in plan for row in section.rows)
    failures = cache.train([spec for spec, _ in wanted.values()]) if train else {}
    outcomes: dict[str, DetectorOutcome] = {}
    for name, (spec, corrections) in wanted.items():
        if name in failures or not cache.is_trained(spec):
            outcomes[name] = DetectorOutcome(failure=failures.get(name, NOT_TRAINED))
        else:
            outcomes[name] = _measured(cache, spec, corrections, experiment.errors)
    # Costs come last: a command that is stopped in between still has the metrics.
    # On data that is read they would take as long as the training, on a device that they don't measure.
    for name, (spec, _) in wanted.items() if experiment.costs and length.problem is None else ():
        if outcomes[name].records:
            _add_costs(outcomes[name], cache, spec, length.plain("random", seed=spec.seed))
    first = plans[seeds[0]]
    sections = tuple(
        SectionResult(
            section.title,
            tuple(
                _row_result(row, {seed: plans[seed][place].rows[line] for seed in seeds}, outcomes)
                for line, row in enumerate(section.rows)
            ),
        )
        for place, section in enumerate(first)
    )
    return BenchResult(experiment, sections, tuple(seeds), length)


def detectors_of(sections: Iterable[BenchSection]) -> list[DetectorSpec]:
    """The detectors of some sections, each once.

    Example:
        >>> row = BenchRow("CE", DetectorSpec())
        >>> [spec.name for spec in detectors_of([BenchSection("all", (row, row))])]
        ['families-linear-random-ce-s0']
    """
    wanted = _corrections(row for section in sections for row in section.rows)
    return [spec for spec, _ in wanted.values()]


def _corrections(rows: Iterable[BenchRow]) -> dict[str, tuple[DetectorSpec, list[Correction]]]:
    """By the name of the detector: the detector, and all that is measured on it."""
    wanted: dict[str, tuple[DetectorSpec, list[Correction]]] = {}
    for row in rows:
        _, corrections = wanted.setdefault(row.detector.name, (row.detector, []))
        if row.correction not in corrections:
            corrections.append(row.correction)
    return wanted


def _measured(
    cache: ArtifactCache, spec: DetectorSpec, corrections: Sequence[Correction], errors: bool
) -> DetectorOutcome:
    outcome = DetectorOutcome(logged_seconds=cache.training_seconds(spec))
    try:
        outcome.records, outcome.failures = measure(cache, spec, corrections, errors=errors)
    except EXPECTED_ERRORS as error:
        outcome.failure = str(error)
    return outcome


def _add_costs(outcome: DetectorOutcome, cache: ArtifactCache, spec: DetectorSpec, plain: DetectorSpec) -> None:
    """Add what training and inference cost; without them a row still has its metrics."""
    if not cache.is_trained(plain):
        return
    with contextlib.suppress(*EXPECTED_ERRORS):
        outcome.relative_cost = inference_cost(cache, spec, plain)
        outcome.training_seconds = training_cost(cache, spec)
        before = 0.0 if spec.start is None else training_cost(cache, spec.start)
        outcome.total_seconds = before + outcome.training_seconds


def _row_result(row: BenchRow, by_seed: Mapping[int, BenchRow], outcomes: Mapping[str, DetectorOutcome]) -> RowResult:
    found = {seed: outcomes[own.detector.name] for seed, own in by_seed.items()}
    key = row.correction.key
    records = {seed: outcome.records[key] for seed, outcome in found.items() if key in outcome.records}
    failures = {
        seed: outcome.failures.get(key) or outcome.failure or "It was not measured."
        for seed, outcome in found.items()
        if seed not in records
    }
    trained = {seed: outcome for seed, outcome in found.items() if seed in records}
    return RowResult(
        row=row,
        metrics={seed: known_numbers(record["metrics"]) for seed, record in records.items()},
        failures=failures,
        errors={seed: known_numbers(record["errors"]) for seed, record in records.items() if record["errors"]},
        margins={seed: record["margin"] for seed, record in records.items() if record["margin"] is not None},
        logged_seconds={seed: outcome.logged_seconds for seed, outcome in trained.items()},
        training_seconds={seed: outcome.training_seconds for seed, outcome in trained.items()},
        total_seconds={seed: outcome.total_seconds for seed, outcome in trained.items()},
        relative_cost={
            seed: outcome.relative_cost for seed, outcome in trained.items() if outcome.relative_cost is not None
        },
    )
