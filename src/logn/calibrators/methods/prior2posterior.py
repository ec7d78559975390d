"""Prior2Posterior (WACV 2025): subtract the logarithm of the prior that the model really has, its mean probability."""

from __future__ import annotations

import warnings
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from logn.calibrators.balanced_margin import margin_that_balances, needed_sample
from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.class_frequencies import checked_number, checked_target
from logn.calibrators.known_activation import known_activation
from logn.calibrators.method import Method, MethodInputs, Option, Options
from logn.calibrators.methods.logit_normalization import logit_normalization
from logn.calibrators.target import STRENGTH_OPTION, TARGET_OPTION, target_shares
from logn.errors import InputError, LogNWarning
from logn.logits.arrays import FloatArray, foreground_columns
from logn.statistics.active_classes import active_classes
from logn.statistics.mean_probability import estimate_mean_probability
from logn.statistics.metadata import ACTIVATIONS
from logn.statistics.moments import ClassMoments

# Standard error of the logarithm of a sampled prior, and so of a class's shift, from which on a warning says so.
LARGE_ERROR = 0.25
_BALANCE = "balance"


class _Prior(NamedTuple):
    """Mean probability of each column, its standard error, where it comes from, and what would make it better."""

    mean: FloatArray
    error: FloatArray
    origin: str
    remedy: str


def prior2posterior(
    moments: ClassMoments,
    *,
    background: int | str | None = "recorded",
    target: npt.ArrayLike | None = None,
    strength: float = 1.0,
    margin: Literal["balance"] | float = "balance",
    extra_margin: float = 0.0,
    std_power: float = 0.0,
    eps: float = 1e-5,
    active: npt.ArrayLike | None = None,
    activation: str | None = "recorded",
) -> ClassAffine:
    """Map `x_c` to `x_c + strength * (log(target_c) - log(p_c))`, with `p_c` the model's mean probability of class c.

    The mean is over training images, and neither labels nor class counts are needed: where cross-entropy has converged
    it equals the share of the class among the training labels, so this is `logit_adjustment` by what the model has
    learnt, sampler and loss included. Beside a background `p_c` is the share among the foreground probabilities, and
    the margin on top keeps the detector's own foreground mass. For sigmoids, which each have a prior of their own, the
    logarithms are those of odds, and the targets are scaled to the sum of the mean probabilities.

    Where the statistics did not record the mean probability it is estimated from the row sample, with a warning where
    that is too inaccurate for some class. The largest standard error of a class's shift is in
    `settings["prior_error"]`.

    Args:
        moments: Statistics of the logits over training images, recorded with `mean_probability=True`.
        background: Place of the background column: None, 0, -1, or "recorded" to take it from the statistics.
        target: Share of each foreground class where the model will be used, of any sum; None is the same for all.
        strength: Factor on the shifts and power of the scales, 0 to change nothing. 1 is right for classes of equal
            weight; half of it suits deployments that are as long-tailed as training.
        margin: Common shift of all classes: "balance" keeps the foreground mass over the recorded sample (for sigmoids
            the expected number of detections), or a number. A softmax without a background ignores it.
        extra_margin: Added to the margin; below 0 for fewer detections than the model had.
        std_power: Before all that, divide each class, around its mean, by its standard deviation to this power over the
            average of those; 0 divides nothing. The prior is then that of the scaled model over the row sample.
        eps: Added to the variance.
        active: Which columns are alive, as in `logit_normalization`; dead ones are left alone.
        activation: "softmax", "sigmoid", or "recorded" to take it from the statistics; it has to be known.

    Example:
        >>> moments = ClassMoments(2, mean_probability=True)
        >>> moments.update(np.log([[9.0, 1.0], [6.0, 2.0], [3.0, 1.0]]))
        >>> moments.mean_probability.round(6)
        array([0.8, 0.2])
        >>> prior2posterior(moments, activation="softmax").shift.round(6)
        array([-0.470004,  0.916291])
    """
    factor, extra = checked_number("strength", strength), checked_number("extra_margin", extra_margin)
    # The scaled model: checks the statistics, too, and without a power scales nothing.
    scaling = logit_normalization(
        moments,
        background=background,
        margin=0.0,
        use_mean=False,
        relative_std=True,
        std_power=std_power,
        eps=eps,
        active=active,
        activation=activation,
    )
    place = scaling.background
    known = _needed_activation(moments, place, activation)
    foreground = foreground_columns(moments.num_classes, place)
    alive = (active_classes(moments, place) if active is None else np.asarray(active))[foreground]
    scale = scaling.scale[foreground] ** factor
    centre = np.where(alive, moments.mean[foreground], 0.0) * (1.0 - scale)
    scaled = ClassAffine.over_foreground(scale, centre, place, method="p2p")
    prior = _prior(moments, scaled, known)
    error = _checked_error(moments, prior, foreground, alive)
    shares = np.ones(len(alive)) if target is None else checked_target(target, len(alive))
    shift = centre + np.where(alive, factor * _towards(shares, prior.mean[foreground], alive, known), 0.0)
    settings: dict[str, Any] = {
        "strength": factor,
        "margin": margin,
        "extra_margin": extra,
        "std_power": std_power,
        "eps": eps,
        "activation": known,
        "inactive": int((~alive).sum()),
        "prior_from": prior.origin,
        "prior_error": error,
    }
    if target is not None:
        settings["target"] = shares.tolist()
    if margin == _BALANCE:
        unbalanced = ClassAffine.over_foreground(scale, shift, place, method="p2p")
        way_out = "another margin: margin=0 (`p2p:margin=0`)"
        solution = margin_that_balances(moments, unbalanced, alive, known, way_out=way_out)
        settings |= solution.to_settings()
        value = solution.value
    elif isinstance(margin, str):
        raise InputError(f'Expected `margin` to be a number or "balance", but got {margin!r}.')
    else:
        value = settings["margin_value"] = checked_number("margin", margin)
    return ClassAffine.over_foreground(
        scale,
        np.where(alive, shift + value + extra, 0.0),
        place,
        method="p2p",
        settings=settings,
        source=moments.metadata.with_changes(background=place, activation=known),
    )


