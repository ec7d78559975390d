"""What LogN recommends for a model, from its statistics alone: every entry point takes its answer from here.

The recommendation is one formula for every head, a part of the prior: a class is lowered by a share of the logarithm by
which its mean probability exceeds that of the lowest class (research/docs/evidence.md has the measurements). Where
the classes are level, where chance may explain what sets them apart, and where the training has balanced them, it is
to do nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from logn.base.arrays import DEFAULT_AT, FloatArray
from logn.errors import warn
from logn.methods.affine import ClassAffine
from logn.methods.checks import check_moments, checked_share
from logn.methods.logit_normalization import live_statistic, mean_probability, shifted_classes
from logn.methods.sampled_scores import basis_of, keep_detections
from logn.statistics.head import ASSUMED, Head, foreground_columns
from logn.statistics.moments import ClassMoments
from logn.statistics.summary import active_classes

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
# Below this ratio between the mean scores of frequent and rare classes there is little to correct.
LITTLE_RATIO = 2.0
# A ratio is beyond chance where this share of the draws from classes of LITTLE_RATIO stays below it.
CONFIDENCE = 0.95
DRAWS = 200
# With so many images per class, level classes are seen to be level; with fewer than FEWEST, none can be told.
ENOUGH_PER_CLASS, FEWEST_PER_CLASS = 25, 2
# Cross-entropy gives a frequent class more than a rare one where both lose: their probability there rises with their
# mean probability. After a balanced loss it does not: this is the slope between the logarithms below which a classifier
# counts as trained by one. docs/worth-it.md ("When it would hurt") has how often it errs, and on which models.
BALANCED_SLOPE = 0.1
FEWEST_COMPARED = 20


@dataclass(frozen=True)
class Recommendation:
    """What to do with a model.

    Attributes:
        method: "recommended", or "none" where there is little to correct or too few images to tell.
        head: "softmax detector", "classifier" or "sigmoid head".
        finding: What the statistics show, in one sentence.
        expect: What the correction does to such a model, in one sentence.
        ratio: Mean score of a frequent class over that of a rare one (90th and 10th percentile of the live classes).
        threshold: The score above which a detection counts.
        background: Index of the background column.
        activation: What the model applies to the logits.

    Example:
        >>> moments = ClassMoments(2)
        >>> moments.update(np.tile([[3.0, -2.0], [4.0, -1.0]], (200, 1)))
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
        head = replace(moments.head, background=self.background, activation=self.activation)
        if self.method == NONE and not force:
            return ClassAffine.identity(moments.num_columns, head)
        values, live = live_statistic(moments, "prior", head, active)
        if _has_image_rows(head):
            values = np.maximum(values, -np.log(moments.count.max()))
        values = values[foreground_columns(moments.num_columns, self.background)]
        level, lowest = float(values[live].mean()), float(values[live].min())
        margin = 0.0 if self.background is None else strength * level + MARGIN_SHARE * (lowest - level)
        settings = {"statistic": "prior", "use_std": False}
        affine = shifted_classes(values, live, strength, margin, target, head, settings=settings)
        if self.activation == "sigmoid":
            affine = keep_detections(affine, source, self.threshold)
        return replace(affine, method=RECOMMENDED)

    @property
    def strength(self) -> float:
        """How much of the prior to take away from such a head."""
        return CLASSIFIER_STRENGTH if self.head == "classifier" else DETECTOR_STRENGTH

    @property
    def trade(self) -> str:
        """What the recommended and the full strength gain and cost, for classifiers; else empty.

        Example:
            >>> moments = ClassMoments(2)
            >>> moments.update(np.tile([[3.0, -2.0], [4.0, -1.0]], (200, 1)))
            >>> recommend(moments, activation="softmax").trade.split(",")[0]
            'On average over CIFAR-10-LT and CIFAR-100-LT'
        """
        if self.head != "classifier" or self.method == NONE:
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
        return {**asdict(self), "strength": self.strength, "trade": self.trade}


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
        >>> recommendation.method, recommendation.head
        ('recommended', 'classifier')
        >>> recommendation.fit(tail).shift.round(1)
        array([0.4, 1. , 1.6, 2.3, 3.1, 3.8])
    """
    check_moments(moments)
    settled = moments.head.settled(background, activation)
    if settled.activation is None:
        warn(SOFTMAX_ASSUMED)
    judged, index = settled.activation or ASSUMED, settled.background
    head = "sigmoid head" if judged == "sigmoid" else "classifier" if index is None else "softmax detector"
    limit = checked_share("threshold", threshold)
    prior = mean_probability(moments, judged)
    foreground = foreground_columns(moments.num_columns, index)
    live = active_classes(moments, index)[foreground] & (prior[foreground] > 0)
    rows = int(moments.count.max()) if _has_image_rows(replace(settled, activation=judged)) else None
    ratio, finding = _judged(prior[foreground][live], rows)
    if not finding and head == "classifier" and losing_slope(moments, live) < BALANCED_SLOPE:
        finding = (
            "In images of other classes, rare classes score hardly lower than frequent ones, as after a balanced or "
            "logit-adjusted loss, which is a correction already. If plain cross-entropy trained the model, correct it "
            "anyway."
        )
    if finding:
        return Recommendation(NONE, head, finding, "", ratio, limit, index, judged)
    finding = f"Long-tailed: of {live.sum()} classes, {_apart(ratio)}."
    return Recommendation(RECOMMENDED, head, finding, _EXPECT[head], ratio, limit, index, judged)


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


def _has_image_rows(head: Head) -> bool:
    """Whether a row is an image, independent of the others: true of classifiers. Rows of a detector share images."""
    return head.background is None and (head.activation == "softmax" or head.population == "images")


def _apart(ratio: float) -> str:
    return f"a frequent class scores {ratio:.3g} times as high as a rare one on average"


def _judged(scores: FloatArray, images: int | None) -> tuple[float, str]:
    """The ratio, and why there is nothing to correct; an empty text where there is.

    Args:
        scores: Mean probability of each live class.
        images: How many images they are the mean of; None for detectors, whose rows are not independent.
    """
    classes = len(scores)
    ratio = float(_ratios(scores, images)) if classes else 1.0
    if classes < 2:
        return ratio, "Fewer than two classes are live: there is nothing to compare, so there is nothing to correct."
    is_unseen = images is not None and images < FEWEST_PER_CLASS * classes
    if ratio < LITTLE_RATIO and not is_unseen:
        return ratio, f"The {classes} classes are nearly level ({_apart(ratio)}): there is little to correct."
    if images is None or (ratio >= LITTLE_RATIO and ratio > _by_chance(scores, ratio, images)):
        return ratio, ""
    needed = ENOUGH_PER_CLASS * classes
    if needed <= images:  # the ratio is close to the limit
        needed = 2 * images
        while ratio <= _by_chance(scores, ratio, needed) and needed < 1000 * images:
            needed *= 2
    seen = "each has fewer than 2 on average" if is_unseen else f"{_apart(ratio)}, which chance may explain"
    return ratio, (
        f"Too few images to tell: of {classes} classes, {seen} with {images:,} images. About "
        f"{float(f'{needed:.2g}'):,.0f} would do."
    )


def _ratios(scores: FloatArray, images: int | None) -> FloatArray:
    """90th over 10th percentile of the last axis; no score is below that of one image."""
    floored = scores if images is None else np.maximum(scores, 1.0 / images)
    low, high = np.quantile(np.log(floored), [0.1, 0.9], axis=-1)
    return np.asarray(np.exp(high - low))


def _by_chance(scores: FloatArray, ratio: float, images: int) -> float:
    """The ratio that so many images of classes with a true one of LITTLE_RATIO give in all but 5 % of the draws.

    The scores of an image are drawn as 0 or 1, which no scores of the same mean exceed in variance; so it needs no
    more than the means, and errs on the side of chance. Nothing is random: the draws are always the same.
    """
    level = np.log(np.maximum(scores, 1.0 / images))
    drawn_from = np.exp((level - level.mean()) * np.log(LITTLE_RATIO) / np.log(max(ratio, LITTLE_RATIO)))
    drawn_from = np.minimum(drawn_from * scores.sum() / drawn_from.sum(), 1.0)
    draws = np.random.default_rng(0).binomial(images, drawn_from, (DRAWS, len(scores))) / images
    return float(np.quantile(_ratios(draws, images), CONFIDENCE))


def losing_slope(moments: ClassMoments, live: npt.NDArray[np.bool_]) -> float:
    """By how much the probability of a class where it loses rises with its mean probability, as a power.

    0.2 to 0.6 after cross-entropy, around 0 or below after a balanced loss; NaN for fewer than 20 classes and where it
    was not recorded.

    Args:
        moments: Statistics of a classifier.
        live: Which columns to compare.
    """
    losing, prior = moments.losing_probability, moments.mean_probability_of("softmax")
    if losing is None or prior is None:
        return np.nan
    compared = live & (losing > 0) & (prior > 0) & (prior < 1)
    if compared.sum() < FEWEST_COMPARED:
        return np.nan
    where_it_loses = losing[compared] / (1.0 - prior[compared])
    return float(np.polyfit(np.log(prior[compared]), np.log(where_it_loses), 1)[0])


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
