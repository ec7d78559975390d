"""The whole story on a problem made here: draw, train, record, predict, compare. Every step resumes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from logn.classes.counts import ClassCounts
from logn.evaluate.comparison.compare import compare
from logn.evaluate.comparison.comparison import Comparison
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.models.collect import from_adapter
from logn.evaluate.models.correct import choose_images
from logn.evaluate.models.model_kinds import ImageFiles, Traits
from logn.evaluate.store.predict import predict
from logn.labels.dataset import DetectionDataset
from logn.statistics.moments import ClassMoments
from logn_research.datasets.glyphs.scenes import generate_glyph_scenes
from logn_research.datasets.glyphs.settings import GlyphSettings
from logn_research.experiments.mask_maker import mask_maker
from logn_research.training.recipes import DetectorTrainingConfig
from logn_research.training.train import load_detector, train_detector

# What LogN recommends, the paper's LogN, then the rivals, which need class counts, with their published defaults.
METHODS = ("recommended", "logn", "norcal", "loga")
# The comparison by exhaustive labels, in the folder of a run.
EXHAUSTIVE_FOLDER = "exhaustive"

# A step of the story: given its name and the amount of work, a context that yields the function to report progress.
Step = Callable[[str, float | None], AbstractContextManager[Callable[[float], None]]]


@dataclass(frozen=True)
class DemoSettings:
    """How large the problem is and how long the detector is trained.

    Args:
        glyphs: The data.
        iterations: Of training, with batches of 16.
        statistics_images: How many training images the statistics are taken from.
        num_bootstrap: Of the bootstrap intervals.
        processes: How many processes train together; the result depends on it in the last digits.
    """

    glyphs: GlyphSettings
    iterations: int
    statistics_images: int
    num_bootstrap: int = 1000
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
        comparison: All methods on the test images, by federated labels.
        folder: Where everything is: data, model, statistics, predictions, comparison.
        correlation: Correlation of the mean logit with the logarithm of the training images, over the classes.
        exhaustive: The same methods on the same predictions, by exhaustive labels; without masks.
    """

    comparison: Comparison
    folder: Path
    correlation: float
    exhaustive: Comparison


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
    with step("Drawing scenes", glyphs.train + glyphs.dev + glyphs.test) as progress:
        data = generate_glyph_scenes(folder / "data", glyphs, workers=settings.processes, progress=progress)
    with step("Training", None):
        config = DetectorTrainingConfig(data, folder / "model", iterations=settings.iterations, seed=seed)
        train_detector(config, processes=settings.processes)
    detector = load_detector(folder / "model")
    training = DetectionDataset(data / "train.json")
    moments = _statistics(folder, training, settings, step)
    test = DetectionDataset(data / "test.json")
    with step("Predicting the test images", len(test)) as progress:
        named = {"model": "glyph detector", "data": "test.json"}
        predict(detector, test, folder / "predictions", metadata=named, progress=progress)
    chosen = CompareSettings(num_bootstrap=settings.num_bootstrap, seed=seed)
    known: dict[str, Any] = {"settings": chosen, "moments": moments, "counts": _counts(training)}
    with step("Comparing methods by federated labels, masks included", len(test)) as progress:
        masks = mask_maker(detector, test, folder / "predictions", progress=progress)
        comparison = compare(folder / "predictions", data / "test.json", METHODS, mask_maker=masks, **known)
        comparison = _saved(comparison, folder, folder, settings, seed)
    with step("Comparing methods by exhaustive labels", len(test)) as progress:
        labels = data / "test_exhaustive.json"
        exhaustive = compare(folder / "predictions", labels, METHODS, progress=progress, **known)
        exhaustive = _saved(exhaustive, folder, folder / EXHAUSTIVE_FOLDER, settings, seed)
    return DemoResult(comparison, folder, _correlation(moments, training), exhaustive)


def _saved(comparison: Comparison, folder: Path, output: Path, settings: DemoSettings, seed: int) -> Comparison:
    """The comparison with all that the page shows, and the command that makes it again; written into `output`."""
    inputs = {"-p": "predictions", "-s": "statistics.safetensors", "--counts": "data/train.json"}
    inputs["-a"] = "data/test.json" if output == folder else "data/test_exhaustive.json"
    inputs |= {"--detector": "model"} if output == folder else {}
    named = [word for option, place in inputs.items() for word in (option, str(folder / place))]
    chosen = ["--methods", ",".join(METHODS), "--bootstrap", str(settings.num_bootstrap), "--seed", str(seed)]
    command = ("logn", "compare", *named, *chosen, "-o", str(output))
    comparison = comparison.with_details().made_by(command)
    comparison.save(output)
    return comparison


def _statistics(folder: Path, training: DetectionDataset, settings: DemoSettings, step: Step) -> ClassMoments:
    """What `logn collect` gives of the trained detector."""
    path = folder / "statistics.safetensors"
    if path.exists():
        return ClassMoments.load(path)
    images = min(settings.statistics_images, len(training))
    with step("Recording logits of training images, without labels", images) as progress:
        detector = load_detector(folder / "model")
        run = from_adapter(
            detector, name="model", traits=Traits("logn_research", "its own", ""), save=None, reopen=None
        )
        (moments,) = run.collect(ImageFiles(choose_images(training.image_paths(), images)), progress=progress)
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
