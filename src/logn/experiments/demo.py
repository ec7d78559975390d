"""The whole story on a problem made here: draw, train, record, predict, compare. Every step resumes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from logn.classes.counts import ClassCounts
from logn.datasets.detection_dataset import DetectionDataset
from logn.datasets.glyphs.scenes import generate_glyph_scenes
from logn.datasets.glyphs.settings import GlyphSettings
from logn.evaluate.comparison.compare import compare
from logn.evaluate.comparison.comparison import Comparison
from logn.evaluate.comparison.method_fitting import DEFAULT_METHODS
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.decode.masks import mask_maker
from logn.evaluate.store.detector_statistics import collect_detector_statistics
from logn.evaluate.store.predict import predict
from logn.statistics.moments import ClassMoments
from logn.training.detectors.plan import TrainingPlan
from logn.training.detectors.train_detector import train
from logn.training.engine.checkpoint import load_detector

# Label-free forms first, then the rivals, which need class counts, with their published defaults.
METHODS = (*DEFAULT_METHODS, "norcal", "loga")

# A step of the story: given its name and the amount of work, a context that yields the function to report progress.
Step = Callable[[str, float | None], AbstractContextManager[Callable[[float], None]]]


@dataclass(frozen=True)
class DemoSettings:
    """How large the problem is and how long the detector is trained.

    Args:
        glyphs: The data.
        iterations: Of training, with batches of 16.
        statistics_images: How many training images the statistics are taken from.
        draws: Of the bootstrap intervals.
        processes: How many processes train together; the result depends on it in the last digits.
    """

    glyphs: GlyphSettings
    iterations: int
    statistics_images: int
    draws: int = 1000
    processes: int = 2


#: About 90 seconds on two cores: enough to see that everything runs, not enough to learn rare classes.
QUICK = DemoSettings(GlyphSettings(classes=40, train=600, dev=1, test=160), iterations=250, statistics_images=150)
#: Within six minutes on two cores.
STANDARD = DemoSettings(GlyphSettings(dev=1), iterations=800, statistics_images=600)
#: A longer training, with the statistics of all training images.
FULL = DemoSettings(GlyphSettings(), iterations=2000, statistics_images=2400)

LENGTHS = {"quick": QUICK, "standard": STANDARD, "full": FULL}


@dataclass(frozen=True)
class DemoResult:
    """What a demonstration found.

    Args:
        comparison: All methods on the test images.
        folder: Where everything is: data, model, statistics, predictions, comparison.
        correlation: Correlation of the mean logit with the logarithm of the training images, over the classes.
    """

    comparison: Comparison
    folder: Path
    correlation: float


def run_demo(folder: Path, settings: DemoSettings, *, seed: int = 0, step: Step) -> DemoResult:
    """Draw the data, train, record statistics without labels, predict the test images, compare all methods.

    Args:
        folder: Where everything goes; what is there already is not done again.
        settings: The size.
        seed: Of the data, of the weights and of the order of training.
        step: Reports progress.
    """
    glyphs = replace(settings.glyphs, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    with step("Drawing scenes", glyphs.train + glyphs.dev + glyphs.test) as advance:
        data = generate_glyph_scenes(folder / "data", glyphs, workers=settings.processes, advance=advance)
    with step("Training", None):
        plan = TrainingPlan(data, folder / "model", iterations=settings.iterations, seed=seed)
        train(plan, processes=settings.processes)
    detector = load_detector(folder / "model")
    training = DetectionDataset(data / "train.json")
    moments = _statistics(folder / "statistics.safetensors", detector, training, settings, step)
    test = DetectionDataset(data / "test.json")
    with step("Predicting the test images", len(test)) as advance:
        predict(detector, test, folder / "predictions", advance=advance)
    with step("Comparing methods, masks included", len(test)) as advance:
        comparison = compare(
            folder / "predictions",
            data / "test.json",
            METHODS,
            settings=CompareSettings(num_bootstrap=settings.draws, seed=seed),
            mask_maker=mask_maker(detector, test, folder / "predictions", advance=advance),
            moments=moments,
            counts=_counts(training),
        )
    comparison = comparison.made_by(_compare_command(folder, settings, seed))
    comparison.save(folder)
    return DemoResult(comparison, folder, _correlation(moments, training))


def _compare_command(folder: Path, settings: DemoSettings, seed: int) -> tuple[str, ...]:
    """The command that makes the same comparison again from what the folder holds."""
    inputs = {"-p": "predictions", "-s": "statistics.safetensors", "-a": "data/test.json"}
    inputs |= {"--counts": "data/train.json", "--detector": "model"}
    named = [word for option, place in inputs.items() for word in (option, str(folder / place))]
    chosen = ["--methods", ",".join(METHODS), "--bootstrap", str(settings.draws), "--seed", str(seed)]
    return ("logn", "compare", *named, *chosen, "-o", str(folder))


def _statistics(
    path: Path, detector: Any, training: DetectionDataset, settings: DemoSettings, step: Step
) -> ClassMoments:
    if path.exists():
        return ClassMoments.load(path)
    images = min(settings.statistics_images, len(training))
    with step("Recording logits of training images, without labels", images) as advance:
        moments = collect_detector_statistics(detector, training, images=images, advance=advance)
    moments.save(path)
    return moments


def _counts(training: DetectionDataset) -> ClassCounts:
    # A class that no training image shows counts as one, since its logarithm is needed.
    return ClassCounts(
        training.image_counts.astype(np.float64),
        training.instance_counts.astype(np.float64),
        training.class_names,
        len(training),
    ).at_least(1.0)


def _correlation(moments: ClassMoments, training: DetectionDataset) -> float:
    means, images = moments.mean[1:], np.maximum(training.image_counts, 1)
    return float(np.corrcoef(means, np.log(images))[0, 1])
