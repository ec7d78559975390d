"""What the statistics say about a model: which classes are dead, and whether mean and spread follow the counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logn.classes.counts import ClassCounts, frequency_groups
from logn.logits.arrays import FloatArray, foreground_columns
from logn.statistics.active_classes import active_classes
from logn.statistics.moments import ClassMoments

GROUP_NAMES = {"r": "rare", "c": "common", "f": "frequent"}


class Correlation(NamedTuple):
    """How strongly two quantities go together: -1 to 1, NaN where one of them does not vary."""

    pearson: float
    spearman: float


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Statistics of the foreground classes, in the order of their columns.

    Attributes:
        names: Class names as recorded, else those of the counts, else "class 3" by the column.
        seen: Values of each class that were recorded.
        mean: Mean logit.
        std: Standard deviation; NaN where fewer than two values were seen.
        alive: Whether the class was seen and varies; only such classes enter what follows.
        margins: The margins that LogN offers, as numbers: min, mean, max, and background where there is one.
        background_mean: Mean logit of the background column, if there is one.
        skipped: Values that were not finite, over all classes.
        image_counts: Training images per class, if known.
        groups: "r", "c" or "f" per class, if the counts are known.
        mean_with_count: Correlation of the mean with the logarithm of the training images.
        std_with_count: The same of the standard deviation.
        conclusion: What that means, in words.
    """

    names: tuple[str, ...]
    seen: FloatArray
    mean: FloatArray
    std: FloatArray
    alive: npt.NDArray[np.bool_]
    margins: dict[str, float]
    background_mean: float | None
    skipped: int
    image_counts: FloatArray | None
    groups: npt.NDArray[np.str_] | None
    mean_with_count: Correlation | None
    std_with_count: Correlation | None
    conclusion: str

    @property
    def dead(self) -> tuple[str, ...]:
        """Names of the classes that were never seen or do not vary."""
        return tuple(name for name, alive in zip(self.names, self.alive, strict=True) if not alive)

    def order(self) -> npt.NDArray[np.intp]:
        """Classes from the most frequent to the rarest; by mean, highest first, where the counts are not known."""
        by = self.mean if self.image_counts is None else self.image_counts
        return np.argsort(-by, kind="stable")


def diagnose(moments: ClassMoments, counts: ClassCounts | npt.ArrayLike | None = None) -> Diagnosis:
    """Look at statistics of logits, and at how they follow the training counts when these are given.

    Args:
        moments: The statistics.
        counts: Training images per foreground class.

    Example:
        >>> moments = ClassMoments(3)
        >>> moments.update(np.array([[2.0, 0.0, -3.0], [4.0, 1.0, -3.5]]))
        >>> diagnosis = diagnose(moments, [900, 30, 2])
        >>> diagnosis.groups.tolist(), round(diagnosis.mean_with_count.spearman, 3)
        (['f', 'c', 'r'], 1.0)
    """
    place = moments.metadata.background
    foreground = foreground_columns(moments.num_columns, place)
    mean, std, seen = moments.mean[foreground], moments.std[foreground], moments.count[foreground]
    alive = active_classes(moments, place)[foreground]
    image_counts = None if counts is None else _image_counts(counts, moments, foreground)
    mean_link = std_link = None
    if image_counts is not None:
        mean_link, std_link = (_with_log_count(values, image_counts, alive) for values in (mean, std))
    background_mean = None if place is None else float(moments.mean[place])
    return Diagnosis(
        names=_names(counts, moments, foreground),
        seen=seen,
        mean=mean,
        std=std,
        alive=alive,
        margins=_margins(mean[alive], background_mean),
        background_mean=background_mean,
        skipped=int(moments.skipped.sum()),
        image_counts=image_counts,
        groups=None if image_counts is None else frequency_groups(image_counts),
        mean_with_count=mean_link,
        std_with_count=std_link,
        conclusion=_conclusion(mean_link, std_link, int(alive.sum())),
    )


def pearson(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Linear correlation; NaN where it is not defined.

    Example:
        >>> round(pearson([1, 2, 3], [2, 4, 7]), 4)
        0.9934
    """
    one, two = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if len(one) < 2:
        return float("nan")
    one, two = one - one.mean(), two - two.mean()
    scale = np.sqrt((one @ one) * (two @ two))
    return float(np.clip(one @ two / scale, -1.0, 1.0)) if scale > 0 else float("nan")


def spearman(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Rank correlation: how nearly the one is an increasing function of the other.

    Example:
        >>> spearman([1, 2, 3, 4], [1, 10, 100, 1000])
        1.0
    """
    return pearson(_ranks(np.asarray(first)), _ranks(np.asarray(second)))


def _ranks(values: npt.NDArray[np.generic]) -> FloatArray:
    """Ranks from 1; equal values share the mean of their ranks."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    ranks: FloatArray = (last - (sizes - 1) / 2.0)[group]
    return ranks


def _names(counts: object, moments: ClassMoments, foreground: slice) -> tuple[str, ...]:
    recorded = moments.metadata.class_names
    if recorded is None and isinstance(counts, ClassCounts) and counts.names is not None:
        return counts.names  # their order is that of the foreground columns, since nothing else is known
    names = recorded or tuple(f"class {column}" for column in range(moments.num_columns))
    return names[foreground]


def _image_counts(counts: ClassCounts | npt.ArrayLike, moments: ClassMoments, foreground: slice) -> FloatArray:
    table = counts if isinstance(counts, ClassCounts) else ClassCounts(np.asarray(counts, np.float64))
    names = moments.metadata.class_names
    expected = len(range(*foreground.indices(moments.num_columns)))
    wanted = None if names is None else names[foreground]
    return table.fitting(wanted, expected, moments.metadata.background).image_counts


def _with_log_count(values: FloatArray, image_counts: FloatArray, alive: npt.NDArray[np.bool_]) -> Correlation:
    use = alive & (image_counts > 0) & np.isfinite(values)
    logarithms = np.log(image_counts[use])
    return Correlation(pearson(values[use], logarithms), spearman(values[use], logarithms))


def _margins(means: FloatArray, background_mean: float | None) -> dict[str, float]:
    margins = {}
    if len(means):
        margins = {"min": float(means.min()), "mean": float(means.mean()), "max": float(means.max())}
    return margins if background_mean is None else margins | {"background": background_mean}


def _conclusion(mean_link: Correlation | None, std_link: Correlation | None, num_alive: int) -> str:
    if mean_link is None or std_link is None:
        return "Without the training counts it is unknown whether mean and spread follow them: give the counts."
    strength = mean_link.spearman
    values = f"rank correlation with the log count: mean {strength:+.2f}, std {std_link.spearman:+.2f}"
    # About the size that chance alone gives to one in twenty unrelated pairs.
    chance = 1.96 / np.sqrt(max(num_alive - 1, 1))
    if not abs(strength) > chance:
        return (
            f"The mean logits do not follow the training counts beyond chance ({values}): "
            "there is little of the bias that LogN removes, so expect little from it."
        )
    if strength < 0:
        return (
            f"The mean logits fall with the training counts ({values}): the reverse of the long-tail bias; "
            "check the order of the counts and which samples were recorded before you correct anything."
        )
    degree = "strongly follow" if strength >= 0.6 else "partly follow"
    return (
        f"The mean logits {degree} the training counts ({values}): frequent classes score higher whatever the image "
        "shows, which is the bias that LogN removes; how much accuracy that gains, only an evaluation can tell."
    )
