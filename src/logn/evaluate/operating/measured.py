"""What thresholds keep: precision, recall, F1 and false alarms, of all detections and on average over classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.operating.choice import Draws
from logn.logits.arrays import FloatArray
from logn.strict_json import number_or_nan

# Of all detections, and means over the classes that have objects.
METRICS = ("precision", "recall", "F1", "class precision", "class recall", "class F1", "false alarms")


@dataclass(frozen=True)
class Estimate:
    """A number with the ends of its interval; NaN where there is none.

    Example:
        >>> str(Estimate(0.5, 0.25, 0.75)), str(Estimate(0.5))
        ('0.500 [0.250, 0.750]', '0.500')
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        ends = "" if math.isnan(self.low) else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.value:.3f}{ends}" if not math.isnan(self.value) else "–"

    def to_list(self) -> list[float]:
        """Value, low and high."""
        return [self.value, self.low, self.high]

    @classmethod
    def from_list(cls, values: list[float | None]) -> Estimate:
        """Read what `to_list` gave, also after a way through JSON."""
        return cls(*map(number_or_nan, values))


Estimates = Mapping[str, Estimate]


def kept_counts(draws: Draws, thresholds: FloatArray) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Hits and false alarms `(F, B)` of each class at the thresholds `(F, B)`."""
    pairs = [drawn.at(row) for drawn, row in zip(draws.classes, thresholds, strict=True)]
    shape = (len(pairs), draws.weights.shape[1])
    return tuple(np.array([pair[side] for pair in pairs]).reshape(shape) for side in (0, 1))  # type: ignore[return-value]


def measure(draws: Draws, thresholds: FloatArray) -> dict[str, FloatArray]:
    """The metrics `(B,)` of each draw at its thresholds `(F, B)`.

    Where nothing is kept there is no precision, and where there is no object no recall: NaN, which means leave out.
    """
    hits, alarms = kept_counts(draws, thresholds)
    objects = np.array([drawn.objects for drawn in draws.classes]).reshape(hits.shape)
    kept, wanted = hits + alarms, hits + alarms + objects
    present = objects > 0
    return {
        "precision": _ratio(hits.sum(axis=0), kept.sum(axis=0)),
        "recall": _ratio(hits.sum(axis=0), objects.sum(axis=0)),
        "F1": _ratio(2 * hits.sum(axis=0), wanted.sum(axis=0)),
        "class precision": _mean(_ratio(hits, kept), present),
        "class recall": _mean(_ratio(hits, objects), present),
        "class F1": _mean(_ratio(2 * hits, wanted), present),
        "false alarms": _ratio(alarms.sum(axis=0), draws.units),
    }


def _ratio(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> FloatArray:
    result: FloatArray = np.full(np.shape(part), np.nan)
    np.divide(part, whole, out=result, where=np.asarray(whole) > 0)
    return result


def _mean(values: FloatArray, present: npt.NDArray[np.bool_]) -> FloatArray:
    """Mean over the classes that have objects and a value; NaN for none."""
    counted = present & ~np.isnan(values)
    return _ratio(np.where(counted, values, 0.0).sum(axis=0), counted.sum(axis=0))


def interval(values: FloatArray, confidence: float) -> tuple[float, float]:
    """The ends between which the middle share of the draws lies; NaN without any.

    Example:
        >>> [round(end, 6) for end in interval(np.arange(101.0), 0.9)]
        [5.0, 95.0]
    """
    known = values[~np.isnan(values)]
    if len(known) < 2:
        return math.nan, math.nan
    tail = (1 - confidence) / 2
    low, high = np.quantile(known, [tail, 1 - tail])
    return float(low), float(high)
