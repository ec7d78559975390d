"""What corrections reach on a trained detector's test images, kept in a file next to it so that it is measured once."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from logn.calibrators.methods import needs, parse
from logn.classes.counts import read_dimensions
from logn.errors import InputError
from logn.evaluate.comparison.compare import compare
from logn.evaluate.comparison.method_fitting import fit_for_store
from logn.evaluate.comparison.method_result import MethodResult
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.detection.assignment import columns_of
from logn.evaluate.models.collect import as_tensor
from logn.evaluate.store.store import PredictionStore
from logn.files import write_text
from logn.labels.dataset import DetectionDataset
from logn.logits.arrays import foreground_columns
from logn.statistics.moments import ClassMoments, StatisticsMetadata
from logn.strict_json import plain_values
from logn_research.estimators import PositiveMoments
from logn_research.experiments.artifact_cache import ArtifactCache
from logn_research.experiments.detector_spec import STATISTICS_IMAGES, DetectorSpec, training_counts
from logn_research.experiments.experiment import ALL, CORRECT_POSITIVES, POSITIVES, Correction
from logn_research.experiments.mask_maker import mask_maker
from logn_research.experiments.training_jobs import single_thread
from logn_research.training.checkpoint import FILE_NAME as CHECKPOINT
from logn_research.training.recipes import DetectorTrainingConfig
from logn_research.training.train import train_detector

SHORT, LONG = 2, 10


def seconds_per_iteration(cache: ArtifactCache, spec: DetectorSpec) -> float:
    """Processor seconds of an iteration, on one thread: what eight more iterations add to a short run.

    Args:
        cache: Where the data is, and the detector that a second stage starts from.
        spec: The detector.
    """
    config = spec.training_config(cache.folders(spec))
    with single_thread(), tempfile.TemporaryDirectory() as folder:
        times = [_training_seconds(config, Path(folder), iterations) for iterations in (SHORT, LONG)]
    return (times[1] - times[0]) / (LONG - SHORT)


def _training_seconds(config: DetectorTrainingConfig, folder: Path, iterations: int) -> float:
    """Of the iterations alone: what comes before them, such as filling a memory, may take longer than they do."""
    short = replace(config, output=folder / str(iterations), iterations=iterations)
    return train_detector(short, device="cpu", progress=False).processor_seconds


def positive_moments(
    detector: Any,
    dataset: DetectionDataset,
    *,
    max_images: int,
    metadata: StatisticsMetadata,
    batch: int = 8,
    seed: int = 0,
    progress: Callable[[int], object] = lambda count: None,
) -> tuple[ClassMoments, ClassMoments]:
    """Moments of each class's logit over the proposals of that class, and over those that are also recognised.

    A proposal belongs to the class of the box that it overlaps most, from an overlap of one half on. A class that has
    no such proposal keeps its logits as they are.

    Args:
        detector: A detector with `propose`.
        dataset: Training images with labels.
        max_images: How many of them at most; those that `collect_detector_statistics` takes with the same seed.
        metadata: Of the usual statistics of this detector.
        batch: Images per forward pass.
        seed: Of the draw of the images.
        progress: Called with the number of images whenever some are done.
    """
    columns = detector.num_classes + (detector.background is not None)
    foreground = np.arange(columns)[foreground_columns(columns, detector.background)]
    forms = [PositiveMoments(columns, require_correct=correct, metadata=metadata) for correct in (False, True)]
    order = np.random.default_rng(seed).permutation(len(dataset))[:max_images]
    for start in range(0, len(order), batch):
        chosen = [int(index) for index in order[start : start + batch]]
        found = detector.propose([as_tensor(dataset.read_image(index)) for index in chosen])
        for index, proposals in zip(chosen, found, strict=True):
            labels = columns_of(proposals, dataset, index, foreground)
            for form in forms:
                form.update(proposals.logits, labels)
        progress(len(chosen))
    return forms[0].moments(), forms[1].moments()


ROUNDS, BATCH = 5, 8


def relative_cost(detector: Any, plain: Any, images: Sequence[Any], *, rounds: int = ROUNDS) -> float:
    """Time of `propose` over that of the plain detector, on the same images.

    Processor time on one thread, so that other work on the machine hardly matters; the two take turns, and the quickest
    of each counts.

    Args:
        detector: A detector with `propose`.
        plain: The detector to compare with.
        images: Float tensors `(3, H, W)`.
        rounds: How many turns each has.

    Example:
        >>> class Sleepy:
        ...     def propose(self, images):
        ...         return [sum(range(20000)) for _ in images]
        >>> relative_cost(Sleepy(), Sleepy(), [torch.zeros(3, 8, 8)] * 4) > 0
        True
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = [(_seconds(detector, images), _seconds(plain, images)) for _ in range(rounds)]
    finally:
        torch.set_num_threads(threads)
    return min(own for own, _ in times) / min(other for _, other in times)


