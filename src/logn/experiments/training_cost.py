"""What an iteration of training costs, in processor time, so that methods can be compared on a machine that is busy."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from logn.datasets.samplers import PAPER_THRESHOLD
from logn.experiments.detector_spec import GLYPH_REPEAT_THRESHOLD, SAMPLERS, DetectorSpec
from logn.experiments.workshop import Workshop
from logn.training.loop import train
from logn.training.plan import TrainingPlan

SHORT, LONG = 2, 10


def seconds_per_iteration(workshop: Workshop, spec: DetectorSpec) -> float:
    """Processor seconds of an iteration, on one thread: what eight more iterations add to a short run.

    Args:
        workshop: Where the data is, and the detector that a second stage starts from.
        spec: The detector.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            plan = plan_of(workshop, spec, Path(folder))
            times = [_seconds(plan, Path(folder), iterations) for iterations in (SHORT, LONG)]
    finally:
        torch.set_num_threads(threads)
    return (times[1] - times[0]) / (LONG - SHORT)


def plan_of(workshop: Workshop, spec: DetectorSpec, output: Path) -> TrainingPlan:
    """The training of a detector of the bench, as a plan.

    Example:
        >>> plan_of(Workshop("runs"), DetectorSpec(sampler="rfs"), Path("x")).sampler
        'repeat-factor-stochastic'
    """
    return TrainingPlan(
        workshop.data_folder(spec),
        output,
        model=spec.model,
        classifier=spec.classifier,
        temperature=spec.temperature,
        sampler=SAMPLERS[spec.sampler],
        repeat_threshold=GLYPH_REPEAT_THRESHOLD if spec.sampler == "rfs" else PAPER_THRESHOLD,
        iterations=spec.iterations,
        seed=spec.seed,
        loss=spec.loss,
        start=None if spec.start is None else workshop.model_folder(spec.start),
        only=spec.only,
        feature_memory=spec.feature_memory,
    )


def _seconds(plan: TrainingPlan, folder: Path, iterations: int) -> float:
    """Of the iterations alone: what comes before them, such as filling a memory, may take longer than they do."""
    short = replace(plan, output=folder / str(iterations), iterations=iterations)
    return train(short, device="cpu", progress=False).processor_seconds
