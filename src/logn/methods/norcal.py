"""NorCal (Pan et al., NeurIPS 2021): the foreground against the background, by training counts."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from logn.data.class_counts import ClassCounts
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.methods.checks import CountKind, checked_counts, checked_number, checked_target
from logn.statistics.head import Head

Weights = Literal["power", "effective-number"]


def norcal(
    counts: ClassCounts | npt.ArrayLike,
    gamma: float = 0.6,
    *,
    weights: Weights = "power",
    on_logits: bool = False,
    count_kind: CountKind = "images",
    target: npt.ArrayLike | None = None,
    background: int | None = None,
) -> ClassAffine:
    """NorCal (Pan et al., NeurIPS 2021): weigh the exponentials of the foreground, `softmax(x_c + log w_c)`.

    Dividing the exponentials (or the probabilities) and renormalising is a shift of the logits, so nothing overflows.
    The counts are raw image counts: dividing them by their sum would raise the whole foreground against the
    background.

    Args:
        counts: Training images of each foreground class.
        gamma: The power, 0 to change nothing; for effective-number weights the base, 0 < gamma < 1.
        weights: "power" for `N^-gamma`, "effective-number" for `(1 - gamma) / (1 - gamma^N)`.
        on_logits: Multiply the logits by the weight instead: another method, kept for comparison.
        count_kind: Which counts of a `ClassCounts` to take: "images" or "instances".
        target: Share of each foreground class where the model will be used, of any sum; None is the same for all. It
            enters with the power gamma, as the counts do: aiming at the counts moves no class against another.
        background: Index of the background column, which is left alone: None, 0 or -1.

    Example:
        >>> calibrated = norcal([100, 10, 1], gamma=0.6, background=-1)
        >>> calibrated.shift.round(6)
        array([-2.763102, -1.381551, -0.      ,  0.      ])
    """
    numbers = checked_counts("counts", counts, count_kind)
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
    settings: dict[str, Any] = {"gamma": power, "weights": weights, "on_logits": on_logits}
    if target is not None:
        shares = checked_target(target, len(numbers))
        shift = shift + power * np.log(shares / shares.mean())
        settings["target"] = shares.tolist()
    return ClassAffine.over_foreground(scale, shift, Head(background=background), method="norcal", settings=settings)
