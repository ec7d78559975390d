"""Run a table: train what is missing, measure what is missing, and put the rows together as plain values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from logn.base.strict_json import plain_values
from logn.data.class_counts import ClassCounts
from logn.data.fractal_dimensions import read_dimensions
from logn.errors import InputError
from logn.measure.compare import compare
from logn.measure.comparison import CompareSettings
from logn.measure.fitted_methods import fit_for_store
from logn.methods.catalog import needs, parse
from logn.models.layer import find_modules, fingerprint
from logn.predictions.decoder import DecodeSettings
from logn.predictions.predict import predict
from logn.predictions.store import Predictions
from logn.statistics.moments import ClassMoments
from logn_research.datasets.sample_dataset import SampleDataset
from logn_research.estimators import PositiveMoments, Statistics
from logn_research.experiments.cache import EXPECTED_ERRORS, ArtifactCache
from logn_research.experiments.detector_statistics import (
    collect_detector_statistics,
    collect_stage_statistics,
    correct_stages,
)
from logn_research.experiments.specs import ModelSpec, Problem
from logn_research.experiments.tables import POSITIVES, RECOGNISED, TABLES, Row

#: How many training images of drawn scenes the statistics are of; of data that is read, all.
STATISTICS_IMAGES = 600
_OF_LABELS: Mapping[str, Callable[..., Statistics]] = {
    POSITIVES: PositiveMoments,
    RECOGNISED: partial(PositiveMoments, require_correct=True),
}
NOT_TRAINED = "The model is not trained yet, and training was not asked for."


@dataclass(frozen=True)
class Protocol:
    """How detectors are corrected and measured.

    Args:
        threshold: Detections need a higher score; the authors measure at 0, LVIS's usual one is 1e-4.
        stages: Of a cascade: `each` is normalised by its own statistics before they are averaged, as in the paper, or
            the `average` of all.

    Example:
        >>> Protocol().suffix, Protocol(threshold=1e-4, stages="average").suffix
        ('', ', threshold 0.0001, average of stages')
    """

    threshold: float = 0.0
    stages: str = "each"

    def __post_init__(self) -> None:
        if self.stages not in ("each", "average"):
            raise InputError(f"Expected `stages` to be one of ('each', 'average'), but got {self.stages!r}.")

    @property
    def suffix(self) -> str:
        """What names of measurements have behind them, where this is not the usual protocol."""
        words = [f"threshold {self.threshold:g}"] if self.threshold else []
        words += ["average of stages"] if self.stages == "average" else []
        return "".join(f", {word}" for word in words)


def run_table(
    name: str,
    cache: ArtifactCache,
    problem: Problem,
    seeds: Sequence[int],
    *,
    protocol: Protocol | None = None,
    train: bool = True,
    command: str = "",
) -> dict[str, Any]:
    """Run a table; what is there already is not done again, and a row that fails does not hold up the others.

    Args:
        name: One of `TABLES`.
        cache: Where everything is kept.
        problem: The data and the length of the training.
        seeds: Of data and training.
        protocol: How detectors are corrected and measured.
        train: Whether to train what is missing; otherwise those rows are reported as not trained.
        command: The command that makes the table, for the record.

    Returns:
        The table as plain values: metrics lie between 0 and 1, the paper's are in points.
    """
    table, protocol = TABLES[name], protocol or Protocol()
    plans = {seed: table.sections(problem, seed) for seed in seeds}
    rows = [row for plan in plans.values() for section in plan.values() for row in section]
    models = {row.model.name: row.model for row in rows}
    failures = cache.train(list(models.values())) if train else {}
    records: dict[str, dict[str, Any]] = {}
    for model, spec in models.items():
        if model in failures or not cache.is_trained(spec):
            failures.setdefault(model, NOT_TRAINED)
            continue
        wanted = list({row.key: row for row in rows if row.model == spec}.values())
        try:
            records[model] = _measure_detector(cache, spec, wanted, protocol, errors=table.errors)
        except EXPECTED_ERRORS as error:
            failures[model] = str(error)
    sections = [
        {
            "title": title,
            "rows": [
                _detector_row(cache, _over_seeds(plans, title, line), records, failures) for line in range(len(section))
            ],
        }
        for title, section in plans[seeds[0]].items()
    ]
    content = {
        "table": name,
        "command": command,
        "data": "glyph scenes" if problem.glyphs else problem.name,
        "settings": _settings(problem, seeds, protocol),
        "sections": sections,
        "paper": table.paper_rows(),
        "paper_title": table.paper_title,
    }
    plain: dict[str, Any] = plain_values(content)
    return plain


def _over_seeds(plans: Mapping[int, Mapping[str, list[Row]]], title: str, line: int) -> dict[int, Row]:
    return {seed: plan[title][line] for seed, plan in plans.items()}


def _settings(problem: Problem, seeds: Sequence[int], protocol: Protocol) -> dict[str, Any]:
    """What the models were trained on and how they were measured, for the record."""
    known: dict[str, Any] = {"seeds": list(seeds), "model": problem.model}
    known |= {"iterations": problem.iterations, "epochs": problem.epochs, **vars(protocol)}
    if problem.glyphs:
        return known | {name: getattr(problem.glyphs, name) for name in ("classes", "train", "test")}
    files = {"train": problem.train, "test": problem.test}
    return known | {split: path.name for split, path in files.items() if path}


def _detector_row(
    cache: ArtifactCache,
    by_seed: Mapping[int, Row],
    records: Mapping[str, Mapping[str, Any]],
    failures: Mapping[str, str],
) -> dict[str, Any]:
    first = next(iter(by_seed.values()))
    known = {seed: records.get(row.model.name, {}).get(row.key, {}) for seed, row in by_seed.items()}
    measured = {seed: record for seed, record in known.items() if "metrics" in record}
    return {
        "method": first.label,
        "detector": first.model.name,
        "correction": first.key,
        "metrics": {seed: record["metrics"] for seed, record in measured.items()},
        "failures": {
            seed: known[seed].get("failure") or failures.get(row.model.name, "It was not measured.")
            for seed, row in by_seed.items()
            if seed not in measured
        },
        "errors": {seed: record["errors"] for seed, record in measured.items() if record["errors"]},
        "margin": {seed: record["margin"] for seed, record in measured.items() if record["margin"] is not None},
        "logged_seconds": {seed: _seconds(cache, by_seed[seed].model) for seed in measured},
        "paper": first.paper,
    }


def _seconds(cache: ArtifactCache, spec: ModelSpec) -> float:
    """Time of a training as its log has it, with the one that it starts from."""
    before = _seconds(cache, spec.start) if spec.start else 0.0
    return before + float(cache.last_log_line(spec).get("seconds", math.nan))


def training_counts(training: SampleDataset) -> ClassCounts:
    """Images and objects of each class; a class without any counts as one, since logarithms are taken."""
    images, objects = (values.astype(np.float64) for values in (training.image_counts, training.instance_counts))
    return ClassCounts(images, objects, training.class_names, len(training)).at_least(1.0)


def predictions(cache: ArtifactCache, spec: ModelSpec, split: str) -> Path:
    """The store of a detector's proposals on a split; one of other weights is refused."""
    store = cache.run(spec) / f"predictions-{split}"
    data, detector = cache.dataset(spec, split), cache.model(spec)
    with cache.step(f"Predicting {split} of {spec.name}", len(data)) as progress:
        predict(detector, data, store, progress=progress)
    return store


