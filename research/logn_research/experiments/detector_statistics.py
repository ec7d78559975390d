"""Statistics of a detector's logits that experiments compare: of kept proposals, of positives, of sampled regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from logn.errors import InputError
from logn.evaluate.detection.assignment import columns_of
from logn.evaluate.models.collect import as_tensor
from logn.evaluate.models.proposal_statistics import class_columns, start_statistics
from logn.evaluate.store.predict import match_detector
from logn.labels.dataset import DetectionDataset
from logn.statistics.moments import ClassMoments
from logn_research.datasets.samplers import PAPER_THRESHOLD, make_sampler
from logn_research.estimators import Statistics, add_batch
from logn_research.training.augmentation import Augmentation
from logn_research.training.batches import DetectorBatches, ImageStream, SampleCache


def collect_detector_statistics(
    detector: Any,
    dataset: DetectionDataset,
    *,
    max_images: int | None = None,
    batch: int = 8,
    seed: int = 0,
    sample_rows: int | None = None,
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
        sample_rows: Rows to keep for matching thresholds; by default 4096, or what fits into 4 MiB.
        estimator: `ClassMoments`, or an estimator of `logn_research.estimators`, such as
            `partial(MovingAverage, momentum=0.1)`. Every image is a batch of a moving average. A positive is a proposal
            that overlaps an object by half; it counts for the class of the object that it overlaps most.
        progress: Called with the number of images whenever some are done.
    """
    _check_counts(max_images, batch)
    match = match_detector(detector, dataset.class_names)
    statistics: Statistics | None = None
    order = np.random.default_rng(seed).permutation(len(dataset))[:max_images]
    for start in range(0, len(order), batch):
        chosen = [int(index) for index in order[start : start + batch]]
        found = detector.propose([as_tensor(dataset.read_image(index)) for index in chosen])
        for index, proposals in zip(chosen, found, strict=True):
            if statistics is None:
                columns = class_columns(detector, proposals.num_columns)
                exact = start_statistics(detector, match.model_names, proposals.num_columns, sample_rows)
                statistics = _like(exact, estimator)
            # Every image is a batch, as in the paper's code.
            labels = columns_of(proposals, dataset, index, columns, match.model_of_label)
            add_batch(statistics, proposals.logits, labels)
        progress(len(chosen))
    if statistics is None:
        raise InputError(f"Expected `{dataset.annotation_file}` to list images, but it lists none.")
    return statistics if isinstance(statistics, ClassMoments) else statistics.moments()


def collect_sampled_statistics(
    detector: Any,
    dataset: DetectionDataset,
    augmentation: Augmentation,
    *,
    sampler: str = "random",
    repeat_threshold: float = PAPER_THRESHOLD,
    max_images: int | None = None,
    seed: int = 0,
    sample_rows: int | None = None,
    estimator: Callable[..., Statistics] = ClassMoments,
    progress: Callable[[int], object] = lambda count: None,
) -> tuple[ClassMoments, ...]:
    """Statistics of the regions that training samples, as the official code takes them, one for each stage.

    An epoch of training images passes, each with the augmentation of training and as often as the sampler shows it;
    of each the regions count that training would sample, a quarter of them positive, the true boxes among them. Every
    image is a batch. So boxes and labels have a say in which regions there are, though not in what is summed up.

    Args:
        detector: One of the two-stage detectors of `logn_research.training`.
        dataset: The training images.
        augmentation: That of the training.
        sampler: That of the training: `random`, `repeat-factor-ceil`, `repeat-factor-stochastic` or `class-balanced`.
        repeat_threshold: Of the repeat-factor samplers.
        max_images: How many images at most, repeats included; an epoch by default.
        seed: Of their order, the augmentation and the sampled regions.
        sample_rows: Rows to keep for matching thresholds; by default 4096, or what fits into 4 MiB.
        estimator: As in `collect_detector_statistics`.
        progress: Called with the number of images whenever some are done.
    """
    _check_counts(max_images, 1)
    names = match_detector(detector, dataset.class_names).model_names
    if not hasattr(detector, "sample_logits"):
        raise InputError("Expected a detector that samples regions in training, but got one that has every point.")
    order = make_sampler(sampler, dataset, threshold=repeat_threshold)
    images = min(max_images or np.iinfo(np.int64).max, len(order.indices(0, seed)))
    read = SampleCache(dataset, masks=False).__getitem__
    batches = DetectorBatches(ImageStream(order, 1, seed), read, augmentation, masks=False)
    stages = tuple[Statistics, ...]()
    with torch.random.fork_rng(devices=[]):
        for iteration in range(images):
            torch.manual_seed(int(np.random.SeedSequence((seed, iteration)).generate_state(1)[0]))
            batch = batches[iteration]
            found = detector.sample_logits(batch.images, batch.targets)
            if not stages:
                exact = start_statistics(detector, names, found[0].logits.shape[1], sample_rows)
                stages = tuple(_like(exact, estimator) for _ in found)
            for statistics, sampled in zip(stages, found, strict=True):
                add_batch(statistics, sampled.logits, sampled.columns)
            progress(1)
    if not stages:
        raise InputError(f"Expected `{dataset.annotation_file}` to list images, but it lists none.")
    paths = detector.logit_layer_paths if len(stages) > 1 else (detector.logit_layer.name,)
    moments = tuple(part if isinstance(part, ClassMoments) else part.moments() for part in stages)
    for part, path in zip(moments, paths, strict=True):
        part.metadata = part.metadata.with_changes(layer=path, population=f"sampled regions, {sampler} images")
    return moments


def _like(exact: ClassMoments, estimator: Callable[..., Statistics]) -> Statistics:
    """Empty statistics of an estimator, for the same logits."""
    return estimator(exact.num_columns, sample_rows=exact.sample_rows, metadata=exact.metadata)


def _check_counts(max_images: int | None, batch: int) -> None:
    for name, count in (("max_images", max_images), ("batch", batch)):
        if count is not None and count < 1:
            raise InputError(f"Expected `{name}` to be at least 1, but got {count}.")