def _seconds(detector: Any, images: Sequence[Any]) -> float:
    began = time.process_time()
    for start in range(0, len(images), BATCH):
        detector.propose(list(images[start : start + BATCH]))
    return time.process_time() - began


FILE_NAME, SCHEMA = "bench-test.json", 1
COST_IMAGES = 16
ITERATION = "seconds per iteration"

# What a run that is damaged, or of other settings, can raise.
EXPECTED_ERRORS = (InputError, OSError, RuntimeError, ValueError)

# A measurement as it lies in the file: "metrics", "errors" (or None), "margin" (or None).
Record = dict[str, Any]


def measure(
    cache: ArtifactCache,
    spec: DetectorSpec,
    corrections: Sequence[Correction],
    *,
    errors: bool = False,
) -> tuple[dict[str, Record], dict[str, str]]:
    """Measure corrections of one trained detector, boxes and masks; those in its file are not measured again.

    Args:
        cache: Where the detector is.
        spec: The detector.
        corrections: What to measure.
        errors: Whether kinds of error are measured too.

    Returns:
        The measurements by the key of the correction, and a sentence for each that failed.
    """
    file = RecordFile(cache.model_folder(spec))
    known = file.read()["corrections"]
    missing = [
        correction
        for correction in corrections
        if correction.key not in known or (errors and known[correction.key]["errors"] is None)
    ]
    failures: dict[str, str] = {}
    if missing:
        fresh, failures = _measured(cache, spec, missing, errors=errors)
        # The detector as it is was measured too; if the file has it already, it may have more there.
        new = {*(each.key for each in missing), *({"none"} - set(known))}
        known = file.add("corrections", {key: record for key, record in fresh.items() if key in new})
    return {each.key: known[each.key] for each in corrections if each.key in known}, failures


def inference_cost(cache: ArtifactCache, spec: DetectorSpec, plain: DetectorSpec) -> float:
    """Time of a detector's proposals over that of the plain detector's, measured once."""
    if spec == plain:
        return 1.0
    file = RecordFile(cache.model_folder(spec))
    known = file.read()["cost"]
    if plain.name not in known:
        data = cache.dataset(spec, "test")
        images = [as_tensor(data.read_image(index)) for index in range(min(COST_IMAGES, len(data)))]
        ratio = relative_cost(cache.model(spec), cache.model(plain), images)
        known = file.add("cost", {plain.name: ratio})
    return float(known[plain.name])


def training_cost(cache: ArtifactCache, spec: DetectorSpec) -> float:
    """Processor seconds of a detector's own training: those of an iteration, measured once, times their number."""
    file = RecordFile(cache.model_folder(spec))
    known = file.read()["cost"]
    if ITERATION not in known:
        known = file.add("cost", {ITERATION: seconds_per_iteration(cache, spec)})
    return float(known[ITERATION]) * (spec.iterations or 0)


def known_numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """What the file has numbers for; a group without any class has none."""
    return {name: value for name, value in values.items() if value is not None}


class RecordFile:
    """The file with all measurements of one trained detector; weights that have changed make it worthless.

    Args:
        folder: Of the detector's run.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        checkpoint = folder / CHECKPOINT
        if not checkpoint.is_file():
            raise InputError(f"Expected `{folder.name}` to be a trained detector, but it has no checkpoint.")
        self.weights = hashlib.sha256(checkpoint.read_bytes()).hexdigest()

    def read(self) -> dict[str, Any]:
        """All measurements of the present weights: "corrections" and "cost"."""
        nothing = {"schema": SCHEMA, "weights": self.weights, "corrections": {}, "cost": {}}
        if not self.path.is_file():
            return nothing
        try:
            content: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"Expected `{self.path}` to be JSON, but it cannot be read ({error}).") from error
        same = content.get("schema") == SCHEMA and content.get("weights") == self.weights
        return content if same else nothing

    def add(self, part: str, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Add measurements to a part of the file, and give all of that part."""
        content = self.read()
        content[part].update(plain_values(entries))
        write_text(self.path, json.dumps(content, indent=1) + "\n")
        merged: dict[str, Any] = content[part]
        return merged


