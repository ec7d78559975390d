"""ClassifierSettings: everything that is needed to build an image classifier again, weights aside."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from logn.errors import InputError
from logn.training.heads import CLASSIFIERS
from logn.training.losses.by_name import DEFAULT_LOSS, layout_of
from logn.training.losses.head_loss import HeadLayout

MODELS = ("small", "resnet10", "resnet50", "resnet152", "resnext50")
SMALLEST_IMAGE = 16


@dataclass(frozen=True)
class ClassifierSettings:
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

    model: str
    num_classes: int
    classifier: str = "linear"
    temperature: float = 20.0
    image_size: int = 32
    resize: int = 32
    loss: str = DEFAULT_LOSS

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise InputError(f"Expected `model` to be one of {MODELS}, but got {self.model!r}.")
        if self.classifier not in CLASSIFIERS:
            raise InputError(f"Expected `classifier` to be one of {CLASSIFIERS}, but got {self.classifier!r}.")
        if self.num_classes < 1:
            raise InputError(f"Expected `num_classes` to be at least 1, but got {self.num_classes}.")
        if not self.temperature > 0:
            raise InputError(f"Expected `temperature` to be above 0, but got {self.temperature}.")
        if not SMALLEST_IMAGE <= self.image_size <= self.resize:
            raise InputError(
                f"Expected `image_size` to be from {SMALLEST_IMAGE} to {self.resize} pixels, but got {self.image_size}."
            )
        _ = self.layout  # refuses losses that need a background

    @property
    def layout(self) -> HeadLayout:
        """What the class layer looks like, and how its logits are read."""
        return layout_of(self.loss, self.num_classes, background=None).layout

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain values, for a file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ClassifierSettings:
        """The settings from a file; names that this version does not know are an error."""
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise InputError(f"Expected settings of a classifier that this version knows, but got {unknown}.")
        return cls(**values)
