"""Scored detections with what is right: what thresholds keep of them, over many draws of images at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray, logit, nan_mean, ratio, sigmoid
from logn.matching.bootstrap_draws import Draws
from logn.matching.ground_truth import GroundTruth
from logn.matching.outcomes import Outcomes

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
# No threshold is placed between scores whose logits are closer: a folded model rounds differently in float32.
LEAST_GAP = 1e-4
# Beyond this a sigmoid in float32 is 1.
LARGEST_LOGIT = 16.0
# Numbers in the running sums of one chunk of draws.
NUMBERS_AT_ONCE = 20_000_000


def clipped_logit(probability: npt.ArrayLike) -> FloatArray:
    """The logarithm of the odds, clipped to 16 either way.

    Example:
        >>> clipped_logit([0.5, 0.0, 1.0]).tolist()
        [0.0, -16.0, 16.0]
    """
    return logit(probability).clip(-LARGEST_LOGIT, LARGEST_LOGIT)


@dataclass(frozen=True, eq=False)
class ScoredDetections:
    """Detections of all images with what is right, and the objects to find.

    Args:
        labels: `(D,)` class of each detection.
        images: `(D,)` its image.
        scores: `(D,)` from 0 to 1.
        right: `(D,)` whether it found an object.
        wrong: `(D,)` whether it is a false alarm; one that is neither does not count.
        object_labels: `(G,)` class of each object.
        object_images: `(G,)` its image.
        num_images: How many images there are.
        class_names: `(F,)` names.
        floor: Lower scores were not looked at.
    """

    labels: Ints
    images: Ints
    scores: FloatArray
    right: Bools
    wrong: Bools
    object_labels: Ints
    object_images: Ints
    num_images: int
    class_names: tuple[str, ...]
    floor: float = 0.0

    @classmethod
    def of(cls, outcomes: Outcomes, truth: GroundTruth, floor: float = 0.0) -> ScoredDetections:
        """Those whose class was looked for in their image, by their outcome at the first overlap."""
        seen = outcomes.take(truth.looked_for(outcomes.image, outcomes.label))
        columns = seen.label.astype(np.int64), seen.image.astype(np.int64), seen.score.astype(np.float64)
        objects = truth.labels[~truth.crowd], truth.image_index[~truth.crowd]
        return cls(*columns, seen.hits, seen.alarms, *objects, truth.num_images, truth.class_names, max(floor, 0.0))

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def part(self, images: Bools) -> ScoredDetections:
        """The detections and objects of the images in the mask, renumbered."""
        position = np.cumsum(images) - 1
        kept, objects = images[self.images], images[self.object_images]
        return replace(
            self,
            **{name: getattr(self, name)[kept] for name in ("labels", "scores", "right", "wrong")},
            images=position[self.images[kept]],
            object_labels=self.object_labels[objects],
            object_images=position[self.object_images[objects]],
            num_images=int(images.sum()),
        )

    @cached_property
    def by_class(self) -> list[tuple[Array, Array]]:
        """Of each class the positions of its detections, highest score first, and of its objects."""
        orders = np.lexsort((-self.scores, self.labels)), np.argsort(self.object_labels, kind="stable")
        counts = (np.bincount(labels, minlength=self.num_classes) for labels in (self.labels, self.object_labels))
        groups = (np.split(order, np.cumsum(count)[:-1]) for order, count in zip(orders, counts, strict=True))
        return list(zip(*groups, strict=True))

    @cached_property
    def cuts(self) -> list[tuple[npt.NDArray[np.intp], FloatArray]]:
        """Of each class how many detections the thresholds worth trying keep, and these thresholds."""
        logits, floor = clipped_logit(self.scores), float(clipped_logit(self.floor))
        cuts = [place_cuts(logits[rows], self.right[rows], floor) for rows, _ in self.by_class]
        kept, middle = zip(*cuts, strict=True)
        thresholds = np.split(sigmoid(np.concatenate(middle)), np.cumsum([len(each) for each in kept])[:-1])
        return list(zip(kept, thresholds, strict=True))

    @cached_property
    def pooled(self) -> ScoredDetections:
        """All classes as if they were one."""
        labels, objects = np.zeros_like(self.labels), np.zeros_like(self.object_labels)
        return replace(self, labels=labels, object_labels=objects, class_names=("all classes",))


def place_cuts(logits: FloatArray, right: Bools, floor: float) -> tuple[npt.NDArray[np.intp], FloatArray]:
    """Thresholds worth trying on the detections of one class, highest first: how many each keeps, and its logit.

    They keep none, or all down to a right one, and lie midway between what they keep and what they drop.

    Args:
        logits: `(D,)` of the scores, descending.
        right: `(D,)` whether each found an object.
        floor: Lower logits were not looked at.

    Example:
        >>> kept, middle = place_cuts(clipped_logit([0.9, 0.6, 0.2]), np.array([True, False, True]), -16.0)
        >>> kept.tolist(), sigmoid(middle).round(2).tolist()
        ([0, 1, 3], [0.96, 0.79, 0.08])
    """
    ends = np.append(np.flatnonzero(-np.diff(logits) >= LEAST_GAP), len(logits) - 1)
    runs = np.unique(np.searchsorted(ends, np.flatnonzero(right)))
    kept = np.concatenate([[0], ends[runs] + 1])
    logits = logits if len(logits) else np.array([LARGEST_LOGIT])
    lowest = max(float(logits[-1]) - 2.0, min(floor, float(logits[-1])))
    bounds = np.concatenate([logits[:1] + 2.0, logits, [lowest]])
    return kept, np.minimum((bounds[kept] + bounds[kept + 1]) / 2, LARGEST_LOGIT)


@dataclass(frozen=True, eq=False)
class ClassSums:
    """The detections of one class, highest score first, with running sums over several draws of images.

    Args:
        scores: `(D,)` scores.
        hits: `(D + 1, B)` right detections among the first ones.
        alarms: `(D + 1, B)` false alarms among them.
        objects: `(B,)` objects to find.
    """

    scores: FloatArray
    hits: Array
    alarms: Array
    objects: Array

    def kept(self, thresholds: FloatArray) -> npt.NDArray[np.intp]:
        """How many detections each threshold keeps."""
        return np.searchsorted(-self.scores, -thresholds, side="right")

    def at(self, thresholds: FloatArray) -> tuple[Array, Array]:
        """Hits and false alarms `(B,)` of each draw at its own threshold."""
        kept, draws = self.kept(thresholds), np.arange(self.hits.shape[1])
        return self.hits[kept, draws], self.alarms[kept, draws]


@dataclass(frozen=True, eq=False)
class TriedThresholds:
    """What the thresholds worth trying find of one class, over several draws of images.

    Args:
        thresholds: `(K,)` descending.
        hits: `(K, B)` right detections that each keeps.
        alarms: `(K, B)` false alarms.
        objects: `(B,)` objects to find.
    """

    thresholds: FloatArray
    hits: Array
    alarms: Array
    objects: Array


@dataclass(frozen=True, eq=False)
class DrawnDetections:
    """Detections over several draws of images.

    Args:
        detections: The detections.
        weights: `(I, B)` how often each image was drawn.
    """

    detections: ScoredDetections
    weights: Array

    @classmethod
    def once(cls, detections: ScoredDetections) -> DrawnDetections:
        """One draw that has every image once."""
        return cls(detections, np.ones((detections.num_images, 1), np.int32))

    @classmethod
    def bootstrap(cls, detections: ScoredDetections, number: int, seed: int) -> Iterator[DrawnDetections]:
        """Draws of images with repetition, as many at a time as fit into memory."""
        images = detections.num_images
        at_once = max(1, NUMBERS_AT_ONCE // (4 * len(detections.labels) + images + 1))
        for counts in Draws(images, number, seed, multinomial=True).blocks(at_once):
            yield cls(detections, np.ascontiguousarray(counts.T))

    @cached_property
    def classes(self) -> list[ClassSums]:
        """Each class."""
        return [self._summed(*positions) for positions in self.detections.by_class]

    @cached_property
    def pooled(self) -> DrawnDetections:
        """All classes as if they were one."""
        return DrawnDetections(self.detections.pooled, self.weights)

    def tried(self) -> list[TriedThresholds]:
        """What the thresholds worth trying find of each class."""
        return [
            TriedThresholds(thresholds, sums.hits[kept], sums.alarms[kept], sums.objects)
            for sums, (kept, thresholds) in zip(self.classes, self.detections.cuts, strict=True)
        ]

    def curve(self, thresholds: npt.ArrayLike) -> tuple[Array, Array]:
        """Hits and false alarms `(K, B)` of all classes together at each of `(K,)` thresholds."""
        (sums,) = self.pooled.classes
        kept = sums.kept(np.asarray(thresholds, np.float64))
        return sums.hits[kept], sums.alarms[kept]

    def _summed(self, rows: Array, objects: Array) -> ClassSums:
        detections = self.detections
        right, wrong, drawn = detections.right[rows], detections.wrong[rows], self.weights[detections.images[rows]]
        hits, alarms = np.zeros((2, len(rows) + 1, self.size), np.int32)
        np.cumsum(drawn * right[:, None], axis=0, out=hits[1:])
        np.cumsum(drawn * wrong[:, None], axis=0, out=alarms[1:])
        number = self.weights[detections.object_images[objects]].sum(axis=0, dtype=np.int64)
        return ClassSums(detections.scores[rows], hits, alarms, number)

    @property
    def size(self) -> int:
        """How many draws there are."""
        return int(self.weights.shape[1])

    @property
    def images(self) -> Array:
        """`(B,)` images of each draw, repetitions counted."""
        return np.asarray(self.weights.sum(axis=0))

    def at(self, thresholds: npt.ArrayLike) -> Array:
        """Hits, false alarms and objects `(3, F, B)` at thresholds that broadcast to `(F, B)`."""
        rows = np.broadcast_to(np.asarray(thresholds, np.float64), (len(self.classes), self.size))
        counts = [(*sums.at(row), sums.objects) for sums, row in zip(self.classes, rows, strict=True)]
        return np.array(counts).reshape(len(counts), 3, self.size).swapaxes(0, 1)


def measure(draws: DrawnDetections, thresholds: npt.ArrayLike) -> dict[str, FloatArray]:
    """Overall and class-mean precision, recall and F1, and false alarms per image, `(B,)` each.

    Without anything kept there is no precision, without objects no recall: NaN, which class means leave out.
    """
    counts = draws.at(thresholds)
    hits, alarms, objects = counts.sum(axis=1)
    metrics = shares(hits, alarms, objects) | {"false alarms per image": ratio(alarms, draws.images)}
    for name, values in shares(*counts).items():
        metrics[f"class-mean {name}"] = nan_mean(np.where(counts[2] > 0, values, np.nan), axis=0)
    return metrics


def shares(hits: Array, alarms: Array, objects: Array) -> dict[str, FloatArray]:
    """Precision, recall and F1; NaN where nothing was kept, or nothing is to be found."""
    kept = hits + alarms
    return {"precision": ratio(hits, kept), "recall": ratio(hits, objects), "F1": ratio(2 * hits, kept + objects)}