def detector_statistics(
    cache: ArtifactCache, spec: ModelSpec, protocol: Protocol | None = None, of_labels: str = ""
) -> tuple[ClassMoments, ...]:
    """Statistics of a detector's logits over training images, kept in its run; those of other weights don't count.

    Args:
        cache: Where the run is.
        spec: The detector.
        protocol: Of a cascade with `stages="each"` there is a result for each stage.
        of_labels: Statistics of positives, of proposals.
    """
    protocol = protocol or Protocol()
    detector = cache.model(spec)
    by_stage = protocol.stages == "each" and len(detector.logit_layer_paths) > 1 and not of_labels
    name = "".join(f"-{part}" for part in (of_labels.replace(" ", "-"), protocol.suffix[2:].replace(", ", "-")) if part)
    stages = range(len(detector.logit_layer_paths)) if by_stage else range(1)
    files = [cache.run(spec) / f"statistics{name}{f'.{stage}' if by_stage else ''}.safetensors" for stage in stages]
    if not all(file.exists() and ClassMoments.load(file).head.source == fingerprint(detector) for file in files):
        training = cache.dataset(spec, "train")
        images = len(training) if spec.problem.train else min(STATISTICS_IMAGES, len(training))
        with cache.step(f"Statistics of {spec.name}", images) as progress:
            known: dict[str, Any] = {"max_images": images, "progress": progress}
            if by_stage:
                collected = collect_stage_statistics(detector, training, **known)
            else:
                estimator = _OF_LABELS.get(of_labels, ClassMoments)
                collected = (collect_detector_statistics(detector, training, estimator=estimator, **known),)
        for file, moments in zip(files, collected, strict=True):
            moments.save(file)
    return tuple(ClassMoments.load(file) for file in files)


