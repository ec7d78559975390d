"""Logit Normalization (Zhao, Teng, Wang; IJCV 2024), and the formula that other methods are settings of.

A softmax without a background ignores a shift that all classes share; sigmoids do not. So where the activation is not
known, the prior is that of sigmoids: right for them, and no harm to a softmax.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray
from logn.errors import InputError, warn
from logn.methods.affine import ClassAffine
from logn.methods.checks import check_moments, checked_number, checked_share, checked_target
from logn.statistics.doubts import value_checks
from logn.statistics.head import ASSUMED, Head, foreground_columns
from logn.statistics.moments import ClassMoments
from logn.statistics.summary import active_classes

Statistic = Literal["mean", "prior"]
MarginName = Literal["min", "mean", "max", "background"]
Margin = MarginName | float


def logit_normalization(
    moments: ClassMoments,
    *,
    statistic: Statistic = "mean",
    strength: float = 1.0,
    use_std: bool = True,
    margin: Margin = "min",
    std_power: float = 1.0,
    eps: float = 1e-5,
    target: npt.ArrayLike | None = None,
    active: npt.ArrayLike | None = None,
    background: int | None = None,
    activation: str | None = None,
) -> ClassAffine:
    """Take away what each foreground class has over the lowest one: `(x_c - strength * statistic_c + margin) / std_c`.

    The defaults are the paper's equations: with a background column equation 2, `(x_c - mean_c + min(mean)) / std_c`,
    the background left alone; without one equation 1, `(x_c - mean_c) / std_c`. What LogN recommends is another setting
    of the same formula, `logn.recommend(moments).fit(moments)`: a part of the prior, not divided.

    Args:
        moments: Statistics of the logits over training images.
        statistic: How a class's advantage is measured: "mean", its mean logit, or "prior", the logarithm of its mean
            probability, as Prior2Posterior (WACV 2025) does.
        strength: How much of the advantage to take away, from 0 to 1.
        use_std: Divide by the standard deviation of the class.
        margin: The level to which the foreground is brought: "min" (the paper's), "mean" or "max" of the statistic over
            the live foreground classes, "background" for that of the background, or a number; the strength does not
            change it. Without a background there is nothing to keep a margin from: "min" is 0 then, and the other names
            are refused.
        std_power: Power of the standard deviation; 2 is the paper's squared variant.
        eps: Added to the variance.
        target: Share of each foreground class where the model will be used, of any sum: `strength * log(target_c)`
            comes on top. None for equal shares.
        active: Which columns are live, one boolean per column. The others are left alone and do not set the margin.
            By default, columns that were never seen or hardly vary are not live.
        background: Index of the background column, 0 or -1; by default that of the statistics.
        activation: "softmax" or "sigmoid"; by default that of the statistics. Only the prior depends on it.

    Example:
        >>> moments = ClassMoments(4)
        >>> moments.update(np.array([[2, 0.5, -1, 3], [0, 1.5, -2, 4], [1, -0.5, 0.5, 2], [-1, 0, -3, 5.0]]))
        >>> affine = logit_normalization(moments, background=-1)
        >>> affine(np.array([1.0, 0.8, 0.2, 1.5])).round(6)
        array([-0.67777 , -1.112518,  0.133955,  1.5     ])
        >>> logit_normalization(moments, strength=0, use_std=False, background=-1).shift
        array([-1.375, -1.375, -1.375,  0.   ])
    """
    check_moments(moments)
    head = moments.head.settled(background, activation)
    values, live = live_statistic(moments, statistic, head, active)
    foreground = foreground_columns(moments.num_columns, head.background)
    level = _margin_value(
        margin, values[foreground][live], None if head.background is None else values[head.background]
    )
    divisor = _divisor(moments, foreground, live, std_power, eps) if use_std else np.ones(len(live))
    settings = {"statistic": statistic, "use_std": use_std, "margin": margin, "std_power": std_power, "eps": eps}
    return shifted_classes(values[foreground], live, strength, level, target, head, divisor=divisor, settings=settings)


def live_statistic(
    moments: ClassMoments, statistic: str, head: Head, active: npt.ArrayLike | None = None
) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """The statistic of each column (0 where a column has none), and which foreground classes are live: at least one."""
    live = active_classes(moments, head.background) if active is None else _checked_mask(active, moments.num_columns)
    values = _statistic(moments, statistic, head.activation)
    live = (live & np.isfinite(values))[foreground_columns(moments.num_columns, head.background)]
    if not live.any():
        raise InputError("`moments` has no foreground class that was seen and varies: collect more rows.")
    for sentence in value_checks(moments, background=head.background):
        warn(sentence)
    return np.where(np.isfinite(values), values, 0.0), live


def shifted_classes(
    values: FloatArray,
    live: npt.NDArray[np.bool_],
    strength: float,
    level: float,
    target: npt.ArrayLike | None,
    head: Head,
    *,
    divisor: FloatArray | float = 1.0,
    settings: Mapping[str, Any],
) -> ClassAffine:
    """`(x_c - strength * values_c + level) / divisor_c` for the live foreground classes, and the way to a target."""
    known = {**settings, "strength": strength, "margin_value": level, "inactive": int((~live).sum())}
    shift = (level - checked_share("strength", strength) * values) / divisor
    if target is not None:
        shares = checked_target(target, len(live))
        known["target"] = shares.tolist()
        shift = shift + strength * np.log(shares / shares[live].mean())
    return ClassAffine.over_foreground(
        np.where(live, 1.0 / np.asarray(divisor), 1.0), np.where(live, shift, 0.0), head, method="logn", settings=known
    )


def mean_probability(moments: ClassMoments, activation: str | None) -> FloatArray:
    """Mean probability of each column; without an activation that of a softmax. InputError if it was not recorded."""
    prior = moments.mean_probability_of(activation or ASSUMED)
    if prior is None:
        raise InputError(
            "The statistics do not hold the mean probability of each class, which the prior needs: collect them again "
            "(in Python with mean_probability=True)."
        )
    return prior


def _statistic(moments: ClassMoments, statistic: str, activation: str | None) -> FloatArray:
    """The statistic of each column; not finite where a column has none."""
    if statistic not in get_args(Statistic):
        raise InputError(f"Expected `statistic` to be one of {get_args(Statistic)}, but got {statistic!r}.")
    if statistic == "mean":
        return moments.mean
    with np.errstate(divide="ignore"):  # a class that never had any probability is not live
        return np.asarray(np.log(mean_probability(moments, activation)))


def _divisor(
    moments: ClassMoments, foreground: slice, live: npt.NDArray[np.bool_], std_power: float, eps: float
) -> FloatArray:
    """What each foreground logit is divided by."""
    if eps < 0 or not np.isfinite(eps):
        raise InputError(f"Expected `eps` to be at least 0, but got {eps!r}.")
    std = np.sqrt(moments.variance[foreground] + eps) ** checked_number("std_power", std_power)
    std = np.where(live & np.isfinite(std), std, 1.0)
    if (std == 0).any():
        raise InputError("Expected `eps` to be above 0 where a class does not vary, but got 0.")
    return std


def _margin_value(margin: Margin, live: FloatArray, of_background: float | None) -> float:
    """The margin as a number; `live` are the statistics of the live foreground classes."""
    if not isinstance(margin, str):
        return checked_number("margin", margin)
    if margin not in get_args(MarginName):
        raise InputError(f"Expected `margin` to be a number or one of {get_args(MarginName)}, but got {margin!r}.")
    if of_background is None:
        if margin != "min":
            raise InputError(
                f"The margin {margin!r} is kept from a background column, and this head has none: leave `margin` out."
            )
        return 0.0
    named = {"min": live.min(), "mean": live.mean(), "max": live.max(), "background": of_background}
    return float(named[margin])


def _checked_mask(active: npt.ArrayLike, num_columns: int) -> npt.NDArray[np.bool_]:
    mask = np.asarray(active)
    if mask.dtype != np.bool_ or mask.shape != (num_columns,):
        raise InputError(
            f"Expected `active` to be one boolean per column ({num_columns}), but got {mask.dtype} {mask.shape}."
        )
    return mask
