"""What a detector finds at each score threshold, and which threshold to use after a correction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from logn.evaluate.thresholds.choose import Goal, choose
from logn.evaluate.thresholds.points import DEFAULT_AT
from logn.evaluate.thresholds.scores import Draws, ScoredDetections
from logn.logits.arrays import sigmoid

if TYPE_CHECKING:
    from logn.evaluate.detection.ground_truth import GroundTruth
    from logn.evaluate.detection.matching import MatchedDetections

# Evenly spaced in logits, from 0.001 to 0.999: corrected scores may be small.
_GRID = tuple(float(sigmoid(step / 20)) for step in range(-138, 139))


@dataclass(frozen=True)
class ThresholdCurve:
    """Objects found and false alarms by score threshold, at an overlap of one half.

    Args:
        at: The user's threshold.
        thresholds: Of the curve, ascending.
        found: Objects found at each.
        false_alarms: Wrong detections at each.
        objects: How many objects there are.
        found_at: Objects found at the user's threshold.
        false_alarms_at: Wrong detections there.
        best: The single threshold with the best F1.
        class_objects: Objects of each class.
        class_found: Of each class, at the user's threshold.
        class_false_alarms: Of each class, at the user's threshold.
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
    def of(cls, matched: MatchedDetections, truth: GroundTruth, at: float = DEFAULT_AT) -> ThresholdCurve:
        """Count what was matched at the first overlap, which is one half."""
        scored = ScoredDetections.of(matched, truth)
        once = Draws.once(scored)
        common, own = choose(once, Goal("f1"))
        hits, alarms = (counts[:, 0] for counts in once.at(at))
        curve = [once.pooled.at(np.array([threshold])) for threshold in _GRID]
        return cls(
            at=at,
            thresholds=_GRID,
            found=tuple(int(right[0]) for right, _ in curve),
            false_alarms=tuple(int(wrong[0]) for _, wrong in curve),
            objects=len(scored.object_labels),
            found_at=int(hits.sum()),
            false_alarms_at=int(alarms.sum()),
            best=float(common[0]),
            class_objects=tuple(scored.objects_per_class.tolist()),
            class_found=tuple(hits.tolist()),
            class_false_alarms=tuple(alarms.tolist()),
            class_best=tuple(None if np.isnan(value) else float(value) for value in own[:, 0]),
        )

    def precision(self, place: int) -> float | None:
        """At a position of the curve; None where nothing is kept."""
        kept = self.found[place] + self.false_alarms[place]
        return self.found[place] / kept if kept else None

    def recall(self, place: int) -> float:
        """At a position of the curve."""
        return self.found[place] / max(self.objects, 1)

    def f1(self, place: int) -> float:
        """At a position of the curve."""
        return 2 * self.found[place] / max(self.found[place] + self.false_alarms[place] + self.objects, 1)

    def nearest_count(self, count: int) -> int:
        """The position of the curve that keeps most nearly `count` detections; ties: the highest threshold."""
        kept = np.add(self.found, self.false_alarms)
        return int(len(kept) - 1 - np.abs(kept - count)[::-1].argmin())

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


def new_threshold(before: ThresholdCurve, after: ThresholdCurve) -> tuple[float, int, int]:
    """The threshold to use after a correction, with the objects found and false alarms there.

    It keeps as many detections as the user's threshold kept before; the user's own where that does.

    Example:
        >>> curve = ThresholdCurve(0.5, (0.1, 0.5), (450, 417), (200, 63), 600, 417, 63, 0.4, (), (), (), ())
        >>> from dataclasses import replace
        >>> changed = replace(curve, found=(430, 383), false_alarms=(52, 20), found_at=383, false_alarms_at=20)
        >>> new_threshold(curve, changed)
        (0.1, 430, 52)
    """
    count = before.found_at + before.false_alarms_at
    if after.found_at + after.false_alarms_at == count:
        return after.at, after.found_at, after.false_alarms_at
    place = after.nearest_count(count)
    return after.thresholds[place], after.found[place], after.false_alarms[place]


def describe_threshold(before: ThresholdCurve, after: ThresholdCurve) -> str:
    """Which threshold to use now, and what it finds.

    Example:
        >>> curve = ThresholdCurve(0.5, (0.1, 0.5), (450, 417), (200, 63), 600, 417, 63, 0.4, (), (), (), ())
        >>> describe_threshold(curve, curve)
        'Keep using 0.5: 417 -> 417 found, 63 -> 63 false alarms.'
    """
    threshold, found, false_alarms = new_threshold(before, after)
    use = f"Keep using {threshold:g}" if threshold == before.at else f"{before.at:g} -> use {threshold:.2g}"
    return (
        f"{use}: {before.found_at:,} -> {found:,} found, {before.false_alarms_at:,} -> {false_alarms:,} false alarms."
    )
