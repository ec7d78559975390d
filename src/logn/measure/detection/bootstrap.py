"""Bootstrap intervals: images are drawn with repetition many times, the same draws for every method.

The matching of detections to boxes does not depend on which images are drawn, so it is done once; a draw is a weight
per image. AP is then computed class by class for all draws at once; large jobs run in processes. What is measured at an
equal number of detections is measured at the number that each draw has: it varies as everything does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import nan_mean
from logn.base.processes import available_processors, work_in_order
from logn.matching.bootstrap_draws import Counts, Draws
from logn.matching.ground_truth import GroundTruth, Groups, group_members
from logn.matching.outcomes import Outcomes
from logn.measure.detection.drawn_precision import drawn_precision
from logn.measure.detection.metrics import BestDetections, class_shares, count_name

Floats = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
# Draws that are computed side by side: what is kept of a class for each of them should not fill the memory.
DRAWS_AT_ONCE = 1000
# Blocks of a ranking in which detections are counted at first, and weights that are looked at at once.
BLOCKS, NUMBERS_AT_ONCE = 128, 4_000_000
# Detections times draws, over all methods, from which starting processes pays: some seconds of work.
_ENOUGH = 300_000_000


@dataclass(frozen=True)
class Interval:
    """A difference with its bootstrap interval.

    Args:
        difference: Between the two methods on all images.
        low: Lower end of the interval.
        high: Upper end.
        confidence: Share of the draws between the ends.
    """

    difference: float
    low: float
    high: float
    confidence: float = 0.95

    @property
    def is_clear(self) -> bool:
        """Whether the whole interval lies on one side of zero.

        Example:
            >>> Interval(0.02, -0.01, 0.05).is_clear, Interval(0.02, 0.01, 0.05).is_clear
            (False, True)
        """
        return self.low > 0 or self.high < 0


def bootstrap_metrics(
    ranked: Outcomes,
    truth: GroundTruth,
    weights: Counts,
    *,
    groups: Groups | None = None,
    best: BestDetections | None = None,
) -> dict[str, Floats]:
    """AP, AP50 and what is found at an equal number of detections, `(draws,)` each; most of it also by group.

    Args:
        ranked: One method's detections by class, matched at all overlap thresholds.
        truth: The ground truth.
        weights: `(draws, I)` how often each image was drawn; the same for all methods makes the draws paired.
        groups: `(F,)` "r", "c" or "f" for each class.
        best: For what is measured at an equal number; None to leave that out.
    """
    parts = [
        _metrics_of_draws(ranked, truth, weights[start : start + DRAWS_AT_ONCE], groups, best)
        for start in range(0, len(weights), DRAWS_AT_ONCE)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _metrics_of_draws(
    ranked: Outcomes,
    truth: GroundTruth,
    weights: Counts,
    groups: Groups | None,
    best: BestDetections | None,
) -> dict[str, Floats]:
    # Small numbers in a small type: the weights of an image are read for each of its detections.
    by_image = np.ascontiguousarray(weights.T, np.min_scalar_type(weights.max(initial=0)))
    wanted = np.flatnonzero(~truth.crowd)
    boxes = _per_class(truth.labels[wanted], truth.image_index[wanted], truth.num_classes, by_image)
    mean, first = np.zeros(boxes.shape), np.zeros(boxes.shape)
    for label, of_thresholds, of_first in drawn_precision(ranked, by_image, boxes):
        mean[label], first[label] = of_thresholds, of_first
    mean[boxes == 0], first[boxes == 0] = np.nan, np.nan
    members = group_members(groups, truth.num_classes)
    result = {f"AP{group}": nan_mean(mean[classes], axis=0) for group, classes in members.items()}
    result["AP50"] = nan_mean(first, axis=0)
    if best is not None:
        keys = truth.image_index[wanted] * truth.num_classes + truth.labels[wanted]
        images_with = np.bincount(np.unique(keys) % truth.num_classes, minlength=truth.num_classes)
        for at, stops in _stops(best, by_image).items():
            result |= _at_count(best.outcomes, at, stops, by_image, boxes, images_with, members)
    return result


def _at_count(
    ranked: Outcomes,
    at: float,
    stops: Index,
    by_image: npt.NDArray[Any],
    boxes: Counts,
    images_with: Index,
    members: Mapping[str, npt.NDArray[np.bool_]],
) -> dict[str, Floats]:
    """What the first so many detections of each draw find."""
    hits, alarms = (_first_of_class(ranked, marks, stops, by_image) for marks in (ranked.hits, ranked.alarms))
    means = {name: _widened(share, images_with) for name, share in class_shares(hits, alarms, boxes).items()}
    values: dict[str, Floats] = {count_name(name, at): nan_mean(share, axis=0) for name, share in means.items()}
    for group, classes in members.items():
        values[count_name("recall", at, group)] = nan_mean(means["recall"][classes], axis=0)
        for name, numbers in (("found", hits), ("false-alarms", alarms)):
            values[count_name(name, at, group)] = numbers[classes].sum(axis=0).astype(np.float64)
    return values


def _stops(best: BestDetections, by_image: npt.NDArray[Any]) -> dict[float, Index]:
    """`(draws,)` how many of the ranking make up the number of detections that the uncorrected model has in each draw.

    Detections are counted in blocks of the ranking; in the block that the number ends in, one by one.
    """
    images, (num_images, draws) = best.outcomes.image.astype(np.int64), by_image.shape
    if not len(images):
        return dict.fromkeys(best.wanted, np.zeros(draws, np.int64))
    bounds = np.linspace(0, len(images), BLOCKS + 1).astype(np.int64)
    block = np.repeat(np.arange(BLOCKS), np.diff(bounds))
    per_block = np.bincount(block * num_images + images, minlength=BLOCKS * num_images).reshape(BLOCKS, num_images)
    rows = np.vstack([per_block, *best.wanted.values()]).astype(np.float64)
    at_once = 1 + NUMBERS_AT_ONCE // num_images
    parts = [rows @ by_image[:, start : start + at_once].astype(np.float64) for start in range(0, draws, at_once)]
    sums = np.hstack(parts).astype(np.int64)
    up_to = np.vstack([np.zeros((1, draws), np.int64), np.cumsum(sums[:BLOCKS], axis=0)])
    stops, draw = {}, np.arange(draws)
    for at, wanted in zip(best.wanted, sums[BLOCKS:], strict=True):
        full = np.minimum((up_to[1:] < wanted).sum(axis=0), BLOCKS - 1)
        places = np.minimum(bounds[full] + np.arange(np.diff(bounds).max())[:, None], len(images) - 1)
        weights = by_image[images[places], draw]
        before = np.cumsum(weights, axis=0, dtype=np.int64) - weights + up_to[full, draw]
        stops[at] = np.minimum(bounds[full] + (before < wanted).sum(axis=0), bounds[full + 1])
    return stops


def _first_of_class(ranked: Outcomes, marks: npt.NDArray[np.bool_], stops: Index, by_image: npt.NDArray[Any]) -> Counts:
    """Weight of the marked detections of each class among the first so many of each draw, `(F, draws)`."""
    rows = np.flatnonzero(marks)
    some, many = np.searchsorted(rows, [stops.min(), stops.max()])
    always, at_times = rows[:some], rows[some:many]
    total = _per_class(ranked.label[always], ranked.image[always], ranked.num_classes, by_image)
    for row in at_times.tolist():
        total[ranked.label[row]] += np.where(row < stops, by_image[ranked.image[row]], 0)
    return total


def _widened(share: Floats, images_with: Index) -> Floats:
    """Let what varies between draws vary as much as between samples of images.

    The mean of k values varies less when the k are drawn from themselves, by the factor (k - 1) / k of the variance; k
    is in how many images a class is. Averaged over many images that is nothing, over the few of a rare class it is not.
    """
    factor = np.sqrt(images_with / np.maximum(images_with - 1, 1))[:, None]
    middle = nan_mean(share, axis=1)[:, None]
    return middle + (share - middle) * factor


def paired_interval(baseline: Floats, other: Floats, difference: float, confidence: float = 0.95) -> Interval:
    """Percentile interval of the difference of two methods over the same draws, less the bias of the draws.

    Drawing images with repetition raises AP a little, since what is found in an image is found again in its copies,
    and it raises the better method more. The interval is moved by as much as the mean of the draws is off the
    difference that was measured.

    Example:
        >>> paired_interval(np.zeros(9), np.arange(9.0), 4.0, confidence=0.5)
        Interval(difference=4.0, low=2.0, high=6.0, confidence=0.5)
        >>> paired_interval(np.zeros(9), np.arange(9.0), 3.0, confidence=0.5)
        Interval(difference=3.0, low=1.0, high=5.0, confidence=0.5)
    """
    change = other - baseline
    change = change[~np.isnan(change)]
    if not len(change):
        return Interval(difference, float("nan"), float("nan"), confidence)
    tail = (1 - confidence) / 2
    low, high = np.quantile(change, [tail, 1 - tail]) - (change.mean() - difference)
    return Interval(difference, float(low), float(high), confidence)


def paired_differences(
    values: Mapping[str, float],
    first: Mapping[str, float],
    draws: Mapping[str, Floats],
    first_draws: Mapping[str, Floats],
    confidence: float,
) -> dict[str, Interval]:
    """What a method changes of each metric, with intervals for those that were drawn.

    Args:
        values: Metrics of the method.
        first: Metrics of the method that it is compared with.
        draws: Metrics of the method over the draws.
        first_draws: Metrics of the other over the same draws.
        confidence: Of the intervals.
    """
    nothing = np.empty(0)
    return {
        name: paired_interval(first_draws.get(name, nothing), draws.get(name, nothing), value - first[name], confidence)
        for name, value in values.items()
    }


def _per_class(
    labels: npt.NDArray[Any], images: npt.NDArray[Any], num_classes: int, weights: npt.NDArray[Any]
) -> Counts:
    """Weight of the images of each class in every draw, `(F, draws)`."""
    order = np.argsort(labels, kind="stable")
    total = np.zeros((num_classes, weights.shape[1]), np.int32)
    present, starts = np.unique(labels[order], return_index=True)
    for label, of_class in zip(present.tolist(), np.split(images[order], starts[1:]), strict=False):
        np.add.reduce(weights.take(of_class, axis=0), axis=0, dtype=np.int32, out=total[label])
    return total


@dataclass(frozen=True, eq=False)
class DrawnMethod:
    """What is drawn of one method.

    Args:
        boxes: Its detections by class, matched by boxes.
        masks: The same, matched by masks; None without masks.
        best: For what is measured at an equal number of them.
    """

    boxes: Outcomes
    masks: Outcomes | None = None
    best: BestDetections | None = None

    def metrics(self, truth: GroundTruth, weights: Counts, groups: Groups | None) -> dict[str, Floats]:
        """All metrics over the draws; those of masks end in "-mask"."""
        drawn = bootstrap_metrics(self.boxes, truth, weights, groups=groups, best=self.best)
        if self.masks is not None:
            of_masks = bootstrap_metrics(self.masks, truth, weights, groups=groups)
            drawn |= {f"{name}-mask": values for name, values in of_masks.items()}
        return drawn


_Drawing = Callable[[DrawnMethod], dict[str, Floats]]


def draw_methods(
    methods: Sequence[DrawnMethod],
    truth: GroundTruth,
    groups: Groups | None,
    num_bootstrap: int,
    seed: int,
    *,
    processes: int | None = None,
) -> list[dict[str, Floats]]:
    """The metrics of each method over the same draws of images.

    Args:
        methods: The matched detections of each.
        truth: The ground truth.
        groups: `(F,)` "r", "c" or "f" for each class.
        num_bootstrap: How many draws.
        seed: Of the draws.
        processes: How many processes draw; None for as many as there are processors, where there is enough to do. The
            result does not depend on it.
    """
    work = num_bootstrap * sum(len(method.boxes) for method in methods)
    number = processes or (min(available_processors(), len(methods)) if work >= _ENOUGH else 1)
    # Draws look at images, classes and crowds of the boxes only; the rest would be sent for nothing.
    small = replace(truth, images=(), outlines=None, verified=None, not_exhaustive=None)
    prepare = partial(_prepare, Draws(truth.num_images, num_bootstrap, seed), small, groups)
    return list(work_in_order(prepare, methods, processes=number, noun="bootstrap"))


def _prepare(draws: Draws, truth: GroundTruth, groups: Groups | None) -> _Drawing:
    """What draws a method; each process makes the counts anew, which takes less than sending them."""
    weights = draws.counts()
    return lambda method: method.metrics(truth, weights, groups)
