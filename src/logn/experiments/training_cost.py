"""What an iteration of training costs, in processor time, so that methods can be compared on a machine that is busy."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from logn.experiments.artifact_cache import ArtifactCache
from logn.experiments.detector_spec import DetectorSpec
from logn.experiments.training_jobs import single_thread
from logn.training.detectors.plan import TrainingPlan
from logn.training.detectors.train_detector import train

SHORT, LONG = 2, 10


def seconds_per_iteration(cache: ArtifactCache, spec: DetectorSpec) -> float:
    """Processor seconds of an iteration, on one thread: what eight more iterations add to a short run.

    Args:
        cache: Where the data is, and the detector that a second stage starts from.
        spec: The detector.
    """
    plan = spec.plan(cache.folders(spec))
    with single_thread(), tempfile.TemporaryDirectory() as folder:
        times = [_seconds(plan, Path(folder), iterations) for iterations in (SHORT, LONG)]
    return (times[1] - times[0]) / (LONG - SHORT)


def _seconds(plan: TrainingPlan, folder: Path, iterations: int) -> float:
    """Of the iterations alone: what comes before them, such as filling a memory, may take longer than they do."""
    short = replace(plan, output=folder / str(iterations), iterations=iterations)
    return train(short, device="cpu", progress=False).processor_seconds
