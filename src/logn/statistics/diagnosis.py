"""What the statistics say about a model: which classes are dead, and whether mean and spread follow the counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.base.arrays import (
    FEWEST_ROWS,
    NO_CLASS,
    SAMPLED_ROWS,
    FloatArray,
    check_background,
    foreground_columns,
    probability_kind,
)
from logn.data.class_counts import ClassCounts, frequency_groups
from logn.errors import InputError
from logn.statistics.moments import ClassMoments

GROUP_NAMES = {"r": "rare", "c": "common", "f": "frequent"}
# A class whose standard deviation is this small compared to the median one was not learnt; its column says nothing.
DEAD_STD_SHARE = 1e-3
# Fewer columns can look like anything.
FEWEST_COLUMNS = 5
# A detector calls most of its proposals background: nine of ten in our runs. And it lies above all
# classes, there by 4 to 13 standard deviations of a typical class, which a frequent class does not.
BACKGROUND_SHARE = 0.75
BACKGROUND_DISTANCE = 3.0
# The standard deviation from n rows is itself uncertain by 1 / sqrt(2 (n - 1)): 7 % of it at 100 rows.
FEW_ROWS = 100
# How far from 1 the means of probabilities may sum up to: half precision rounds each by some 0.05 %.
MEAN_SUM_TOLERANCE = 1e-3

_PLACES = {0: "first", -1: "last"}

ONE_LOGIT = (
    "There is only one logit: LogN corrects how classes differ from each other, so here it moves all scores alike, as "
    "another threshold would."
)


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
    names = moments.metadata.class_names or ()
    unused = (*moments.metadata.unused, *(column for column, name in enumerate(names) if name == NO_CLASS))
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
    place = moments.metadata.background
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


def _with_count(values: FloatArray, image_counts: FloatArray, alive: npt.NDArray[np.bool_]) -> float:
    use = alive & (image_counts > 0) & np.isfinite(values)
    return spearman(values[use], image_counts[use])


def _conclusion(strength: float | None, std_link: float | None, num_alive: int) -> str:
    if strength is None:
        return "Pass the training counts (`--counts`) to see whether mean and spread follow them."
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


def sanity_checks(moments: ClassMoments, *, background: int | str | None = "recorded") -> tuple[str, ...]:
    """Warnings about what the statistics and their sampled rows show; none if all looks well.

    Args:
        moments: The statistics.
        background: Index of the background column: None, 0, -1, or "recorded" to take it from the statistics.

    Example:
        >>> moments = ClassMoments(6, sample_rows=100)
        >>> moments.update(np.random.default_rng(0).standard_normal((100, 6)) + [0, 0, 0, 0, 0, 9])
        >>> print(sanity_checks(moments)[0][:79])
        The last column scores highest in 100 % of the sampled rows, as a background do
    """
    place = check_background(moments.metadata.background if background == "recorded" else background)
    return (
        *value_checks(moments, background=place),
        *background_checks(moments, background=place),
        *unused_checks(moments),
    )


def value_checks(moments: ClassMoments, *, background: int | None) -> tuple[str, ...]:
    """Warnings about values that are not logits, and about a single logit without another class to compare it with."""
    if moments.num_columns == 1 and background is None:
        return (ONE_LOGIT,)
    kind = _kind(moments)
    if kind is None:
        return ()
    sums, activation = (" and each row sums to 1", "softmax") if kind == "softmax" else ("", "softmax or sigmoid")
    return (
        f"All sampled values lie between 0 and 1{sums}, as probabilities do: LogN needs the logits, before the "
        f"{activation}.",
    )


def background_checks(moments: ClassMoments, *, background: int | None) -> tuple[str, ...]:
    """A warning about a first or last column that behaves like a background but is not declared as one."""
    rows, metadata = moments.sample, moments.metadata
    is_classifier = metadata.activation == "sigmoid" or metadata.population == "images"  # they have no background
    if is_classifier or len(rows) < FEWEST_ROWS or rows.shape[1] < FEWEST_COLUMNS:
        return ()
    winners = rows.argmax(axis=1)
    share = {place: float((winners == place % rows.shape[1]).mean()) for place in _PLACES}
    place = max((place for place in _PLACES if place != background), key=lambda place: share[place])
    distance = moments.mean[place] - np.nanmax(np.delete(moments.mean, place))
    if share[place] < BACKGROUND_SHARE or not distance > BACKGROUND_DISTANCE * float(np.nanmedian(moments.std)):
        return ()
    named = "" if background is None else f", the named background in {100 * share[background]:.0f} %"
    return (
        f"The {_PLACES[place]} column scores highest in {100 * share[place]:.0f} % of the sampled rows{named}, as a "
        f"background does: if it is one, pass `--background {_PLACES[place]}` (in Python `background={place}`).",
    )


def unused_checks(moments: ClassMoments) -> tuple[str, ...]:
    """A warning about columns that are called unused, but score as classes do.

    Example:
        >>> from logn.statistics.moments import StatisticsMetadata
        >>> moments = ClassMoments(3, metadata=StatisticsMetadata(layer="head", unused=(0,)))
        >>> moments.update(np.array([[2.0, -1.0, -3.0], [4.0, -2.0, -1.0]]))
        >>> print(unused_checks(moments)[0][:79])
        Column 0 of `head` is called unused, but scores as high as a typical class (0.9
    """
    metadata, columns = moments.metadata, moments.num_columns
    background = None if metadata.background is None else metadata.background % columns
    classes = [column for column in range(columns) if column not in (*metadata.unused, background)]
    # A column that was never trained for a class is low everywhere. Where it is one, its objects raise its mean score.
    probability = moments.mean_probability
    level = moments.mean if probability is None else probability
    if not metadata.unused or not classes or not moments.count.all():
        return ()
    typical = float(np.median(level[classes]))
    active = [column for column in metadata.unused if level[column] >= typical]
    if not active:
        return ()
    return (
        f"Column {active[0]} of `{metadata.layer}` is called unused, but scores as high as a typical class "
        f"({level[active[0]]:.3g} on average, {typical:.3g}): if the model counts its classes from 0, pass "
        "dataclasses.replace(layer, unused=()).",
    )


def row_checks(moments: ClassMoments) -> tuple[str, ...]:
    """A warning about very few rows, or about more columns than rows, which may have been transposed.

    Example:
        >>> moments = ClassMoments(3)
        >>> moments.update(np.eye(3))
        >>> print(row_checks(moments)[0][:77])
        There are only 3 rows, from which the spread of a class is uncertain by 50 %:
    """
    rows, columns = int(moments.count.max()), moments.num_columns
    if 0 < rows < columns:
        return (
            f"There are more columns ({columns:,}) than rows ({rows:,}), and every column counts as a class: collect "
            "more rows, or, if rows and classes are exchanged, save numpy.ascontiguousarray(logits.T) and collect it.",
        )
    if 1 < rows < FEW_ROWS:
        return (
            f"There are only {rows} rows, from which the spread of a class is uncertain by "
            f"{100 / np.sqrt(2 * (rows - 1)):.0f} %: collect {FEW_ROWS} or more, better thousands.",
        )
    return ()


def refuse_probabilities(moments: ClassMoments) -> None:
    """Refuse statistics that are certainly of probabilities: by the sampled rows, or without any by the moments.

    Example:
        >>> moments = ClassMoments(3)
        >>> moments.update(np.random.default_rng(0).dirichlet(np.ones(3), 50))
        >>> refuse_probabilities(moments)
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `moments` are of probabilities (between 0 and 1, each row sums to 1), not of logits: ...
    """
    if _kind(moments) == "softmax":
        raise InputError(
            "`moments` are of probabilities (between 0 and 1, each row sums to 1), not of logits: collect what goes "
            "into the softmax, or the logarithm, numpy.log(probabilities.clip(1e-12))."
        )


def _kind(moments: ClassMoments) -> str | None:
    rows = moments.sample[:SAMPLED_ROWS]
    if len(rows) >= FEWEST_ROWS:
        return probability_kind(rows)
    return "softmax" if _moments_of_probabilities(moments) else None


def _moments_of_probabilities(moments: ClassMoments) -> bool:
    """Whether the means sum to 1 and no variance is larger than values between 0 and 1 can have, `mean (1 - mean)`."""
    count, mean = moments.count, moments.mean
    if moments.num_columns < 2 or count.min() < FEWEST_ROWS or mean.min() < 0:
        return False
    most = mean * (1 - mean) * count / (count - 1)
    return bool(abs(mean.sum() - 1) < MEAN_SUM_TOLERANCE and (moments.variance <= most + MEAN_SUM_TOLERANCE).all())
