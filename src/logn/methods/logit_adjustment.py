"""Logit adjustment (Menon et al., ICLR 2021), by training counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from logn.data.class_counts import ClassCounts
from logn.methods.affine import ClassAffine
from logn.methods.checks import CountKind, checked_counts, checked_number, checked_target
from logn.statistics.head import Head


def logit_adjustment(
    counts: ClassCounts | npt.ArrayLike,
    tau: float = 1.0,
    *,
    priors: bool = True,
    count_kind: CountKind = "instances",
    target: npt.ArrayLike | None = None,
    background: int | None = None,
) -> ClassAffine:
    """Logit adjustment (Menon et al., ICLR 2021): map `x_c` to `x_c - tau * log(prior_c)`.

    `prior_c` is the share of class c among the training samples. Half of it (`tau=0.5`) is for deployments that are as
    long-tailed as the training images were: it helps rare classes at little cost to the others.

    With a background column the difference between priors and raw counts matters: it moves every foreground logit by
    `tau * log(sum of counts)` against the background. Without one it does not.

    Args:
        counts: Training samples of each foreground class.
        tau: The power of the prior; 1 is the reference default, 0 changes nothing.
        priors: Divide the counts by their sum (the paper's form); False uses the raw counts, as NorCal does.
        count_kind: Which counts of a `ClassCounts` to take: "images" or "instances".
        target: Share of each foreground class where the model will be used, of any sum: `log(target_c)` comes on top.
            None leaves the term out.
        background: Index of the background column, which is left alone: None, 0 or -1.

    Example:
        >>> adjusted = logit_adjustment([100, 10, 1])
        >>> adjusted(np.array([1.0, 0.8, 0.2])).round(6)
        array([1.10436 , 3.206945, 4.90953 ])
    """
    frequencies = checked_counts("counts", counts, count_kind)
    power = checked_number("tau", tau)
    if priors:
        frequencies = frequencies / frequencies.sum()
    towards = 0.0 if target is None else np.log(checked_target(target, len(frequencies)))
    settings: dict[str, Any] = {"tau": power, "priors": priors}
    if target is not None:
        settings["target"] = np.exp(towards).tolist()
    shift = towards - power * np.log(frequencies)
    return ClassAffine.over_foreground(
        np.ones_like(frequencies), shift, Head(background=background), method="loga", settings=settings
    )
