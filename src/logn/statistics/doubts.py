"""What looks wrong with statistics: values that are no logits, a background that is not declared, too few rows."""

from __future__ import annotations

import numpy as np

from logn.errors import InputError
from logn.statistics.head import FEWEST_ROWS, SAMPLED_ROWS, check_background, probability_kind
from logn.statistics.moments import ClassMoments

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


def sanity_checks(moments: ClassMoments, *, background: int | None = None) -> tuple[str, ...]:
    """Warnings about what the statistics and their sampled rows show; none if all looks well.

    Args:
        moments: The statistics.
        background: Index of the background column: 0 or -1; by default that of the statistics.

    Example:
        >>> moments = ClassMoments(6, sample_rows=100)
        >>> moments.update(np.random.default_rng(0).standard_normal((100, 6)) + [0, 0, 0, 0, 0, 9])
        >>> print(sanity_checks(moments)[0][:79])
        The last column scores highest in 100 % of the sampled rows, as a background do
    """
    place = moments.head.background if background is None else check_background(background)
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
    rows, head = moments.sample, moments.head
    is_classifier = head.activation == "sigmoid" or head.population == "images"  # they have no background
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
        f"background does: if it is one, pass `background`: {_PLACES[place]} (in Python {place}).",
    )


def unused_checks(moments: ClassMoments) -> tuple[str, ...]:
    """A warning about columns that are called unused, but score as classes do.

    Example:
        >>> from logn.statistics.head import Head
        >>> moments = ClassMoments(Head(3, layer="head", unused=(0,)))
        >>> moments.update(np.array([[2.0, -1.0, -3.0], [4.0, -2.0, -1.0]]))
        >>> print(unused_checks(moments)[0][:79])
        Column 0 of `head` is called unused, but scores as high as a typical class (0.9
    """
    head, classes = moments.head, moments.head.foreground
    # A column that was never trained for a class is low everywhere. Where it is one, its objects raise its mean score.
    probability = moments.mean_probability
    level = moments.mean if probability is None else probability
    if not head.unused or not len(classes) or not moments.count.all():
        return ()
    typical = float(np.median(level[classes]))
    active = [column for column in head.unused if level[column] >= typical]
    if not active:
        return ()
    return (
        f"Column {active[0]} of `{head.layer}` is called unused, but scores as high as a typical class "
        f"({level[active[0]]:.3g} on average, {typical:.3g}): if the model counts its classes from 0, "
        "none is (in Python dataclasses.replace(layer, unused=()) says so).",
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
