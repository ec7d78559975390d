"""Statistics of a detector's logits that tables compare: of proposals, of positives, of single stages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.images import as_tensor
from logn.models.layer import fingerprint
from logn.models.torch.attach import attach
from logn.models.torch.record import record
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments
from logn.statistics.row_sample import default_sample_rows
from logn_research.assignment import columns_of
from logn_research.datasets.sample_dataset import SampleDataset
from logn_research.estimators import Statistics, add_batch


def collect_detector_statistics(
    detector: Any,
    dataset: SampleDataset,
    *,
    max_images: int | None = None,
    batch: int = 8,
    seed: int = 0,
    estimator: Callable[..., Statistics] = ClassMoments,
    progress: Callable[[int], object] = lambda count: None,
) -> ClassMoments:
    """Run `detector` over training images and sum up the logits of its proposals, for experiments.

    These are the logits that a prediction store holds: for a cascade the average of its stages, for a dense head the
    anchors that it keeps. `logn collect` and `logn correct` take what the class layer gives instead.

    Args:
        detector: A detector with `propose` and `logit_layer`, such as those of `logn_research.training`.
        dataset: The training images.
        max_images: How many of them at most, drawn at random without repetition; all by default.
        batch: Images per forward pass.
        seed: Of the draw.
        estimator: `ClassMoments`, or an estimator of `logn_research.estimators`, such as
            `partial(MovingAverage, momentum=0.1)`. Every image is a batch of a moving average. A positive is a proposal
            that overlaps an object by half; it counts for the class of the object that it overlaps most.
        progress: Called with the number of images whenever some are done.
    """
    order = _drawn(detector, dataset, max_images, seed)
    statistics = _start(detector, dataset, estimator)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        proposed = detector.propose([as_tensor(dataset.read_image(index)) for index in chosen])
        for index, proposals in zip(chosen, proposed, strict=True):
            # Every image is a batch, as in the paper's code.
            labels = columns_of(proposals, dataset, index, detector.background)
            add_batch(statistics, proposals.logits, labels)
        progress(len(chosen))
    return _finished(statistics)


def collect_stage_statistics(
    detector: Any,
    dataset: SampleDataset,
    *,
    max_images: int | None = None,
    batch: int = 8,
    seed: int = 0,
    progress: Callable[[int], object] = lambda count: None,
) -> tuple[ClassMoments, ...]:
    """Statistics of what the class layer of each stage of a cascade says of the proposals, exact.

    Args:
        detector: A cascade.
        dataset: The training images.
        max_images: How many of them at most, drawn at random without repetition; all by default.
        batch: Images per forward pass.
        seed: Of the draw.
        progress: Called with the number of images whenever some are done.
    """
    order = _drawn(detector, dataset, max_images, seed)
    with record(detector, detector.logit_layer, check_output=False) as moments:
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            detector.propose([as_tensor(dataset.read_image(index)) for index in chosen])
            progress(len(chosen))
    return tuple(moments)


def correct_stages(detector: Any, maps: Sequence[ClassAffine]) -> str:
    """Attach a map to each stage of a cascade; `propose` then averages corrected logits, as the official code does.

    Args:
        detector: A cascade.
        maps: One for each stage, in their order.

    Returns:
        The fingerprint of the corrected detector: its logits are others than those of the weights alone, so that
        neither statistics nor maps of these are taken for its own.
    """
    layer = detector.logit_layer
    if not layer.stages:
        raise InputError(f"Only a cascade is corrected stage by stage, but `{layer.name}` is the only class layer.")
    digest = hashlib.sha256(fingerprint(detector).encode())
    attach(detector, layer, list(maps))  # refuses another number of maps, and those of other weights
    for affine in maps:
        digest.update(affine.scale.tobytes() + affine.shift.tobytes())
    return f"stages:{digest.hexdigest()}"


def _drawn(detector: Any, dataset: SampleDataset, max_images: int | None, seed: int) -> list[int]:
    """Images in a random order, without repetition; images of other classes than the detector's are refused."""
    if max_images is not None and max_images < 1:
        raise InputError(f"Expected `max_images` to be at least 1, but got {max_images}.")
    if detector.num_classes != dataset.num_classes:
        raise InputError(
            f"`{dataset.annotation_file}` has {dataset.num_classes} classes, but the detector has "
            f"{detector.num_classes}: use the data that it was trained on."
        )
    if not len(dataset):
        raise InputError(f"`{dataset.annotation_file}` lists no images.")
    order: list[int] = np.random.default_rng(seed).permutation(len(dataset))[:max_images].tolist()
    return order


def _start(detector: Any, dataset: SampleDataset, estimator: Callable[..., Statistics]) -> Statistics:
    """Statistics that have seen nothing yet, and know what they are of."""
    layer, names = detector.logit_layer, dataset.class_names
    has_background = detector.background is not None
    head = Head(
        names=("background", *names) if has_background else names,
        background=detector.background,
        activation=detector.activation,
        layer=layer.name,
        population=detector.population,
        source=fingerprint(detector),
    )
    return estimator(head, sample_rows=default_sample_rows(head.width))


def _finished(statistics: Statistics) -> ClassMoments:
    return statistics if isinstance(statistics, ClassMoments) else statistics.moments()
