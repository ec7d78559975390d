"""What a detector finds at each score threshold, and at the one that its user has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from logn.evaluate.detection.ground_truth import GroundTruth
from logn.evaluate.detection.matching import MatchedDetections
from logn.evaluate.operating.choice import Draws, choose
from logn.evaluate.operating.class_levels import above
from logn.evaluate.operating.measured import kept_counts
from logn.evaluate.operating.scored_outcomes import ScoredOutcomes
from logn.evaluate.operating.target import Target

# The threshold of a user who says none.
USUAL_THRESHOLD = 0.5
_GRID = tuple(round(0.01 * step, 2) for step in range(1, 100))


@dataclass(frozen=True)
class ThresholdCurve:
    """Objects found and false alarms of a method by score threshold, at an overlap of one half.

    Args:
        at: The threshold of the user.
        thresholds: Of the curve.
        found: Objects that are found at each.
        false_alarms: Wrong detections at each.
        objects: How many there are to find.
        found_at: Objects found at the threshold of the user.
        false_alarms_at: Wrong detections there.
        best: The one threshold with the best F1.
        class_objects: Objects of each class.
        class_found: Of each class, at the threshold of the user.
        class_false_alarms: Of each class, at the threshold of the user.
        class_best: The threshold of each class with its best F1; None for a class without a right detection.
    """

    at: float
    thresholds: tuple[float, ...]
    found: tuple[int, ...]
    false_alarms: tuple[int, ...]
    objects: int
    found_at: int
    false_alarms_at: int
    best: float
    class_objects: tuple[int, ...]
    class_found: tuple[int, ...]
    class_false_alarms: tuple[int, ...]
    class_best: tuple[float | None, ...]

    @classmethod
    def of(cls, matched: MatchedDetections, truth: GroundTruth, at: float = USUAL_THRESHOLD) -> ThresholdCurve:
        """Count what was matched at the first overlap, which is one half."""
        outcomes = _outcomes(matched, truth)
        once = Draws.once(outcomes)
        choice = choose(once, Target.parse("f1"))
        hits, alarms = kept_counts(once, np.full((outcomes.num_classes, 1), at))
        pooled = outcomes.pooled
        return cls(
            at=at,
            thresholds=_GRID,
            found=tuple(above(pooled.hits, _GRID).tolist()),
            false_alarms=tuple(above(pooled.alarms, _GRID).tolist()),
            objects=len(outcomes.object_labels),
            found_at=int(above(pooled.hits, at)),
            false_alarms_at=int(above(pooled.alarms, at)),
            best=float(choice.common[0]),
            class_objects=tuple(outcomes.objects_per_class.tolist()),
            class_found=tuple(hits[:, 0].tolist()),
            class_false_alarms=tuple(alarms[:, 0].tolist()),
            class_best=tuple(None if np.isnan(value) else float(value) for value in choice.own[:, 0]),
        )

    def precision(self, place: int) -> float | None:
        """At a place of the curve; None where nothing is kept."""
        kept = self.found[place] + self.false_alarms[place]
        return self.found[place] / kept if kept else None

    def recall(self, place: int) -> float:
        """At a place of the curve."""
        return self.found[place] / max(self.objects, 1)

    def f1(self, place: int) -> float:
        """At a place of the curve."""
        return 2 * self.found[place] / max(self.found[place] + self.false_alarms[place] + self.objects, 1)

    def to_dict(self) -> dict[str, Any]:
        """Give the curve as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ThresholdCurve:
        """Read what `to_dict` gave, also after a way through JSON."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
        }
        return cls(**values)


def _outcomes(matched: MatchedDetections, truth: GroundTruth) -> ScoredOutcomes:
    wanted = np.flatnonzero(~truth.crowd)
    return ScoredOutcomes(
        labels=matched.labels,
        units=matched.image_index,
        scores=matched.scores,
        right=matched.correct[0] & matched.counted[0],
        judged=matched.counted[0],
        object_labels=truth.labels[wanted],
        object_units=truth.image_index[wanted],
        num_units=truth.num_images,
        class_names=truth.class_names,
    )


def describe_threshold(before: ThresholdCurve, after: ThresholdCurve) -> str:
    """Say what becomes of a user who keeps the old threshold, and which one is best now.

    Example:
        >>> curve = ThresholdCurve(0.5, (0.5,), (417,), (90,), 600, 417, 90, 0.4, (600,), (417,), (90,), (0.4,))
        >>> from dataclasses import replace
        >>> describe_threshold(curve, replace(curve, found_at=383, false_alarms_at=60, best=0.31))
        'At a score of 0.5 it finds 383 of 600 objects instead of 417, with 60 false alarms instead of 90; the single \
threshold with the best F1 moves from 0.40 to 0.31.'
    """
    return (
        f"At a score of {after.at:g} it finds {after.found_at:,} of {after.objects:,} objects instead of "
        f"{before.found_at:,}, with {after.false_alarms_at:,} false alarm{'' if after.false_alarms_at == 1 else 's'} "
        f"instead of {before.false_alarms_at:,}; the single threshold with the best F1 moves from {before.best:.2f} to "
        f"{after.best:.2f}."
    )
