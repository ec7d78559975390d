"""NorCal (Pan et al., NeurIPS 2021): divide foreground scores by a power of the class count, then renormalise."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.class_frequencies import checked_counts, checked_number
from logn.calibrators.method import COUNT_KIND_OPTION, Method, MethodInputs, Option, Options
from logn.calibrators.target import STRENGTH_OPTION, TARGET_OPTION, Aim, target_shares
from logn.errors import InputError

Weights = Literal["power", "effective-number"]


def norcal(
    counts: npt.ArrayLike,
    gamma: float = 0.6,
    *,
    background: int | None = None,
    weights: Weights = "power",
    on_logits: bool = False,
    target: npt.ArrayLike | None = None,
    strength: float = 1.0,
) -> ClassAffine:
    """Weigh the exponentials of the foreground: `softmax(x_c + log w_c)`, the background kept.

    Dividing the exponentials (or the probabilities) and renormalising is a shift of the logits, so nothing overflows.
    The counts are raw image counts: dividing them by their sum would raise the whole foreground against the
    background.

    Args:
        counts: Training images of each foreground class.
        gamma: The power, 0 to change nothing; for effective-number weights the base, 0 < gamma < 1.
        background: Place of the background column, which is left alone: None, 0 or -1.
        weights: "power" for `N^-gamma`, "effective-number" for `(1 - gamma) / (1 - gamma^N)`.
        on_logits: Multiply the logits by the weight instead: another method, kept for comparison.
        target: Share of each foreground class where the model will be used, of any sum; None is the same for all. It
            enters with the power gamma, as the counts do: aiming at the counts moves no class against another.
        strength: How much of the correction, 0 to change nothing.

    Example:
        >>> calibrated = norcal([100, 10, 1], gamma=0.6, background=-1)
        >>> calibrated.shift.round(6)
        array([-2.763102, -1.381551, -0.      ,  0.      ])
    """
    numbers = checked_counts("counts", counts)
    power = checked_number("gamma", gamma)
    if weights == "power":
        log_weights = -power * np.log(numbers)
    elif weights == "effective-number":
        if not 0.0 < power < 1.0:
            raise InputError(f"Expected `gamma` to be between 0 and 1 for effective-number weights, but got {gamma!r}.")
        log_weights = np.log1p(-power) - np.log1p(-(power**numbers))
    else:
        raise InputError(f"Expected `weights` to be one of ('power', 'effective-number'), but got {weights!r}.")
    scale, shift = (np.exp(log_weights), 0.0 * numbers) if on_logits else (np.ones_like(numbers), log_weights)
    if target is not None and (on_logits or weights != "power"):
        raise InputError(
            'Expected `target` only with weights="power" and without `on_logits`, but got it with '
            f"{'on_logits' if on_logits else weights}."
        )
    aim = Aim(target, strength, len(numbers))
    scale, shift = aim(scale, shift, power=power)
    settings = {"gamma": power, "weights": weights, "on_logits": on_logits, **aim.to_settings()}
    return ClassAffine.over_foreground(scale, shift, background, method="norcal", settings=settings)


def _fit(inputs: MethodInputs, options: Options) -> ClassAffine:
    target = target_shares(inputs, options)
    counts = inputs.needed_counts(options.pop("counts", "images"))
    return norcal(counts, background=inputs.background, target=target, **options)


METHOD = Method(
    "norcal",
    "normalised calibration",
    _fit,
    {
        "gamma": Option("number", "power; default 0.6.", flag="--gamma"),
        "weights": Option("name", "power (default) or effective-number.", get_args(Weights)),
        "on_logits": Option("flag", "Multiply the logits instead; off by default."),
        "counts": COUNT_KIND_OPTION,
        "strength": STRENGTH_OPTION,
        "target": TARGET_OPTION,
    },
    needs=("counts",),
)
