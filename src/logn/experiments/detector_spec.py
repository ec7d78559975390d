"""DetectorSpec: one trained detector of an experiment, with a name that says what it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from safetensors import safe_open

from logn.classes.counts import ClassCounts
from logn.datasets.detection_dataset import DetectionDataset
from logn.datasets.glyphs.scenes import generate_glyph_scenes
from logn.datasets.glyphs.settings import GlyphSettings
from logn.datasets.samplers import PAPER_THRESHOLD
from logn.errors import InputError
from logn.evaluate.store.detector_statistics import collect_detector_statistics
from logn.evaluate.store.predict import predict
from logn.experiments.model_spec import STATISTICS, Folders, ModelSpec, Step, loss_in_name
from logn.logits.fingerprint import fingerprint
from logn.logits.layer import find_modules
from logn.statistics.moments import ClassMoments
from logn.training.detectors.config import DetectorTrainingConfig
from logn.training.detectors.train_detector import train_detector
from logn.training.engine.checkpoint import FILE_NAME as CHECKPOINT
from logn.training.engine.checkpoint import load_detector
from logn.training.losses.loss_factory import DEFAULT_LOSS, parse_loss

#: On 2,400 glyph scenes this repeats rare classes as much as the paper's 0.001 does on the 100,000 images of LVIS.
GLYPH_REPEAT_THRESHOLD = 0.04
SAMPLERS = {"random": "random", "rfs": "repeat-factor-stochastic", "balanced": "class-balanced"}
#: The length of training of the experiments; other lengths are part of a detector's name.
ITERATIONS = 800
#: Enough for the balanced margin to be within 0.05 of that from all images.
STATISTICS_IMAGES = 600


@dataclass(frozen=True)
class DetectorSpec(ModelSpec[DetectionDataset]):
    """A detector to train on glyph scenes.

    Args:
        scenes: Name of the data: `families` of look-alikes, `distinct` glyphs, or any name for other `glyphs`.
        glyphs: What is drawn; the seed is replaced by this specification's, and `distinct` drops the families.
        model: As `logn train --model` takes it.
        classifier: `linear` or `cosine`.
        temperature: Of the cosine classifier.
        sampler: `random`, `rfs` (repeat factor sampling) or `balanced` (class-balanced).
        loss: As `logn train --loss` takes it.
        seed: Of the data and of the training.
        iterations: Of the training.
        start: The detector that this one begins with, for second stages.
        only: The part that a second stage trains.
        feature_memory: Whether LOCE's memory of features takes part.
        stage: Short name of the second stage, such as `bags`.

    Example:
        >>> spec = DetectorSpec(classifier="cosine", sampler="rfs", seed=1)
        >>> spec.name
        'families-cosine20-rfs-ce-s1'
        >>> DetectorSpec(start=spec, stage="bags", loss="bags", only="classifier", iterations=200, seed=1).name
        'families-cosine20-rfs-ce+bags-i200-s1'
    """

    noun: ClassVar[str] = "detector"
    runs: ClassVar[str] = "models"

    scenes: str = "families"
    glyphs: GlyphSettings = field(default_factory=GlyphSettings)
    model: str = "small"
    classifier: str = "linear"
    temperature: float = 20.0
    sampler: str = "random"
    loss: str = DEFAULT_LOSS
    seed: int = 0
    iterations: int = ITERATIONS
    start: DetectorSpec | None = None
    only: str | None = None
    feature_memory: bool = False
    stage: str = ""

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise InputError(f"Expected `sampler` to be one of {tuple(SAMPLERS)}, but got {self.sampler!r}.")
        if (self.start is None) != (not self.stage):
            raise InputError("Expected `stage` to name a second stage where there is a `start`, and nowhere else.")
        parse_loss(self.loss)

    @property
    def scene_settings(self) -> GlyphSettings:
        """What is drawn, with this detector's seed."""
        similarity = None if self.scenes == "distinct" else self.glyphs.similarity
        return replace(self.glyphs, seed=self.seed, similarity=similarity)

    @property
    def data_name(self) -> str:
        """Folder of the data."""
        return f"{self.scenes}-s{self.seed}"

    @property
    def name(self) -> str:
        """Folder of the run: data, head, sampler, loss, second stage, length where it is not the usual one, seed."""
        length = "" if self.iterations == ITERATIONS else f"-i{self.iterations}"
        return f"{self._stem}{length}-s{self.seed}"

    @property
    def _stem(self) -> str:
        if self.start is not None:
            return f"{self.start._stem}+{self.stage}"
        head = self.classifier if self.classifier == "linear" else f"{self.classifier}{self.temperature:g}"
        head = head if self.model == "small" else self.model
        return f"{self.scenes}-{head}-{self.sampler}-{loss_in_name(self.loss)}"

    def data_folder(self, root: Path) -> Path:
        """Where the scenes are."""
        return root / "data" / self.data_name

    def draw(self, folder: Path, *, workers: int, step: Step) -> None:
        """Draw the scenes, if they are not there yet."""
        settings = self.scene_settings
        if (folder / "test.json").exists():
            return
        with step(f"Drawing {self.data_name}", settings.train + settings.dev + settings.test) as progress:
            generate_glyph_scenes(folder, settings, workers=workers, progress=progress)

    def dataset(self, folder: Path, split: str) -> DetectionDataset:
        """The scenes and objects of a split."""
        return DetectionDataset(folder / f"{split}.json")

    def training_config(self, folders: Folders) -> DetectorTrainingConfig:
        """The training of the detector.

        Example:
            >>> DetectorSpec(sampler="rfs").training_config(Folders(Path("data"), Path("run"))).sampler
            'repeat-factor-stochastic'
        """
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
            loss=self.loss,
            start=folders.start,
            only=self.only,
            feature_memory=self.feature_memory,
        )

    def train(self, folders: Folders) -> None:
        """Train the detector, or resume a run that was stopped."""
        train_detector(self.training_config(folders), progress=False)

    def is_trained(self, folders: Folders) -> bool:
        """Whether the run has all of its iterations."""
        path = folders.run / CHECKPOINT
        if not path.exists():
            return False
        with safe_open(path, framework="np") as file:
            return int(file.metadata()["iteration"]) >= self.iterations

    def load(self, folders: Folders) -> Any:
        """The trained detector, in evaluation mode."""
        return load_detector(folders.run)

    def statistics(self, folders: Folders, step: Step) -> ClassMoments:
        """Statistics of the logits of proposals; made again if the weights have changed."""
        path, detector = folders.run / STATISTICS, self.load(folders)
        if not (path.exists() and ClassMoments.load(path).metadata.fingerprint == fingerprint(detector)):
            training = self.dataset(folders.data, "train")
            images = min(STATISTICS_IMAGES, len(training))
            with step(f"Statistics of {self.name}", images) as progress:
                collect_detector_statistics(detector, training, max_images=images, progress=progress).save(path)
        return ClassMoments.load(path)

    def predictions(self, folders: Folders, split: str, step: Step) -> Path:
        """The store of the proposals on a split; one of other weights is refused."""
        store = folders.run / f"predictions-{split}"
        data, detector = self.dataset(folders.data, split), self.load(folders)
        with step(f"Predicting {split} of {self.name}", len(data)) as progress:
            predict(detector, data, store, metadata={"fingerprint": fingerprint(detector)}, progress=progress)
        return store

    def class_layer(self, folders: Folders) -> tuple[Any, Any]:
        """Weight and bias of the classifier of regions."""
        detector = self.load(folders)
        layer: Any = find_modules(detector, detector.logit_layer)[0]
        return layer.weight.detach().numpy(), layer.bias.detach().numpy()


def training_counts(training: DetectionDataset) -> ClassCounts:
    """Images and objects of each class; a class without any counts as one, since logarithms are taken."""
    images, objects = (values.astype(np.float64) for values in (training.image_counts, training.instance_counts))
    return ClassCounts(images, objects, training.class_names, len(training)).at_least(1.0)
