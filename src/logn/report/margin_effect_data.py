"""Data of the figure on the margin: how it changes the weight of the background score in the ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.logits.arrays import foreground_columns
from logn.report.run_folder import Run

Floats = npt.NDArray[np.float64]
MARGINS = (0.0, -1.0, -2.0, -4.0)


@dataclass(frozen=True, eq=False)
class MarginEffect:
    """The score of a class, relative to its share of the foreground, over the background score.

    Args:
        background: `(S,)` scores of the background before the margin, between 0 and 1.
        margins: The margins.
        own: The margin of the run ("min"); it is among `margins`. None when there are no statistics.
        foreground: `(M, S)` what is left for the foreground: `1 / (1 + exp(-margin) · s / (1 - s))`.
        steepness: `(M, S)` by how much the logarithm of the score falls per unit of background score.
    """

    background: Floats
    margins: tuple[float, ...]
    own: float | None
    foreground: Floats
    steepness: Floats


def margin_effect(
    margins: Sequence[float] = MARGINS, *, own: float | None = None, background: npt.ArrayLike | None = None
) -> MarginEffect:
    """Compute the effect; the logarithm of a score is that of `foreground` and the share of the class, added.

    Example:
        >>> effect = margin_effect([0.0, -np.log(3)], background=[0.5])
        >>> effect.foreground.round(3).tolist(), effect.steepness.round(3).tolist()
        ([[0.5], [0.25]], [[2.0], [3.0]])
    """
    scores = np.linspace(0.005, 0.995, 199) if background is None else np.asarray(background, np.float64)
    chosen = tuple(dict.fromkeys([*margins, *([] if own is None else [own])]))
    weight = np.exp(-np.array(chosen))[:, None]
    odds = (scores / (1 - scores))[None, :]
    foreground = 1 / (1 + weight * odds)
    # The derivative of -log(foreground) by the background score.
    steepness = weight / (1 - scores[None, :]) ** 2 * foreground
    return MarginEffect(scores, chosen, own, foreground, steepness)


def margin_of_run(run: Run) -> float | None:
    """The paper's margin for this model: the lowest mean logit of a foreground class."""
    if not run.has("statistics"):
        return None
    moments = run.moments
    means = moments.mean[foreground_columns(moments.num_classes, moments.metadata.background)]
    return float(np.nanmin(means))
