"""Running a trained image classifier over labelled images: its logits, and their statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logn.errors import InputError
from logn.statistics.moments import ClassMoments
from logn.statistics.record import collect_moments, record
from logn_research.datasets.labelled_images import LabelledImages
from logn_research.training.classifiers.images import prepared_batch
from logn_research.training.classifiers.models import Classifier
from logn_research.training.engine.evaluation_mode import evaluation_mode

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
        model: As `logn_research.training.classifiers.train_classifier.load_classifier` gives it, on any device.
        images: Prepared as the classifier's settings say: brought to its size, the middle cut out.
        batch: Images per forward pass.
        progress: Called with the number of images whenever some are done.

    Example:
        >>> from logn_research.datasets.labelled_images import array_images
        >>> from logn_research.training.classifiers.models import make_classifier
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
    model: Classifier,
    images: LabelledImages,
    *,
    max_images: int | None = None,
    batch: int = BATCH,
    seed: int = 0,
    sample_rows: int | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> ClassMoments:
    """Run a classifier over its training images and sum up its logits; no labels are read.

    Args:
        model: As `logn_research.training.classifiers.train_classifier.load_classifier` gives it, on any device.
        images: The training images.
        max_images: How many of them at most, drawn at random without repetition; all by default.
        batch: Images per forward pass.
        seed: Of the draw.
        sample_rows: Rows to keep for margins and confidence; by default 4096, or what fits into 4 MiB.
        progress: Called with the number of images whenever some are done.
    """
    check_classes(model, images)
    if max_images is not None:
        if max_images < 1:
            raise InputError(f"Expected `max_images` to be at least 1, but got {max_images}.")
        images = images.subset(np.random.default_rng(seed).permutation(len(images))[:max_images])

    def run(pictures: Tensor) -> None:
        model(pictures)
        progress(len(pictures))

    (moments,) = collect_moments(
        model,
        model.logit_layer,
        _batches(model, images, batch),
        run,
        class_names=images.class_names,
        sample_rows=sample_rows,
    )
    return moments


def logits_and_statistics(
    model: Classifier,
    images: LabelledImages,
    *,
    batch: int = BATCH,
    sample_rows: int | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> tuple[npt.NDArray[np.float32], ClassMoments]:
    """What `classifier_logits` and `classifier_statistics` give, in one pass."""
    check_classes(model, images)
    recording = record(model, model.logit_layer, class_names=images.class_names, sample_rows=sample_rows)
    with evaluation_mode(model), recording as moments:
        logits = classifier_logits(model, images, batch=batch, progress=progress)
    return logits, moments


def check_classes(model: Classifier, images: LabelledImages) -> None:
    """Refuse images with other classes than the classifier was trained on."""
    if model.num_classes != images.num_classes:
        raise InputError(
            f"Expected `{images.source}` to have the {model.num_classes} classes of the classifier, but got"
            f" {images.num_classes}."
        )
    if model.class_names is not None and model.class_names != images.class_names:
        label = next(place for place, name in enumerate(images.class_names) if name != model.class_names[place])
        raise InputError(
            f"Expected class {label} of `{images.source}` to be `{model.class_names[label]}` as in the training of the"
            f" classifier, but got `{images.class_names[label]}`."
        )


def _batches(model: Classifier, images: LabelledImages, batch: int) -> Iterator[Tensor]:
    if batch < 1:
        raise InputError(f"Expected `batch` to be at least 1, but got {batch}.")
    device, settings = model.mean.device, model.settings
    for start in range(0, len(images), batch):
        places = range(start, min(start + batch, len(images)))
        yield prepared_batch(images, places, size=settings.image_size, resize=settings.resize).to(device)
