"""Image classifiers: torchvision's residual networks, and a small network that trains on a CPU in a minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models import resnet50, resnet152, resnext50_32x4d
from torchvision.models.resnet import BasicBlock, ResNet

from logn.errors import InputError
from logn.logits.layer import LogitLayer
from logn_research.losses.head_loss import HeadLayout
from logn_research.losses.loss_factory import layout_of
from logn_research.training.detectors.heads import class_layer
from logn_research.training.detectors.region_sampling import ClassificationLoss
from logn_research.training.engine.backbone_weights import load_backbone
from logn_research.training.engine.model_settings import ModelSettings

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


#: Mean and standard deviation of the colours, by which images in 0..1 are normalised inside the network.
IMAGENET_COLOURS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SMALL_COLOURS = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
SMALL_WIDTHS, SMALL_GRID = (16, 32, 64), 4


class Classifier(nn.Module):
    """A network that gives class logits of images `(N, 3, H, W)` in 0..1; it normalises their colours itself.

    Called with labels too, it gives its loss, `{"loss_classifier": …}`, for the training loop.

    Args:
        settings: What it is built from.
        body: From normalised images to features `(N, D)`.
        features: The D above.
        colours: Mean and standard deviation of the three channels.

    Attributes:
        class_names: Names of the classes, where they are known.
        image_counts: Training images of each class, where they are known.
        data_options: How the training images were chosen from their source (`ClassifierTrainingConfig.data_options`).
    """

    class_names: tuple[str, ...] | None = None
    image_counts: tuple[int, ...] | None = None
    data_options: Mapping[str, Any] | None = None
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        settings: ClassifierSettings,
        body: nn.Module,
        features: int,
        colours: tuple[Sequence[float], Sequence[float]] = IMAGENET_COLOURS,
    ) -> None:
        super().__init__()
        self.settings = settings
        for name, values in zip(("mean", "std"), colours, strict=True):
            self.register_buffer(name, torch.tensor(values).reshape(3, 1, 1), persistent=False)
        self.body = body
        # The name is that of the detectors' class layers, so that training a part of a model is one piece of code.
        self.cls_score = class_layer(
            settings.classifier,
            features,
            settings.layout.columns,
            temperature=settings.temperature,
            scale_bias=True,
        )
        nn.init.constant_(self.cls_score.get_parameter("bias"), settings.layout.initial_bias)
        self.classification_loss: ClassificationLoss = functional.cross_entropy

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return self.settings.num_classes

    @property
    def logit_layer(self) -> LogitLayer:
        """Where the logits come out, for `logn.locate_logits`."""
        return LogitLayer("cls_score", activation=self.settings.layout.activation, population="images")

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Any:
        """Logits `(N, C)`, or the loss by name where there are labels."""
        images = images.contiguous(memory_format=torch.channels_last)
        logits = self.cls_score(self.body((images - self.mean) / self.std))
        return logits if labels is None else {"loss_classifier": self.classification_loss(logits, labels)}


class SmallBody(nn.Sequential):
    """Five convolutions for images of 32 to 64 pixels; a grid of 4 x 4 keeps where things are.

    Args:
        widths: Channels after each of three halvings of the resolution.

    Example:
        >>> SmallBody((8, 16, 32))(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 512])
    """

    def __init__(self, widths: Sequence[int] = SMALL_WIDTHS) -> None:
        first, second, third = widths
        super().__init__(
            *_convolution(3, first, stride=2),
            *_convolution(first, second, stride=2),
            *_convolution(second, second),
            *_convolution(second, third, stride=2),
            *_convolution(third, third),
            nn.AdaptiveAvgPool2d(SMALL_GRID),
            nn.Flatten(),
        )


def _convolution(before: int, after: int, *, stride: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(before, after, 3, stride, 1, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return [layer, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]


def build_classifier(
    settings: ClassifierSettings, *, seed: int = 0, weights: dict[str, Tensor] | None = None
) -> Classifier:
    """Build a classifier with random weights, or with the given weights in its residual network.

    The global random state of torch is the same before and after.

    Args:
        settings: Which classifier.
        seed: Of the random weights.
        weights: State dict with torchvision's names (see `read_backbone_weights`); its class layer is not used.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _assemble(settings, weights)
    # oneDNN's kernels take this layout without reordering.
    model.to(memory_format=torch.channels_last)
    return model


def make_classifier(name: str, num_classes: int, head: str = "linear", *, seed: int = 0, **settings: Any) -> Classifier:
    """Build an untrained classifier in evaluation mode.

    Args:
        name: `small`, `resnet10`, `resnet50`, `resnet152` or `resnext50`.
        num_classes: How many classes.
        head: `linear`, or `cosine` (normalised).
        seed: Of the random weights.
        settings: More of `ClassifierSettings`.

    Example:
        >>> model = make_classifier("small", 5)
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 5])
    """
    return build_classifier(ClassifierSettings(name, num_classes, classifier=head, **settings), seed=seed).eval()


def _assemble(settings: ClassifierSettings, weights: dict[str, Tensor] | None) -> Classifier:
    if settings.model == "small":
        if weights is not None:
            raise InputError("Expected no `weights` for the small classifier, but got some.")
        return Classifier(settings, SmallBody(), SMALL_WIDTHS[-1] * SMALL_GRID**2, SMALL_COLOURS)
    body = _RESIDUAL[settings.model]()
    features = int(body.fc.in_features)
    body.fc = nn.Identity()
    if weights is not None:
        load_backbone(body, weights)
    return Classifier(settings, body, features)


def _resnet10() -> Any:
    return ResNet(BasicBlock, [1, 1, 1, 1])


_RESIDUAL = {"resnet10": _resnet10, "resnet50": resnet50, "resnet152": resnet152, "resnext50": resnext50_32x4d}
