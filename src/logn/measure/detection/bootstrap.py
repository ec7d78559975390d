"""Bootstrap intervals: images are drawn with repetition many times, the same draws for every method.

The matching of detections to boxes does not depend on which images are drawn, so it is done once; a draw is a weight
per image. AP is then computed class by class for all draws at once; large jobs run in processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import nan_mean, ratio
from logn.base.processes import available_processors, started_processes, work_here
from logn.errors import warn
from logn.matching.draws import Counts, Draws
from logn.matching.match import MatchedDetections
from logn.matching.truth import GroundTruth, Groups, group_members
from logn.measure.detection.drawn_precision import drawn_precision
from logn.measure.detection.metrics import recall_name

Floats = npt.NDArray[np.float64]
# Draws that are computed side by side: what is kept of a class for each of them should not fill the memory.
DRAWS_AT_ONCE = 1000
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
    matched: MatchedDetections,
    truth: GroundTruth,
    weights: Counts,
    *,
    groups: Groups | None = None,
    hits: Mapping[float, MatchedDetections] | None = None,
) -> dict[str, Floats]:
    """AP, AP50 and class-mean recall of every draw, `(draws,)` each; AP and recall also by group.

    Args:
        matched: One method's detections, matched at all overlap thresholds.
        truth: The ground truth.
        weights: `(draws, I)` how often each image was drawn; the same for all methods makes the draws paired.
        groups: `(F,)` "r", "c" or "f" for each class.
        hits: Right detections among those that are kept, whatever images are drawn, by the threshold of the count.
    """
    parts = [
        _metrics_of_draws(matched, truth, weights[start : start + DRAWS_AT_ONCE], groups, hits or {})
        for start in range(0, len(weights), DRAWS_AT_ONCE)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _metrics_of_draws(
    matched: MatchedDetections,
    truth: GroundTruth,
    weights: Counts,
    groups: Groups | None,
    hits: Mapping[float, MatchedDetections],
) -> dict[str, Floats]:
    # Small numbers in a small type: the weights of an image are read for each of its detections.
    by_image = np.ascontiguousarray(weights.T, np.min_scalar_type(weights.max(initial=0)))
    wanted = np.flatnonzero(~truth.crowd)
    boxes = _per_class(truth.labels[wanted], truth.image_index[wanted], truth.num_classes, by_image)
    mean, first = np.zeros(boxes.shape), np.zeros(boxes.shape)
    for label, of_thresholds, of_first in drawn_precision(matched, by_image, boxes):
        mean[label], first[label] = of_thresholds, of_first
    mean[boxes == 0], first[boxes == 0] = np.nan, np.nan
    members = group_members(groups, truth.num_classes)
    result = {f"AP{group}": nan_mean(mean[classes], axis=0) for group, classes in members.items()}
    result["AP50"] = nan_mean(first, axis=0)
    for at, right in hits.items():
        share = ratio(_per_class(right.labels, right.image_index, truth.num_classes, by_image), boxes)
        for group, classes in members.items():
            result[recall_name(at, group)] = nan_mean(share[classes], axis=0)
    return result


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
        boxes: Its detections, matched by boxes.
        masks: The same, matched by masks; None without masks.
        hits: Right detections among those that are kept at an equal count, by the threshold of that count.
    """

    boxes: MatchedDetections
    masks: MatchedDetections | None = None
    hits: Mapping[float, MatchedDetections] = field(default_factory=dict)

    def metrics(self, truth: GroundTruth, weights: Counts, groups: Groups | None) -> dict[str, Floats]:
        """All metrics over the draws; those of masks end in "-mask"."""
        drawn = bootstrap_metrics(self.boxes, truth, weights, groups=groups, hits=self.hits)
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
    work = num_bootstrap * sum(len(method.boxes.labels) for method in methods)
    number = processes or (min(available_processors(), len(methods)) if work >= _ENOUGH else 1)
    # Draws look at images, classes and crowds of the boxes only; the rest would be sent for nothing.
    small = replace(truth, dataset={}, verified=None, not_exhaustive=None)
    prepare = partial(_prepare, Draws(truth.num_images, num_bootstrap, seed), small, groups)
    if number > 1 and (drawn := _in_processes(prepare, methods, number)) is not None:
        return drawn
    with ThreadPoolExecutor(available_processors()) as pool:
        return list(pool.map(prepare(), methods))


def _prepare(draws: Draws, truth: GroundTruth, groups: Groups | None) -> _Drawing:
    """What draws a method; each process makes the counts anew, which takes less than sending them."""
    weights = draws.counts()
    return lambda method: method.metrics(truth, weights, groups)


def _in_processes(
    prepare: Callable[[], _Drawing], methods: Sequence[DrawnMethod], number: int
) -> list[dict[str, Floats]] | None:
    """What `draw_methods` gives; None where there can be no processes, or one was killed."""
    try:
        with ExitStack() as stack:
            pool = started_processes(stack, number, prepare)
            slim = [replace(method, boxes=replace(method.boxes, pairs=None)) for method in methods]
            return None if pool is None else list(pool.map(work_here, slim))
    except BrokenProcessPool:
        warn(
            f"One of the {number} bootstrap processes was killed, probably because memory ran out. All draws are made "
            "again in this process: slower, with the same result."
        )
        return None