def _needed_activation(moments: ClassMoments, background: int | None, given: str | None) -> str:
    known = known_activation(moments.metadata.activation, background, given)
    if known is None:
        raise InputError(
            "Expected `activation` to be known for the mean probability, but the statistics do not say it; say "
            'activation="softmax" or activation="sigmoid" (`--activation`).'
        )
    return known


def _prior(moments: ClassMoments, scaled: ClassAffine, activation: str) -> _Prior:
    """Mean probability of each column of the scaled model: recorded where nothing was scaled, else of the sample."""
    seen, more_rows = float(moments.count.max()), "keep more rows (sample_rows=…, `--sample-rows`)"
    if (scaled.scale != 1.0).any():
        rows = needed_sample(moments, "for the prior of the scaled model", "std_power=0")
        estimate = estimate_mean_probability(scaled(rows.astype(np.float64)), activation, seen)
        return _Prior(*estimate, "sample", more_rows)
    recorded = moments.mean_probability_of(activation)
    if recorded is not None:
        return _Prior(recorded, np.zeros_like(recorded), "recorded", "")
    again = "record it with mean_probability=True (`--prior`)"
    rows = needed_sample(moments, "or the mean probability of each class", "the latter with mean_probability=True")
    return _Prior(*estimate_mean_probability(rows.astype(np.float64), activation, seen), "sample", again)


def _checked_error(moments: ClassMoments, prior: _Prior, foreground: slice, alive: npt.NDArray[np.bool_]) -> float:
    """The largest standard error of the logarithm of a live class's prior; a prior of 0 is refused."""
    columns = np.arange(moments.num_classes)[foreground][alive]
    mean, names = prior.mean[columns], moments.metadata.class_names
    never = ~(mean > 0)
    if never.any():
        column = int(columns[np.flatnonzero(never)[0]])
        raise InputError(
            f"Expected each live class to have a mean probability above 0, but got {prior.mean[column]} for column "
            f"{column}; declare it dead with active=… (`--active`)."
        )
    errors = prior.error[columns] / mean
    worst = int(errors.argmax())
    if errors[worst] > LARGE_ERROR:
        column = int(columns[worst])
        name = f"column {column}" if names is None else repr(names[column])
        warnings.warn(
            f"{len(moments.sample):,} sampled rows may leave an error of more than {LARGE_ERROR:.0%} in the mean "
            f"probability of {int((errors > LARGE_ERROR).sum()):,} of {len(columns):,} classes (largest: "
            f"{errors[worst]:.0%}, {name}); {prior.remedy}.",
            LogNWarning,
            stacklevel=3,
        )
    return float(errors[worst])


def _towards(target: FloatArray, prior: FloatArray, alive: npt.NDArray[np.bool_], activation: str) -> FloatArray:
    """What takes the prior of each foreground class to its target; dead classes count in neither."""
    aim, mass = target / target[alive].sum(), prior[alive].sum()
    safe = np.where(alive, prior, mass)
    if activation == "softmax":
        result: FloatArray = np.log(aim) - np.log(safe / mass)
        return result
    aim = np.where(alive, aim, 0.0) * mass
    if (aim >= 1).any():
        column = int(aim.argmax())
        raise InputError(
            f"Expected `target` to leave each mean probability below 1, but the share of class {column} times the "
            f"{mass:.4g} labels that the model expects of a row is {aim[column]:.4g}."
        )
    with np.errstate(divide="ignore", invalid="ignore"):  # of dead classes
        return np.asarray(np.log(aim / (1.0 - aim)) - np.log(safe / (1.0 - safe)))


def _fit(inputs: MethodInputs, options: Options) -> ClassAffine:
    given: Options = {"background": inputs.background, "active": inputs.active, "activation": inputs.activation}
    given["target"] = target_shares(inputs, options)
    return prior2posterior(inputs.needed_moments(), **(given | options))


METHOD = Method(
    "p2p",
    "Prior2Posterior",
    _fit,
    {
        "strength": STRENGTH_OPTION,
        "target": TARGET_OPTION,
        "margin": Option("number or name", "balance (default) or a number.", (_BALANCE,)),
        "extra_margin": Option("number", "Added to the margin; default 0.", flag="--extra-margin"),
        "std_power": Option("number", "Divide by the relative spread to this power first.", flag="--std-power"),
        "eps": Option("number", "Added to the variance; default 1e-5.", flag="--eps"),
        "activation": Option("name", "softmax or sigmoid; default: as recorded.", (*ACTIVATIONS, "recorded")),
    },
    needs=("moments",),
    takes=("active", "counts"),
)
