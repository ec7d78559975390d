"""Score scale: bring the scores of a corrected model back to the scale of the original one, without changing AP.

A correction moves scores, and thresholds that users chose before no longer fit. A strictly increasing map of all
scores changes no ranking, hence no AP; it can make the scores be distributed as before. What such a map cannot do is
undo the correction between classes, which is the point of it: at the same threshold there are as many detections as
before, but other ones.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.files import read_safetensors, write_safetensors

FILE_FORMAT = "logn.score_scale"
FILE_SCHEMA = 1
FloatArray = npt.NDArray[np.float64]

# The share of the identity in the map: enough to keep different scores different where the quantiles are flat.
_SLOPE = 1e-3


@dataclass(frozen=True, eq=False)
class ScoreScale:
    """A strictly increasing, piecewise linear map of scores from [0, 1] to [0, 1].

    Args:
        knots: Scores of the corrected model, strictly increasing from 0 to 1.
        values: What they become, strictly increasing from 0 to 1.

    Example:
        >>> halve = ScoreScale(np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.25, 1.0]))
        >>> halve(np.array([0.25, 0.5, 1.0])).tolist()
        [0.125, 0.25, 1.0]
        >>> halve.inverse()(0.25)
        0.5
    """

    knots: FloatArray
    values: FloatArray

    def __post_init__(self) -> None:
        for name in ("knots", "values"):
            points = np.array(getattr(self, name), np.float64)
            if points.ndim != 1 or len(points) < 2 or points[0] != 0 or points[-1] != 1 or (np.diff(points) <= 0).any():
                raise InputError(f"Expected `{name}` to increase strictly from 0 to 1, but they do not.")
            points.flags.writeable = False
            object.__setattr__(self, name, points)
        if len(self.knots) != len(self.values):
            raise InputError(f"Expected as many `knots` as `values`, but got {len(self.knots)} and {len(self.values)}.")

    def __call__(self, scores: npt.ArrayLike) -> Any:
        """Map scores. The result is float64: in float32, scores that differ in the last bits could become equal."""
        mapped = np.interp(np.asarray(scores, np.float64), self.knots, self.values)
        return float(mapped) if np.ndim(scores) == 0 else mapped

    def inverse(self) -> ScoreScale:
        """The map from the original scale to that of the corrected model, which converts old thresholds."""
        return ScoreScale(self.values, self.knots)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the map to a safetensors file."""
        metadata = {"format": FILE_FORMAT, "schema": str(FILE_SCHEMA)}
        write_safetensors(path, {"knots": self.knots, "values": self.values}, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ScoreScale:
        """Read a map that `save` wrote."""
        tensors, _ = read_safetensors(path, expected_format=FILE_FORMAT, schema=FILE_SCHEMA)
        if not {"knots", "values"} <= set(tensors):
            raise InputError(f"Expected `{path}` to hold `knots` and `values`, but it does not.")
        return cls(tensors["knots"], tensors["values"])


def score_scale(original: npt.ArrayLike, corrected: npt.ArrayLike, *, num_knots: int = 1000) -> ScoreScale:
    """Fit the map that gives the scores of a corrected model the distribution of the original ones.

    It maps each quantile of the corrected scores to the same quantile of the original scores, counted from the best
    score downwards over as many detections as both have, so that a threshold keeps as many detections as before.

    Args:
        original: Scores of the detections of the original model.
        corrected: Scores of the detections of the corrected model, on the same images.
        num_knots: How many quantiles are kept; they are denser towards the best scores.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> before = rng.random(1000)
        >>> scale = score_scale(before, before**3)
        >>> bool(np.abs(scale(before**3) - before).max() < 0.02)
        True
    """
    before, after = _descending("original", original), _descending("corrected", corrected)
    count = min(len(before), len(after))
    if num_knots < 2:
        raise InputError(f"Expected `num_knots` to be at least 2, but got {num_knots}.")
    ranks = np.unique(np.round(np.geomspace(1, count, num_knots)).astype(np.intp)) - 1
    # Ranks that share a score share a knot, at the middle of what they would become.
    knots, group = np.unique(after[ranks], return_inverse=True)
    values = np.bincount(group, weights=before[ranks]) / np.bincount(group)
    inside = (knots > 0) & (knots < 1)
    knots = np.concatenate([[0.0], knots[inside], [1.0]])
    values = np.concatenate([[0.0], np.maximum.accumulate(values[inside]), [1.0]])
    return ScoreScale(knots, (1 - _SLOPE) * values + _SLOPE * knots)


def _descending(name: str, scores: npt.ArrayLike) -> FloatArray:
    values = np.asarray(scores, np.float64).ravel()
    if not len(values):
        raise InputError(f"Expected `{name}` to have scores, but there are none.")
    if not ((values >= 0) & (values <= 1)).all():
        raise InputError(f"Expected `{name}` to be scores from 0 to 1, but some are not.")
    return np.sort(values)[::-1]
