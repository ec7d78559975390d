"""ClassifierTrainingConfig: everything that defines the training of an image classifier, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

from logn.errors import InputError
from logn_research.datasets.labelled_images import LabelledImages
from logn_research.datasets.open_images import open_images
from logn_research.datasets.samplers import ImageSampler, make_sampler
from logn_research.losses.loss_factory import DEFAULT_LOSS, parse_loss
from logn_research.training.classifiers.images import ImageAugmentation
from logn_research.training.classifiers.models import ClassifierSettings
from logn_research.training.engine.schedule import Recipe
from logn_research.training.engine.training_config import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class ClassifierPreset(Recipe):
    """The recipe of an image classifier.

    Args:
        augmentation: What is done to training images.
        image_size: Side of the square that the network sees.
        resize: Shorter side of a test image before that square is cut out of its middle.
        part_epochs: Length of a training of one part of a trained classifier, by the name of the part.
    """

    augmentation: ImageAugmentation
    image_size: int
    resize: int
    part_epochs: Mapping[str, float] = field(default_factory=dict)


#: SGD with momentum 0.9 and weight decay 5e-4 for 90 epochs is the paper's. It does not state the rest, which is that
#: of the decoupled classifiers it compares with (Kang et al., ICLR 2020), whose 0.2 for 512 images is 0.1 for 256.
PAPER = ClassifierPreset(
    learning_rate=0.1,
    decay="cosine",
    batch=256,
    epochs=90,
    warmup=0,
    weight_decay=5e-4,
    augmentation=ImageAugmentation(least_area=0.08, flip=0.5, colour=0.4),
    image_size=224,
    resize=256,
    part_epochs={"classifier": 10, "new-classifier": 10, "scales": 5},
)
#: About a minute on one core, for 10,000 images of 32 pixels. No flip: a mirrored glyph may be another class.
SMALL = ClassifierPreset(
    learning_rate=0.2,
    decay="cosine",
    batch=128,
    epochs=24,
    warmup=100,
    weight_decay=5e-4,
    augmentation=ImageAugmentation(shift=3, colour=0.2),
    image_size=32,
    resize=32,
    part_epochs={"classifier": 10, "new-classifier": 10, "scales": 5},
)

PRESETS = {"paper": PAPER, "small": SMALL}


def get_preset(name: str) -> ClassifierPreset:
    """Give the preset of that name.

    Example:
        >>> get_preset("paper").epochs
        90
    """
    if name not in PRESETS:
        raise InputError(f"Expected `preset` to be one of {tuple(PRESETS)}, but got {name!r}.")
    return PRESETS[name]


#: Parts of a trained classifier that can be trained by themselves.
PARTS = ("classifier", "new-classifier", "scales")


@dataclass(frozen=True)
class ClassifierTrainingConfig(TrainingConfig):
    """What to train, on what, for how long, and where to put it; the other arguments are those of `TrainingConfig`.

    Args:
        data: Labelled images, as `logn_research.datasets.open_images.open_images` takes them: a folder that `logn data
            glyph-classes` wrote, a folder of class folders, CIFAR's folder, or a list file with `path label` lines.
        root: Folder that the paths of a list file start from; by default that of the list.
        imbalance: Thin out the training images until the most frequent class has this many times the images of
            the rarest; None keeps all.
        dev_each: Hold out this many training images of each class, for CIFAR and class folders.
        data_seed: Which images are held out and which the thinning keeps.
        class_names: File with one class name a line, for list files.
        model: `small`, `resnet10`, `resnet50`, `resnet152` or `resnext50`.
        sampler: `random` or `class-balanced`.
        weights: Local file with the weights of the residual network.
        image_size: Side of the square that the network sees, instead of the preset's.
        flip: Whether to mirror half of the training images, instead of what the preset does.
        loss: Name of the loss, with options: `seesaw`, `eql-softmax:threshold=0.005`.
        only: Train a part and freeze the rest: `classifier`, `new-classifier` (from random weights; cRT) or `scales`
            (one per class, of a linear classifier; LWS); needs `start`.

    Example:
        >>> ClassifierTrainingConfig("glyphs", "runs/a", model="resnext50").recipe.epochs
        90
        >>> ClassifierTrainingConfig("glyphs", "runs/b", start="runs/a", only="scales", model="resnext50").recipe.epochs
        5
    """

    samplers = ("random", "class-balanced")
    small_models = ("small",)

    root: str | Path | None = None
    imbalance: float | None = None
    dev_each: int | None = None
    data_seed: int = 0
    class_names: str | Path | None = None
    _: KW_ONLY
    flip: bool | None = None
    loss: str = DEFAULT_LOSS

    def __post_init__(self) -> None:
        if self.only == "heads":
            raise InputError(f"Expected `only` to be one of {', '.join(PARTS)}, but got 'heads'.")
        self.settings(1)  # refuses unknown models, classifiers and losses now, not after the data is read
        super().__post_init__()
        if self.weights is not None and self.start is not None:
            raise InputError("Expected one of `weights` and `start`, but got both.")

    @property
    def recipe(self) -> ClassifierPreset:
        """The preset with the changes of this configuration."""
        preset = get_preset(self.preset_name)
        return replace(
            preset,
            epochs=preset.part_epochs.get(self.only or "", preset.epochs),
            checkpoint_every=self.checkpoint_every or preset.checkpoint_every,
        )

    @property
    def augmentation(self) -> ImageAugmentation:
        """What is done to training images."""
        augmentation = self.recipe.augmentation
        return augmentation if self.flip is None else replace(augmentation, flip=0.5 * self.flip)

    def settings(self, num_classes: int) -> ClassifierSettings:
        """The settings of a classifier of `num_classes` classes."""
        recipe = self.recipe
        size = self.image_size or recipe.image_size
        return ClassifierSettings(
            self.model,
            num_classes,
            classifier=self.class_layer,
            temperature=self.temperature,
            image_size=size,
            resize=round(size * recipe.resize / recipe.image_size),
            loss=parse_loss(self.loss)[0],
        )

    def training_images(self) -> LabelledImages:
        """The images that `data` names."""
        return open_images(self.data, "train", root=self.root, class_names=self.class_names, **self.data_options())

    def data_options(self) -> dict[str, Any]:
        """How images are chosen from their source, as `open_images` takes it."""
        return {"imbalance": self.imbalance, "dev_each": self.dev_each, "seed": self.data_seed}

    def make_sampler(self, images: LabelledImages) -> ImageSampler:
        """The order in which the images are shown."""
        return make_sampler(self.sampler, images)

    def run_settings(self, *, total: int, world_size: int) -> dict[str, Any]:
        """What must be the same for a resumed run to be the same run; paths may move, so they are not among it."""
        own = {"flip": self.flip, "loss": self.loss, "only": self.only}
        return {**super().run_settings(total=total, world_size=world_size), **own}
