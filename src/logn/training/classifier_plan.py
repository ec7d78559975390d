"""ClassifierPlan: all that says what the training of an image classifier does, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from logn.datasets.labelled_images import LabelledImages
from logn.datasets.open_images import open_images
from logn.datasets.samplers import ClassBalancedSampler, ImageSampler, RandomSampler
from logn.errors import InputError
from logn.training.classifier_images import ImageAugmentation
from logn.training.classifier_presets import ClassifierPreset, get_preset
from logn.training.classifier_settings import ClassifierSettings
from logn.training.losses.by_name import DEFAULT_LOSS, parse_loss
from logn.training.trained_parts import check_part

SAMPLERS = {"random": RandomSampler, "class-balanced": ClassBalancedSampler}
#: Parts of a trained classifier that can be trained by themselves.
PARTS = ("classifier", "new-classifier", "scales")


@dataclass(frozen=True)
class ClassifierPlan:
    """What to train, on what, for how long, and where to put it.

    Args:
        data: Labelled images, as `logn.datasets.open_images.open_images` takes them: a folder that `logn data
            glyph-classes` wrote, a folder of class folders, CIFAR's folder, or a list file with `path label` lines.
        output: Folder of the run: `checkpoint.safetensors`, `log.jsonl`.
        root: Folder that the paths of a list file start from; by default that of the list.
        imbalance: Thin the training images so that the most frequent class has so many times the images of the
            rarest; None keeps all.
        dev_each: Hold out so many training images of each class, for CIFAR and class folders.
        data_seed: Which images are held out and which the thinning keeps.
        class_names: File with one class name a line, for list files.
        model: `small`, `resnet10`, `resnet50`, `resnet152` or `resnext50`.
        classifier: `linear` or `cosine`.
        temperature: Of the cosine classifier.
        preset: `paper` or `small`; None takes `small` for the small network and `paper` for the others.
        sampler: `random` or `class-balanced`.
        iterations: Length of the run, instead of the preset's.
        epochs: Length of the run in epochs, instead of the preset's.
        batch: Images per iteration, all processes together.
        learning_rate: For this batch; by default the preset's, scaled with the batch.
        seed: Of weights, order and augmentation.
        weights: Local file with the weights of the residual network.
        image_size: Side of the square that the network sees, instead of the preset's.
        flip: Whether to mirror half of the training images, instead of what the preset does.
        checkpoint_every: Iterations between checkpoints, instead of the preset's.
        loss: Name of the loss, with options: `seesaw`, `eql-softmax:threshold=0.005`.
        start: Run, or checkpoint file, of the same classifier whose weights to begin with.
        only: Train a part and freeze the rest: `classifier`, `new-classifier` (from random weights; cRT) or `scales`
            (one per class, of a linear classifier; LWS); needs `start`.

    Example:
        >>> ClassifierPlan("glyphs", "runs/a", model="resnext50").recipe.epochs
        90
        >>> ClassifierPlan("glyphs", "runs/b", start="runs/a", only="scales", model="resnext50").recipe.epochs
        5
    """

    data: str | Path
    output: str | Path
    root: str | Path | None = None
    imbalance: float | None = None
    dev_each: int | None = None
    data_seed: int = 0
    class_names: str | Path | None = None
    model: str = "small"
    classifier: str = "linear"
    temperature: float = 20.0
    preset: str | None = None
    sampler: str = "random"
    iterations: int | None = None
    epochs: float | None = None
    batch: int | None = None
    learning_rate: float | None = None
    seed: int = 0
    weights: str | Path | None = None
    image_size: int | None = None
    flip: bool | None = None
    checkpoint_every: int | None = None
    loss: str = DEFAULT_LOSS
    start: str | Path | None = None
    only: str | None = None

    def __post_init__(self) -> None:
        if self.only == "heads":
            raise InputError(f"Expected `only` to be one of {', '.join(PARTS)}, but got 'heads'.")
        check_part(self.only, started=self.start is not None)
        self.settings(1)  # refuses unknown models, classifiers and losses now, not after the data is read
        if self.classifier not in ("linear", "cosine") or (self.only == "scales" and self.classifier != "linear"):
            allowed = "linear to train its scales" if self.only == "scales" else "linear or cosine"
            raise InputError(f"Expected `classifier` to be {allowed}, but got {self.classifier!r}.")
        if self.sampler not in SAMPLERS:
            raise InputError(f"Expected `sampler` to be one of {tuple(SAMPLERS)}, but got {self.sampler!r}.")
        for name in ("iterations", "epochs", "batch", "learning_rate", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"Expected `{name}` to be above 0, but got {value}.")
        if self.seed < 0:
            raise InputError(f"Expected `seed` to be 0 or more, but got {self.seed}.")
        if self.iterations is not None and self.epochs is not None:
            raise InputError("Expected one of `iterations` and `epochs`, but got both.")
        if self.weights is not None and self.start is not None:
            raise InputError("Expected one of `weights` and `start`, but got both.")

    @property
    def preset_name(self) -> str:
        """The preset that was asked for, or the one that fits the model."""
        return self.preset or ("small" if self.model == "small" else "paper")

    @property
    def recipe(self) -> ClassifierPreset:
        """The preset with this plan's changes."""
        preset = get_preset(self.preset_name)
        return replace(
            preset,
            epochs=preset.part_epochs.get(self.only or "", preset.epochs),
            checkpoint_every=self.checkpoint_every or preset.checkpoint_every,
        )

    @property
    def images_per_iteration(self) -> int:
        """The batch, all processes together."""
        return self.batch or self.recipe.batch

    @property
    def augmentation(self) -> ImageAugmentation:
        """What is done to training images."""
        augmentation = self.recipe.augmentation
        return augmentation if self.flip is None else replace(augmentation, flip=0.5 * self.flip)

    def settings(self, num_classes: int) -> ClassifierSettings:
        """The settings of the classifier for so many classes."""
        recipe = self.recipe
        size = self.image_size or recipe.image_size
        return ClassifierSettings(
            self.model,
            num_classes,
            classifier="scaled" if self.only == "scales" else self.classifier,
            temperature=self.temperature,
            image_size=size,
            resize=round(size * recipe.resize / recipe.image_size),
            loss=parse_loss(self.loss)[0],
        )

    def training_images(self) -> LabelledImages:
        """The images that the plan names."""
        return open_images(self.data, "train", root=self.root, class_names=self.class_names, **self.data_options())

    def data_options(self) -> dict[str, Any]:
        """How images are chosen from their source, as `open_images` takes it."""
        return {"imbalance": self.imbalance, "dev_each": self.dev_each, "seed": self.data_seed}

    def make_sampler(self, images: LabelledImages) -> ImageSampler:
        """The order in which the images are shown."""
        return SAMPLERS[self.sampler](list(images.labels[:, None]), images.num_classes)

    def run_settings(self, *, total: int, world: int) -> dict[str, Any]:
        """What must be the same for a resumed run to be the same run; paths may move, so they are not among it."""
        return {
            "preset": self.preset_name,
            "sampler": self.sampler,
            "iterations": total,
            "batch": self.images_per_iteration,
            "learning_rate": self.learning_rate,
            "seed": self.seed,
            "flip": self.flip,
            "loss": self.loss,
            "only": self.only,
            "processes": world,
        }
