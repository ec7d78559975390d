"""Prior2Posterior (WACV 2025): logit normalization by the prior, without the division."""

from __future__ import annotations

from dataclasses import replace

import numpy.typing as npt

from logn.methods.affine import ClassAffine
from logn.methods.logit_normalization import Margin, logit_normalization
from logn.statistics.moments import ClassMoments


def prior2posterior(
    moments: ClassMoments,
    *,
    strength: float = 1.0,
    margin: Margin = "min",
    target: npt.ArrayLike | None = None,
    active: npt.ArrayLike | None = None,
    background: int | None = None,
    activation: str | None = None,
) -> ClassAffine:
    """Map `x_c` to `x_c - strength * log(p_c) + margin`, with `p_c` the model's mean probability of class c.

    Where cross-entropy has converged, the mean probability over the training images is the share of the class among the
    training labels, so this is `logit_adjustment` without counts. It is `logit_normalization` with the prior as
    statistic and without the division; the arguments are those of that function.

    Example:
        >>> import numpy as np
        >>> moments = ClassMoments(2)
        >>> moments.update(np.log([[9.0, 1.0], [6.0, 2.0], [3.0, 1.0]]))
        >>> moments.mean_probability.round(6)
        array([0.8, 0.2])
        >>> prior2posterior(moments, activation="softmax").shift.round(6)
        array([0.223144, 1.609438])
    """
    affine = logit_normalization(
        moments,
        statistic="prior",
        strength=strength,
        use_std=False,
        margin=margin,
        target=target,
        active=active,
        background=background,
        activation=activation,
    )
    return replace(affine, method="p2p")
