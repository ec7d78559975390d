"""The models of the evidence on photographs: light detectors and small classifiers, trained on folders of a user."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from logn.datasets.glyphs.settings import GlyphSettings
from logn.datasets.samplers import PAPER_THRESHOLD
from logn.experiments.classifier_spec import ClassifierProblem, ClassifierSpec
from logn.experiments.detector_spec import GLYPH_REPEAT_THRESHOLD, SAMPLERS, DetectorSpec
from logn.experiments.model_spec import Folders, Step
from logn.files import write_text
from logn.training.detectors.config import DetectorTrainingConfig

#: Iterations of 16 photographs: a weak detector, a middling one, and one that has learnt the frequent classes.
LENGTHS = (400, 800, 1600)
#: Epochs of a classifier.
EPOCHS = (2, 4, 8)
HEADS = ("linear", "cosine")


@dataclass(frozen=True)
class PhotoDetector(DetectorSpec):
    """A light detector, trained on photographs.

    Args:
        folder: Holds `train.json`, `dev.json`, `test.json`, `dev_exhaustive.json`, `test_exhaustive.json` and the
            images, in LVIS's format.
        weights: File with the weights of the backbone.

    Example:
        >>> PhotoDetector(classifier="cosine", sampler="rfs", iterations=400).name
        'cosine-rfs-400-s0'
    """

    scenes: str = "photographs"
    model: str = "light"
    folder: Path = field(default=Path(), compare=False)
    weights: Path | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Folder of the run."""
        return f"{self.classifier}-{self.sampler}-{self.iterations}-s{self.seed}"

    def data_folder(self, root: Path) -> Path:
        """The user's folder, wherever the runs are."""
        return self.folder

    def draw(self, folder: Path, *, workers: int, step: Step) -> None:
        """Nothing: the photographs are there."""

    def training_config(self, folders: Folders) -> DetectorTrainingConfig:
        """The training of the detector."""
        return DetectorTrainingConfig(
            folders.data,
            folders.run,
            model=self.model,
            classifier=self.classifier,
            temperature=self.temperature,
            sampler=SAMPLERS[self.sampler],
            repeat_threshold=GLYPH_REPEAT_THRESHOLD if self.sampler == "rfs" else PAPER_THRESHOLD,
            iterations=self.iterations,
            seed=self.seed,
            weights=self.weights,
            precision="mixed",
            checkpoint_every=100,
        )


def photo_detectors(folder: Path, weights: Path | None) -> list[PhotoDetector]:
    """{linear, cosine 20} x {random, RFS} x three lengths.

    Example:
        >>> len(photo_detectors(Path("photos"), None))
        12
    """
    return [
        PhotoDetector(classifier=head, sampler=sampler, iterations=length, folder=folder, weights=weights)
        for sampler, length, head in itertools.product(("random", "rfs"), LENGTHS, HEADS)
    ]


def drawn_detectors(seeds: Sequence[int]) -> list[DetectorSpec]:
    """The same heads and samplers on glyph scenes.

    Example:
        >>> [spec.name for spec in drawn_detectors([0])][:2]
        ['families-linear-random-ce-s0', 'families-cosine20-random-ce-s0']
    """
    return [
        DetectorSpec(classifier=head, sampler=sampler, seed=seed)
        for seed, sampler, head in itertools.product(seeds, ("random", "rfs"), HEADS)
    ]


@dataclass(frozen=True)
class HarderScenes(DetectorSpec):
    """A detector of glyph scenes that are made more like photographs.

    Args:
        labelled: Share of the training objects whose labels are kept: the others are look-alikes without a label.

    Example:
        >>> [spec.name for spec in harder_scenes()][:2]
        ['families-linear-random-ce-i400-s0', 'cluttered-linear-random-ce-s0']
    """

    labelled: float = 1.0

    def draw(self, folder: Path, *, workers: int, step: Step) -> None:
        """Draw the scenes, and drop some of the training labels."""
        super().draw(folder, workers=workers, step=step)
        path = folder / "train.json"
        content = json.loads(path.read_text())
        if self.labelled < 1.0 and "dropped" not in content["info"]:
            entries = content["annotations"]
            kept = np.random.default_rng(self.seed).random(len(entries)) < self.labelled
            content["annotations"] = [entry for entry, keep in zip(entries, kept, strict=True) if keep]
            content["info"]["dropped"] = int((~kept).sum())
            write_text(path, json.dumps(content))


def harder_scenes() -> list[HarderScenes]:
    """Shorter training, clutter, labels that are missing, and all of them at once; one at a time otherwise."""
    clutter = GlyphSettings(clutter=4.0)
    return [
        HarderScenes(iterations=400),
        HarderScenes("cluttered", clutter),
        HarderScenes("unlabelled", labelled=0.5),
        HarderScenes("cluttered-unlabelled", clutter, iterations=400, labelled=0.5),
    ]


@dataclass(frozen=True)
class SignClassifier(ClassifierSpec):
    """A small classifier of a list of images.

    Example:
        >>> [spec.name for spec in sign_classifiers(Path("signs"), [0, 1])][:2]
        ['linear-2-epochs-s0', 'cosine-2-epochs-s0']
    """

    @property
    def name(self) -> str:
        """Folder of the run."""
        return f"{self.classifier}-{self.problem.epochs:g}-epochs-s{self.seed}"


def sign_classifiers(folder: Path, seeds: Sequence[int]) -> list[SignClassifier]:
    """{linear, cosine} x three lengths x seeds."""
    return [
        SignClassifier(head, seed=seed, problem=ClassifierProblem("photographs", data=folder, epochs=float(length)))
        for seed, length, head in itertools.product(seeds, EPOCHS, HEADS)
    ]
