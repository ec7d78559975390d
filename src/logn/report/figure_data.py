"""Data of the figures on labels: how samplers shift their distribution, and how few they are beside the background."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.datasets.samplers import RandomSampler, RepeatFactorSampler
from logn.errors import InputError
from logn.report.assigned_proposals import AssignedProposals, assigned_proposals
from logn.report.run_folder import Run

Floats = npt.NDArray[np.float64]
NAN = float("nan")


@dataclass(frozen=True, eq=False)
class LabelShift:
    """Logarithms of label distributions less the logarithm of the prior; classes from the most frequent on.

    Args:
        order: `(F,)` the classes.
        external: `(F,)` shift by repeat factor sampling, which repeats images of rare classes.
        internal: `(F,)` shift by the assignment of proposals to objects, as far as the predicted images tell; NaN where
            a class has no object or no proposal. None when there are no predictions.
        both: `(F,)` sum of the two; None when there are no predictions.
        threshold: Of repeat factor sampling.
    """

    order: npt.NDArray[np.intp]
    external: Floats
    internal: Floats | None
    both: Floats | None
    threshold: float


def label_shift(run: Run, *, threshold: float = 0.001) -> LabelShift:
    """Compare label distributions with the prior, which is the share of each class among all annotated objects."""
    data = run.training_data
    labels = data.labels_per_image()
    prior = RandomSampler(labels, data.num_classes).label_distribution()
    repeated = RepeatFactorSampler(labels, data.num_classes, threshold=threshold, rounding="stochastic")
    assigned = assigned_proposals(run) if run.has("predictions", "annotations") else None
    return shift_between(prior, repeated.label_distribution(), assigned, threshold=threshold)


def shift_between(
    prior: Floats, repeated: Floats, assigned: AssignedProposals | None, *, threshold: float = 0.001
) -> LabelShift:
    """The shifts from distributions that are already known."""
    order = np.argsort(-prior, kind="stable")
    external = log_ratio(repeated, prior)[order]
    if assigned is None:
        return LabelShift(order, external, None, None, threshold)
    if len(assigned.objects) != len(prior):
        raise InputError(
            f"Expected the predictions to have the {len(prior)} classes of the training annotations, but they have "
            f"{len(assigned.objects)}."
        )
    internal = log_ratio(assigned.per_class / assigned.per_class.sum(), assigned.objects / assigned.objects.sum())[
        order
    ]
    return LabelShift(order, external, internal, external + internal, threshold)


def log_ratio(one: npt.ArrayLike, two: npt.ArrayLike) -> Floats:
    """Logarithm of a ratio; NaN where one of the two is zero.

    Example:
        >>> log_ratio([1.0, 0.0], [1.0, 2.0])
        array([ 0., nan])
    """
    first, second = np.asarray(one, np.float64), np.asarray(two, np.float64)
    known = (first > 0) & (second > 0)
    return np.where(known, np.log(np.where(known, first, 1.0) / np.where(known, second, 1.0)), NAN)


@dataclass(frozen=True, eq=False)
class BackgroundRatio:
    """Proposals of each class for one proposal of background; classes from the most proposals on.

    Args:
        order: `(F,)` the classes.
        ratio: `(F,)` of each class.
        cumulative: `(F,)` of all classes up to this one.
        images: How many images were looked at.
    """

    order: npt.NDArray[np.intp]
    ratio: Floats
    cumulative: Floats
    images: int


def background_ratio(assigned: AssignedProposals) -> BackgroundRatio:
    """How few foreground proposals there are beside the background, per class and in all."""
    if not assigned.background:
        raise InputError("Expected the predictions to have background proposals, but every one overlaps an object.")
    order = np.argsort(-assigned.per_class, kind="stable")
    ratio = assigned.per_class[order] / assigned.background
    return BackgroundRatio(order, ratio, np.cumsum(ratio), assigned.images)
