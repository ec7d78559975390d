"""DetectorSettings: which detector, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from logn.errors import InputError
from logn_research.losses.loss_factory import DEFAULT_LOSS, parse_loss
from logn_research.training.engine.model_settings import ModelSettings

ONE_STAGE, LIGHT = "small-one-stage", "light"
#: Those that train on a CPU, on drawn images of about 128 pixels.
SMALL_MODELS = ("small", ONE_STAGE)
#: The networks that a light detector may have, the default first.
LIGHT_BACKBONES = ("mobilenet-v2", "mobilenet-v3-large", "efficientnet-lite0", "resnet18", "resnet34")
PAPER_MODELS = ("mask-rcnn-r50", "mask-rcnn-r101", "cascade-r101")
MODELS = (*SMALL_MODELS, LIGHT, *PAPER_MODELS)
MASK_CLASSIFIERS = ("linear", "cosine")
#: What is learnt of the normalisation of a pretrained ResNet, the default first: its scale and shift, or nothing.
BATCH_NORMS = ("affine", "frozen")


@dataclass(frozen=True)
class DetectorSettings(ModelSettings):
    """Everything that is needed to build a detector again, weights aside.

    Args:
        model: One of `MODELS`.
        num_classes: Foreground classes.
        classifier: `linear`, `cosine` (normalised) as the paper uses, or `scaled`: a linear one of which only a scale
            per class is trained (LWS).
        temperature: Of the cosine classifier.
        mask_classifier: The last layer of the masks of the paper's detectors, `linear` or `cosine`; None takes that of
            the classes. LOCE has a linear class layer and normalised masks.
        batch_norm: Of a pretrained ResNet of the paper's detectors: `affine` trains scale and shift of the
            normalisation in the stages that are trained, as MMDetection does, and is the default; `frozen` does not.
        pretrained: Whether the backbone starts from given weights. Then its first two stages and the statistics of
            its normalisation stay frozen, as in the paper; otherwise all of it is trained.
        image_size: Shorter side of a test image; None takes the model's own (800, light: 256, small ones: 128).
        loss: Name of the loss it is trained with, which decides how many logits there are and what they mean; the
            one-stage detector has `focal`.
        backbone: Of a light detector, one of `LIGHT_BACKBONES`; None takes the first.

    Example:
        >>> DetectorSettings("small", num_classes=3, classifier="svm")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `classifier` to be one of ('linear', 'cosine', 'scaled'), but got 'svm'.
    """

    models = MODELS

    pretrained: bool = False
    image_size: int | None = None
    backbone: str | None = None
    mask_classifier: str | None = None
    batch_norm: str | None = None

    def __post_init__(self) -> None:
        parse_loss(self.loss)
        super().__post_init__()
        if self.model == ONE_STAGE:
            self._check_one_stage()
        self._choose_backbone()
        self._choose_mask_classifier()
        self._choose_batch_norm()
        if self.image_size is not None and self.image_size < 32:
            raise InputError(f"Expected `image_size` to be at least 32 pixels, but got {self.image_size}.")

    def _check_one_stage(self) -> None:
        # Others want a background column, or are means over regions, of which a dense head has nearly none that count.
        if parse_loss(self.loss)[0] != "focal":
            raise InputError(f"Expected `loss` to be focal for {self.model!r}, but got {self.loss!r}.")

    def _choose_backbone(self) -> None:
        if self.model != LIGHT and self.backbone is not None:
            raise InputError(
                f"Expected no `backbone` for {self.model!r}, which has its own, but got {self.backbone!r}."
            )
        if self.model == LIGHT and self.backbone is None:
            object.__setattr__(self, "backbone", LIGHT_BACKBONES[0])  # named, so that settings compare as they are
        if self.model == LIGHT and self.backbone not in LIGHT_BACKBONES:
            raise InputError(f"Expected `backbone` to be one of {LIGHT_BACKBONES}, but got {self.backbone!r}.")

    def _choose_mask_classifier(self) -> None:
        chosen = self.mask_classifier
        if self.model not in PAPER_MODELS:
            if chosen is not None:
                raise InputError(
                    f"Expected no `mask_classifier` for {self.model!r}, which has no mask for each class, but got"
                    f" {chosen!r}."
                )
            return
        if chosen is None:  # named, so that settings compare as they are
            object.__setattr__(self, "mask_classifier", "cosine" if self.classifier == "cosine" else "linear")
        elif chosen not in MASK_CLASSIFIERS:
            raise InputError(f"Expected `mask_classifier` to be one of {MASK_CLASSIFIERS}, but got {chosen!r}.")

    def _choose_batch_norm(self) -> None:
        if not (self.pretrained and self.model in PAPER_MODELS):
            if self.batch_norm is not None:
                raise InputError(
                    "Expected `batch_norm` only for one of the paper's detectors with weights from elsewhere, but got"
                    f" {self.batch_norm!r}."
                )
        elif self.batch_norm is None:
            object.__setattr__(self, "batch_norm", BATCH_NORMS[0])
        elif self.batch_norm not in BATCH_NORMS:
            raise InputError(f"Expected `batch_norm` to be one of {BATCH_NORMS}, but got {self.batch_norm!r}.")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DetectorSettings:
        """The settings from a file; names that this version does not know are an error.

        A file from before there was a choice of normalisation has a frozen one.
        """
        if "batch_norm" not in values and values.get("pretrained") and values.get("model") in PAPER_MODELS:
            values = {**values, "batch_norm": "frozen"}
        known = {field.name for field in fields(cls)}
        if set(values) - known:
            raise InputError(
                f"Expected detector settings among {sorted(known)}, but got {sorted(set(values) - known)}."
            )
        return cls(**values)


def default_loss(model: str) -> str:
    """The loss that a model is trained with unless another is asked for.

    Example:
        >>> default_loss("small"), default_loss("small-one-stage")
        ('cross-entropy', 'focal')
    """
    return "focal" if model == ONE_STAGE else DEFAULT_LOSS
