"""What a model is built from, weights aside, as plain values."""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass, fields
from typing import Any, Self

from logn.errors import InputError
from logn_research.losses.loss_factory import DEFAULT_LOSS, parse_loss
from logn_research.training.layers import CLASSIFIERS

PAPER_MODELS = ("mask-rcnn-r50", "mask-rcnn-r101", "cascade-r101")
DETECTORS = ("small", *PAPER_MODELS)


@dataclass(frozen=True)
class DetectorSettings:
    """Everything that is needed to build a detector again, weights aside.

    Args:
        model: One of `DETECTORS`.
        num_classes: How many classes it tells apart, without a background.
        classifier: `linear`, `cosine` (normalised), or `scaled`: a linear one of which only a scale per class is
            trained (LWS).
        temperature: Of the cosine classifier.
        loss: Name of the loss it is trained with, which says what its logits mean.
        pretrained: Whether the backbone starts from given weights. Then its first two stages and the statistics of
            its normalisation stay frozen, as in the paper; otherwise all of it is trained.
        image_size: Shorter side of a test image; None takes the model's own (800, small: 128).
        mask_classifier: The last layer of the masks of the paper's detectors, `linear` or `cosine`; None takes that of
            the classes. LOCE has a linear class layer and normalised masks.
        batch_norm: Of a pretrained ResNet of the paper's detectors: `affine` trains scale and shift of the
            normalisation in the stages that are trained, as MMDetection does, and is the default; `frozen` does not.

    Example:
        >>> DetectorSettings("small", num_classes=3, classifier="svm")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `classifier` to be one of ('linear', 'cosine', 'scaled'), but got 'svm'.
    """

    model: str
    num_classes: int
    classifier: str = "linear"
    temperature: float = 20.0
    _: KW_ONLY
    loss: str = DEFAULT_LOSS
    pretrained: bool = False
    image_size: int | None = None
    mask_classifier: str | None = None
    batch_norm: str | None = None

    def __post_init__(self) -> None:
        parse_loss(self.loss)
        self._check("model", DETECTORS)
        self._check("classifier", CLASSIFIERS)
        if self.num_classes < 1:
            raise InputError(f"Expected `num_classes` to be at least 1, but got {self.num_classes}.")
        if not self.temperature > 0:
            raise InputError(f"Expected `temperature` to be above 0, but got {self.temperature}.")
        is_paper = self.model in PAPER_MODELS
        masks = ("cosine", "linear") if self.classifier == "cosine" else ("linear", "cosine")
        self._choose("mask_classifier", masks, is_paper)
        self._choose("batch_norm", ("affine", "frozen"), is_paper and self.pretrained)
        if self.image_size is not None and self.image_size < 32:
            raise InputError(f"Expected `image_size` to be at least 32 pixels, but got {self.image_size}.")

    def _check(self, name: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, name) not in allowed:
            raise InputError(f"Expected `{name}` to be one of {allowed}, but got {getattr(self, name)!r}.")

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain values, for a file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The settings from a file; names that this version does not know are an error."""
        unknown = sorted(set(values) - {each.name for each in fields(cls)})
        if unknown:
            raise InputError(
                f"The detector is of another version of LogN: this one does not know its settings {unknown}."
            )
        return cls(**values)

    def _choose(self, name: str, allowed: tuple[str, ...], has_it: bool) -> None:
        """Check what only some detectors have; None becomes the default, so that settings compare as they are."""
        if not has_it and getattr(self, name) is not None:
            weights = "" if self.pretrained else " without weights"
            raise InputError(f"Expected no `{name}` for {self.model!r}{weights}, but got {getattr(self, name)!r}.")
        if has_it and getattr(self, name) is None:
            object.__setattr__(self, name, allowed[0])
        if has_it:
            self._check(name, allowed)
