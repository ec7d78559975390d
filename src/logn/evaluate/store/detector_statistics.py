"""Statistics of a detector's logits over the images of a data set; only those of positives read labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from logn.datasets.detection_dataset import DetectionDataset
from logn.datasets.samplers import PAPER_THRESHOLD, make_sampler
from logn.datasets.transforms import Augmentation
from logn.errors import InputError
from logn.evaluate.detection.assignment import columns_of
from logn.evaluate.detectors.detector import fingerprint_of
from logn.evaluate.store.predict import as_tensor, match_detector
from logn.logits.arrays import foreground_columns
from logn.logits.frameworks.transformers import NO_CLASS
from logn.statistics.estimators import EXACT, Estimator, Statistics, add_batch, finished
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments, Nonfinite
from logn.statistics.record import default_sample_rows, record
from logn.training.engine.batches import ImageStream, IterationBatches, SampleCache
from logn.training.engine.evaluation_mode import evaluation_mode


def collect_detector_statistics(
    detector: Any,
    dataset: DetectionDataset,
    *,
    max_images: int | None = None,
    batch: int = 8,
    seed: int = 0,
    sample_rows: int | None = None,
    estimator: Estimator | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> ClassMoments:
    """Run `detector` over training images and sum up the logits of its proposals.

    These are the logits that a prediction store holds: for a cascade the average of its stages. To correct the stages
    one by one, take `collect_stage_statistics`.

    Args:
        detector: A detector with `propose` and `logit_layer`, such as those of `logn.training`.
        dataset: The training images.
        max_images: How many of them at most, drawn at random without repetition; all by default.
        batch: Images per forward pass.
        seed: Of the draw.
        sample_rows: Rows to keep for matching thresholds; by default 4096, or what fits into 4 MiB.
        estimator: Exact by default. Every image is a batch of a moving average. A positive is a proposal that overlaps
            an object by half; it counts for the class of the object that it overlaps most.
        progress: Called with the number of images whenever some are done.
    """
    _check_counts(max_images, batch)
    match = match_detector(detector, dataset.class_names)
    statistics: Statistics | None = None
    how = estimator or Estimator()
    order = drawn_images(dataset, max_images, seed)
    for start in range(0, len(order), batch):
        chosen = [int(index) for index in order[start : start + batch]]
        found = detector.propose([as_tensor(dataset.read_image(index)) for index in chosen])
        for index, proposals in zip(chosen, found, strict=True):
            if statistics is None:
                columns, population = _class_columns(detector, proposals.num_columns), detector.population
                names = match.model_names
                statistics = start_statistics(how, detector, names, proposals.num_columns, sample_rows, population)
            # Every image is a batch, as in the paper's code.
            labels = partial(columns_of, proposals, dataset, index, columns, match.model_of_label)
            add_batch(statistics, proposals.logits, labels)
        progress(len(chosen))
    if statistics is None:
        raise InputError(f"Expected `{dataset.annotation_file}` to list images, but it lists none.")
    return finished(statistics)


def collect_stage_statistics(
    detector: Any,
    dataset: DetectionDataset,
    *,
    max_images: int | None = None,
    batch: int = 8,
    seed: int = 0,
    sample_rows: int | None = None,
    estimator: Estimator | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> tuple[ClassMoments, ...]:
    """Statistics of each stage of a cascade for itself, over its own proposals: the official code normalises by these.

    The arguments are those of `collect_detector_statistics`; a moving average takes images one by one, whatever
    `batch` says, so that each is a batch. Positives are refused: the stages have different boxes.
    """
    _check_counts(max_images, batch)
    names = match_detector(detector, dataset.class_names).model_names
    how = estimator or Estimator()
    if how.needs_labels:
        raise InputError(f"Expected `estimator` to be exact or moving-average for single stages, but got {how.name!r}.")
    if not detector.logit_layer.stages:
        raise InputError("Expected a cascade for statistics of each stage, but the detector has one class layer.")
    order = drawn_images(dataset, max_images, seed)
    step = batch if how.name == EXACT else 1
    recording = record(
        detector,
        detector.logit_layer,
        sample_rows=sample_rows,
        class_names=_column_names(detector, names, len(names) + (detector.background is not None)),
        across_processes=False,
        check_output=False,
        estimator=how.name,
        momentum=how.momentum,
        bias_correction=how.bias_correction,
    )
    with evaluation_mode(detector), recording as stages:
        for start in range(0, len(order), step):
            chosen = order[start : start + step]
            detector.propose([as_tensor(dataset.read_image(int(index))) for index in chosen])
            progress(len(chosen))
    return tuple(stages)


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
    estimator: Estimator | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> tuple[ClassMoments, ...]:
    """Statistics of the regions that training samples, as the official code takes them, one for each stage.

    An epoch of training images passes, each with the augmentation of training and as often as the sampler shows it;
    of each the regions count that training would sample, a quarter of them positive, the true boxes among them. Every
    image is a batch. So boxes and labels have a say in which regions there are, though not in what is summed up.

    Args:
        detector: One of the two-stage detectors of `logn.training`.
        dataset: The training images.
        augmentation: That of the training.
        sampler: That of the training: `random`, `repeat-factor-ceil`, `repeat-factor-stochastic` or `class-balanced`.
        repeat_threshold: Of the repeat-factor samplers.
        max_images: How many images at most, repeats included; an epoch by default.
        seed: Of their order, the augmentation and the sampled regions.
        sample_rows: Rows to keep for matching thresholds; by default 4096, or what fits into 4 MiB.
        estimator: Exact by default.
        progress: Called with the number of images whenever some are done.
    """
    _check_counts(max_images, 1)
    names = match_detector(detector, dataset.class_names).model_names
    if not hasattr(detector, "sample_logits"):
        raise InputError("Expected a detector that samples regions in training, but got one that has every point.")
    order = make_sampler(sampler, dataset, threshold=repeat_threshold)
    images = min(max_images or np.iinfo(np.int64).max, len(order.indices(0, seed)))
    read = SampleCache(dataset, masks=False).__getitem__
    batches = IterationBatches(ImageStream(order, 1, seed), read, augmentation, masks=False)
    how, stages = estimator or Estimator(), tuple[Statistics, ...]()
    population = f"sampled regions, {sampler} images"
    with torch.random.fork_rng(devices=[]):
        for iteration in range(images):
            torch.manual_seed(int(np.random.SeedSequence((seed, iteration)).generate_state(1)[0]))
            batch = batches[iteration]
            found = detector.sample_logits(batch.images, batch.targets)
            columns = found[0].logits.shape[1]
            start = partial(start_statistics, how, detector, names, columns, sample_rows, population)
            stages = stages or tuple(start() for _ in found)
            for statistics, sampled in zip(stages, found, strict=True):
                add_batch(statistics, sampled.logits, partial(getattr, sampled, "columns"))
            progress(1)
    if not stages:
        raise InputError(f"Expected `{dataset.annotation_file}` to list images, but it lists none.")
    if len(stages) > 1:
        for statistics, path in zip(stages, detector.logit_layer_paths, strict=True):
            statistics.metadata = statistics.metadata.with_changes(layer=path)
    return tuple(finished(statistics) for statistics in stages)


def drawn_images(dataset: DetectionDataset, max_images: int | None, seed: int) -> npt.NDArray[np.int64]:
    """Which images to run, by position, drawn at random without repetition; all, in that order, for None."""
    return np.random.default_rng(seed).permutation(len(dataset))[:max_images]


def _check_counts(max_images: int | None, batch: int) -> None:
    for name, count in (("max_images", max_images), ("batch", batch)):
        if count is not None and count < 1:
            raise InputError(f"Expected `{name}` to be at least 1, but got {count}.")


def start_statistics(
    how: Estimator,
    detector: Any,
    names: Sequence[str],
    columns: int,
    sample_rows: int | None,
    population: str,
    nonfinite: Nonfinite = "error",
) -> Statistics:
    """Statistics of a detector's logits that have seen nothing yet, and know what they are of.

    Args:
        how: Which statistics.
        detector: A source of proposals.
        names: Its foreground classes.
        columns: How many columns its logits have.
        sample_rows: As in `collect_detector_statistics`.
        population: What the rows are.
        nonfinite: As in `logn.ClassMoments`.
    """
    metadata = StatisticsMetadata(
        class_names=_column_names(detector, names, columns),
        background=detector.background,
        activation=detector.activation,
        layer=detector.logit_layer.name,
        population=population,
        fingerprint=fingerprint_of(detector),
    )
    rows = default_sample_rows(columns) if sample_rows is None else sample_rows
    return how.start(columns, nonfinite=nonfinite, sample_rows=rows, mean_probability=True, metadata=metadata)


def _class_columns(detector: Any, columns: int) -> npt.NDArray[np.intp]:
    """The column of each foreground class of the model."""
    named = getattr(detector, "class_columns", None)
    return np.asarray(
        named if named is not None else np.arange(columns)[foreground_columns(columns, detector.background)]
    )


def _column_names(detector: Any, names: Sequence[str], columns: int) -> tuple[str, ...]:
    """The name of each column: of its class, of the background, or of no class at all."""
    named = [NO_CLASS] * columns
    if detector.background is not None:
        named[detector.background] = "background"
    for column, name in zip(_class_columns(detector, columns), names, strict=True):
        named[column] = name
    return tuple(named)