def _measured(
    cache: ArtifactCache, spec: DetectorSpec, corrections: Sequence[Correction], *, errors: bool
) -> tuple[dict[str, Record], dict[str, str]]:
    store = PredictionStore(cache.predictions(spec, "test"))
    inputs = _FitInputs(cache, spec, store)
    maps: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for correction in corrections:
        try:
            maps[correction.key] = inputs.fit(correction)
        except (InputError, OSError) as error:
            failures[correction.key] = str(error)
    if not maps:
        return {}, failures
    detector, test = cache.model(spec), cache.dataset(spec, "test")
    with cache.step(f"Measuring {len(maps)} rows of {spec.name}", len(test)) as progress:
        comparison = compare(
            store,
            test.annotation_file,
            # "none" is always measured; asking for it by its name would be another row.
            {key: fitted for key, fitted in maps.items() if key != "none"},
            settings=CompareSettings(num_bootstrap=0, errors=errors),
            mask_maker=mask_maker(detector, test, store, progress=progress),
        )
    return {row.name: _record(row) for row in comparison.rows if row.name in {*maps, "none"}}, failures


def _record(row: MethodResult) -> Record:
    wanted = [name for name in row.values if name.startswith("AP") and "Pool" not in name]
    return {
        "metrics": {name: row[name] for name in wanted},
        "errors": dict(row.errors.gains) if row.errors else None,
        "margin": row.settings.get("margin_value"),
    }


class _FitInputs:
    """What corrections are fitted to, made when the first asks for it."""

    def __init__(self, cache: ArtifactCache, spec: DetectorSpec, store: PredictionStore) -> None:
        self.cache, self.spec, self.store = cache, spec, store

    def fit(self, correction: Correction) -> Any:
        spec = correction.method
        if "{min}" in spec:
            paper = self.fit(Correction("logn", correction.statistics))
            spec = correction.filled(paper.settings["margin_value"])
        method = parse(spec)[0]
        if method == "none":
            return None
        inputs: dict[str, Any] = {}
        if "moments" in needs(method):
            inputs["moments"] = self.moments(correction.statistics)
        if "weight" in needs(method):
            inputs["weight"], inputs["bias"] = self.cache.class_layer(self.spec)
        if "counts" in needs(method):
            inputs["counts"] = training_counts(self.cache.dataset(self.spec, "train"))
        if method == "fracal":
            training = self.cache.dataset(self.spec, "train")
            inputs["dimensions"] = read_dimensions(training.annotation_file, self.store.header.class_names)
        return fit_for_store(spec, self.store.header, **inputs)

    def moments(self, kind: str) -> ClassMoments:
        usual = self.cache.statistics(self.spec)
        if kind == ALL:
            return usual
        paths = {
            each: self.cache.model_folder(self.spec) / f"statistics-{each}.safetensors"
            for each in (POSITIVES, CORRECT_POSITIVES)
        }
        if not all(_is_of(path, usual) for path in paths.values()):
            training = self.cache.dataset(self.spec, "train")
            images = min(STATISTICS_IMAGES, len(training))
            with self.cache.step(f"Statistics of positives of {self.spec.name}", images) as progress:
                found = positive_moments(
                    self.cache.model(self.spec),
                    training,
                    max_images=images,
                    metadata=usual.metadata,
                    progress=progress,
                )
            for path, moments in zip(paths.values(), found, strict=True):
                moments.save(path)
        return ClassMoments.load(paths[kind])


def _is_of(path: Path, usual: ClassMoments) -> bool:
    """Whether a file holds statistics of the same weights."""
    return path.exists() and ClassMoments.load(path).metadata.fingerprint == usual.metadata.fingerprint
