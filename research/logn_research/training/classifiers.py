"""Image classifiers: torchvision's residual networks, and a small network that trains on a CPU in a minute."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models import resnet50, resnet152, resnext50_32x4d
from torchvision.models.resnet import BasicBlock, ResNet

from logn.base.files import atomic_path, write_safetensors, write_text
from logn.errors import InputError
from logn.models.hooks import evaluation_mode
from logn.models.layer import LogitLayer
from logn.models.torch.record import record
from logn.statistics.moments import ClassMoments
from logn_research.datasets.labelled_images import LabelledImages
from logn_research.training.backbones import load_backbone
from logn_research.training.batches import prepared_batch
from logn_research.training.layers import class_layer
from logn_research.training.regions import ClassificationLoss
from logn_research.training.settings import ClassifierSettings

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
    """

    class_names: tuple[str, ...] | None = None
    image_counts: tuple[int, ...] | None = None
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
            raise InputError("The small classifier takes no `weights`: leave them out.")
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

BATCH = 256


def classifier_logits(
    model: Classifier,
    images: LabelledImages,
    *,
    batch: int = BATCH,
    progress: Callable[[int], object] = lambda count: None,
) -> npt.NDArray[np.float32]:
    """The logits `(N, C)` of all images, in their order.

    Args:
        model: As `load_classifier` gives it, on any device.
        images: Prepared as the classifier's settings say: brought to its size, the middle cut out.
        batch: Images per forward pass.
        progress: Called with the number of images whenever some are done.

    Example:
        >>> from logn_research.datasets.labelled_images import array_images
        >>> images = array_images(np.zeros((3, 32, 32, 3), np.uint8), [0, 1, 1])
        >>> classifier_logits(make_classifier("small", 2), images).shape
        (3, 2)
    """
    check_classes(model, images)
    logits = np.empty((len(images), model.num_classes), np.float32)
    done = 0
    with evaluation_mode(model), torch.inference_mode():
        for pictures in _batches(model, images, batch):
            logits[done : done + len(pictures)] = model(pictures).float().cpu().numpy()
            done += len(pictures)
            progress(len(pictures))
    return logits


def classifier_statistics(
    model: Classifier, images: LabelledImages, *, progress: Callable[[int], object] = lambda count: None
) -> ClassMoments:
    """Run a classifier over its training images and sum up its logits; no label is read."""
    return logits_and_statistics(model, images, progress=progress)[1]


def logits_and_statistics(
    model: Classifier, images: LabelledImages, *, progress: Callable[[int], object] = lambda count: None
) -> tuple[npt.NDArray[np.float32], ClassMoments]:
    """The logits `(N, C)` of all images, and their statistics, in one pass."""
    recording = record(model, model.logit_layer, class_names=images.class_names)
    with evaluation_mode(model), recording as moments:
        logits = classifier_logits(model, images, progress=progress)
    return logits, moments


def write_logits(
    model: Classifier,
    splits: Mapping[str, LabelledImages],
    folder: Path,
    *,
    progress: Callable[[int], object] = lambda count: None,
) -> list[Path]:
    """Write what comparisons of a classifier need.

    `SPLIT_logits.npy` and `SPLIT_labels.npy` of each split, `statistics.safetensors` of the training images,
    `class_counts.json` and, of a linear class layer, `class_layer.safetensors` with its weight and bias.

    Args:
        model: The classifier.
        splits: Images by the name of the split.
        folder: Where to write; made if it is not there.
        progress: Called with the number of images whenever some are done.
    """
    for images in splits.values():
        check_classes(model, images)
    folder.mkdir(parents=True, exist_ok=True)
    counts = model.image_counts or ()
    table = {"names": model.class_names, "image_counts": counts, "num_images": sum(counts)}
    write_text(folder / "class_counts.json", json.dumps(table))
    for split, images in splits.items():
        logits, moments = logits_and_statistics(model, images, progress=progress)
        for name, array in (("logits", logits), ("labels", images.labels)):
            with atomic_path(folder / f"{split}_{name}.npy") as temporary:
                np.save(temporary, array)
        if split == "train":
            moments.save(folder / "statistics.safetensors")
    if model.settings.classifier != "cosine":
        arrays = {name: value.detach().cpu().numpy() for name, value in model.cls_score.named_parameters()}
        write_safetensors(folder / "class_layer.safetensors", arrays, {"format": "logn-class-layer", "schema": "1"})
    return sorted(folder.iterdir())


def check_classes(model: Classifier, images: LabelledImages) -> None:
    """Refuse images with other classes than the classifier was trained on."""
    if model.num_classes != images.num_classes:
        raise InputError(
            f"`{images.source}` has {images.num_classes} classes, but the classifier has {model.num_classes}: use the "
            "data that it was trained on."
        )
    if model.class_names is not None and model.class_names != images.class_names:
        label = next(place for place, name in enumerate(images.class_names) if name != model.class_names[place])
        raise InputError(
            f"Class {label} of `{images.source}` is `{images.class_names[label]}`, but that of the classifier is "
            f"`{model.class_names[label]}`: use the classes that it was trained on."
        )


def _batches(model: Classifier, images: LabelledImages, batch: int) -> Iterator[Tensor]:
    if batch < 1:
        raise InputError(f"Expected `batch` to be at least 1, but got {batch}.")
    device, settings = model.mean.device, model.settings
    for start in range(0, len(images), batch):
        places = range(start, min(start + batch, len(images)))
        yield prepared_batch(images, places, size=settings.image_size, resize=settings.resize).to(device)
