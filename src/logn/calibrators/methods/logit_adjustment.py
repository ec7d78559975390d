"""Logit adjustment (Menon et al., ICLR 2021): subtract the logarithm of the class prior."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.class_frequencies import checked_counts, checked_number, checked_strength, checked_target
from logn.calibrators.method import COUNT_KIND_OPTION, Method, MethodInputs, Option, Options
from logn.calibrators.target import STRENGTH_OPTION, TARGET_OPTION, target_shares


def logit_adjustment(
    counts: npt.ArrayLike,
    tau: float = 1.0,
    *,
    background: int | None = None,
    priors: bool = True,
    target: npt.ArrayLike | None = None,
    strength: float = 1.0,
) -> ClassAffine:
    """Map `x_c` to `x_c - tau * log(prior_c)`, with `prior_c` the share of class c among the training samples.

    Where the classes will not be equally frequent, `target` says how frequent: `+ log(target_c)` comes on top. Half the
    strength is for deployments that are as long-tailed as the training images were: it helps rare classes at little
    cost to the others.

    With a background column the difference between priors and raw counts matters: it moves every foreground logit by
    `tau * log(sum of counts)` against the background. Without one it does not.

    Args:
        counts: Training samples of each foreground class.
        tau: Strength; 1 is the reference default, 0 changes nothing.
        background: Place of the background column, which is left alone: None, 0 or -1.
        priors: Divide the counts by their sum (the paper's form); False uses the raw counts, as NorCal does.
        target: Share of each foreground class where the model will be used, of any sum; None leaves the term out.
        strength: Factor on the whole shift, 0 to change nothing; without a target it does what `tau` does.

    Example:
        >>> adjusted = logit_adjustment([100, 10, 1])
        >>> adjusted(np.array([1.0, 0.8, 0.2])).round(6)
        array([1.10436 , 3.206945, 4.90953 ])
    """
    frequencies = checked_counts("counts", counts)
    power, factor = checked_number("tau", tau), checked_strength(strength)
    if priors:
        frequencies = frequencies / frequencies.sum()
    aim = 0.0 if target is None else np.log(checked_target(target, len(frequencies)))
    settings: dict[str, Any] = {"tau": power, "priors": priors, "strength": factor}
    if target is not None:
        settings["target"] = np.exp(aim).tolist()
    return ClassAffine.over_foreground(
        np.ones_like(frequencies),
        factor * (aim - power * np.log(frequencies)),
        background,
        method="loga",
        settings=settings,
    )


def _fit(inputs: MethodInputs, options: Options) -> ClassAffine:
    target = target_shares(inputs, options)
    counts = inputs.needed_counts(options.pop("counts", "instances"))
    return logit_adjustment(counts, background=inputs.background, target=target, **options)


METHOD = Method(
    "loga",
    "logit adjustment",
    _fit,
    {
        "tau": Option("number", "strength; default 1.", flag="--tau"),
        "priors": Option("flag", "Divide the counts by their sum (the default)."),
        "counts": COUNT_KIND_OPTION,
        "strength": STRENGTH_OPTION,
        "target": TARGET_OPTION,
    },
    needs=("counts",),
)
