"""The score threshold after a correction, with its basis: from the scores of sampled rows, and in words.

A correction changes the scores, so another threshold keeps the number of detections. Which one depends on how frequent
each class is: that of training images holds for images with the class mix of training. Every command takes its
threshold and its sentence from here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray, logit, sigmoid, softmax
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.methods.checks import checked_share
from logn.statistics.head import ASSUMED, foreground_columns
from logn.statistics.moments import ClassMoments

# With fewer scores above a threshold, a sample does not say how many a model has.
FEWEST_ABOVE = 20
# A threshold that moves by no more than this share of itself may stay.
STAYS_WITHIN = 0.05
Basis = Literal["training", "deployment", "labels"]


@dataclass(frozen=True)
class NewThreshold:
    """The score threshold after a correction.

    Args:
        at: The threshold before.
        use: The one that as many corrected scores exceed; None where too few scores exceed `at` to tell.
        basis: What it was found on: "training" images, unlabelled images of the "deployment", or images with "labels".

    Example:
        >>> print(NewThreshold(0.25, 0.024, "training").describe())
        Use about 0.024 where you used 0.25, if your images have the class mix of these training images.
        >>> print(NewThreshold(0.25, 0.252, "training").describe())
        0.25 keeps the number of detections on images with the class mix of training.
        >>> print(NewThreshold(0.25, 0.252, "deployment").describe())
        Keep using 0.25: it keeps the number of detections on the deployment images.
    """

    at: float
    use: float | None
    basis: Basis

    @property
    def stays(self) -> bool:
        """Whether the threshold may stay as it was."""
        return self.use is not None and is_about(self.use, self.at)

    def describe(self, result: str = "it keeps the number of detections on the deployment images") -> str:
        """Which threshold to use, in one sentence.

        Args:
            result: What it gives; of training images it is what the sentence assumes instead.
        """
        if self.use is None:
            images = "" if self.basis == "training" else f" on the {self.basis} images"
            return f"Too few scores exceed {self.at:g}{images} to tell which threshold to use now."
        if self.basis == "training" and self.stays:
            return f"{self.at:g} keeps the number of detections on images with the class mix of training."
        if self.stays:
            return f"Keep using {self.at:g}: {result}."
        use = f"Use about {self.use:.2g} where you used {self.at:g}"
        if self.basis == "training":
            return f"{use}, if your images have the class mix of these training images."
        return f"{use}: {result}."


def is_about(one: float, other: float) -> bool:
    """Whether two thresholds are the same for users: within 5 % of each other.

    Example:
        >>> is_about(0.24, 0.25), is_about(0.2, 0.25)
        (True, False)
    """
    return abs(one - other) <= STAYS_WITHIN * max(one, other)


def threshold_after(
    affine: ClassAffine,
    moments: ClassMoments,
    at: float,
    *,
    deployment: ClassMoments | None = None,
    activation: str | None = None,
) -> NewThreshold | None:
    """The threshold that keeps the number of detections after a correction, on sampled rows.

    Args:
        affine: The correction.
        moments: Statistics of the model over training images.
        at: The threshold before.
        deployment: Statistics of the same model over images of the deployment, which need no labels.
        activation: "softmax" or "sigmoid"; by default that of the statistics.

    Returns:
        The threshold with its basis; None for classifiers, maps that change nothing, and statistics without a sample.

    Example:
        >>> moments = ClassMoments(2, sample_rows=1000)
        >>> moments.update(np.random.default_rng(0).standard_normal((1000, 2)))
        >>> found = threshold_after(ClassAffine([1, 1], [1, 1]), moments, 0.5, activation="sigmoid")
        >>> round(found.use, 2), found.basis
        (0.73, 'training')
    """
    checked_share("at", at)
    source = basis_of(moments, deployment)
    head = moments.head.settled(affine.background, activation)
    kind = head.activation or ASSUMED
    is_classifier = kind == "softmax" and head.background is None
    changes_nothing = bool((affine.scale == 1.0).all() and (affine.shift == 0.0).all())
    if is_classifier or changes_nothing or len(source.sample) == 0:
        return None
    basis: Basis = "training" if deployment is None else "deployment"
    return NewThreshold(at, _matching(source, affine, at, kind), basis)


def basis_of(moments: ClassMoments, deployment: ClassMoments | None) -> ClassMoments:
    """The statistics that thresholds come from: those of the deployment, which must be of the same model.

    Example:
        >>> basis_of(ClassMoments(2), ClassMoments(3))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: The deployment statistics have 3 columns, but those of training 2: collect them with ...
    """
    if deployment is None:
        return moments
    again = "collect them with the model of the training statistics, as those were collected"
    if deployment.num_columns != moments.num_columns:
        raise InputError(
            f"The deployment statistics have {deployment.num_columns} columns, but those of training "
            f"{moments.num_columns}: {again}."
        )
    for field in fields(moments.head):
        mine, theirs = (getattr(part.head, field.name) for part in (moments, deployment))
        if mine != theirs:
            said = {"source": "are of another model", "names": "differ in `class_names`"}
            what = said.get(field.name, f"differ in `{field.name}`")
            raise InputError(f"The deployment statistics {what} ({theirs!r:.60}, training {mine!r:.60}): {again}.")
    if len(deployment.sample) == 0:
        raise InputError(f"The deployment statistics hold no rows to find a threshold on: {again}.")
    return deployment


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
    rows, objectness, stands_for = moments.scored_sample()
    scores = class_scores(moments, None, "sigmoid")
    shifted = (affine.scale != 1.0) | (affine.shift != 0.0)
    if scores.size <= FEWEST_ABOVE or not shifted.any():
        return affine
    level = threshold
    if int((scores > threshold).sum()) < FEWEST_ABOVE:
        level = float(np.partition(scores, -FEWEST_ABOVE - 1, axis=None)[-FEWEST_ABOVE - 1])
    weights = np.broadcast_to(stands_for[:, None], scores.shape)
    # Each score exceeds the level as soon as the shift exceeds this.
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.minimum(level / objectness, 1.0)
        needed = logit(share)[:, None] - affine(rows)
    needed = np.where(shifted, needed, np.where(scores > level, -np.inf, np.inf))
    shift = _between(needed, weights, float(weights[scores > level].sum()))
    if not np.isfinite(shift):
        return affine
    settings = {**affine.settings, "common_shift": shift, "threshold": threshold}
    return replace(affine, shift=np.where(shifted, affine.shift + shift, 0.0), settings=settings)


def _matching(moments: ClassMoments, affine: ClassAffine, at: float, activation: str) -> float | None:
    """The threshold that as many corrected scores exceed as original ones exceed `at`; None if too few do to tell."""
    before, after = (class_scores(moments, part, activation) for part in (None, affine))
    if int((before > at).sum()) < FEWEST_ABOVE:
        return None
    weights = np.broadcast_to(moments.scored_sample()[2][:, None], before.shape)
    number = float(weights[before > at].sum())
    if float(weights[after > at].sum()) == number:
        return at
    return max(0.0, -_between(-after, weights, number))


def _between(values: FloatArray, weights: FloatArray, amount: float) -> float:
    """Midway between the last of the smallest values whose weights make up `amount`, and the next one."""
    order = np.argsort(values, axis=None, kind="stable")
    ordered = values.ravel()[order]
    # A little less, as sums of weights are rounded.
    last = int(np.searchsorted(np.cumsum(weights.ravel()[order]), amount * (1 - 1e-9)))
    return float(ordered[last : last + 2].mean())


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
    """Scores of the foreground classes of `moments.scored_sample()`, corrected by `affine`, times the objectness.

    Example:
        >>> moments = ClassMoments(2, sample_rows=2)
        >>> moments.update(np.zeros((2, 2)))
        >>> class_scores(moments, None, "softmax").tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """
    rows, objectness, _ = moments.scored_sample()
    index = moments.head.background if affine is None else affine.background
    logits = rows if affine is None else affine(rows)
    scores = sigmoid(logits) if activation == "sigmoid" else softmax(logits)
    return np.asarray(scores[:, foreground_columns(rows.shape[1], index)] * objectness[:, None])
