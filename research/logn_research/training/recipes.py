"""How long and how fast to learn, and everything else that defines a training, as plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from logn.errors import InputError
from logn_research.datasets.samplers import PAPER_THRESHOLD, SAMPLERS
from logn_research.losses.loss_factory import DEFAULT_LOSS, parse_loss
from logn_research.training.augmentation import PAPER_TRAIN, SMALL_TRAIN, Augmentation
from logn_research.training.checkpoint import check_part
from logn_research.training.settings import DetectorSettings

PRECISIONS = ("auto", "full", "mixed")
_PATHS = ("data", "output", "images", "weights", "start", "checkpoint_every")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a detector is trained; the learning rate is the one for a batch of `batch` images and scales with the batch.

    Args:
        learning_rate: Highest learning rate, for `batch` images in all processes together.
        augmentation: What is done to training images.
        batch: Images per iteration.
        decay: `step` multiplies by 0.1 after each of `milestones` (in epochs), `cosine` falls to zero.
        epochs: Length of the training, unless `iterations` says it.
        iterations: Length of the training in iterations.
        milestones: Epochs after which the learning rate drops.
        warmup: Iterations in which the learning rate rises linearly, from a thousandth.
        momentum: Of stochastic gradient descent.
        weight_decay: Of stochastic gradient descent.
        gradient_norm: Longest allowed gradient; None for any.
        checkpoint_every: Iterations from one checkpoint to the next.
    """

    learning_rate: float
    augmentation: Augmentation
    decay: Literal["step", "cosine"] = "cosine"
    batch: int = 16
    epochs: float = 24.0
    iterations: int | None = None
    milestones: tuple[int, ...] = ()
    warmup: int = 500
    momentum: float = 0.9
    weight_decay: float = 1e-4
    gradient_norm: float | None = None
    checkpoint_every: int = 1000


