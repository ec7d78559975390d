"""ClassifierSettings: everything that is needed to build an image classifier again, weights aside."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from logn.errors import InputError
from logn.training.engine.model_settings import ModelSettings
from logn.training.losses.head_loss import HeadLayout
from logn.training.losses.loss_factory import layout_of

MODELS = ("small", "resnet10", "resnet50", "resnet152", "resnext50")
SMALLEST_IMAGE = 16


@dataclass(frozen=True)
class ClassifierSettings(ModelSettings):
    """Which classifier, and what size of image it sees.

    Args:
        model: One of `MODELS`.
        num_classes: How many classes.
        classifier: `linear`, `cosine` (normalised), or `scaled`: a linear one of which only a scale per class is
            trained (LWS).
        temperature: Of the cosine classifier.
        image_size: Side of the square that the network sees.
        resize: Shorter side of a test image before that square is cut out of its middle.
        loss: Name of the loss it is trained with, which says what its logits mean.

    Example:
        >>> ClassifierSettings("small", num_classes=3, loss="focal").layout.activation
        'sigmoid'
        >>> ClassifierSettings("alexnet", num_classes=3)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `model` to be one of ('small', 'resnet10', ...), but got 'alexnet'.
    """

    models = MODELS

    image_size: int = 32
    resize: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not SMALLEST_IMAGE <= self.image_size <= self.resize:
            raise InputError(
                f"Expected `image_size` to be from {SMALLEST_IMAGE} to {self.resize} pixels, but got {self.image_size}."
            )
        _ = self.layout  # refuses losses that need a background

    @property
    def layout(self) -> HeadLayout:
        """What the class layer looks like, and how its logits are read."""
        return layout_of(self.loss, self.num_classes, background=None).layout

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ClassifierSettings:
        """The settings from a file; names that this version does not know are an error."""
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise InputError(f"Expected settings of a classifier that this version knows, but got {unknown}.")
        return cls(**values)
