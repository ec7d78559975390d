"""Logit Normalization (Zhao, Teng, Wang; IJCV 2024): one formula, of which the paper's equations are the defaults."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.class_frequencies import checked_number, checked_strength, checked_target
from logn.calibrators.known_activation import assumed_activation, known_activation
from logn.calibrators.method import Method, MethodInputs, Option, Options
from logn.calibrators.target import STRENGTH_OPTION, TARGET_OPTION, target_shares
from logn.errors import InputError, LogNWarning
from logn.logits.arrays import FloatArray, check_background, foreground_columns
from logn.statistics.diagnosis import active_classes as active_classes
from logn.statistics.diagnosis import refuse_probabilities, value_checks
from logn.statistics.moments import ClassMoments
from logn.statistics.sums import ACTIVATIONS

Statistic = Literal["mean", "prior"]
MarginName = Literal["min", "mean", "max", "background"]
Margin = MarginName | float
STATISTICS = ("mean", "prior")
MARGIN_NAMES = ("min", "mean", "max", "background")


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
    background: int | str | None = "recorded",
    activation: str | None = "recorded",
) -> ClassAffine:
    """Take away what each foreground class has over the lowest one: `(x_c - strength * statistic_c + margin) / std_c`.

    The defaults are the paper's equations: with a background column equation 2, `(x_c - mean_c + min(mean)) / std_c`,
    the background left alone; without one equation 1, `(x_c - mean_c) / std_c`. What LogN recommends is another setting
    of the same formula, `logn.recommend(moments).fit(moments)`: half of the prior, not divided.

    Args:
        moments: Statistics of the logits over training images.
        statistic: How a class's advantage is measured: "mean", its mean logit, or "prior", the logarithm of its mean
            probability, as Prior2Posterior (WACV 2025) does.
        strength: How much of the advantage to take away, from 0 to 1.
        use_std: Divide by the standard deviation of the class.
        margin: The level to which the foreground is brought: "min" (the paper's), "mean" or "max" of `strength *
            statistic` over the live foreground classes, "background" for that of the background, or a number. Without a
            background there is nothing to keep a margin from: "min" is 0 then, and the other names are refused.
        std_power: Power of the standard deviation; 2 is the paper's squared variant.
        eps: Added to the variance.
        target: Share of each foreground class where the model will be used, of any sum: `strength * log(target_c)`
            comes on top. None for equal shares.
        active: Which columns are live, one boolean per column. The others are left alone and do not set the margin.
            By default, columns that were never seen or hardly vary are not live.
        background: Index of the background column: None, 0, -1, or "recorded" to take it from the statistics.
        activation: "softmax", "sigmoid", or "recorded". Only the prior depends on it.

    Example:
        >>> moments = ClassMoments(4)
        >>> moments.update(np.array([[2, 0.5, -1, 3], [0, 1.5, -2, 4], [1, -0.5, 0.5, 2], [-1, 0, -3, 5.0]]))
        >>> affine = logit_normalization(moments, background=-1)
        >>> affine(np.array([1.0, 0.8, 0.2, 1.5])).round(6)
        array([-0.67777 , -1.112518,  0.133955,  1.5     ])
        >>> logit_normalization(moments, statistic="prior", strength=0.5, use_std=False, background=-1).shift.round(3)
        array([-0.597, -0.113,  0.   ,  0.   ])
    """
    check_moments(moments)
    index = check_background(moments.metadata.background if background == "recorded" else background)
    known = known_activation(moments.metadata, index, activation)
    foreground = foreground_columns(moments.num_columns, index)
    live = active_classes(moments, index) if active is None else _checked_mask(active, moments.num_columns)
    values = _statistic(moments, statistic, known)
    live = (live & np.isfinite(values))[foreground]
    if not live.any():
        raise InputError("Expected `moments` to have at least one live foreground class, but got none.")
    for sentence in value_checks(moments, background=index):
        warnings.warn(sentence, LogNWarning, stacklevel=2)
    values = checked_strength(strength) * np.where(np.isfinite(values), values, 0.0)
    level = _margin_value(margin, values[foreground][live], None if index is None else float(values[index]), index)
    divisor = _divisor(moments, foreground, live, std_power, eps) if use_std else np.ones(len(live))
    settings: dict[str, Any] = {
        "statistic": statistic,
        "strength": strength,
        "use_std": use_std,
        "margin": margin,
        "margin_value": level,
        "std_power": std_power,
        "eps": eps,
        "inactive": int((~live).sum()),
    }
    towards = np.zeros(len(live))
    if target is not None:
        shares = checked_target(target, len(live))
        settings["target"] = shares.tolist()
        towards = strength * np.log(shares / shares[live].mean())
    shift = (level - values[foreground]) / divisor + towards
    return ClassAffine.over_foreground(
        np.where(live, 1.0 / divisor, 1.0),
        np.where(live, shift, 0.0),
        index,
        method="logn",
        settings=settings,
        source=moments.metadata.with_changes(background=index, activation=known),
    )


def check_moments(moments: ClassMoments) -> None:
    """Refuse what is no statistics, statistics of one row, and those of probabilities."""
    if not isinstance(moments, ClassMoments):
        raise InputError(
            f"Expected `moments` to be a logn.ClassMoments, but got {type(moments).__name__}; logits are added by its "
            "update(logits), a file is read by its load(path)."
        )
    if moments.count.max() == 1 and np.isnan(moments.variance).all():
        raise InputError("Expected `moments` to hold at least two rows of logits, but got 1.")
    refuse_probabilities(moments)


def _statistic(moments: ClassMoments, statistic: str, activation: str | None) -> FloatArray:
    """The statistic of each column; not finite where a column has none."""
    if statistic not in STATISTICS:
        raise InputError(f"Expected `statistic` to be one of {STATISTICS}, but got {statistic!r}.")
    if statistic == "mean":
        return moments.mean
    prior = moments.mean_probability_of(assumed_activation(activation))
    if prior is None:
        raise InputError(
            "The statistics do not hold the mean probability of each class, which the prior needs: collect them again "
            "with mean_probability=True."
        )
    with np.errstate(divide="ignore"):  # a class that never had any probability is not live
        return np.asarray(np.log(prior))


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


def _margin_value(margin: Margin, live: FloatArray, of_background: float | None, index: int | None) -> float:
    """The margin as a number; `live` are the weighted statistics of the live foreground classes."""
    if not isinstance(margin, str):
        return checked_number("margin", margin)
    if margin not in MARGIN_NAMES:
        raise InputError(f"Expected `margin` to be a number or one of {MARGIN_NAMES}, but got {margin!r}.")
    if of_background is None:
        if margin != "min":
            raise InputError(
                f"The margin {margin!r} is kept from a background column, and this head has none: leave `margin` out."
            )
        return 0.0
    named = {"min": live.min(), "mean": live.mean(), "max": live.max(), "background": of_background}
    return float(named[margin])


def _checked_mask(active: npt.ArrayLike, num_classes: int) -> npt.NDArray[np.bool_]:
    mask = np.asarray(active)
    if mask.dtype != np.bool_ or mask.shape != (num_classes,):
        raise InputError(
            f"Expected `active` to be one boolean per column ({num_classes}), but got {mask.dtype} {mask.shape}."
        )
    return mask


def _fit(inputs: MethodInputs, options: Options) -> ClassAffine:
    given: Options = {"background": inputs.background, "active": inputs.active, "activation": inputs.activation}
    given["target"] = target_shares(inputs, options)
    return logit_normalization(inputs.needed_moments(), **(given | options))


MARGIN_OPTION = Option("number or name", "min (default), mean, max, background or a number.", MARGIN_NAMES, "--margin")
ACTIVATION_OPTION = Option("name", "softmax or sigmoid; default: as recorded.", (*ACTIVATIONS, "recorded"))

METHOD = Method(
    "logn",
    "Logit Normalization as in the paper",
    _fit,
    {
        "statistic": Option("name", "mean (default) or prior: how a class's advantage is measured.", STATISTICS),
        "strength": STRENGTH_OPTION,
        "use_std": Option("flag", "Divide by the standard deviation (default).", flag="--std/--no-std"),
        "margin": MARGIN_OPTION,
        "std_power": Option("number", "Power of the standard deviation; default 1."),
        "eps": Option("number", "Added to the variance; default 1e-5."),
        "target": TARGET_OPTION,
        "activation": ACTIVATION_OPTION,
    },
    needs=("moments",),
    takes=("active", "counts"),
)
