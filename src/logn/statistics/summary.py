"""What the statistics say about a model: which classes are dead, and whether mean and spread follow the counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray
from logn.data.class_counts import ClassCounts, frequency_groups
from logn.statistics.head import NO_CLASS, foreground_columns
from logn.statistics.moments import ClassMoments

GROUP_NAMES = {"r": "rare", "c": "common", "f": "frequent"}
# A class whose standard deviation is this small compared to the median one was not learnt; its column says nothing.
DEAD_STD_SHARE = 1e-3


def active_classes(moments: ClassMoments, background: int | None) -> npt.NDArray[np.bool_]:
    """Which columns were seen, vary, and are neither recorded as unused nor named "N/A"; the background always is.

    Example:
        >>> moments = ClassMoments(3)
        >>> moments.update(np.array([[1.0, -9.0, 2.0], [0.0, -9.0, 3.0]]))
        >>> active_classes(moments, background=None)
        array([ True, False,  True])
    """
    std, count = moments.std, moments.count
    known = std[foreground_columns(len(std), background)]
    known = known[np.isfinite(known) & (known > 0)]
    threshold = DEAD_STD_SHARE * float(np.median(known)) if len(known) else 0.0
    # A single value has no variance but is no sign of death: its standard deviation falls back to 1.
    alive: npt.NDArray[np.bool_] = (count == 1) | ((count > 1) & (np.nan_to_num(std) > threshold))
    names = moments.head.names or ()
    unused = (*moments.head.unused, *(column for column, name in enumerate(names) if name == NO_CLASS))
    alive[list(unused)] = False
    if background is not None:
        alive[background] = True
    return alive


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Statistics of the foreground classes, in the order of their columns.

    Attributes:
        names: Class names as recorded, else those of the counts, else "class 3" by the column.
        seen: Values of each class that were recorded.
        mean: Mean logit.
        std: Standard deviation; NaN where fewer than two values were seen.
        alive: Whether the class was seen and varies; only such classes enter what follows.
        background_mean: Mean logit of the background column, if there is one.
        skipped: Values that were not finite, over all classes.
        image_counts: Training images per class, if known.
        groups: "r", "c" or "f" per class, if the counts are known.
        mean_with_count: Rank correlation of the mean with the training images.
        std_with_count: The same of the standard deviation.
        conclusion: What that means, in words.
    """

    names: tuple[str, ...]
    seen: FloatArray
    mean: FloatArray
    std: FloatArray
    alive: npt.NDArray[np.bool_]
    background_mean: float | None
    skipped: int
    image_counts: FloatArray | None
    groups: npt.NDArray[np.str_] | None
    mean_with_count: float | None
    std_with_count: float | None
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
        >>> diagnosis.groups.tolist(), round(diagnosis.mean_with_count, 3)
        (['f', 'c', 'r'], 1.0)
    """
    place = moments.head.background
    foreground = foreground_columns(moments.num_columns, place)
    mean, std, seen = moments.mean[foreground], moments.std[foreground], moments.count[foreground]
    alive = active_classes(moments, place)[foreground]
    image_counts = None if counts is None else _image_counts(counts, moments, foreground)
    mean_link = std_link = None
    if image_counts is not None:
        mean_link, std_link = (_with_count(values, image_counts, alive) for values in (mean, std))
    background_mean = None if place is None else float(moments.mean[place])
    return Diagnosis(
        names=_names(counts, moments, foreground),
        seen=seen,
        mean=mean,
        std=std,
        alive=alive,
        background_mean=background_mean,
        skipped=int(moments.skipped.sum()),
        image_counts=image_counts,
        groups=None if image_counts is None else frequency_groups(image_counts),
        mean_with_count=mean_link,
        std_with_count=std_link,
        conclusion=_conclusion(mean_link, std_link, int(alive.sum())),
    )


def spearman(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Rank correlation: how nearly the one is an increasing function of the other; NaN where one does not vary.

    Example:
        >>> spearman([1, 2, 3, 4], [1, 10, 100, 1000])
        1.0
    """
    one, two = (_ranks(np.asarray(values)) for values in (first, second))
    scale = np.sqrt((one @ one) * (two @ two))
    return float(np.clip(one @ two / scale, -1.0, 1.0)) if scale > 0 else float("nan")


def _ranks(values: npt.NDArray[np.generic]) -> FloatArray:
    """Ranks around 0; equal values share the mean of their ranks."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ranks: FloatArray = (np.cumsum(sizes) - (sizes - 1) / 2.0)[group]
    return ranks - (len(ranks) + 1) / 2.0


def _names(counts: object, moments: ClassMoments, foreground: slice) -> tuple[str, ...]:
    recorded = moments.head.names
    if recorded is None and isinstance(counts, ClassCounts) and counts.names is not None:
        return counts.names  # their order is that of the foreground columns, since nothing else is known
    names = recorded or tuple(f"class {column}" for column in range(moments.num_columns))
    return names[foreground]


def _image_counts(counts: ClassCounts | npt.ArrayLike, moments: ClassMoments, foreground: slice) -> FloatArray:
    width = foreground.stop - foreground.start
    return ClassCounts.of(counts).fitting(moments.head.column_names, width, moments.head.background).image_counts


def _with_count(values: FloatArray, image_counts: FloatArray, alive: npt.NDArray[np.bool_]) -> float:
    use = alive & (image_counts > 0) & np.isfinite(values)
    return spearman(values[use], image_counts[use])


def _conclusion(strength: float | None, std_link: float | None, num_alive: int) -> str:
    if strength is None:
        return "Pass the training counts, `counts`, to see whether mean and spread follow them."
    values = f"rank correlation with the log count: mean {strength:+.2f}, std {std_link:+.2f}"
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
