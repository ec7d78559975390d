"""ModelSettings: what is needed to build a model again, weights aside, of a detector as of an image classifier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, ClassVar, Self

from logn.errors import InputError
from logn_research.losses.loss_factory import DEFAULT_LOSS
from logn_research.training.detectors.heads import CLASSIFIERS


@dataclass(frozen=True)
class ModelSettings(ABC):
    """Which model, and what its class layer is like.

    Args:
        model: One of `models`.
        num_classes: How many classes it tells apart, without a background.
        classifier: `linear`, `cosine` (normalised), or `scaled`: a linear one of which only a scale per class is
            trained (LWS).
        temperature: Of the cosine classifier.
        loss: Name of the loss it is trained with, which says what its logits mean.

    Attributes:
        models: Names that `model` may have.
    """

    models: ClassVar[tuple[str, ...]]

    model: str
    num_classes: int
    classifier: str = "linear"
    temperature: float = 20.0
    _: KW_ONLY
    loss: str = DEFAULT_LOSS

    def __post_init__(self) -> None:
        if self.model not in self.models:
            raise InputError(f"Expected `model` to be one of {self.models}, but got {self.model!r}.")
        if self.classifier not in CLASSIFIERS:
            raise InputError(f"Expected `classifier` to be one of {CLASSIFIERS}, but got {self.classifier!r}.")
        if self.num_classes < 1:
            raise InputError(f"Expected `num_classes` to be at least 1, but got {self.num_classes}.")
        if not self.temperature > 0:
            raise InputError(f"Expected `temperature` to be above 0, but got {self.temperature}.")

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain values, for a file."""
        return asdict(self)

    @classmethod
    @abstractmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The settings from a file; names that this version does not know are an error."""
