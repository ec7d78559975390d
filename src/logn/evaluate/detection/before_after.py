"""Detections of the same images before and after a correction, and how scores move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.evaluate.detection.class_groups import Groups
from logn.evaluate.detection.ground_truth import GroundTruth
from logn.evaluate.detection.outcomes import DetectionMatches


@dataclass(frozen=True, eq=False)
class BeforeAfter:
    """Detections of the same images without and with a correction.

    Args:
        truth: Annotated boxes of the images.
        before: Detections of the uncorrected model, and which boxes they found.
        after: Those of the corrected one.
        groups: `(F,)` "r", "c" or "f"; None when unknown.
    """

    truth: GroundTruth
    before: DetectionMatches
    after: DetectionMatches
    groups: Groups | None

    @property
    def rare(self) -> npt.NDArray[np.bool_]:
        """`(F,)` the rare classes; all of them where the groups are unknown or none is rare."""
        if self.groups is None or not (self.groups == "r").any():
            return np.ones(self.truth.num_classes, bool)
        rare: npt.NDArray[np.bool_] = self.groups == "r"
        return rare


@dataclass(frozen=True, eq=False)
class ScoreHistogram:
    """How many detections have which score, before and after; the bins are evenly spaced in the logarithm."""

    edges: npt.NDArray[np.float64]
    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]

    def old_score(self, score: float) -> float:
        """The score that as many detections reached before as reach `score` after; between the bins interpolated.

        Example:
            >>> edges = np.array([0.01, 0.1, 0.5, 1.0])
            >>> counts = ScoreHistogram(edges, np.array([0, 4, 4]), np.array([4, 4, 0]))
            >>> round(counts.old_score(0.1), 3), round(counts.old_score(0.5), 3)
            (0.5, 1.0)
        """
        places = np.log(self.edges)
        before, after = (np.append(np.cumsum(side[::-1])[::-1], 0) for side in (self.before, self.after))
        reached = np.interp(np.log(np.clip(score, self.edges[0], 1.0)), places, after)
        # Where no detection lies between two edges the lower one is as good, and claims less.
        counts, first = np.unique(before, return_index=True)
        return float(np.exp(np.interp(reached, counts, places[first])))


def score_histogram(
    before: npt.ArrayLike, after: npt.ArrayLike, *, lowest: float = 1e-4, bins: int = 32
) -> ScoreHistogram:
    """Count scores in bins from `lowest` to 1; lower ones go to the first bin.

    Example:
        >>> counts = score_histogram([0.005, 0.5, 0.9], [0.05, 0.06], lowest=1e-2, bins=2)
        >>> counts.edges.round(2).tolist(), counts.before.tolist(), counts.after.tolist()
        ([0.01, 0.1, 1.0], [1, 2], [2, 0])
    """
    edges = np.geomspace(lowest, 1.0, bins + 1)
    edges[-1] = 1.0
    counted = [
        np.histogram(np.clip(np.asarray(scores, np.float64), lowest, 1.0), edges)[0] for scores in (before, after)
    ]
    return ScoreHistogram(edges, counted[0].astype(np.int64), counted[1].astype(np.int64))


def score_histograms(pair: BeforeAfter) -> dict[str, ScoreHistogram]:
    """Histograms of all detections ("all") and, where some classes are rare and others are not, of those ("rare")."""
    before, after = pair.before.detections, pair.after.detections
    lowest = max(float(min(before.scores.min(initial=1), after.scores.min(initial=1))), 1e-4)
    lowest = min(lowest, 0.1)
    found = {"all": score_histogram(before.scores, after.scores, lowest=lowest)}
    if not pair.rare.all():
        one, two = (side.scores[pair.rare[side.labels]] for side in (before, after))
        found["rare"] = score_histogram(one, two, lowest=lowest)
    return found
