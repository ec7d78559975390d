"""ModelSpec: one trained detector of a table, with a name that says what it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import safe_open

from logn.base.strict_json import parse_json
from logn.errors import InputError
from logn_research.datasets.glyphs.scenes import generate_glyph_scenes
from logn_research.datasets.glyphs.settings import GlyphSettings
from logn_research.datasets.sample_dataset import SampleDataset
from logn_research.datasets.samplers import PAPER_THRESHOLD
from logn_research.losses.loss_factory import DEFAULT_LOSS, parse_loss
from logn_research.training.checkpoint import FILE_NAME as CHECKPOINT
from logn_research.training.recipes import DETECTOR_RECIPES, DetectorTrainingConfig
from logn_research.training.settings import PAPER_MODELS

# A step of the work: given its name and the amount of work, a context that yields the function to report progress.
Step = Callable[[str, float | None], AbstractContextManager[Callable[[float], None]]]

#: On 2,400 glyph scenes this repeats rare classes as much as the paper's 0.001 does on the 100,000 images of LVIS.
GLYPH_REPEAT_THRESHOLD = 0.04
SAMPLERS = {"random": "random", "rfs": "repeat-factor-stochastic", "balanced": "class-balanced"}
#: The usual length of a training on glyph scenes; other lengths are part of a detector's name.
ITERATIONS = 800


@dataclass(frozen=True)
class Stage:
    """What a second stage trains, on a model that was trained with cross entropy.

    Args:
        only: The part that is trained.
        loss: The loss.
        balanced: Whether its images are drawn class by class; otherwise as in the first stage.
        feature_memory: Whether LOCE's memory of features takes part.
        share: Epochs on data that is read, as a share of the first stage's: 12 of 24 for BAGS, 6 for LOCE. Drawn
            scenes take a quarter of the iterations for all.
    """

    only: str
    loss: str = DEFAULT_LOSS
    balanced: bool = False
    feature_memory: bool = False
    share: float = 0.25


STAGES = {
    "bags": Stage("classifier", "bags", share=0.5),
    "loce": Stage("heads", "loce"),
    "loce-memory": Stage("heads", "loce", feature_memory=True),
    "crt": Stage("new-classifier", balanced=True),
    "lws": Stage("scales", balanced=True),
}


@dataclass(frozen=True)
class Problem:
    """What the detectors of a table learn, and how long.

    Args:
        name: Of the data: in names of folders and in tables.
        glyphs: What is drawn, with the seed of each model. None where the data is read.
        train: Annotations that are read.
        test: Annotations of the test images.
        images: Folder that the image paths start from.
        weights: Of the backbone.
        model: As `logn train --model` takes it.
        iterations: Of a whole training; a second stage has a quarter of them. None for `epochs`.
        epochs: Of a whole training; None for the preset's. A second stage has the share of its `Stage`.
        eql: Loss of EQL, with a threshold that fits the data.
        device: Where models are trained and run: `auto`, `cpu` or `cuda`.
        precision: Of the training, as `logn train` takes it.
    """

    name: str
    glyphs: GlyphSettings | None = None
    train: Path | None = None
    test: Path | None = None
    images: Path | None = None
    weights: Path | None = None
    model: str = "small"
    iterations: int | None = None
    epochs: float | None = None
    eql: str = "eql"
    device: str = "auto"
    precision: str = "auto"

    def __post_init__(self) -> None:
        if (self.glyphs is None) == (self.train is None):
            raise InputError("Expected one of `glyphs` and `train`, but got both or neither.")
        if self.iterations is not None and self.iterations < 4:
            raise InputError(f"Expected `iterations` to be at least 4, but got {self.iterations}.")


# EQL spares classes below a share of the images: 0.0011 on LVIS v1, where 815 of 1,203 classes (68 %) are below it. On
# 2,400 glyph scenes hardly any class would be, so here it is the share that 68 of the 100 classes are below.
SCENES = Problem("families", GlyphSettings(), iterations=ITERATIONS, eql="eql:threshold=0.024")
#: In minutes: does everything run? Too short to learn rare classes.
QUICK_SCENES = replace(
    SCENES, name="quick", glyphs=GlyphSettings(classes=40, train=600, dev=1, test=160), iterations=250
)


@dataclass(frozen=True)
class ModelSpec:
    """A model to train.

    Args:
        problem: What it learns.
        classifier: `linear` or `cosine` (normalised).
        sampler: `random`, `rfs` (repeat factor sampling) or `balanced`, of the first stage.
        loss: As `logn train --loss` takes it, of the first stage.
        seed: Of the training, and of the data where that is drawn.
        stage: Empty, or one of `STAGES`: trained from the model that is this one without a stage.

    Example:
        >>> ModelSpec(SCENES, "cosine", "rfs", seed=1).name
        'families-cosine20-rfs-ce-s1'
        >>> ModelSpec(SCENES, "linear", "rfs", stage="bags").name
        'families-linear-rfs-ce+bags-i200-s0'
    """

    problem: Problem = field(default_factory=lambda: SCENES)
    classifier: str = "linear"
    sampler: str = "random"
    loss: str = DEFAULT_LOSS
    seed: int = 0
    stage: str = ""

    def __post_init__(self) -> None:
        parse_loss(self.loss)
        for name, allowed in (("sampler", tuple(SAMPLERS)), ("stage", ("", *STAGES))):
            if getattr(self, name) not in allowed:
                raise InputError(f"Expected `{name}` to be one of {allowed}, but got {getattr(self, name)!r}.")

    @property
    def start(self) -> ModelSpec | None:
        """The model that a second stage begins with."""
        return replace(self, stage="") if self.stage else None

    @property
    def name(self) -> str:
        """Folder of the run: data, head, sampler, loss, second stage, length where it is not the usual one, seed."""
        problem = self.problem
        loss = "ce" if self.loss == DEFAULT_LOSS else re_folder(self.loss)
        stage = f"+{self.stage}" if self.stage else ""
        head = self.classifier if self.classifier == "linear" else f"{self.classifier}20"
        if problem.model != "small":
            head = problem.model if self.classifier == "linear" else f"{problem.model}-{head}"
        length = ""
        if self.iterations is not None and self.iterations != ITERATIONS:
            length = f"-i{self.iterations}"
        elif self.iterations is None and problem.epochs is not None:
            length = f"-e{self.epochs:g}"
        return f"{problem.name}-{head}-{self.sampler}-{loss}{stage}{length}-s{self.seed}"

    @property
    def iterations(self) -> int | None:
        """Of this training; None where it is counted in epochs."""
        whole = self.problem.iterations
        return whole // 4 if whole is not None and self.stage else whole

    @property
    def epochs(self) -> float | None:
        """Of this training, where it is counted in epochs; None for the preset's.

        Example:
            >>> lvis = Problem("lvis", train=Path("t.json"), test=Path("v.json"), model="mask-rcnn-r101")
            >>> ModelSpec(lvis, stage="loce").epochs
            6.0
        """
        problem = self.problem
        if problem.iterations is not None:
            return None
        if not self.stage:
            return problem.epochs
        recipe = DETECTOR_RECIPES.get(problem.model, DETECTOR_RECIPES["paper"])
        return (problem.epochs or recipe.epochs) * STAGES[self.stage].share

    def data_folder(self, root: Path) -> Path:
        """Where the data is, given the folder of the cache."""
        if self.problem.train is not None:
            return self.problem.train
        return root / "data" / f"{self.problem.name}-s{self.seed}"

    def draw(self, folder: Path, *, workers: int, step: Step) -> None:
        """Draw the data, if it is drawn and not there yet; a drawing of other settings is refused."""
        glyphs = self.problem.glyphs
        if glyphs is None or (folder / "test.json").exists():
            return
        settings = replace(glyphs, seed=self.seed)
        with step(f"Drawing {folder.name}", settings.train + settings.dev + settings.test) as progress:
            generate_glyph_scenes(folder, settings, workers=workers, progress=progress)

    def dataset(self, folder: Path, split: str) -> SampleDataset:
        """A split of the data."""
        problem = self.problem
        files = {"train": problem.train, "test": problem.test} if problem.train else {}
        if problem.train and split not in files:
            raise InputError(f"Your own data has the splits train and test, not `{split}`.")
        return SampleDataset(files.get(split) or folder / f"{split}.json", problem.images)

    def training_config(self, data: Path, run: Path, start: Path | None) -> DetectorTrainingConfig:
        """The training of the model.

        Example:
            >>> ModelSpec(sampler="rfs").training_config(Path("data"), Path("run"), None).sampler
            'repeat-factor-stochastic'
        """
        problem, stage = self.problem, STAGES.get(self.stage)
        sampler = SAMPLERS["balanced" if stage and stage.balanced else self.sampler]
        if problem.train is not None and sampler.startswith("repeat"):
            sampler = "repeat-factor-ceil"  # the paper's, which is MMDetection's
        values: dict[str, Any] = {
            "images": problem.images,
            "weights": problem.weights,
            "model": problem.model,
            "classifier": self.classifier,
            "sampler": sampler,
            "iterations": self.iterations,
            "epochs": self.epochs,
            "seed": self.seed,
            "loss": stage.loss if stage else self.loss,
            "start": start,
            "only": stage.only if stage else None,
            "precision": problem.precision,
        }
        repeats_glyphs = problem.train is None and sampler.startswith("repeat")
        # LOCE's second stage drops after 3 and 5 of its 6 epochs; the others keep the preset's share.
        drops = self.stage.startswith("loce") and self.epochs is not None and problem.model in PAPER_MODELS
        return DetectorTrainingConfig(
            data,
            run,
            repeat_threshold=GLYPH_REPEAT_THRESHOLD if repeats_glyphs else PAPER_THRESHOLD,
            milestones=(self.epochs / 2, self.epochs * 5 / 6) if drops and self.epochs else None,
            feature_memory=stage.feature_memory if stage else False,
            **values,
        )

    def is_trained(self, config: DetectorTrainingConfig) -> bool:
        """Whether the run is there, went to its end, and was of these settings."""
        path = Path(config.output) / CHECKPOINT
        if not path.is_file():
            return False
        with safe_open(path, framework="np") as file:
            metadata = file.metadata()
        run = parse_json(metadata["run"])
        wanted = {name: value for name, value in config.plan().items() if name != "iterations" or value is not None}
        return int(metadata["iteration"]) >= run["iterations"] and all(
            run.get(name) == value for name, value in wanted.items()
        )


def re_folder(loss: str) -> str:
    """A loss as it stands in the name of a folder.

    Example:
        >>> re_folder("eql:threshold=0.024")
        'eql-threshold0.024'
    """
    return loss.replace(":", "-").replace("=", "").replace(",", "-")
