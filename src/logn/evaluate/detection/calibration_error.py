"""Whether a score of 0.7 is right seven times in ten: the expected calibration error of detections."""

from __future__ import annotations

import numpy as np

from logn.evaluate.detection.class_groups import GROUPS, Groups
from logn.evaluate.detection.matching import MatchedDetections

BINS = 15


def calibration_error(
    matched: MatchedDetections, *, groups: Groups | None = None, bins: int = BINS
) -> dict[str, float]:
    """Expected calibration error of the counted detections at the first overlap threshold (0.5).

    Scores fall into `bins` bins of equal width; the error is the mean distance of score and share of hits, weighted
    by the detections in a bin. "ECE" is over all classes, "ECEr", "ECEc" and "ECEf" over a group; NaN for none.

    Example:
        >>> sure = MatchedDetections(np.arange(4), np.zeros(4, int), np.zeros(4, int), np.full(4, 0.9),
        ...     np.array([[True, True, True, False]]), np.ones((1, 4), bool))
        >>> round(calibration_error(sure)["ECE"], 3)
        0.15
    """
    members = {"ECE": np.ones(len(matched.labels), bool)}
    if groups is not None:
        members |= {f"ECE{group}": groups[matched.labels] == group for group in GROUPS}
    return {name: _error(matched, rows & matched.counted[0], bins) for name, rows in members.items()}


def _error(matched: MatchedDetections, rows: np.ndarray, bins: int) -> float:
    from hotcoco.metrics import calibration_error as expected_error

    if not rows.any():
        return float("nan")
    error, _ = expected_error(matched.scores[rows], matched.correct[0][rows], n_bins=bins)
    return float(error)
