"""TrainingPlan: all that says what a training run does, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from logn.datasets.samplers import PAPER_THRESHOLD, SAMPLERS
from logn.datasets.transforms import Augmentation
from logn.errors import InputError
from logn.training.detector_settings import SMALL_MODELS, DetectorSettings, default_loss
from logn.training.losses.by_name import DEFAULT_LOSS, parse_loss
from logn.training.presets import Preset, get_preset
from logn.training.trained_parts import check_part

ANNOTATION_NAMES = ("train.json", "annotations/train.json", "lvis_v1_train.json", "annotations/lvis_v1_train.json")


@dataclass(frozen=True)
class TrainingPlan:
    """What to train, on what, for how long, and where to put it.

    Args:
        data: LVIS or COCO annotation file, or a folder that holds `train.json`.
        output: Folder of the run: `checkpoint.safetensors`, `log.jsonl`.
        images: Folder that the image paths start from; by default that of the annotation file.
        model: `small`, `small-one-stage`, `mask-rcnn-r50`, `mask-rcnn-r101` or `cascade-r101`.
        classifier: `linear` or `cosine`.
        temperature: Of the cosine classifier.
        preset: `paper` or `small`; None takes `small` for the small detector and `paper` for the others.
        sampler: `random`, `repeat-factor-ceil`, `repeat-factor-stochastic` or `class-balanced`.
        repeat_threshold: Share of the images below which the repeat-factor samplers repeat a class. The paper's 0.001
            fits the 100,000 images of LVIS; on 2,400 glyph scenes 0.04 repeats as much.
        iterations: Length of the run, instead of the preset's.
        epochs: Length of the run in epochs, instead of the preset's.
        batch: Images per iteration, all processes together.
        learning_rate: For this batch; by default the preset's, scaled with the batch.
        seed: Of weights, order, augmentation and region sampling.
        weights: Local file with the weights of a ResNet, for the paper's detectors.
        image_size: Shorter side of the images, instead of the model's.
        checkpoint_every: Iterations between checkpoints, instead of the preset's.
        loss: Name of the classification loss, with options: `seesaw`, `eql:threshold=0.005`. By default cross entropy,
            for the one-stage detector `focal`, the only one that it takes.
        start: Run, or checkpoint file, of the same detector whose weights to begin with.
        only: Train a part and freeze the rest: `classifier`, `new-classifier` (from random weights), `scales` (one per
            class, of a linear classifier) or `heads` (classifier, boxes, proposals and masks); needs `start`.
        feature_memory: Add regions of earlier iterations to each batch, those of weak classes first: the other half of
            LOCE, for `loss="loce"`. With `start`, a pass over the training images fills the memory first.

    Example:
        >>> TrainingPlan("data", "runs/a", model="cascade-r101").recipe.milestones
        (16, 22)
    """

    data: str | Path
    output: str | Path
    images: str | Path | None = None
    model: str = "small"
    classifier: str = "linear"
    temperature: float = 20.0
    preset: str | None = None
    sampler: str = "random"
    repeat_threshold: float = PAPER_THRESHOLD
    iterations: int | None = None
    epochs: float | None = None
    batch: int | None = None
    learning_rate: float | None = None
    seed: int = 0
    weights: str | Path | None = None
    image_size: int | None = None
    checkpoint_every: int | None = None
    loss: str | None = None
    start: str | Path | None = None
    only: str | None = None
    feature_memory: bool = False

    def __post_init__(self) -> None:
        self.detector(1)  # refuses unknown models and classifiers now, not after the data is read
        _ = self.recipe
        check_part(self.only, started=self.start is not None)
        if self.classifier not in ("linear", "cosine") or (self.only == "scales" and self.classifier != "linear"):
            allowed = "linear to train its scales" if self.only == "scales" else "linear or cosine"
            raise InputError(f"Expected `classifier` to be {allowed}, but got {self.classifier!r}.")
        if self.feature_memory and parse_loss(self.loss_name)[0] != "loce":
            raise InputError(f"Expected `feature_memory` to be used with the loss `loce`, but got `{self.loss_name}`.")
        if self.sampler not in SAMPLERS:
            raise InputError(f"Expected `sampler` to be one of {SAMPLERS}, but got {self.sampler!r}.")
        for name in ("repeat_threshold", "iterations", "epochs", "batch", "learning_rate", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"Expected `{name}` to be above 0, but got {value}.")
        if self.seed < 0:
            raise InputError(f"Expected `seed` to be 0 or more, but got {self.seed}.")
        if self.iterations is not None and self.epochs is not None:
            raise InputError("Expected one of `iterations` and `epochs`, but got both.")

    @property
    def preset_name(self) -> str:
        """The preset that was asked for, or the one that fits the model."""
        return self.preset or ("small" if self.model in SMALL_MODELS else "paper")

    @property
    def loss_name(self) -> str:
        """The loss that was asked for, with its options, or the model's own."""
        return self.loss or default_loss(self.model)

    @property
    def fills_memory(self) -> bool:
        """Whether a pass over the images comes before the training; untrained weights would give useless features."""
        return self.feature_memory and self.start is not None

    @property
    def recipe(self) -> Preset:
        """The preset with this plan's changes."""
        preset = get_preset(self.preset_name)
        return replace(preset, checkpoint_every=self.checkpoint_every or preset.checkpoint_every)

    @property
    def images_per_iteration(self) -> int:
        """The batch, all processes together."""
        return self.batch or self.recipe.batch

    @property
    def augmentation(self) -> Augmentation:
        """What is done to the images, at the size that was asked for."""
        augmentation = self.recipe.augmentation
        if self.image_size is None or not augmentation.short_sides:
            return augmentation
        longest = round(self.image_size * augmentation.longest_side / augmentation.short_sides[-1])
        return replace(augmentation, short_sides=(self.image_size,), longest_side=longest)

    def detector(self, num_classes: int) -> DetectorSettings:
        """The settings of the detector for so many foreground classes."""
        return DetectorSettings(
            self.model,
            num_classes,
            classifier="scaled" if self.only == "scales" else self.classifier,
            temperature=self.temperature,
            pretrained=self.weights is not None,
            image_size=self.image_size,
            loss=parse_loss(self.loss_name)[0],
        )

    def run_settings(self, *, total: int, world: int) -> dict[str, Any]:
        """What must be the same for a resumed run to be the same run; paths may move, so they are not among it."""
        # Only where they are used, so that runs from before they existed go on.
        special = {
            "loss": self.loss_name if self.loss_name != DEFAULT_LOSS else None,
            "only": self.only,
            "feature_memory": self.feature_memory or None,
            "repeat_threshold": self.repeat_threshold if self.repeat_threshold != PAPER_THRESHOLD else None,
        }
        return {
            **{name: value for name, value in special.items() if value is not None},
            "preset": self.preset_name,
            "sampler": self.sampler,
            "iterations": total,
            "batch": self.images_per_iteration,
            "learning_rate": self.learning_rate,
            "seed": self.seed,
            "processes": world,
        }


def find_annotations(data: str | Path) -> Path:
    """The annotation file that `data` is, or that lies in the folder `data`.

    A folder with a single JSON file needs no particular name.
    """
    path = Path(data)
    if path.is_file():
        return path
    if not path.is_dir():
        raise InputError(f"Expected `data` to be an annotation file or a folder, but there is no `{path}`.")
    for name in ANNOTATION_NAMES:
        if (path / name).is_file():
            return path / name
    found = sorted(path.glob("*.json"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(file.name for file in found[:5]) or "no JSON file at all"
    raise InputError(f"Expected `{path}` to hold `train.json`, but it holds {names}; name the file itself.")
