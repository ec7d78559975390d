"""DetectorSpec: one trained detector of an experiment, with a name that says what it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from safetensors import safe_open

from logn.classes.counts import ClassCounts
from logn.errors import InputError
from logn.evaluate.models.open import choose_device
from logn.evaluate.store.predict import predict
from logn.labels.dataset import DetectionDataset
from logn.logits.layer import find_modules, fingerprint
from logn.statistics.moments import ClassMoments
from logn.strict_json import parse_json
from logn_research.datasets.glyphs.scenes import generate_glyph_scenes
from logn_research.datasets.glyphs.settings import GlyphSettings
from logn_research.datasets.samplers import PAPER_THRESHOLD
from logn_research.experiments.detector_statistics import collect_detector_statistics
from logn_research.experiments.model_spec import STATISTICS, Folders, ModelSpec, Step, loss_in_name
from logn_research.losses.loss_factory import DEFAULT_LOSS, parse_loss
from logn_research.training.checkpoint import FILE_NAME as CHECKPOINT
from logn_research.training.recipes import DETECTOR_RECIPES, DetectorTrainingConfig
from logn_research.training.settings import LIGHT_MODEL, PAPER_MODELS
from logn_research.training.train import load_detector, train_detector

#: On 2,400 glyph scenes this repeats rare classes as much as the paper's 0.001 does on the 100,000 images of LVIS.
GLYPH_REPEAT_THRESHOLD = 0.04
SAMPLERS = {"random": "random", "rfs": "repeat-factor-stochastic", "balanced": "class-balanced"}
#: The length of training of the experiments; other lengths are part of a detector's name.
ITERATIONS = 800
#: How many training images the statistics are of.
STATISTICS_IMAGES = 600


@dataclass(frozen=True)
class DetectionProblem:
    """Data that is read in place of scenes that are drawn, and how long detectors are trained on it.

    Args:
        train: Annotations of the training images, LVIS's or COCO's.
        test: Annotations of the test images.
        images: Folder that the image paths start from.
        weights: Of the backbone.
        epochs: Of a whole training; by default the preset's. A second stage has a quarter of them.
    """

    train: Path
    test: Path
    images: Path | None = None
    weights: Path | None = None
    epochs: float | None = None

    @property
    def name(self) -> str:
        """Of the data in names of folders and in tables.

        Example:
            >>> DetectionProblem(Path("lvis_v1_train.json"), Path("lvis_v1_val.json")).name
            'lvis_v1_train'
        """
        return self.train.stem


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
        iterations: Of the training; None for the epochs of `problem`.
        start: The detector that this one begins with, for second stages.
        only: The part that a second stage trains.
        feature_memory: Whether LOCE's memory of features takes part.
        stage: Short name of the second stage, such as `bags`.
        problem: Data that is read, in place of scenes.
        device: Where it is trained and run: `auto`, `cpu` or `cuda`.

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
    iterations: int | None = ITERATIONS
    start: DetectorSpec | None = None
    only: str | None = None
    feature_memory: bool = False
    stage: str = ""
    problem: DetectionProblem | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.iterations is None and self.problem is None:
            raise InputError("Expected `iterations` for scenes that are drawn, but got None.")
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
        return f"{self.scenes}-s{self.seed}" if self.problem is None else self.problem.name

    @property
    def name(self) -> str:
        """Folder of the run: data, head, sampler, loss, second stage, length where it is not the usual one, seed."""
        usual = ITERATIONS if self.problem is None else None
        length = "" if self.iterations == usual else f"-i{self.iterations}"
        if self.problem is not None and self.problem.epochs is not None and self.iterations is None:
            length = f"-e{self.epochs:g}"
        return f"{self._stem}{length}-s{self.seed}"

    @property
    def _stem(self) -> str:
        if self.start is not None:
            return f"{self.start._stem}+{self.stage}"
        head = self.classifier if self.classifier == "linear" else f"{self.classifier}{self.temperature:g}"
        if self.model != "small":
            head = self.model if self.classifier == "linear" else f"{self.model}-{head}"
        data = self.scenes if self.problem is None else self.problem.name
        return f"{data}-{head}-{self.sampler}-{loss_in_name(self.loss)}"

    @property
    def epochs(self) -> float | None:
        """Of the training on data that is read: the preset's unless others were asked for, of a second stage a quarter.

        Example:
            >>> lvis = DetectionProblem(Path("lvis_v1_train.json"), Path("lvis_v1_val.json"))
            >>> first = DetectorSpec(model="mask-rcnn-r101", problem=lvis, iterations=None)
            >>> replace(first, start=first, stage="loce", loss="loce", only="heads").epochs
            6.0
        """
        if self.problem is None or self.iterations is not None:
            return None
        if self.start is None:
            return self.problem.epochs
        name = "paper" if self.model in PAPER_MODELS else "light" if self.model == LIGHT_MODEL else "small"
        return (self.problem.epochs or DETECTOR_RECIPES[name].epochs) / 4

    @property
    def milestones(self) -> tuple[float, ...] | None:
        """LOCE's second stage drops after 3 and 5 of its 6 epochs; the others keep the preset's share."""
        if self.stage.startswith("loce") and self.epochs is not None and self.model in PAPER_MODELS:
            return (self.epochs / 2, self.epochs * 5 / 6)
        return None

    def data_folder(self, root: Path) -> Path:
        """Where the scenes are."""
        return root / "data" / self.data_name if self.problem is None else self.problem.train.parent

    def draw(self, folder: Path, *, workers: int, step: Step) -> None:
        """Draw the scenes, if they are not there yet."""
        if self.problem is not None:
            return
        settings = self.scene_settings
        if (folder / "test.json").exists():
            return
        with step(f"Drawing {self.data_name}", settings.train + settings.dev + settings.test) as progress:
            generate_glyph_scenes(folder, settings, workers=workers, progress=progress)

    def dataset(self, folder: Path, split: str) -> DetectionDataset:
        """The scenes and objects of a split."""
        if self.problem is not None:
            files = {"train": self.problem.train, "test": self.problem.test}
            if split not in files:
                raise InputError(f"Expected data with the splits train and test only, but `{split}` was asked for.")
            return DetectionDataset(files[split], self.problem.images)
        return DetectionDataset(folder / f"{split}.json")

    def training_config(self, folders: Folders) -> DetectorTrainingConfig:
        """The training of the detector.

        Example:
            >>> DetectorSpec(sampler="rfs").training_config(Folders(Path("data"), Path("run"))).sampler
            'repeat-factor-stochastic'
        """
        return DetectorTrainingConfig(
            folders.data if self.problem is None else self.problem.train,
            folders.run,
            images=None if self.problem is None else self.problem.images,
            weights=None if self.problem is None else self.problem.weights,
            model=self.model,
            classifier=self.classifier,
            temperature=self.temperature,
            sampler=self._image_sampler,
            repeat_threshold=GLYPH_REPEAT_THRESHOLD if self._repeats_glyphs else PAPER_THRESHOLD,
            epochs=self.epochs,
            milestones=self.milestones,
            iterations=self.iterations,
            seed=self.seed,
            loss=self.loss,
            start=folders.start,
            only=self.only,
            feature_memory=self.feature_memory,
        )

    @property
    def _image_sampler(self) -> str:
        # On real data the paper's, which is MMDetection's.
        return "repeat-factor-ceil" if self.sampler == "rfs" and self.problem is not None else SAMPLERS[self.sampler]

    @property
    def _repeats_glyphs(self) -> bool:
        return self.sampler == "rfs" and self.problem is None

    def train(self, folders: Folders) -> None:
        """Train the detector, or resume a run that was stopped."""
        train_detector(self.training_config(folders), progress=False, device=self.device)

    def is_trained(self, folders: Folders) -> bool:
        """Whether the run has all of its iterations."""
        path = folders.run / CHECKPOINT
        if not path.exists():
            return False
        with safe_open(path, framework="np") as file:
            metadata = file.metadata()
        wanted = self.iterations
        if wanted is None:
            wanted = int(parse_json(metadata["run"])["iterations"])
        return int(metadata["iteration"]) >= wanted

    def load(self, folders: Folders) -> Any:
        """The trained detector, in evaluation mode."""
        return load_detector(folders.run).to(choose_device(self.device))

    def statistics(self, folders: Folders, step: Step) -> ClassMoments:
        """Statistics of the logits of proposals; made again if the weights have changed."""
        path, detector = folders.run / STATISTICS, self.load(folders)
        if not (path.exists() and ClassMoments.load(path).metadata.fingerprint == fingerprint(detector)):
            training = self.dataset(folders.data, "train")
            images = len(training) if self.problem is not None else min(STATISTICS_IMAGES, len(training))
            with step(f"Statistics of {self.name}", images) as progress:
                collect_detector_statistics(detector, training, max_images=images, progress=progress).save(path)
        return ClassMoments.load(path)

    def predictions(self, folders: Folders, split: str, step: Step) -> Path:
        """The store of the proposals on a split; one of other weights is refused."""
        store = folders.run / f"predictions-{split}"
        data, detector = self.dataset(folders.data, split), self.load(folders)
        with step(f"Predicting {split} of {self.name}", len(data)) as progress:
            predict(
                detector,
                data,
                store,
                metadata={"fingerprint": fingerprint(detector)},
                progress=progress,
            )
        return store

    def class_layer(self, folders: Folders) -> tuple[Any, Any]:
        """Weight and bias of the classifier of regions."""
        detector = self.load(folders)
        layer: Any = find_modules(detector, detector.logit_layer)[0]
        return layer.weight.detach().cpu().numpy(), layer.bias.detach().cpu().numpy()


def training_counts(training: DetectionDataset) -> ClassCounts:
    """Images and objects of each class; a class without any counts as one, since logarithms are taken."""
    images, objects = (values.astype(np.float64) for values in (training.image_counts, training.instance_counts))
    return ClassCounts(images, objects, training.class_names, len(training)).at_least(1.0)
