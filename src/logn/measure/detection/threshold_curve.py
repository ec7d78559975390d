"""What a detector finds at each score threshold, and which threshold to use after a correction."""

from __future__ import annotations

import math
from dataclasses import dataclass

from logn.base.arrays import DEFAULT_AT, sigmoid
from logn.matching.ground_truth import GroundTruth
from logn.matching.outcomes import Outcomes
from logn.methods.sampled_scores import NewThreshold, is_about
from logn.thresholds.choose import Goal, choose_common
from logn.thresholds.scored_detections import DrawnDetections, ScoredDetections

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
        use: The threshold to use instead of `at`: it keeps as many detections as the uncorrected model has above `at`.
        found_use: Objects found there.
        false_alarms_use: Wrong detections there.
        estimated: The one that statistics of training images give, as `logn correct` prints it; None without.
    """

    at: float
    thresholds: tuple[float, ...]
    found: tuple[int, ...]
    false_alarms: tuple[int, ...]
    objects: int
    found_at: int
    false_alarms_at: int
    best: float
    use: float
    found_use: int
    false_alarms_use: int
    estimated: float | None = None

    @classmethod
    def of(
        cls,
        outcomes: Outcomes,
        truth: GroundTruth,
        at: float = DEFAULT_AT,
        use: float | None = None,
        estimated: float | None = None,
    ) -> ThresholdCurve:
        """Count what was matched at the first overlap, which is one half; `use` is `at` by default."""
        scored = ScoredDetections.of(outcomes, truth)
        once = DrawnDetections.once(scored)
        use = at if use is None else use
        found, false_alarms = (tuple(counts[:, 0].tolist()) for counts in once.curve((*_GRID, at, use)))
        return cls(
            at=at,
            thresholds=_GRID,
            found=found[:-2],
            false_alarms=false_alarms[:-2],
            objects=len(scored.object_labels),
            found_at=found[-2],
            false_alarms_at=false_alarms[-2],
            best=float(choose_common(once, Goal("f1"))[0]),
            use=use,
            found_use=found[-1],
            false_alarms_use=false_alarms[-1],
            estimated=estimated,
        )

    @property
    def new(self) -> NewThreshold:
        """The threshold to use, with its basis."""
        return NewThreshold(self.at, self.use, "labels")

    @property
    def outcome(self) -> tuple[int, int]:
        """Objects found and false alarms at the threshold to use: at the user's, where that may stay."""
        return (self.found_at, self.false_alarms_at) if self.new.stays else (self.found_use, self.false_alarms_use)

    def measures(self) -> dict[str, list[float | None]]:
        """Precision, None where nothing is kept, recall and F1 at each threshold."""
        counts = list(zip(self.found, self.false_alarms, strict=True))
        return {
            "Precision": [found / (found + alarms) if found + alarms else None for found, alarms in counts],
            "Recall": [found / max(self.objects, 1) for found, _ in counts],
            "F1": [2 * found / max(found + alarms + self.objects, 1) for found, alarms in counts],
        }


def describe_threshold(before: ThresholdCurve, after: ThresholdCurve) -> str:
    """Which threshold to use now, what it finds, and why `logn correct` prints another where it does.

    Example:
        >>> curve = ThresholdCurve(0.5, (0.1, 0.5), (450, 417), (200, 63), 600, 417, 63, 0.4, 0.5, 417, 63)
        >>> describe_threshold(curve, curve)
        'Keep using 0.5: 417 -> 417 found, 63 -> 63 false alarms.'
        >>> from dataclasses import replace
        >>> print(describe_threshold(curve, replace(curve, use=0.086, found_use=476, false_alarms_use=56)))
        Use about 0.086 where you used 0.5: 417 -> 476 found, 63 -> 56 false alarms.
    """
    found, false_alarms = after.outcome
    counts = f"{before.found_at:,} -> {found:,} found, {before.false_alarms_at:,} -> {false_alarms:,} false alarms"
    return " ".join(filter(None, (after.new.describe(counts), why_other(after))))


def why_other(curve: ThresholdCurve) -> str:
    """Why the threshold of `logn correct`, from training statistics, is another; empty where it is about the same.

    Example:
        >>> curve = ThresholdCurve(0.5, (0.5,), (417,), (63,), 600, 417, 63, 0.4, 0.086, 476, 56, estimated=0.05)
        >>> print(why_other(curve))
        From training images `logn correct` gives 0.05: the class mix of the labelled images differs from that of
        training.
    """
    if curve.estimated is None or math.isnan(curve.estimated):
        return ""
    if is_about(curve.estimated, curve.at if curve.new.stays else curve.use):
        return ""
    # A common shift keeps the number at the old threshold, which is then what is printed.
    estimated = curve.at if is_about(curve.estimated, curve.at) else curve.estimated
    return (
        f"From training images `logn correct` gives {estimated:.2g}: the class mix of the labelled images differs from "
        "that of training."
    )
