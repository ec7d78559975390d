"""What looks wrong with statistics: a background that nobody named, or probabilities in place of logits."""

from __future__ import annotations

import numpy as np

from logn.logits.arrays import FloatArray, check_background
from logn.statistics.moments import ClassMoments

# Fewer rows, or fewer columns, can look like anything.
FEWEST_ROWS = 20
FEWEST_COLUMNS = 5
# A detector calls most of its proposals background: those of docs/when-it-helps.md nine of ten. And it lies above all
# classes, there by 4 to 13 standard deviations of a typical class, which a frequent class does not.
BACKGROUND_SHARE = 0.75
BACKGROUND_DISTANCE = 3.0
# The sample is kept in float16, so that the sum of a row of probabilities is not exactly 1.
SUM_TOLERANCE = 0.02

_PLACES = {0: "first", -1: "last"}


def doubts(moments: ClassMoments, *, background: int | str | None = "recorded") -> tuple[str, ...]:
    """Sentences on what the row sample makes us doubt; none where all looks well, or where there is no sample.

    Args:
        moments: The statistics.
        background: Place of the background column: None, 0, -1, or "recorded" to take it from the statistics.

    Example:
        >>> moments = ClassMoments(6, sample_rows=100)
        >>> moments.update(np.random.default_rng(0).standard_normal((100, 6)) + [0, 0, 0, 0, 0, 9])
        >>> print(doubts(moments)[0][:79])
        The last column scores highest in 100 % of the sampled rows, as a background do
    """
    rows = moments.sample.astype(np.float64)
    place = check_background(moments.metadata.background if background == "recorded" else background)
    if len(rows) < FEWEST_ROWS:
        return ()
    found = (_probabilities(rows), _other_background(rows, moments, place))
    return tuple(sentence for sentence in found if sentence)


def _probabilities(rows: FloatArray) -> str:
    if rows.min() < 0 or rows.max() > 1 or rows.max() == rows.min():
        return ""
    summed = np.abs(rows.sum(axis=1) - 1).max() < SUM_TOLERANCE
    sums = " and each row sums to 1" if summed and rows.shape[1] > 1 else ""
    activation = "softmax" if sums else "softmax or sigmoid"
    return (
        f"All sampled values lie between 0 and 1{sums}, as probabilities do: LogN needs the logits, before the "
        f"{activation}."
    )


def _other_background(rows: FloatArray, moments: ClassMoments, background: int | None) -> str:
    """A sentence on a column at either end that behaves as a background and is not called one."""
    metadata = moments.metadata
    if rows.shape[1] < FEWEST_COLUMNS or metadata.activation == "sigmoid" or metadata.population == "images":
        return ""  # a classifier of images has no background
    winners = rows.argmax(axis=1)
    share = {place: float((winners == place % rows.shape[1]).mean()) for place in _PLACES}
    place = max((place for place in _PLACES if place != background), key=lambda place: share[place])
    if share[place] < BACKGROUND_SHARE or not _stands_out(moments, place % rows.shape[1]):
        return ""
    beside = "" if background is None else f", the named background in {100 * share[background]:.0f} %"
    return (
        f"The {_PLACES[place]} column scores highest in {100 * share[place]:.0f} % of the sampled rows{beside}, as a "
        f"background does: if it is one, say so (`--background {_PLACES[place]}`, in Python `background={place}`)."
    )


def _stands_out(moments: ClassMoments, column: int) -> bool:
    others = np.delete(moments.mean, column)
    typical = float(np.nanmedian(moments.std))
    return bool(moments.mean[column] - np.nanmax(others) > BACKGROUND_DISTANCE * typical)
