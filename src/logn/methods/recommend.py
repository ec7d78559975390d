"""What LogN recommends for a model, from its statistics alone: every entry point takes its answer from here.

The recommendation is one formula for every head, a part of the prior: a class is lowered by a share of the logarithm by
which its mean probability exceeds that of the lowest class (research/docs/evidence.md has the measurements). Where
the classes are level, where chance may explain what sets them apart, and where the training has balanced them, it is
to do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from logn.base.arrays import DEFAULT_AT
from logn.errors import warn
from logn.methods.affine import ClassAffine
from logn.methods.checks import check_moments, checked_share
from logn.methods.logit_normalization import live_statistic, mean_probability, shifted_classes
from logn.methods.sampled_scores import basis_of, keep_detections
from logn.statistics.head import ASSUMED, Head, foreground_columns
from logn.statistics.moments import ClassMoments
from logn.statistics.verdict import Verdict, has_image_rows, judge

RECOMMENDED, NONE = "recommended", "none"
# How much of the prior to take away: of detectors and sigmoid heads, and of classifiers.
DETECTOR_STRENGTH: Final = 0.5
CLASSIFIER_STRENGTH: Final = 0.75
# What a share of the prior changes for a classifier, in points of accuracy: on a balanced test set, and on one as
# long-tailed as training. Every text about the trade is made from this table.
TRADE_BENCHMARK: Final = "average over CIFAR-10-LT and CIFAR-100-LT"
TRADE_SOURCE: Final = "research/docs/evidence.md"
CLASSIFIER_TRADE: Final = {0.5: (3.4, -0.8), 0.75: (4.8, -1.9), 1.0: (5.8, -4.0)}
# What the lowest class keeps from the mean of all, beside a background: the margin, which the strength does not move.
MARGIN_SHARE: Final = 0.5
SOFTMAX_ASSUMED = (
    'Softmax or sigmoid? Assumed softmax. Pass activation="sigmoid" for a model with sigmoids, such as a multi-label '
    "classifier."
)


@dataclass(frozen=True)
class Recommendation:
    """What to do with a model.

    Args:
        verdict: What the statistics show.
        head: What the logits are, the activation settled.
        threshold: The score above which a detection counts.

    Example:
        >>> moments = ClassMoments(2)
        >>> moments.update(np.tile([[3.0, -2.0], [4.0, -1.0]], (200, 1)))
        >>> print(recommend(moments, activation="softmax").finding)
        Long-tailed: of 2 classes, a frequent class scores 54.6 times as high as a rare one on average.
    """

    verdict: Verdict
    head: Head
    threshold: float

    @property
    def method(self) -> str:
        """`recommended`, or `none` where there is little to correct or too few images to tell."""
        return RECOMMENDED if self.verdict.is_long_tailed else NONE

    @property
    def kind(self) -> str:
        """A softmax detector, a classifier or a sigmoid head."""
        if self.head.activation == "sigmoid":
            return "sigmoid head"
        return "classifier" if self.head.background is None else "softmax detector"

    @property
    def finding(self) -> str:
        """What the statistics show, in words."""
        return str(self.verdict)

    @property
    def expect(self) -> str:
        """What the correction does to such a model, in words; empty where there is nothing to correct."""
        return _EXPECT[self.kind] if self.verdict.is_long_tailed else ""

    def fit(
        self,
        moments: ClassMoments,
        *,
        strength: float | None = None,
        force: bool = False,
        target: npt.ArrayLike | None = None,
        active: npt.ArrayLike | None = None,
        deployment: ClassMoments | None = None,
    ) -> ClassAffine:
        """The recommended map; it changes nothing where the method is "none".

        Args:
            moments: The statistics that were judged.
            strength: How much of the prior to take away, from 0 to 1; None for what is recommended. Beside a
                background, the margin is the same at every strength: 0 is the margin alone.
            force: Fit the map where the method is "none", too.
            target: Share of each foreground class where the model will be used; None for equal shares.
            active: Which columns are live, one boolean per column.
            deployment: Statistics of the same model over images of the deployment. The common shift of a sigmoid head
                then keeps the number of detections there.
        """
        source = basis_of(moments, deployment)
        strength = self.strength if strength is None else strength
        background = self.head.background
        head = replace(moments.head, background=background, activation=self.head.activation)
        if self.method == NONE and not force:
            return ClassAffine.identity(moments.num_columns, head)
        values, live = live_statistic(moments, "prior", head, active)
        if has_image_rows(head):
            values = np.maximum(values, -np.log(moments.count.max()))
        values = values[foreground_columns(moments.num_columns, background)]
        level, lowest = float(values[live].mean()), float(values[live].min())
        margin = 0.0 if background is None else strength * level + MARGIN_SHARE * (lowest - level)
        settings = {"statistic": "prior", "use_std": False}
        affine = shifted_classes(values, live, strength, margin, target, head, settings=settings)
        if self.head.activation == "sigmoid":
            affine = keep_detections(affine, source, self.threshold)
        return replace(affine, method=RECOMMENDED)

    @property
    def strength(self) -> float:
        """How much of the prior to take away from such a head."""
        return CLASSIFIER_STRENGTH if self.kind == "classifier" else DETECTOR_STRENGTH

    @property
    def trade(self) -> str:
        """What the recommended and the full strength gain and cost, for classifiers; else empty.

        Example:
            >>> moments = ClassMoments(2)
            >>> moments.update(np.tile([[3.0, -2.0], [4.0, -1.0]], (200, 1)))
            >>> recommend(moments, activation="softmax").trade.split(",")[0]
            'On average over CIFAR-10-LT and CIFAR-100-LT'
        """
        if self.kind != "classifier" or self.method == NONE:
            return ""
        shares = dict.fromkeys((self.strength, 1.0))
        (gain, loss), *full = (CLASSIFIER_TRADE[share] for share in shares)
        text = (
            f"On {TRADE_BENCHMARK}, {share_of_prior(self.strength)} changes the accuracy by {gain:+g} points on a "
            f"balanced test and {loss:+g} on a long-tailed one"
        )
        return f"{text}; {share_of_prior(1.0)} by {full[0][0]:+g} and {full[0][1]:+g}." if full else f"{text}."

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        head, verdict = self.head, self.verdict
        return {
            "method": self.method,
            "head": self.kind,
            "verdict": verdict.kind,
            "finding": self.finding,
            "expect": self.expect,
            "ratio": verdict.ratio,
            "threshold": self.threshold,
            "background": head.background,
            "activation": head.activation,
            "strength": self.strength,
            "trade": self.trade,
        }


def recommend(
    moments: ClassMoments,
    *,
    threshold: float = DEFAULT_AT,
    background: int | None = None,
    activation: str | None = None,
) -> Recommendation:
    """Recommend a correction for the model that the statistics were recorded from.

    An objectness counts where it is recorded: ONNX files, and sources of proposals without a torch model.

    Args:
        moments: Statistics of the logits over training images.
        threshold: The score above which you count a detection.
        background: Index of the background column, 0 or -1; by default that of the statistics.
        activation: "softmax" or "sigmoid"; by default that of the statistics, else a softmax is assumed.

    Example:
        >>> rows = np.random.default_rng(0).standard_normal((2000, 6))
        >>> level, tail = ClassMoments(6), ClassMoments(6)
        >>> level.update(rows); tail.update(rows - [0, 1, 2, 3, 4, 5])
        >>> recommend(level, activation="softmax").method
        'none'
        >>> recommendation = recommend(tail, activation="softmax")
        >>> recommendation.method, recommendation.kind
        ('recommended', 'classifier')
        >>> recommendation.fit(tail).shift.round(1)
        array([0.4, 1. , 1.6, 2.3, 3.1, 3.8])
    """
    check_moments(moments)
    settled = moments.head.settled(background, activation)
    if settled.activation is None:
        warn(SOFTMAX_ASSUMED)
    head = replace(settled, activation=settled.activation or ASSUMED)
    limit = checked_share("threshold", threshold)
    return Recommendation(judge(moments, head, mean_probability(moments, head.activation)), head, limit)


def recommended(
    moments: ClassMoments,
    *,
    strength: float | None = None,
    force: bool = False,
    threshold: float = DEFAULT_AT,
    target: npt.ArrayLike | None = None,
    active: npt.ArrayLike | None = None,
    deployment: ClassMoments | None = None,
    background: int | None = None,
    activation: str | None = None,
) -> ClassAffine:
    """The map that `recommend` recommends: the method `recommended`."""
    recommendation = recommend(moments, threshold=threshold, background=background, activation=activation)
    return recommendation.fit(
        moments, strength=strength, force=force, target=target, active=active, deployment=deployment
    )


def share_of_prior(strength: float) -> str:
    """A strength in words.

    Example:
        >>> share_of_prior(0.5), share_of_prior(0.3)
        ('half of the prior', '0.3 of the prior')
    """
    words = {0.25: "a quarter", 0.5: "half", 0.75: "three quarters"}
    return "the full prior" if strength == 1 else f"{words.get(strength, f'{strength:g}')} of the prior"


_EXPECT = {
    "softmax detector": (
        "Rare classes are found more often, frequent ones about as often. All scores become lower: choose your score "
        "threshold again."
    ),
    "classifier": "Rare classes are predicted more often, frequent ones less often.",
    "sigmoid head": (
        "Rare classes are found more often at the same number of detections; AP hardly moves. With labels, a threshold "
        "per class gives more: `logn thresholds`."
    ),
}
