"""Class-mean recall at an equal number of detections: what a user gets who keeps as many detections as before.

The count is that of the uncorrected model above a score threshold. Of each method as many detections are kept, the best
of all images, and matched as AP matches them at an overlap of one half. Detections of classes that nobody looked for in
an image are neither right nor wrong, but a user sees them: they take places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.detection.class_groups import Groups, mean_of_present, mean_per_group
from logn.evaluate.detection.ground_truth import GroundTruth
from logn.evaluate.detection.matching import MatchedDetections
from logn.evaluate.detection.protocol import SCORE_THRESHOLD
from logn.strict_json import number_or_nan, numbers_or_nan

# Score thresholds of the uncorrected model, of which the counts are taken; tables show the second.
COUNTED_AT = (0.5, 0.25, 0.05)
SHOWN_AT = 0.25


def recall_name(at: float, group: str = "") -> str:
    """What the metric is called.

    Example:
        >>> recall_name(0.25), recall_name(0.25, "r")
        ('recall@n:0.25', 'recall-r@n:0.25')
    """
    return f"recall{group and '-' + group}@n:{at:g}"


@dataclass(frozen=True)
class RecallAtCount:
    """What a method finds with as many detections as the uncorrected model has above a score threshold.

    Args:
        at: The threshold of the uncorrected model.
        detections: How many are kept: fewer than the uncorrected model has only where the method has no more.
        threshold: The method's own score threshold that keeps as many: the one to use instead of `at`.
        found: Objects found, of all classes.
        objects: How many there are.
        recall: Mean over the classes that have objects of the share that is found.
        groups: The same of rare ("r"), common ("c") and frequent ("f") classes; empty where they are unknown.
    """

    at: float
    detections: int
    threshold: float
    found: int
    objects: int
    recall: float
    groups: Mapping[str, float]

    @property
    def values(self) -> dict[str, float]:
        """The metrics by name."""
        named = {recall_name(self.at, group): value for group, value in self.groups.items()}
        return {recall_name(self.at): self.recall, **named}

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> RecallAtCount:
        """Read what `to_dict` gave, also after a way through JSON, which has no NaN."""
        groups = numbers_or_nan(content["groups"])
        return cls(**{**content, "recall": number_or_nan(content["recall"]), "groups": groups})


@dataclass(frozen=True, eq=False)
class UnverifiedScores:
    """Detections of classes that nobody looked for in their image, as far as they may take places.

    Args:
        image_index: `(D,)` image of each.
        scores: `(D,)` score of each.
    """

    image_index: npt.NDArray[np.int32]
    scores: npt.NDArray[np.floating]

    def take(self, rows: npt.NDArray[Any]) -> UnverifiedScores:
        """Keep the rows that an index array or a mask names."""
        return UnverifiedScores(self.image_index[rows], self.scores[rows])

    @staticmethod
    def concatenate(*parts: UnverifiedScores) -> UnverifiedScores:
        """Put parts together."""
        images, scores = ([getattr(part, name) for part in parts] for name in ("image_index", "scores"))
        return UnverifiedScores(np.concatenate(images), np.concatenate(scores))


NONE_UNVERIFIED = UnverifiedScores(np.empty(0, np.int32), np.empty(0, np.float32))


def counts_above(scores: npt.NDArray[np.floating]) -> dict[float, int]:
    """How many scores are above each threshold of `COUNTED_AT`.

    Example:
        >>> counts_above(np.array([0.6, 0.5, 0.1]))
        {0.5: 1, 0.25: 2, 0.05: 3}
    """
    return {at: int((scores > at).sum()) for at in COUNTED_AT}


def matching_threshold(scores: npt.NDArray[np.floating], count: int, at: float) -> float:
    """The threshold above which `count` of the scores stand: `at` where it does, else midway to the next score.

    Example:
        >>> [matching_threshold(np.array([0.75, 0.5, 0.25]), count, at=0.3) for count in (1, 2, 3)]
        [0.625, 0.3, 0.0]
    """
    if int((scores > at).sum()) == count:
        return at
    if count >= len(scores):
        return SCORE_THRESHOLD
    if count == 0:
        return 1.0
    last, following = np.partition(scores, [-count, -count - 1])[[-count, -count - 1]].astype(np.float64)
    return float((last + following) / 2)


def recall_at_count(
    matched: MatchedDetections,
    unverified: UnverifiedScores,
    counts: Mapping[float, int],
    truth: GroundTruth,
    groups: Groups | None,
) -> tuple[dict[float, RecallAtCount], dict[str, MatchedDetections]]:
    """Keep the best detections of all images, as many as each count says; their hits by metric serve the bootstrap.

    Ties: lowest image id, then those that are evaluated.

    Args:
        matched: The detections that are evaluated, matched at an overlap of one half first.
        unverified: The others.
        counts: Of the uncorrected model, by its threshold.
        truth: The ground truth.
        groups: `(F,)` "r", "c" or "f" for each class; None when unknown.
    """
    scores = np.concatenate([matched.scores, unverified.scores])
    objects = truth.boxes_per_class
    found: dict[float, RecallAtCount] = {}
    hits: dict[str, MatchedDetections] = {}
    for at, count in counts.items():
        kept = _best(matched, unverified, scores, count, truth)
        hits[recall_name(at)] = right = matched.take(np.flatnonzero(kept & matched.correct[0]))
        per_class = np.bincount(right.labels, minlength=truth.num_classes) / np.where(objects > 0, objects, np.nan)
        found[at] = RecallAtCount(
            at=at,
            detections=min(count, len(scores)),
            threshold=matching_threshold(scores, count, at),
            found=len(right.labels),
            objects=int(objects.sum()),
            recall=mean_of_present(per_class),
            groups=mean_per_group(per_class, groups),
        )
    return found, hits


def _best(
    matched: MatchedDetections,
    unverified: UnverifiedScores,
    scores: npt.NDArray[np.floating],
    count: int,
    truth: GroundTruth,
) -> npt.NDArray[np.bool_]:
    """`(D,)` which of the evaluated detections are among the best `count` of all."""
    if count >= len(scores):
        return np.ones(len(matched.scores), bool)
    if count == 0:
        return np.zeros(len(matched.scores), bool)
    last = np.partition(scores, -count)[-count]
    kept: npt.NDArray[np.bool_] = scores > last
    tied = np.flatnonzero(scores == last)
    images = np.concatenate([matched.image_index, unverified.image_index])[tied]
    # An evaluated detection stands where it stands in its image, all others behind it.
    rank = np.concatenate([matched.rows, np.full(len(unverified.scores), np.iinfo(np.intp).max)])[tied]
    order = np.lexsort((rank, truth.image_ids[images]))
    kept[tied[order[: count - int(kept.sum())]]] = True
    return kept[: len(matched.scores)]
