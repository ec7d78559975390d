"""Data of the figures on labels: how samplers shift their distribution, and how few they are next to the background."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.evaluate.comparison.comparison import Comparison
from logn.logits.arrays import foreground_columns
from logn.report.run_folder import Run
from logn.statistics.diagnosis import Correlation, pearson, spearman
from logn.statistics.moments import ClassMoments
from logn_research.datasets.samplers import RandomSampler, RepeatFactorSampler, repeat_factors
from logn_research.figures.assigned_proposals import AssignedProposals, assigned_proposals

Floats = npt.NDArray[np.float64]
NAN = float("nan")


@dataclass(frozen=True, eq=False)
class LabelShift:
    """Logarithms of label distributions less the logarithm of the prior; classes from the most frequent on.

    Args:
        order: `(F,)` the classes.
        external: `(F,)` shift by repeat factor sampling, which repeats images of rare classes.
        internal: `(F,)` shift by the assignment of proposals to objects, as far as the predicted images show; NaN where
            a class has no object or no proposal. None when there are no predictions.
        both: `(F,)` shift by both together, counted: the proposals of each image weigh as often as repeat factor
            sampling shows it. None when there are no predictions.
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
    factors = repeat_factors(repeated.image_counts, len(repeated.images), threshold)
    return shift_between(prior, repeated.label_distribution(), assigned, factors=factors, threshold=threshold)


