"""How strong the bias against the tail looks when neither labels nor class counts are known."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from logn.logits.arrays import FloatArray, check_background, foreground_columns
from logn.statistics.active_classes import active_classes
from logn.statistics.diagnosis import spearman
from logn.statistics.moments import ClassMoments

# A class that wins fewer rows than this share of what equal classes would win is called starved.
STARVED_SHARE = 0.1
# Of a normal distribution, two thirds lie between these percentiles; half their distance is one standard deviation.
PERCENTILES = (16.0, 84.0)


@dataclass(frozen=True)
class TailBias:
    """What the moments and the row sample say about the differences between the foreground classes.

    Spreads are half the distance of the 16th and the 84th percentile, so that a few odd classes do not set them.

    Attributes:
        mean_spread: Spread of the classes' mean logits, in units of the median standard deviation of a class. Without
            a bias it is near 0: a class that starts one unit lower needs that much more evidence to win.
        std_spread: Spread of the standard deviations over their median. Without a bias it is near 0.
        mean_std_correlation: Rank correlation of mean and standard deviation over the classes. In a long tail both
            fall with the frequency, so it is positive; NaN where one of them does not vary.
        starved_share: Share of the classes that have the highest foreground logit in fewer than a tenth of the rows
            that equal classes would win; NaN without a row sample.
        starved_by_chance: What that share would be if all classes won equally often, because the sample is small.
        classes: Foreground classes that were looked at; dead ones are left out.
        rows: Rows of the sample.
    """

    mean_spread: float
    std_spread: float
    mean_std_correlation: float
    starved_share: float
    starved_by_chance: float
    classes: int
    rows: int

    def to_dict(self) -> dict[str, float]:
        """The numbers by name."""
        return asdict(self)


def tail_bias(moments: ClassMoments, *, background: int | str | None = "recorded") -> TailBias:
    """Measure how differently the model treats its classes, whatever the images show.

    Args:
        moments: The statistics, with a row sample if `starved_share` is wanted.
        background: Place of the background column: None, 0, -1, or "recorded" to take it from the statistics.

    Example:
        >>> moments = ClassMoments(4, sample_rows=1000)
        >>> rows = np.random.default_rng(0).standard_normal((1000, 4)) * [2.0, 1.5, 1.0, 0.5] - [0, 2, 4, 6]
        >>> moments.update(rows)
        >>> bias = tail_bias(moments)
        >>> round(bias.mean_spread, 1), round(bias.std_spread, 1), bias.mean_std_correlation, bias.starved_share
        (1.6, 0.4, 1.0, 0.5)
    """
    place = check_background(moments.metadata.background if background == "recorded" else background)
    foreground = foreground_columns(moments.num_classes, place)
    mean, std = moments.mean[foreground], moments.std[foreground]
    alive = active_classes(moments, place)[foreground] & np.isfinite(std)
    mean, std = mean[alive], std[alive]
    rows = moments.sample
    typical = float(np.median(std)) if len(std) else float("nan")
    starved, by_chance = _starved(rows[:, foreground][:, alive])
    return TailBias(
        mean_spread=_spread(mean) / typical,
        std_spread=_spread(std) / typical,
        mean_std_correlation=spearman(mean, std),
        starved_share=starved,
        starved_by_chance=by_chance,
        classes=len(mean),
        rows=len(rows),
    )


def chance_correlation(num_classes: int) -> float:
    """About the rank correlation that chance alone exceeds, either way, in one of twenty unrelated pairs.

    Example:
        >>> round(chance_correlation(101), 3)
        0.196
    """
    return 1.96 / math.sqrt(max(num_classes - 1, 1))


def _spread(values: FloatArray) -> float:
    if len(values) == 0:
        return float("nan")
    low, high = np.percentile(values, PERCENTILES)
    return float(high - low) / 2.0


def _starved(rows: npt.NDArray[np.float16]) -> tuple[float, float]:
    """The share of classes that almost never win, and what chance would make of it."""
    if rows.size == 0:
        return float("nan"), float("nan")
    fair = len(rows) / rows.shape[1]
    wins = np.bincount(rows.argmax(axis=1), minlength=rows.shape[1])
    few = STARVED_SHARE * fair
    # Wins of equal classes are nearly Poisson; summed in logarithms, since both factors can be out of range.
    below = range(math.ceil(few))
    chance = sum(math.exp(count * math.log(fair) - fair - math.lgamma(count + 1)) for count in below)
    return float((wins < few).mean()), chance
