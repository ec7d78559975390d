"""ClassifierSpec: one trained image classifier of an experiment, with a name that says what it is."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from logn.errors import InputError
from logn.evaluate.classification.logits import moments_of_logits
from logn.evaluate.models.open import choose_device
from logn.files import atomic_path
from logn.statistics.moments import ClassMoments
from logn_research.datasets.glyphs.classes import generate_glyph_classes, is_complete
from logn_research.datasets.glyphs.drawing import write_json
from logn_research.datasets.glyphs.settings import GlyphClassSettings
from logn_research.datasets.labelled_images import LabelledImages, open_images
from logn_research.experiments.model_spec import STATISTICS, Folders, ModelSpec, Step, is_current, loss_in_name
from logn_research.losses.loss_factory import DEFAULT_LOSS, parse_loss
from logn_research.training.classifiers import classifier_logits
from logn_research.training.recipes import ClassifierTrainingConfig
from logn_research.training.train import load_classifier, train_classifier

#: Second stages: the part that is trained, with class-balanced sampling (Kang et al., ICLR 2020).
SECOND_STAGES = {"crt": "new-classifier", "lws": "scales"}
DONE = "trained.json"


@dataclass(frozen=True)
class ClassifierProblem:
    """What the classifiers of an experiment learn, and how long.

    Args:
        name: Of the data in tables.
        glyphs: What is drawn, with the seed of each classifier; None where the data is read.
        data: Images with one class each, as `open_images` takes them; None where the data is drawn.
        images: The folder that the paths of list files start from.
        model: As `logn train --model` takes it.
        epochs: Of a first stage; None for those of the preset.
        stage_epochs: Of a second stage; None for those of the preset.
        eql: Loss of EQL, with a threshold that fits the data.
        device: Where classifiers are trained and run: `auto`, `cpu` or `cuda`.
    """

    name: str
    glyphs: GlyphClassSettings | None = None
    data: Path | None = None
    images: Path | None = None
    model: str = "small"
    epochs: float | None = None
    stage_epochs: float | None = None
    eql: str = "eql-softmax"
    device: str = "auto"

    def __post_init__(self) -> None:
        if (self.glyphs is None) == (self.data is None):
            raise InputError("Expected one of `glyphs` and `data`, but got both or neither.")


# EQL spares classes below a share of the images: 4.3e-4 of ImageNet-LT's 115,846 images are 50 images, and so is this
# share of the training images of the glyph classes.
GLYPH_CLASSES = ClassifierProblem("glyph classes", GlyphClassSettings(), eql="eql-softmax:threshold=0.005")


@dataclass(frozen=True)
class ClassifierSpec(ModelSpec[LabelledImages]):
    """A classifier to train.

    Args:
        classifier: `linear` or `cosine` (normalised).
        loss: As `logn train --loss` takes it.
        seed: Of the training, and of the data where that is drawn.
        stage: Empty, or `crt` or `lws`: trained from the classifier that is this one without a stage.
        problem: What it learns, and how long; not part of the name, so every problem has a cache of its own.

    Example:
        >>> ClassifierSpec("cosine", "seesaw", seed=2).name, ClassifierSpec(stage="crt").name
        ('cosine-seesaw-s2', 'linear-ce+crt-s0')
    """

    noun: ClassVar[str] = "classifier"
    runs: ClassVar[str] = "classifiers"

    classifier: str = "linear"
    loss: str = DEFAULT_LOSS
    seed: int = 0
    stage: str = ""
    problem: ClassifierProblem = GLYPH_CLASSES

    def __post_init__(self) -> None:
        parse_loss(self.loss)
        if self.stage and self.stage not in SECOND_STAGES:
            raise InputError(f"Expected `stage` to be one of {tuple(SECOND_STAGES)}, but got {self.stage!r}.")

    @property
    def start(self) -> ClassifierSpec | None:
        """The classifier that a second stage begins with."""
        return replace(self, stage="") if self.stage else None

    @property
    def name(self) -> str:
        """Folder of the run."""
        stage = f"+{self.stage}" if self.stage else ""
        return f"{self.classifier}-{loss_in_name(self.loss)}{stage}-s{self.seed}"

    def data_folder(self, root: Path) -> Path:
        """The data: drawn for the seed, or the same for all."""
        return self.problem.data or root / "data" / f"classes-s{self.seed}"

    def draw(self, folder: Path, *, workers: int, step: Step) -> None:
        """Draw the data, if it is drawn and not there yet; a drawing of other settings is refused."""
        if self.problem.glyphs is None:
            return
        settings = replace(self.problem.glyphs, seed=self.seed)
        if is_complete(folder):
            generate_glyph_classes(folder, settings)  # refuses a drawing of other settings
            return
        with step(f"Drawing data {self.seed}", settings.images) as progress:
            generate_glyph_classes(folder, settings, workers=workers, progress=progress)

    def dataset(self, folder: Path, split: str) -> LabelledImages:
        """The images and labels of a split."""
        return open_images(folder, split, root=self.problem.images)

    def training_config(self, folders: Folders) -> ClassifierTrainingConfig:
        """The training of the classifier."""
        second: dict[str, Any] = {"sampler": "class-balanced", "only": SECOND_STAGES[self.stage]} if self.stage else {}
        return ClassifierTrainingConfig(
            folders.data,
            folders.run,
            images=self.problem.images,
            model=self.problem.model,
            epochs=self.problem.stage_epochs if self.stage else self.problem.epochs,
            start=folders.start,
            classifier=self.classifier,
            loss=self.loss,
            seed=self.seed,
            **second,
        )

    def train(self, folders: Folders) -> None:
        """Train the classifier, or resume a run that was stopped, and note that it was completed."""
        config = self.training_config(folders)
        result = train_classifier(config, progress=False, device=self.problem.device)
        write_json(folders.run / DONE, {"plan": _plain(config), "iterations": result.iterations})

    def is_trained(self, folders: Folders) -> bool:
        """Whether the run went to its end, and was of this length."""
        try:
            found = json.loads((folders.run / DONE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(found, dict) and found.get("plan") == _plain(self.training_config(folders))

    def load(self, folders: Folders) -> Any:
        """The trained classifier, in evaluation mode."""
        return load_classifier(folders.run).to(choose_device(self.problem.device))

    def statistics(self, folders: Folders, step: Step) -> ClassMoments:
        """Statistics of the logits of all training images; made again if the weights are newer."""
        path = folders.run / STATISTICS
        if not is_current(path, folders):
            moments_of_logits(self.predictions(folders, "train", step)).save(path)
        return ClassMoments.load(path)

    def predictions(self, folders: Folders, split: str, step: Step) -> Path:
        """The file of the logits on a split, `(images, classes)`; made again if the weights are newer."""
        path = folders.run / f"logits-{split}.npy"
        if not is_current(path, folders):
            images = self.dataset(folders.data, split)
            with step(f"Logits of {self.name} on {split}", len(images)) as progress:
                found = classifier_logits(self.load(folders), images, progress=progress)
            with atomic_path(path) as temporary:
                np.save(temporary, found)
        return path

    def class_layer(self, folders: Folders) -> tuple[Any, Any]:
        """Weight and bias of the last layer."""
        layer = self.load(folders).cls_score
        weight, bias = (layer.get_parameter(name).detach().cpu().numpy() for name in ("weight", "bias"))
        return weight, bias


def _plain(config: ClassifierTrainingConfig) -> dict[str, Any]:
    """What must be the same for a run to count as trained; folders may move."""
    folders = {"data", "output", "root", "start"}
    # What is left to its default is not part of it, so that a setting of a later version makes no run another one.
    return {name: value for name, value in vars(config).items() if name not in folders and value is not None}
