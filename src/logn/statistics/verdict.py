"""Whether a model favours frequent classes, judged from its statistics alone: a value that prints itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray
from logn.statistics.head import Head, foreground_columns
from logn.statistics.moments import ClassMoments
from logn.statistics.summary import active_classes

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

LONG_TAILED = "long-tailed"
_FINDINGS = {
    LONG_TAILED: "Long-tailed: of {classes} classes, {apart}.",
    "no two classes": "Fewer than two classes are live: there is nothing to compare, so there is nothing to correct.",
    "level": "The {classes} classes are nearly level ({apart}): there is little to correct.",
    "unseen": (
        "Too few {unit} to tell: of {classes} classes, each has fewer than 2 on average with {rows} {unit}. About "
        "{needed} would do."
    ),
    "chance": (
        "Too few {unit} to tell: of {classes} classes, {apart}, which chance may explain with {rows} {unit}. About "
        "{needed} would do."
    ),
    "balanced": (
        "In {unit} of other classes, rare classes score hardly lower than frequent ones, as after a balanced or "
        "logit-adjusted loss, which is a correction already. If plain cross-entropy trained the model, correct it "
        "anyway."
    ),
}


@dataclass(frozen=True)
class Verdict:
    """What the statistics of a model show of its classes.

    Args:
        kind: "long-tailed", or why there is nothing to correct: "no two classes", "level", "unseen" and "chance" (too
            few rows to tell), "balanced" (by the loss of the training).
        ratio: Mean score of a frequent class over that of a rare one (90th and 10th percentile of the live classes).
        classes: How many live classes were compared.
        rows: Over how many independent rows; None for detectors, whose rows share images.
        needed: How many rows would tell, where these are too few.
        unit: What a row is called.

    Example:
        >>> print(Verdict("level", 1.5, classes=80))
        The 80 classes are nearly level (a frequent class scores 1.5 times as high as a rare one on average): there \
is little to correct.
    """

    kind: str
    ratio: float
    classes: int
    rows: int | None = None
    needed: int | None = None
    unit: str = "images"

    @property
    def is_long_tailed(self) -> bool:
        """Whether there is a bias to correct."""
        return self.kind == LONG_TAILED

    def __str__(self) -> str:
        """The finding, in one sentence or two."""
        return _FINDINGS[self.kind].format(
            classes=self.classes,
            apart=f"a frequent class scores {self.ratio:.3g} times as high as a rare one on average",
            rows=f"{self.rows or 0:,}",
            needed=f"{float(f'{self.needed or 0:.2g}'):,.0f}",
            unit=self.unit,
        )


def judge(moments: ClassMoments, head: Head, prior: FloatArray) -> Verdict:
    """Judge whether the classes of a model are level.

    Args:
        moments: Statistics of the logits over training images.
        head: Their head, its activation settled.
        prior: Mean probability of each column.

    Example:
        >>> moments = ClassMoments(Head(2, activation="softmax"))
        >>> moments.update(np.tile([[3.0, -2.0], [4.0, -1.0]], (200, 1)))
        >>> judge(moments, moments.head, moments.mean_probability).kind
        'long-tailed'
    """
    foreground = foreground_columns(moments.num_columns, head.background)
    live = active_classes(moments, head.background)[foreground] & (prior[foreground] > 0)
    rows = int(moments.count.max()) if has_image_rows(head) else None
    verdict = _of_scores(prior[foreground][live], rows)
    is_classifier = head.background is None and head.activation == "softmax"
    if verdict.is_long_tailed and is_classifier and losing_slope(moments, live) < BALANCED_SLOPE:
        return replace(verdict, kind="balanced")
    return verdict


def has_image_rows(head: Head) -> bool:
    """Whether a row is an image, independent of the others: true of classifiers. Rows of a detector share images.

    Example:
        >>> has_image_rows(Head(background=0)), has_image_rows(Head(activation="softmax"))
        (False, True)
    """
    return head.background is None and (head.activation == "softmax" or head.population == "images")


def _of_scores(scores: FloatArray, rows: int | None) -> Verdict:
    """The verdict on the mean probabilities of the live classes over so many independent rows."""
    classes = len(scores)
    ratio = float(_ratios(scores, rows)) if classes else 1.0
    if classes < 2:
        return Verdict("no two classes", ratio, classes, rows)
    is_unseen = rows is not None and rows < FEWEST_PER_CLASS * classes
    if ratio < LITTLE_RATIO and not is_unseen:
        return Verdict("level", ratio, classes, rows)
    if rows is None or (ratio >= LITTLE_RATIO and ratio > _by_chance(scores, ratio, rows)):
        return Verdict(LONG_TAILED, ratio, classes, rows)
    needed = ENOUGH_PER_CLASS * classes
    if needed <= rows:  # the ratio is close to the limit
        needed = 2 * rows
        while ratio <= _by_chance(scores, ratio, needed) and needed < 1000 * rows:
            needed *= 2
    return Verdict("unseen" if is_unseen else "chance", ratio, classes, rows, needed)


def _ratios(scores: FloatArray, rows: int | None) -> FloatArray:
    """90th over 10th percentile of the last axis; no score is below that of one row."""
    floored = scores if rows is None else np.maximum(scores, 1.0 / rows)
    low, high = np.quantile(np.log(floored), [0.1, 0.9], axis=-1)
    return np.asarray(np.exp(high - low))


def _by_chance(scores: FloatArray, ratio: float, rows: int) -> float:
    """The ratio that so many rows of classes with a true one of LITTLE_RATIO give in all but 5 % of the draws.

    The scores of a row are drawn as 0 or 1, which no scores of the same mean exceed in variance; so it needs no more
    than the means, and errs on the side of chance. Nothing is random: the draws are always the same.
    """
    level = np.log(np.maximum(scores, 1.0 / rows))
    drawn_from = np.exp((level - level.mean()) * np.log(LITTLE_RATIO) / np.log(max(ratio, LITTLE_RATIO)))
    drawn_from = np.minimum(drawn_from * scores.sum() / drawn_from.sum(), 1.0)
    draws = np.random.default_rng(0).binomial(rows, drawn_from, (DRAWS, len(scores))) / rows
    return float(np.quantile(_ratios(draws, rows), CONFIDENCE))


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
