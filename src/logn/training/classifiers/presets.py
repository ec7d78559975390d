"""The recipes of image classifiers: the paper's, and one for small images on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from logn.errors import InputError
from logn.training.classifiers.images import ImageAugmentation
from logn.training.engine.schedule import Recipe


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


#: SGD with momentum 0.9 and weight decay 5e-4 for 90 epochs is the paper's. It does not tell the rest, which is that
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
