"""What LogN recommends for a model, from its statistics alone: every entry point takes its answer from here.

The recommendation is one formula for every head, half of the prior: a class is lowered by half of the logarithm by
which its mean probability exceeds that of the lowest class (research/docs/strong-detectors.md has the evidence). Where
the classes are level, where chance may explain what sets them apart, and where the training has balanced them, it is
to do nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from logn.base.arrays import DEFAULT_AT, FloatArray, foreground_columns
from logn.errors import warn
from logn.methods.affine import ClassAffine
from logn.methods.checks import check_moments, checked_share
from logn.methods.normalization import live_statistic, mean_probability, shifted_classes
from logn.methods.sampled_scores import keep_detections
from logn.statistics.diagnosis import active_classes, spearman
from logn.statistics.moments import ClassMoments, StatisticsMetadata

RECOMMENDED, NONE = "recommended", "none"
STRENGTH: Final = 0.5
# What the lowest class keeps from the mean of all, beside a background: the margin, which the strength does not move.
MARGIN_SHARE: Final = 0.5
# Below this ratio between the mean scores of frequent and rare classes there is little to correct.
LITTLE_RATIO = 2.0
# A ratio is beyond chance where this share of the draws from classes of LITTLE_RATIO stays below it.
CONFIDENCE = 0.95
DRAWS = 200
# With so many images per class, level classes are seen to be level; with fewer than FEWEST, none can be told.
ENOUGH_PER_CLASS, FEWEST_PER_CLASS = 25, 2
# Rank correlation of mean logit and log probability below which a classifier counts as trained by a balanced loss. No
# limit separates all: docs/worth-it.md ("When it would hurt") has how often it errs, and on which models.
BALANCED_CORRELATION = -0.5
FEWEST_RANKED = 20


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
        strength: float = STRENGTH,
        force: bool = False,
        target: npt.ArrayLike | None = None,
        active: npt.ArrayLike | None = None,
    ) -> ClassAffine:
        """The recommended map; it changes nothing where the method is "none".

        Args:
            moments: The statistics that were judged.
            strength: How much of the prior to take away, from 0 to 1. Beside a background, the margin is the same at
                every strength: 0 is the margin alone.
            force: Fit the map where the method is "none", too.
            target: Share of each foreground class where the model will be used; None for equal shares.
            active: Which columns are live, one boolean per column.
        """
        head = moments.metadata.with_changes(background=self.background, activation=self.activation)
        if self.method == NONE and not force:
            return ClassAffine.identity(moments.num_columns, background=self.background).with_source(head)
        values, live = live_statistic(moments, "prior", head, active)
        if _has_image_rows(head):
            values = np.maximum(values, -np.log(moments.count.max()))
        values = values[foreground_columns(moments.num_columns, self.background)]
        level, lowest = float(values[live].mean()), float(values[live].min())
        margin = 0.0 if self.background is None else strength * level + MARGIN_SHARE * (lowest - level)
        settings = {"statistic": "prior", "use_std": False}
        affine = shifted_classes(values, live, strength, margin, target, head, settings=settings)
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
            'Softmax or sigmoid? Assumed sigmoid. Pass activation="softmax" for a classifier with one class per image.'
        )
    judged, index = settled.activation or "sigmoid", settled.background
    head = "sigmoid head" if judged == "sigmoid" else "classifier" if index is None else "softmax detector"
    limit = checked_share("threshold", threshold)
    prior = mean_probability(moments, judged)
    foreground = foreground_columns(moments.num_columns, index)
    live = active_classes(moments, index)[foreground] & (prior[foreground] > 0)
    rows = int(moments.count.max()) if _has_image_rows(replace(settled, activation=judged)) else None
    ratio, finding = _judged(prior[foreground][live], rows)
    if not finding and head == "classifier" and _is_balanced(moments.mean[live], prior[live]):
        finding = (
            "The classes' mean logits run against their scores, as after a balanced or logit-adjusted loss, which is "
            "a correction already. If plain cross-entropy trained the model, correct it anyway."
        )
    if finding:
        return Recommendation(NONE, head, finding, "", ratio, limit, index, judged)
    finding = f"Long-tailed: of {live.sum()} classes, {_apart(ratio)}."
    return Recommendation(RECOMMENDED, head, finding, _EXPECT[head], ratio, limit, index, judged)


def recommended(
    moments: ClassMoments,
    *,
    strength: float = STRENGTH,
    force: bool = False,
    threshold: float = DEFAULT_AT,
    target: npt.ArrayLike | None = None,
    active: npt.ArrayLike | None = None,
    background: int | str | None = "recorded",
    activation: str | None = "recorded",
) -> ClassAffine:
    """The map that `recommend` recommends: the method `recommended`."""
    recommendation = recommend(moments, threshold=threshold, background=background, activation=activation)
    return recommendation.fit(moments, strength=strength, force=force, target=target, active=active)


def _has_image_rows(head: StatisticsMetadata) -> bool:
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


def _is_balanced(mean: FloatArray, prior: FloatArray) -> bool:
    """Whether a balanced or logit-adjusted loss trained the classifier: high means go with low scores."""
    return len(mean) >= FEWEST_RANKED and spearman(mean, prior) < BALANCED_CORRELATION


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