#: `paper` is its 2x schedule; `small` takes minutes on a CPU, for images of about 128 pixels.
DETECTOR_RECIPES = {
    "paper": Recipe(learning_rate=0.02, decay="step", milestones=(16, 22), augmentation=PAPER_TRAIN),
    "small": Recipe(
        learning_rate=0.04,
        augmentation=SMALL_TRAIN,
        iterations=1000,
        warmup=100,
        gradient_norm=10.0,
        checkpoint_every=100,
    ),
}


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every iteration of a run.

    Args:
        peak: Highest learning rate.
        total: Iterations of the run.
        decay: `step` or `cosine`.
        drops: Iterations after which the rate is a tenth, for `step`.
        warmup: Iterations in which the rate rises.

    Example:
        >>> schedule = Schedule(peak=0.02, total=24, decay="step", drops=(16, 22), warmup=0)
        >>> [round(schedule.learning_rate(iteration), 6) for iteration in (0, 15, 16, 22)]
        [0.02, 0.02, 0.002, 0.0002]
    """

    peak: float
    total: int
    decay: Literal["step", "cosine"]
    drops: tuple[int, ...] = ()
    warmup: int = 0

    def learning_rate(self, iteration: int) -> float:
        """The learning rate of an iteration, counted from 0."""
        rate = self.peak
        if self.decay == "cosine":
            rate *= 0.5 * (1.0 + math.cos(math.pi * iteration / max(self.total, 1)))
        else:
            rate *= 0.1 ** sum(iteration >= drop for drop in self.drops)
        if iteration < self.warmup:
            rate *= 0.001 + 0.999 * iteration / self.warmup
        return rate


@dataclass(frozen=True)
class DetectorTrainingConfig:
    """Which detector to train, on what, for how long, and where to put it.

    Args:
        data: LVIS or COCO annotation file, or a folder that holds `train.json`.
        output: Folder of the run: `checkpoint.safetensors`, `log.jsonl`, `model.py`.
        images: Folder that the image paths start from; by default that of the annotations.
        model: `small`, `mask-rcnn-r50`, `mask-rcnn-r101` or `cascade-r101`.
        classifier: `linear` or `cosine`.
        temperature: Of the cosine classifier.
        preset: Name of the recipe; None takes the one that fits the model.
        sampler: `random`, `repeat-factor-ceil`, `repeat-factor-stochastic` or `class-balanced`.
        iterations: Length of the run, instead of the preset's.
        epochs: Length of the run in epochs, instead of the preset's.
        milestones: Epochs of this run after which the learning rate drops to a tenth, instead of the preset's.
        batch: Images per iteration, all processes together.
        learning_rate: For this batch; by default the preset's, scaled with the batch.
        seed: Of weights, order, augmentation and all else that is random.
        weights: Local file with the weights of the ResNet, for the paper's detectors.
        image_size: Size of the images, instead of the model's or the preset's.
        checkpoint_every: Iterations between checkpoints, instead of the preset's.
        loss: Name of the loss, with options: `seesaw`, `eql:threshold=0.005`.
        start: Folder of a run, or checkpoint file, of the same model: its weights are the first ones.
        only: Train a part of the model at `start` and freeze the rest: `classifier`, `new-classifier` (from random
            weights; cRT), `scales` (one per class, of a linear classifier; LWS) or `heads`.
        precision: `full` (float32), `mixed` (half precision where it is safe: float16 on CUDA, bfloat16 on a CPU) or
            `auto`: mixed on CUDA, full on a CPU.
        repeat_threshold: Share of the images below which the repeat-factor samplers repeat a class. The paper's 0.001
            fits the 100,000 images of LVIS; on 2,400 glyph scenes 0.04 repeats as much.
        feature_memory: Add regions of earlier iterations to each batch, those of weak classes first: the other half of
            LOCE, for `loss="loce"`. With `start`, a pass over the training images fills the memory first.
        mask_classifier: Last layer of the paper's detectors' masks, `linear` or `cosine`; by default as `classifier`.
        batch_norm: Of the ResNet of the paper's detectors with `weights`: `affine` (the default) trains its scale and
            shift, as MMDetection does, `frozen` does not.

    Example:
        >>> DetectorTrainingConfig("data", "runs/a", model="cascade-r101").recipe.milestones
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
    iterations: int | None = None
    epochs: float | None = None
    milestones: tuple[float, ...] | None = None
    batch: int | None = None
    learning_rate: float | None = None
    seed: int = 0
    weights: str | Path | None = None
    image_size: int | None = None
    checkpoint_every: int | None = None
    loss: str = DEFAULT_LOSS
    start: str | Path | None = None
    only: str | None = None
    precision: str = "auto"
    repeat_threshold: float = PAPER_THRESHOLD
    feature_memory: bool = False
    mask_classifier: str | None = None
    batch_norm: str | None = None

    def __post_init__(self) -> None:
        heads = ("linear",) if self.only == "scales" else ("linear", "cosine")
        choices = {
            "sampler": SAMPLERS,
            "precision": PRECISIONS,
            "classifier": heads,
            "preset": tuple(DETECTOR_RECIPES),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in (*allowed, *((None,) if name == "preset" else ())):
                raise InputError(f"Expected `{name}` to be one of {allowed}, but got {getattr(self, name)!r}.")
        self.settings(1)  # refuses unknown models and losses now, not after the data is read
        check_part(self.only, started=self.start is not None)
        for name in ("iterations", "epochs", "batch", "learning_rate", "checkpoint_every", "repeat_threshold"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"Expected `{name}` to be above 0, but got {value}.")
        if self.seed < 0:
            raise InputError(f"Expected `seed` to be 0 or more, but got {self.seed}.")
        if self.iterations is not None and self.epochs is not None:
            raise InputError("Expected one of `iterations` and `epochs`, but got both.")
        if self.feature_memory and parse_loss(self.loss)[0] != "loce":
            raise InputError(f"Expected `feature_memory` to be used with the loss `loce`, but got `{self.loss}`.")
        self._check_milestones()

    def _check_milestones(self) -> None:
        given = self.milestones
        if given is None:
            return
        if self.recipe.decay != "step":
            raise InputError(f"Expected no `milestones` where the learning rate falls as a cosine, but got {given}.")
        if not given or any(later <= earlier for earlier, later in pairwise((0.0, *given))):
            raise InputError(f"Expected `milestones` to be epochs above 0 that rise, but got {given}.")

    @property
    def preset_name(self) -> str:
        """The preset that was asked for, or the one that fits the model."""
        return self.preset or (self.model if self.model in DETECTOR_RECIPES else "paper")

    @property
    def recipe(self) -> Recipe:
        """The preset."""
        return DETECTOR_RECIPES[self.preset_name]

    @property
    def images_per_iteration(self) -> int:
        """The batch, all processes together."""
        return self.batch or self.recipe.batch

    @property
    def class_layer(self) -> str:
        """The classifier as it is built: one of which only the scales are trained is a kind of its own."""
        return "scaled" if self.only == "scales" else self.classifier

    @property
    def pretrained(self) -> bool:
        """Whether the backbone has weights from elsewhere, directly or by the run at `start`."""
        return self.weights is not None

    @property
    def augmentation(self) -> Augmentation:
        """What is done to the images, at the size that was asked for."""
        augmentation = self.recipe.augmentation
        if self.image_size is None or not augmentation.short_sides:
            return augmentation
        longest = round(self.image_size * augmentation.longest_side / augmentation.short_sides[-1])
        return replace(augmentation, short_sides=(self.image_size,), longest_side=longest)

    def settings(self, num_classes: int) -> DetectorSettings:
        """The settings of a detector of `num_classes` foreground classes."""
        return DetectorSettings(
            self.model,
            num_classes,
            classifier=self.class_layer,
            temperature=self.temperature,
            pretrained=self.pretrained,
            image_size=self.image_size,
            loss=parse_loss(self.loss)[0],
            mask_classifier=self.mask_classifier,
            batch_norm=self.batch_norm,
        )

    def mixed_precision(self, device: str) -> bool:
        """Whether the forward pass runs in half precision where that is safe, on a device of this type."""
        return self.precision == "mixed" or (self.precision == "auto" and device == "cuda")

    def schedule(self, images_per_epoch: int, world_size: int = 1) -> Schedule:
        """The learning rate of every iteration, for epochs of `images_per_epoch` images, repeats included.

        Example:
            >>> DetectorTrainingConfig("data", "run", model="mask-rcnn-r50", batch=8).schedule(1600).drops
            (3200, 4400)
        """
        recipe, batch = self.recipe, self.images_per_iteration
        if batch < world_size:
            raise InputError(f"Expected `batch` to be at least the {world_size} processes, but got {batch}.")
        per_epoch = math.ceil(images_per_epoch / batch)
        iterations, epochs = self.iterations, self.epochs
        if iterations is None and epochs is None:
            iterations, epochs = recipe.iterations, recipe.epochs
        total = iterations if iterations is not None else round((epochs or 0.0) * per_epoch)
        if total < 1:
            raise InputError(f"Expected at least 1 iteration, but got {total}.")
        if self.milestones is None:
            drops = tuple(round(total * milestone / recipe.epochs) for milestone in recipe.milestones)
        else:
            drops = tuple(round(milestone * per_epoch) for milestone in self.milestones)
            if drops[-1] >= total:
                raise InputError(
                    f"Expected `milestones` to lie inside the run of {total / per_epoch:g} epochs, but got "
                    f"{self.milestones}."
                )
        peak = self.learning_rate or recipe.learning_rate * batch / recipe.batch
        # A warm-up of 500 iterations would be all of a very short run.
        return Schedule(peak, total, recipe.decay, drops, warmup=min(recipe.warmup, total // 4))

    def plan(self) -> dict[str, Any]:
        """What must be the same for a run to be the same run; paths may move, so they are not among it."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _PATHS}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