def _measure_detector(
    cache: ArtifactCache, spec: ModelSpec, rows: Sequence[Row], protocol: Protocol, *, errors: bool
) -> dict[str, Any]:
    """Measure corrections of one trained detector, boxes and masks; what is in its file is not measured again."""
    known = cache.records(spec)
    names = {row.key: row.key + protocol.suffix for row in rows}
    missing = [
        row for row in rows if names[row.key] not in known or (errors and known[names[row.key]]["errors"] is None)
    ]
    failures: dict[str, Any] = {}
    if missing:
        store = Predictions(predictions(cache, spec, "test"))
        maps: dict[str, Any] = {}
        by_stage: dict[str, Path] = {}
        for row in missing:
            try:
                fitted = _fitted(cache, spec, row, protocol, store)
                if isinstance(fitted, list):
                    by_stage[row.key] = _stage_store(cache, spec, row.key + protocol.suffix, fitted)
                else:
                    maps[row.key] = fitted
            except (InputError, OSError) as error:
                failures[row.key] = {"failure": str(error)}
        fresh = _compared(cache, spec, store, maps, protocol, errors) if maps else {}
        for key, corrected in by_stage.items():
            fresh[key] = _compared(cache, spec, Predictions(corrected), {"none": None}, protocol, errors)["none"]
        known = cache.add_records(spec, {names[key]: record for key, record in fresh.items()})
    return failures | {key: known[name] for key, name in names.items() if name in known}


def _compared(
    cache: ArtifactCache,
    spec: ModelSpec,
    store: Predictions,
    maps: Mapping[str, Any],
    protocol: Protocol,
    errors: bool,
) -> dict[str, Any]:
    detector, test = cache.model(spec), cache.dataset(spec, "test")
    # A correction of a cascade's stages changes its digest, but no mask.
    head = store.head
    source = SimpleNamespace(
        background=head.background,
        activation=head.activation,
        propose=detector.propose,
        masks=detector.masks,
        fingerprint=head.source,
    )
    shown: dict[str, Any] = {"masks": source, "images": test} if test.has_masks else {}
    with cache.step(f"Measuring {len(maps)} rows of {spec.name}", 2 * len(test)) as progress:
        comparison = compare(
            store,
            test.annotation_file,
            {key: fitted for key, fitted in maps.items() if key != "none"},  # which is always measured
            settings=CompareSettings(
                num_bootstrap=0, errors=errors, decode=DecodeSettings(score_threshold=protocol.threshold)
            ),
            progress=progress,
            **shown,
        )
    return {
        row.name: {
            "metrics": {name: row[name] for name in row.values if name.startswith("AP") and "Pool" not in name},
            "errors": dict(row.errors.gains) if row.errors else None,
            "margin": row.settings.get("margin_value"),
        }
        for row in comparison.rows
        if row.name in maps
    }


def _fitted(cache: ArtifactCache, spec: ModelSpec, row: Row, protocol: Protocol, store: Predictions) -> Any:
    """The map of a row; None for none, and a list of maps for the stages of a cascade."""
    name, inputs = parse(row.method)[0], dict[str, Any]()
    if name == "none":
        return None
    training = cache.dataset(spec, "train") if {"counts", "dimensions"} & {*needs(name)} or name == "fracal" else None
    if training is not None:
        inputs["counts"] = training_counts(training)
    if name == "fracal" and training is not None:
        inputs["dimensions"] = read_dimensions(training.annotation_file, store.head.class_names)
    if "weight" in needs(name):
        detector = cache.model(spec)
        layer: Any = find_modules(detector, detector.logit_layer)[0]
        inputs |= {part: getattr(layer, part).detach().cpu().numpy() for part in ("weight", "bias")}
    if "moments" not in needs(name):
        return fit_for_store(row.method, store.head, **inputs)

    stages = detector_statistics(cache, spec, protocol, row.statistics)
    maps = [fit_for_store(row.method, store.head, moments=moments, **inputs) for moments in stages]
    return maps if len(maps) > 1 else maps[0]


def _stage_store(cache: ArtifactCache, spec: ModelSpec, name: str, maps: Sequence[Any]) -> Path:
    """The proposals of a cascade whose stages are corrected one by one."""
    detector, test = cache.model(spec), cache.dataset(spec, "test")
    correct_stages(detector, maps)
    folder = cache.run(spec) / f"predictions-test-{name.replace(':', '-').replace(', ', '-').replace(' ', '-')}"
    with cache.step(f"Predicting test of {spec.name} with {name}", len(test)) as progress:
        predict(detector, test, folder, progress=progress)
    return folder
