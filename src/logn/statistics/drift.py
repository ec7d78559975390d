"""Drift: how the logits of a deployment differ from those of training, class by class, as the statistics show it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import FloatArray
from logn.statistics.moments import ClassMoments

# How seldom a class may be called drifted in a deployment that is like training, over all classes together.
FALSE_ALARMS = 0.05
# What has to agree for two files to be of one model and one kind of samples, where both say it.
_SAME = ("class_names", "background", "activation", "layer", "population", "estimator", "fingerprint")


@dataclass(frozen=True, eq=False)
class Drift:
    """Deployment against training, for each column of the logits.

    Attributes:
        names: Names of the columns.
        mean: Mean logit in training and deployment, `(2, C)`.
        std: Standard deviation, `(2, C)`.
        mean_probability: Mean probability, `(2, C)`; None where one of them did not record it.
        difference: Difference of the means in standard deviations (of training and deployment, averaged as variances).
        error: Its standard error, the rows taken as independent.
        log_std_ratio: Logarithm of the ratio of the standard deviations.
        log_std_error: Its standard error, each class taken as normal.
        rows: Rows of training and of deployment.
        level: How many standard errors a difference must have to count, with all classes looked at.
    """

    names: tuple[str, ...]
    mean: FloatArray
    std: FloatArray
    mean_probability: FloatArray | None
    difference: FloatArray
    error: FloatArray
    log_std_ratio: FloatArray
    log_std_error: FloatArray
    rows: tuple[int, int]
    level: float

    @property
    def drifted(self) -> npt.NDArray[np.bool_]:
        """Classes whose mean differs by more than chance, taken over all classes, explains."""
        return np.abs(self.difference) > self.level * self.error

    @property
    def order(self) -> npt.NDArray[np.intp]:
        """The columns, largest difference first; those that cannot be compared last."""
        size = np.where(np.isfinite(self.difference), np.abs(self.difference), -1.0)
        return np.argsort(-size, kind="stable")

    @property
    def conclusion(self) -> str:
        """In a sentence."""
        count, of = int(self.drifted.sum()), len(self.names)
        if not count:
            return f"No drift: the mean of none of {of} classes differs by more than chance explains."
        worst = int(self.order[0])
        return (
            f"{count} of {of} classes differ by more than chance explains; most of all {self.names[worst]}, by "
            f"{self.difference[worst]:+.2f} ± {self.error[worst]:.2f} standard deviations."
        )

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, in the order of the columns."""
        return {
            "classes": list(self.names),
            "rows": list(self.rows),
            "mean": self.mean,
            "std": self.std,
            "mean_probability": self.mean_probability,
            "difference": self.difference,
            "error": self.error,
            "log_std_ratio": self.log_std_ratio,
            "log_std_error": self.log_std_error,
            "drifted": self.drifted,
            "order": self.order,
            "conclusion": self.conclusion,
        }


def drift(training: ClassMoments, deployment: ClassMoments) -> Drift:
    """Compare the statistics of a deployment with those of training; no labels are needed.

    Rows count as independent. Proposals of one image are not, so of a detector the errors are too small, by up to the
    root of the proposals per object.

    Args:
        training: Statistics over training images.
        deployment: Statistics of the same model over deployed images.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> there, here = ClassMoments(2), ClassMoments(2)
        >>> there.update(rng.normal(size=(1000, 2))); here.update(rng.normal([0.0, 1.0], size=(1000, 2)))
        >>> drift(there, here).drifted.tolist()
        [False, True]
    """
    _check_comparable(training, deployment)
    both = (training, deployment)
    mean, variance = (np.array([getattr(side, name) for side in both]) for name in ("mean", "variance"))
    count = np.array([side.count for side in both])
    with np.errstate(divide="ignore", invalid="ignore"):
        pooled = variance.mean(axis=0)
        difference = (mean[1] - mean[0]) / np.sqrt(pooled)
        # Delta method; a sample variance has the variance 2 v^2 / (n - 1).
        of_means = (variance / count).sum(axis=0) / pooled
        of_spread = difference**2 / 8 * ((variance / pooled) ** 2 / (count - 1)).sum(axis=0)
        log_ratio = 0.5 * np.log(variance[1] / variance[0])
        log_error = np.sqrt((0.5 / (count - 1)).sum(axis=0))
    probabilities = [side.mean_probability for side in both]
    known = all(values is not None for values in probabilities)
    return Drift(
        names=_names(training, deployment),
        mean=mean,
        std=np.sqrt(variance),
        mean_probability=np.array(probabilities, dtype=np.float64) if known else None,
        difference=difference,
        error=np.sqrt(of_means + of_spread),
        log_std_ratio=log_ratio,
        log_std_error=log_error,
        rows=(int(count[0].max()), int(count[1].max())),
        level=NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * training.num_columns)),
    )


def _check_comparable(training: ClassMoments, deployment: ClassMoments) -> None:
    if training.num_columns != deployment.num_columns:
        raise InputError(
            f"Expected the statistics of the deployment to be of {training.num_columns} columns, as those of training, "
            f"but got {deployment.num_columns}."
        )
    for name in _SAME:
        mine, theirs = getattr(training.metadata, name), getattr(deployment.metadata, name)
        if None not in (mine, theirs) and mine != theirs:
            raise InputError(
                f"Expected both statistics to be of one `{name}`, but they differ: what differs between them is then "
                "no drift."
            )
    for side, what in ((training, "training"), (deployment, "the deployment")):
        if side.count.max() < 2:
            raise InputError(
                f"Expected the statistics of {what} to hold at least two rows, but got {int(side.count.max())}."
            )


def _names(training: ClassMoments, deployment: ClassMoments) -> tuple[str, ...]:
    names = training.metadata.class_names or deployment.metadata.class_names
    return names or tuple(f"column {column}" for column in range(training.num_columns))