def shift_between(
    prior: Floats,
    repeated: Floats,
    assigned: AssignedProposals | None,
    *,
    factors: Floats | None = None,
    threshold: float = 0.001,
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
    objects = assigned.objects / assigned.objects.sum()
    internal = log_ratio(assigned.per_class / assigned.per_class.sum(), objects)[order]
    joint = None if factors is None else assigned.repeated_per_class(factors)
    both = None if joint is None else log_ratio(joint / joint.sum(), objects)[order]
    return LabelShift(order, external, internal, both, threshold)


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
    """How few foreground proposals there are compared to the background, per class and in all."""
    if not assigned.background:
        raise InputError("Expected the predictions to have background proposals, but every one overlaps an object.")
    order = np.argsort(-assigned.per_class, kind="stable")
    ratio = assigned.per_class[order] / assigned.background
    return BackgroundRatio(order, ratio, np.cumsum(ratio), assigned.images)


GROUPS = ("APr", "APc", "APf", "AP")


@dataclass(frozen=True)
class OnlineComparison:
    """AP between 0 and 1 by series, in the order of `metrics`."""

    metrics: tuple[str, ...]
    series: Mapping[str, tuple[float, ...]]


def online_comparison(
    run: Comparison, online: Comparison | Mapping[str, Comparison], method: str | None = None
) -> OnlineComparison:
    """Put models that were trained with LogN next to the usual one, before and after the correction.

    Args:
        run: Comparison of the model that was trained as usual.
        online: Comparison of the model that was trained with LogN, or several by their names (the paper's two have the
            margins 0 and min); its uncorrected row is taken, since the normalisation is part of that model.
        method: Which row of `run` is LogN afterwards; by default the first after the uncorrected model.
    """
    several = {"Online LogN": online} if isinstance(online, Comparison) else online
    for other in several.values():
        if run.describe() != other.describe():
            raise InputError(
                f"Expected both runs to be measured by the same protocol, but got `{run.describe()}` and "
                f"`{other.describe()}`."
            )
    focus = run.focus(method)
    known = [set(other.metric_names) for other in (run, *several.values())]
    metrics = tuple(name for name in GROUPS if all(name in names for names in known))
    rows = {
        "Baseline": run.baseline,
        **{name: other.baseline for name, other in several.items()},
        f"Post-hoc ({focus.name})": focus,
    }
    return OnlineComparison(metrics, {name: tuple(row[metric] for metric in metrics) for name, row in rows.items()})


@dataclass(frozen=True, eq=False)
class LogitStatistics:
    """Mean and variance of each class's logit, classes from the most frequent in training on.

    Args:
        order: `(F,)` the classes.
        log_share: `(F,)` logarithm of the class's share among the training objects, as often as they were shown.
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


def logit_statistics(
    moments: ClassMoments, instance_counts: npt.ArrayLike, shown: npt.ArrayLike | None = None
) -> LogitStatistics:
    """Pair statistics with the training frequency.

    Args:
        moments: The statistics.
        instance_counts: Objects of each foreground class, which give the order.
        shown: How often the objects of each class were shown, where a sampler repeated some; else once each.
    """
    foreground = foreground_columns(moments.num_columns, moments.metadata.background)
    counts = np.maximum(np.asarray(instance_counts, np.float64), 1.0)
    seen = moments.count[foreground]
    mean = np.where(seen > 0, moments.mean[foreground], np.nan)
    variance = moments.variance[foreground]
    if len(counts) != len(mean):
        raise InputError(f"Expected the counts to have {len(mean)} classes, but they have {len(counts)}.")
    order = np.argsort(-counts, kind="stable")
    labels = counts if shown is None else np.asarray(shown, np.float64)
    log_share = np.log(labels / labels.sum())[order]
    mean, variance = mean[order], variance[order]
    return LogitStatistics(order, log_share, mean, variance, _link(mean, log_share), _link(variance, log_share))


def _link(values: Floats, other: Floats) -> Correlation:
    known = np.isfinite(values)
    return Correlation(pearson(values[known], other[known]), spearman(values[known], other[known]))


def statistics_of_run(run: Run) -> LogitStatistics:
    """Statistics over all samples, as they were collected."""
    moments = run.moments
    foreground = foreground_columns(moments.num_columns, moments.metadata.background)
    names = moments.metadata.class_names
    counts = run.counts.aligned_to(None if names is None else names[foreground])
    return logit_statistics(moments, counts.instance_counts)


def resampled_statistics(run: Run, *, threshold: float = 0.001) -> LogitStatistics:
    """Statistics of a model that was trained with repeat factor sampling, beside the labels that it was shown."""
    data, moments = run.training_data, run.moments
    sampler = RepeatFactorSampler(data.labels_per_image(), data.num_classes, threshold=threshold, rounding="stochastic")
    return logit_statistics(moments, data.instance_counts, np.maximum(sampler.label_distribution(), 1e-12))


def positive_statistics(run: Run, assigned: AssignedProposals) -> LogitStatistics:
    """Statistics over positive samples only: each class's logit over the proposals that are of that class."""
    counts = run.counts.aligned_to(run.store.header.class_names)
    moments = assigned.positives
    if moments.metadata.background != run.store.header.background:
        moments = _with_background(moments, run.store.header.background)
    return logit_statistics(moments, counts.instance_counts)


def _with_background(moments: ClassMoments, background: int | None) -> ClassMoments:
    return ClassMoments.from_arrays(moments.to_arrays(), moments.metadata.with_changes(background=background))


MARGINS = (0.0, -1.0, -2.0, -4.0)


@dataclass(frozen=True, eq=False)
class MarginEffect:
    """The score of a class, relative to its share of the foreground, over the background score.

    Args:
        background: `(S,)` scores of the background before the margin, between 0 and 1.
        margins: The margins.
        own: The margin of the run ("min"); it is among `margins`. None when there are no statistics.
        foreground: `(M, S)` what is left for the foreground: `1 / (1 + exp(-margin) · s / (1 - s))`.
        steepness: `(M, S)` by how much the logarithm of the score falls per unit of background score.
    """

    background: Floats
    margins: tuple[float, ...]
    own: float | None
    foreground: Floats
    steepness: Floats


def margin_effect(
    margins: Sequence[float] = MARGINS, *, own: float | None = None, background: npt.ArrayLike | None = None
) -> MarginEffect:
    """Compute the effect; the logarithm of a score is that of `foreground` and the share of the class, added.

    Example:
        >>> effect = margin_effect([0.0, -np.log(3)], background=[0.5])
        >>> effect.foreground.round(3).tolist(), effect.steepness.round(3).tolist()
        ([[0.5], [0.25]], [[2.0], [3.0]])
    """
    scores = np.linspace(0.005, 0.995, 199) if background is None else np.asarray(background, np.float64)
    chosen = tuple(dict.fromkeys([*margins, *([] if own is None else [own])]))
    weight = np.exp(-np.array(chosen))[:, None]
    odds = (scores / (1 - scores))[None, :]
    foreground = 1 / (1 + weight * odds)
    # The derivative of -log(foreground) by the background score.
    steepness = weight / (1 - scores[None, :]) ** 2 * foreground
    return MarginEffect(scores, chosen, own, foreground, steepness)


def margin_of_run(run: Run) -> float | None:
    """The paper's margin for this model: the lowest mean logit of a foreground class."""
    if not run.has("statistics"):
        return None
    moments = run.moments
    means = moments.mean[foreground_columns(moments.num_columns, moments.metadata.background)]
    return float(np.nanmin(means))
