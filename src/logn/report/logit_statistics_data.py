"""Data of the figures on logit statistics: over all samples, over positive samples only, beside the label frequency."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import foreground_columns
from logn.report.assigned_proposals import AssignedProposals
from logn.report.run_folder import Run
from logn.statistics.diagnosis import Correlation, pearson, spearman
from logn.statistics.moments import ClassMoments

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LogitStatistics:
    """Mean and variance of each class's logit, classes from the most frequent in training on.

    Args:
        order: `(F,)` the classes.
        log_share: `(F,)` logarithm of the class's share among the training objects.
        mean: `(F,)` mean logit; NaN where the class has no sample.
        variance: `(F,)` its variance; NaN where it has fewer than two.
        mean_link: Correlation of the mean with `log_share`.
        variance_link: Correlation of the variance with `log_share`.
    """

    order: npt.NDArray[np.intp]
    log_share: Floats
    mean: Floats
    variance: Floats
    mean_link: Correlation
    variance_link: Correlation


def logit_statistics(moments: ClassMoments, instance_counts: npt.ArrayLike) -> LogitStatistics:
    """Put statistics beside the training frequency; `instance_counts` is per foreground class."""
    foreground = foreground_columns(moments.num_classes, moments.metadata.background)
    counts = np.maximum(np.asarray(instance_counts, np.float64), 1.0)
    seen = moments.count[foreground]
    mean = np.where(seen > 0, moments.mean[foreground], np.nan)
    variance = moments.variance[foreground]
    if len(counts) != len(mean):
        raise InputError(f"Expected the counts to have {len(mean)} classes, but they have {len(counts)}.")
    order = np.argsort(-counts, kind="stable")
    log_share = np.log(counts / counts.sum())[order]
    mean, variance = mean[order], variance[order]
    return LogitStatistics(order, log_share, mean, variance, _link(mean, log_share), _link(variance, log_share))


def _link(values: Floats, other: Floats) -> Correlation:
    known = np.isfinite(values)
    return Correlation(pearson(values[known], other[known]), spearman(values[known], other[known]))


def statistics_of_run(run: Run) -> LogitStatistics:
    """Statistics over all samples, as they were collected."""
    moments = run.moments
    foreground = foreground_columns(moments.num_classes, moments.metadata.background)
    names = moments.metadata.class_names
    counts = run.counts.aligned_to(None if names is None else names[foreground])
    return logit_statistics(moments, counts.instance_counts)


def positive_statistics(run: Run, assigned: AssignedProposals) -> LogitStatistics:
    """Statistics over positive samples only: each class's logit over the proposals that are of that class."""
    counts = run.counts.aligned_to(run.store.header.class_names)
    moments = assigned.positives
    if moments.metadata.background != run.store.header.background:
        moments = _with_background(moments, run.store.header.background)
    return logit_statistics(moments, counts.instance_counts)


def _with_background(moments: ClassMoments, background: int | None) -> ClassMoments:
    file = moments.to_file()
    return ClassMoments.from_file(replace(file, metadata=file.metadata.with_changes(background=background)))
