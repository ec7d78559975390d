"""Scores of sampled rows, and the thresholds and shifts that keep how many of them count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray, foreground_columns, logit, sigmoid, softmax
from logn.methods.affine import ClassAffine
from logn.methods.checks import checked_share
from logn.statistics.moments import ClassMoments

# With fewer scores above a threshold, a sample does not say how many a model has.
FEWEST_ABOVE = 20


def keep_detections(affine: ClassAffine, moments: ClassMoments, threshold: float) -> ClassAffine:
    """Shift all classes of a sigmoid head by the one number that keeps how many scores exceed the threshold.

    It is solved on the row sample; where too few of its scores exceed the threshold, for a lower threshold. Without a
    sample the map stays as it is.

    Args:
        affine: The map, without a background. Classes that it leaves alone are not shifted either.
        moments: Statistics of the same logits.
        threshold: The score above which a detection counts.

    Example:
        >>> moments = ClassMoments(2, sample_rows=1000)
        >>> moments.update(np.random.default_rng(0).standard_normal((1000, 2)))
        >>> moved = keep_detections(ClassAffine([1.0, 1.0], [-1.5, -1.5]), moments, 0.5)
        >>> moved.settings["common_shift"].__round__(2)
        1.5
    """
    rows = moments.sample.astype(np.float64)
    scores = class_scores(moments, None, "sigmoid")
    shifted = (affine.scale != 1.0) | (affine.shift != 0.0)
    if scores.size <= FEWEST_ABOVE or not shifted.any():
        return affine
    number, level = int((scores > threshold).sum()), threshold
    if number < FEWEST_ABOVE:
        number, level = FEWEST_ABOVE, float(np.partition(scores, -FEWEST_ABOVE - 1, axis=None)[-FEWEST_ABOVE - 1])
    # Each score exceeds the level as soon as the shift exceeds this.
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.minimum(level / _objectness(moments), 1.0)
        needed = logit(share)[:, None] - affine(rows)
    needed = np.where(shifted, needed, np.where(scores > level, -np.inf, np.inf))
    shift = float(np.sort(needed, axis=None)[number - 1 : number + 1].mean())
    if not np.isfinite(shift):
        return affine
    settings = {**affine.settings, "common_shift": shift, "threshold": threshold}
    return replace(affine, shift=np.where(shifted, affine.shift + shift, 0.0), settings=settings)


def sampled_threshold(moments: ClassMoments, affine: ClassAffine, threshold: float, activation: str) -> float | None:
    """The threshold that as many corrected scores exceed as original ones exceed `threshold`, on the row sample.

    None where too few scores of the sample exceed the old threshold to tell.

    Example:
        >>> moments = ClassMoments(2, sample_rows=1000)
        >>> moments.update(np.random.default_rng(0).standard_normal((1000, 2)))
        >>> round(sampled_threshold(moments, ClassAffine([1, 1], [1, 1]), 0.5, "sigmoid"), 2)
        0.73
    """
    number = int((class_scores(moments, None, activation) > checked_share("threshold", threshold)).sum())
    after = class_scores(moments, affine, activation).ravel()
    return matching_threshold(after, number, threshold) if number >= FEWEST_ABOVE else None


def matching_threshold(scores: npt.NDArray[np.floating], count: int, at: float) -> float:
    """The threshold that `count` of the scores exceed: `at` where as many exceed it, else midway to the next score.

    Example:
        >>> [matching_threshold(np.array([0.75, 0.5, 0.25]), count, at=0.3) for count in (0, 1, 2, 3)]
        [1.0, 0.625, 0.3, 0.0]
    """
    if int((scores > at).sum()) == count:
        return at
    if count >= len(scores):
        return 0.0
    if count == 0:
        return 1.0
    last, following = np.partition(scores, [-count, -count - 1])[[-count, -count - 1]].astype(np.float64)
    return float((last + following) / 2)


def class_scores(moments: ClassMoments, affine: ClassAffine | None, activation: str) -> FloatArray:
    """Scores of the foreground classes of the sampled rows, corrected by `affine`; objectness multiplies them.

    Example:
        >>> moments = ClassMoments(2, sample_rows=2)
        >>> moments.update(np.zeros((2, 2)))
        >>> class_scores(moments, None, "softmax").tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """
    rows = moments.sample.astype(np.float64)
    index = moments.metadata.background if affine is None else affine.background
    logits = rows if affine is None else affine(rows)
    scores = sigmoid(logits) if activation == "sigmoid" else softmax(logits)
    return np.asarray(scores[:, foreground_columns(rows.shape[1], index)] * _objectness(moments)[:, None])


def _objectness(moments: ClassMoments) -> FloatArray:
    """Of each sampled row; 1 for heads that have none."""
    logits = moments.sample_objectness
    return np.ones(len(moments.sample)) if logits is None else sigmoid(logits)
