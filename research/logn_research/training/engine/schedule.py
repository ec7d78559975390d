"""How long and how fast to learn: the paper's recipe, one for small images and one for photographs on a CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from logn.errors import InputError
from logn_research.datasets.transforms import LIGHT_TRAIN, PAPER_TRAIN, SMALL_TRAIN, Augmentation


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is trained; the learning rate is the one for a batch of `batch` images and scales with the batch.

    Args:
        learning_rate: Highest learning rate, for `batch` images in all processes together.
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
    decay: Literal["step", "cosine"]
    batch: int = 16
    epochs: float = 24.0
    iterations: int | None = None
    milestones: tuple[int, ...] = ()
    warmup: int = 500
    momentum: float = 0.9
    weight_decay: float = 1e-4
    gradient_norm: float | None = None
    checkpoint_every: int = 1000


@dataclass(frozen=True, kw_only=True)
class Preset(Recipe):
    """The recipe of a detector.

    Args:
        augmentation: What is done to the images.
    """

    augmentation: Augmentation


#: The 2x schedule of the paper.
PAPER = Preset(learning_rate=0.02, decay="step", milestones=(16, 22), augmentation=PAPER_TRAIN)
#: Minutes on a CPU, for images of about 128 pixels.
SMALL = Preset(
    learning_rate=0.04,
    decay="cosine",
    augmentation=SMALL_TRAIN,
    iterations=1000,
    warmup=100,
    gradient_norm=10.0,
    checkpoint_every=100,
)
#: About an hour on one core of a CPU, for photographs of 256 pixels and a backbone that has seen ImageNet.
LIGHT = Preset(
    learning_rate=0.02,
    decay="cosine",
    augmentation=LIGHT_TRAIN,
    iterations=4000,
    warmup=200,
    gradient_norm=10.0,
    checkpoint_every=100,
)

PRESETS = {"paper": PAPER, "small": SMALL, "light": LIGHT}


def get_preset(name: str) -> Preset:
    """Give the preset of that name.

    Example:
        >>> get_preset("paper").milestones
        (16, 22)
    """
    if name not in PRESETS:
        raise InputError(f"Expected `preset` to be one of {tuple(PRESETS)}, but got {name!r}.")
    return PRESETS[name]


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


def check_milestones(recipe: Recipe, milestones: tuple[float, ...] | None) -> None:
    """Refuse epochs that do not rise, and any for a learning rate that does not fall in steps.

    Example:
        >>> check_milestones(PAPER, (3, 5))
        >>> check_milestones(SMALL, (3, 5))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected no `milestones` where the learning rate falls as a cosine, but got (3, 5).
    """
    if milestones is None:
        return
    if recipe.decay != "step":
        raise InputError(f"Expected no `milestones` where the learning rate falls as a cosine, but got {milestones}.")
    if not milestones or any(b <= a for a, b in pairwise((0.0, *milestones))):
        raise InputError(f"Expected `milestones` to be epochs above 0 that rise, but got {milestones}.")


def make_schedule(
    preset: Recipe,
    *,
    images_per_epoch: int,
    batch: int,
    iterations: int | None = None,
    epochs: float | None = None,
    milestones: tuple[float, ...] | None = None,
    learning_rate: float | None = None,
) -> Schedule:
    """Turn a preset into a schedule in iterations; arguments that are not None take the place of the preset's.

    Args:
        preset: The recipe.
        images_per_epoch: How many images an epoch shows, repeats included.
        batch: Images per iteration, all processes together.
        iterations: Length of the training; the milestones keep their share of it.
        epochs: Length of the training in epochs.
        milestones: Epochs of this very training after which the rate drops; by default the preset's keep their share.
        learning_rate: For this very batch, not scaled.

    Example:
        >>> make_schedule(PAPER, images_per_epoch=1600, batch=8).drops
        (3200, 4400)
        >>> make_schedule(PAPER, images_per_epoch=1600, batch=16, epochs=6, milestones=(3, 5)).drops  # LOCE's
        (300, 500)
    """
    if iterations is not None and epochs is not None:
        raise InputError("Expected one of `iterations` and `epochs`, but got both.")
    per_epoch = math.ceil(images_per_epoch / batch)
    if iterations is None and epochs is None:
        iterations, epochs = preset.iterations, preset.epochs
    total = iterations if iterations is not None else round((epochs or 0.0) * per_epoch)
    if total < 1:
        raise InputError(f"Expected at least 1 iteration, but got {total}.")
    if learning_rate is not None and not learning_rate > 0:
        raise InputError(f"Expected `learning_rate` to be above 0, but got {learning_rate}.")
    check_milestones(preset, milestones)
    if milestones is None:
        drops = tuple(round(total * milestone / preset.epochs) for milestone in preset.milestones)
    else:
        drops = tuple(round(milestone * per_epoch) for milestone in milestones)
        if drops[-1] >= total:
            raise InputError(
                f"Expected `milestones` to lie inside the run of {total / per_epoch:g} epochs, but got {milestones}."
            )
    peak = learning_rate if learning_rate is not None else preset.learning_rate * batch / preset.batch
    # A warm-up of 500 iterations would be all of a very short run.
    return Schedule(peak, total, preset.decay, drops, warmup=min(preset.warmup, total // 4))
