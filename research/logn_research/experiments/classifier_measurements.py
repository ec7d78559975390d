"""What corrections reach on a classifier's test images, kept in a file next to it so that it is measured once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logn.evaluate.classification.compare import compare_classification
from logn.evaluate.classification.truth import SHOTS, shot_groups
from logn_research.experiments.artifact_cache import ArtifactCache
from logn_research.experiments.classifier_spec import ClassifierProblem, ClassifierSpec
from logn_research.experiments.imagenet_lt import TAU_NORM, TAU_SWEEP, ClassifierRow, sections
from logn_research.experiments.measurements import EXPECTED_ERRORS, RecordFile, known_numbers

METRICS = (
    "top-1",
    "many",
    "medium",
    "few",
    "many-OLTR",
    "medium-OLTR",
    "few-OLTR",
    "ECE",
    "confidence",
    "within-family",
)
NOT_TRAINED = "The classifier is not trained yet, and training was not asked for."


@dataclass(frozen=True)
class ClassifierRowResult:
    """What was measured for a row.

    Args:
        row: The row, with the classifier of the first seed.
        metrics: By seed: shares between 0 and 1.
        choices: By seed: what was chosen on dev, such as `tau-norm:tau=0.4`.
        failures: By seed: why there is no measurement.
        seconds: By seed: time of the training of the classifier, with the one that it starts from.
        losses: By seed: the loss at the end of the training.
    """

    row: ClassifierRow
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    choices: Mapping[int, str] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)
    seconds: Mapping[int, float] = field(default_factory=dict)
    losses: Mapping[int, float] = field(default_factory=dict)

    def values(self, metric: str) -> dict[int, float]:
        """A metric in points, by seed."""
        return {seed: 100 * found[metric] for seed, found in self.metrics.items() if metric in found}


@dataclass(frozen=True)
class ClassifierSectionResult:
    """The rows of a section with what was measured."""

    title: str
    rows: tuple[ClassifierRowResult, ...]

    def __getitem__(self, label: str) -> ClassifierRowResult:
        return next(found for found in self.rows if found.row.label == label)

    def differences(self, found: ClassifierRowResult, metric: str) -> list[float]:
        """By how much a row differs from its baseline in a metric, in points, for each seed that both have."""
        before, after = self[found.row.baseline].values(metric), found.values(metric)
        return [after[seed] - before[seed] for seed in after if seed in before]


def run_sections(
    cache: ArtifactCache, problem: ClassifierProblem, seeds: Sequence[int], *, train: bool = True
) -> tuple[ClassifierSectionResult, ...]:
    """Train what is missing, measure what is missing, and put the rows together; a failure holds up its rows only."""
    plans = {seed: sections(seed, problem) for seed in seeds}
    wanted: dict[str, tuple[ClassifierSpec, list[str]]] = {}
    for row in (row for plan in plans.values() for section in plan for row in section.rows):
        methods = wanted.setdefault(row.model.name, (row.model, []))[1]
        methods += [row.method] if row.method not in methods else []
    failures = cache.train([spec for spec, _ in wanted.values()]) if train else {}
    records: dict[str, dict[str, Any]] = {}
    for name, (spec, methods) in wanted.items():
        if name in failures or not cache.is_trained(spec):
            failures.setdefault(name, NOT_TRAINED)
            continue
        try:
            records[name] = measure_classifier(cache, spec, methods)
        except EXPECTED_ERRORS as error:
            failures[name] = str(error)
    return tuple(
        ClassifierSectionResult(
            section.title,
            tuple(
                _row_result(cache, {seed: plans[seed][place].rows[line] for seed in seeds}, records, failures)
                for line in range(len(section.rows))
            ),
        )
        for place, section in enumerate(plans[seeds[0]])
    )


def describe_data(cache: ArtifactCache, problem: ClassifierProblem, seed: int) -> dict[str, Any]:
    """Sizes of the data and length of the training, for the record."""
    specs = [ClassifierSpec(seed=seed, stage=stage, problem=problem) for stage in ("", "crt")]
    training, test = (cache.dataset(specs[0], split) for split in ("train", "test"))
    shots = shot_groups(training.image_counts)
    plain, second = (spec.training_config(cache.folders(spec)) for spec in specs)
    return {
        "classes": training.num_classes,
        "train": len(training),
        "most": int(training.image_counts.max()),
        "fewest": int(training.image_counts.min()),
        "test": len(test),
        "groups": {shot: int((shots == shot).sum()) for shot in SHOTS},
        "epochs": plain.epochs or plain.recipe.epochs,
        "stage_epochs": second.epochs or second.recipe.epochs,
    }


def measure_classifier(cache: ArtifactCache, spec: ClassifierSpec, methods: Sequence[str]) -> dict[str, Any]:
    """Measure corrections of one trained classifier; those in its file are not measured again.

    Returns:
        By method: "metrics", and "chosen" where a parameter was chosen on dev.
    """
    file = RecordFile(cache.model_folder(spec))
    known = file.read()["corrections"]
    missing = [method for method in methods if method not in known]
    if missing:
        known = file.add("corrections", _measured(cache, spec, missing))
    return {method: known[method] for method in methods}


def _measured(cache: ArtifactCache, spec: ClassifierSpec, methods: Sequence[str]) -> dict[str, Any]:
    test, training = cache.dataset(spec, "test"), cache.dataset(spec, "train")
    fitted = [method for method in methods if method not in ("none", TAU_NORM)]
    inputs: dict[str, Any] = {}
    if any(method.startswith("logn") for method in fitted):
        inputs["moments"] = cache.statistics(spec)
    if TAU_NORM in methods:
        inputs["weight"], inputs["bias"] = cache.class_layer(spec)
        inputs["sweeps"] = [TAU_SWEEP]
        inputs["dev"] = (cache.predictions(spec, "dev"), cache.dataset(spec, "dev").labels)
    comparison = compare_classification(
        cache.predictions(spec, "test"),
        test.labels,
        fitted,
        counts=training.image_counts,
        families=test.families,
        num_bootstrap=0,
        **inputs,
    )
    rows: dict[str, Any] = {row.name: {"metrics": _kept(row.values)} for row in comparison.rows}
    if TAU_NORM in methods:
        chosen = comparison.curves[0].chosen
        rows[TAU_NORM] = {**rows[str(chosen)], "chosen": chosen}
    return {method: rows[method] for method in methods}


def _kept(values: Mapping[str, float]) -> dict[str, float]:
    return {name: values[name] for name in METRICS if name in values}


def _row_result(
    cache: ArtifactCache,
    by_seed: Mapping[int, ClassifierRow],
    records: Mapping[str, Mapping[str, Any]],
    failures: Mapping[str, str],
) -> ClassifierRowResult:
    first = next(iter(by_seed.values()))
    found = {seed: records[row.model.name][row.method] for seed, row in by_seed.items() if row.model.name in records}
    return ClassifierRowResult(
        first,
        metrics={seed: known_numbers(record["metrics"]) for seed, record in found.items()},
        choices={seed: record["chosen"] for seed, record in found.items() if "chosen" in record},
        failures={seed: failures[row.model.name] for seed, row in by_seed.items() if row.model.name in failures},
        seconds={seed: _training_seconds(cache, by_seed[seed].model) for seed in found},
        losses={seed: cache.training_loss(by_seed[seed].model) for seed in found},
    )


def _training_seconds(cache: ArtifactCache, spec: ClassifierSpec) -> float:
    before = cache.training_seconds(spec.start) if spec.start is not None else 0.0
    return before + cache.training_seconds(spec)
