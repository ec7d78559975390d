"""What LogN recommends for a model, from its statistics alone: every entry point takes its answer from here.

The recommendation is one formula for every head, half of the prior: a class is lowered by half of the logarithm by
which its mean probability exceeds that of the lowest class (research/docs/strong-detectors.md has the evidence).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from logn.base.arrays import DEFAULT_AT, foreground_columns
from logn.errors import warn
from logn.methods.affine import ClassAffine
from logn.methods.checks import check_moments, checked_share
from logn.methods.normalization import logit_normalization, mean_probability
from logn.methods.sampled_scores import keep_detections
from logn.statistics.diagnosis import active_classes
from logn.statistics.moments import ClassMoments

RECOMMENDED, NONE = "recommended", "none"
# The setting of `logit_normalization` that is recommended where there is a tail.
HALF_PRIOR: Final[dict[str, Any]] = {"statistic": "prior", "strength": 0.5, "use_std": False}
# Below this ratio between the mean scores of frequent and rare classes there is little to correct.
LITTLE_RATIO = 2.0


@dataclass(frozen=True)
class Recommendation:
    """What to do with a model.

    Attributes:
        method: "recommended", or "none" where there is little to correct.
        head: "softmax detector", "classifier" or "sigmoid head".
        finding: What the statistics show, in one sentence.
        expect: What the correction does to such a model, in one sentence.
        ratio: Mean score of a frequent class over that of a rare one (90th and 10th percentile of the live classes).
        threshold: The score above which a detection counts.
        background: Index of the background column.
        activation: What the model applies to the logits.

    Example:
        >>> moments = ClassMoments(2)
        >>> moments.update(np.array([[3.0, -2.0], [4.0, -1.0]]))
        >>> print(recommend(moments, activation="softmax").finding)
        Long-tailed: of 2 classes, a frequent class scores 54.6 times as high as a rare one on average.
    """

    method: str
    head: str
    finding: str
    expect: str
    ratio: float
    threshold: float
    background: int | None
    activation: str

    def fit(
        self,
        moments: ClassMoments,
        *,
        strength: float = HALF_PRIOR["strength"],
        target: npt.ArrayLike | None = None,
        active: npt.ArrayLike | None = None,
    ) -> ClassAffine:
        """The recommended map; it changes nothing where the method is "none".

        Args:
            moments: The statistics that were judged.
            strength: How much of the prior to take away, from 0 to 1.
            target: Share of each foreground class where the model will be used; None for equal shares.
            active: Which columns are live, one boolean per column.
        """
        if self.method == NONE:
            source = moments.metadata.with_changes(background=self.background, activation=self.activation)
            return ClassAffine.identity(moments.num_columns, background=self.background).with_source(source)
        affine = logit_normalization(
            moments,
            **(HALF_PRIOR | {"strength": strength}),
            target=target,
            active=active,
            background=self.background,
            activation=self.activation,
        )
        if self.activation == "sigmoid":
            affine = keep_detections(affine, moments, self.threshold)
        return replace(affine, method=RECOMMENDED)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def recommend(
    moments: ClassMoments,
    *,
    threshold: float = DEFAULT_AT,
    background: int | str | None = "recorded",
    activation: str | None = "recorded",
) -> Recommendation:
    """Recommend a correction for the model that the statistics were recorded from.

    An objectness counts where it is recorded: ONNX files, and sources of proposals without a torch model.

    Args:
        moments: Statistics of the logits over training images.
        threshold: The score above which you count a detection.
        background: Index of the background column: None, 0, -1, or "recorded" to take it from the statistics.
        activation: "softmax", "sigmoid", or "recorded"; taken for a sigmoid where it is not known.

    Example:
        >>> rows = np.random.default_rng(0).standard_normal((2000, 6))
        >>> level, tail = ClassMoments(6), ClassMoments(6)
        >>> level.update(rows); tail.update(rows - [0, 1, 2, 3, 4, 5])
        >>> recommend(level, activation="softmax").method
        'none'
        >>> recommendation = recommend(tail, activation="softmax")
        >>> recommendation.method, recommendation.head
        ('recommended', 'classifier')
        >>> recommendation.fit(tail).shift.round(1)
        array([0.3, 0.7, 1.1, 1.6, 2. , 2.5])
    """
    check_moments(moments)
    settled = moments.metadata.settled(background, activation)
    if settled.activation is None:
        warn(
            'Softmax or sigmoid? Assumed sigmoid. Pass activation="softmax" (`--activation softmax`) for a classifier '
            "with one class per image."
        )
    judged, index = settled.activation or "sigmoid", settled.background
    head = "sigmoid head" if judged == "sigmoid" else "classifier" if index is None else "softmax detector"
    limit = checked_share("threshold", threshold)
    prior = mean_probability(moments, judged)
    foreground = foreground_columns(moments.num_columns, index)
    scores = prior[foreground][active_classes(moments, index)[foreground] & (prior[foreground] > 0)]
    low, high = np.quantile(np.log(scores), [0.1, 0.9]) if len(scores) else (0.0, 0.0)
    ratio = float(np.exp(high - low))
    method, finding = _judged(len(scores), ratio)
    return Recommendation(method, head, finding, _EXPECT[head] if method != NONE else "", ratio, limit, index, judged)


def recommended(
    moments: ClassMoments,
    *,
    strength: float = HALF_PRIOR["strength"],
    threshold: float = DEFAULT_AT,
    target: npt.ArrayLike | None = None,
    active: npt.ArrayLike | None = None,
    background: int | str | None = "recorded",
    activation: str | None = "recorded",
) -> ClassAffine:
    """The map that `recommend` recommends: the method `recommended`."""
    recommendation = recommend(moments, threshold=threshold, background=background, activation=activation)
    return recommendation.fit(moments, strength=strength, target=target, active=active)


def _judged(classes: int, ratio: float) -> tuple[str, str]:
    """The method and the finding."""
    if classes < 2:
        return NONE, "Fewer than two classes are live: there is nothing to compare, so there is nothing to correct."
    apart = f"a frequent class scores {ratio:.3g} times as high as a rare one on average"
    if ratio < LITTLE_RATIO:
        return NONE, f"The {classes} classes are nearly level ({apart}): there is little to correct."
    return RECOMMENDED, f"Long-tailed: of {classes} classes, {apart}."


_EXPECT = {
    "softmax detector": (
        "Rare classes are found more often, frequent ones about as often. All scores become lower: choose your score "
        "threshold again."
    ),
    "classifier": "Rare classes are predicted more often, at about the same accuracy over all images.",
    "sigmoid head": (
        "Rare classes are found more often at the same number of detections; AP hardly moves. With labels, a threshold "
        "per class gives more: `logn thresholds`."
    ),
}
