"""What the paper's figures show: from a trained detector over training images, or from a table of the bench."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.models.images import as_tensor
from logn.statistics.head import Head, foreground_columns
from logn.statistics.moments import ClassMoments
from logn.statistics.summary import spearman
from logn_research.assignment import classes_of
from logn_research.datasets.sample_dataset import SampleDataset
from logn_research.datasets.samplers import RandomSampler, RepeatFactorSampler, repeat_factors
from logn_research.estimators import PositiveMoments

Floats = npt.NDArray[np.float64]
ERROR_TYPES, SPECIAL_ERRORS = ("Cls", "Loc", "Both", "Dupe", "Bkg", "Miss"), ("FP", "FN")
NAN = float("nan")


@dataclass(frozen=True, eq=False)
class TrainingPass:
    """What a detector says of its training images: the population that the paper's figures count.

    Args:
        per_class: `(F,)` proposals of each foreground class.
        background: Proposals of no class.
        objects: `(F,)` annotated objects of each class in the same images.
        moments: Statistics of all proposals.
        positives: Statistics of each class's logit over its own proposals only.
        images: How many images there are.
        proposal_image: `(P,)` the image of each proposal that was assigned to a class.
        proposal_class: `(P,)` that class.
        image_classes: The classes of the objects of each image.
    """

    per_class: npt.NDArray[np.int64]
    background: int
    objects: npt.NDArray[np.int64]
    moments: ClassMoments
    positives: ClassMoments
    images: int
    proposal_image: npt.NDArray[np.int64]
    proposal_class: npt.NDArray[np.int64]
    image_classes: tuple[npt.NDArray[np.int64], ...]

    def repeated_per_class(self, factors: Floats) -> Floats:
        """Proposals of each class where images are shown as often as repeat factor sampling shows them.

        Args:
            factors: `(F,)` repeat factor of each class; an image has the largest of its classes'.
        """
        repeats = np.array([factors[classes].max(initial=1.0) for classes in self.image_classes])
        weights = repeats[self.proposal_image]
        return np.bincount(self.proposal_class, weights=weights, minlength=len(self.per_class)).astype(np.float64)


def training_pass(
    detector: Any,
    training: SampleDataset,
    *,
    max_images: int | None = None,
    seed: int = 0,
    progress: Callable[[int], object] = lambda count: None,
) -> TrainingPass:
    """Run a detector over training images and assign its proposals to their objects.

    Args:
        detector: As `load_detector` gives it.
        training: The training images.
        max_images: How many of them at most, drawn at random; all by default.
        seed: Of the draw.
        progress: Called with the number of images whenever some are done.
    """
    classes = training.num_classes
    columns = classes + (detector.background is not None)
    head = Head(columns, background=detector.background, activation=detector.activation)
    moments, positives = ClassMoments(head), PositiveMoments(head)
    per_image: list[npt.NDArray[np.int64]] = []
    objects: list[npt.NDArray[np.int64]] = []
    background = 0
    for index in np.random.default_rng(seed).permutation(len(training))[:max_images].tolist():
        (proposals,) = detector.propose([as_tensor(training.read_image(index))])
        of_class = classes_of(proposals, training, index, detector.background)
        moments.update(proposals.logits)
        positives.update(proposals.logits, np.where(of_class >= 0, of_class + (detector.background == 0), -1))
        per_image.append(of_class[of_class >= 0])
        background += int((of_class < 0).sum())
        objects.append(training.labels_of(index)[~training.is_crowd_of(index)].astype(np.int64))
        progress(1)
    everything = np.concatenate([*per_image, np.empty(0, np.int64)])
    return TrainingPass(
        np.bincount(everything, minlength=classes),
        background,
        np.bincount(np.concatenate([*objects, np.empty(0, np.int64)]), minlength=classes),
        moments,
        positives.moments(),
        len(per_image),
        np.repeat(np.arange(len(per_image)), [len(each) for each in per_image]),
        everything,
        tuple(np.unique(each) for each in objects),
    )


@dataclass(frozen=True, eq=False)
class LabelShift:
    """Logarithms of label distributions less the logarithm of the prior; classes from the most frequent on.

    Args:
        order: `(F,)` the classes.
        external: `(F,)` shift by repeat factor sampling, which repeats images of rare classes.
        internal: `(F,)` shift by the assignment of proposals to objects; NaN where a class has no object or no
            proposal.
        both: `(F,)` shift by both together, counted: the proposals of each image weigh as often as repeat factor
            sampling shows it.
        threshold: Of repeat factor sampling.
    """

    order: npt.NDArray[np.intp]
    external: Floats
    internal: Floats
    both: Floats
    threshold: float


def label_shift(training: SampleDataset, seen: TrainingPass, *, threshold: float = 0.001) -> LabelShift:
    """Fig. 1a: compare label distributions with the prior, the share of each class among all annotated objects."""
    labels = training.labels_per_image()
    prior = RandomSampler(labels, training.num_classes).label_distribution()
    repeated = RepeatFactorSampler(labels, training.num_classes, threshold=threshold, rounding="stochastic")
    factors = repeat_factors(repeated.image_counts, len(repeated.images), threshold)
    order = np.argsort(-prior, kind="stable")
    objects = seen.objects / seen.objects.sum()
    joint = seen.repeated_per_class(factors)
    return LabelShift(
        order,
        log_ratio(repeated.label_distribution(), prior)[order],
        log_ratio(seen.per_class / seen.per_class.sum(), objects)[order],
        log_ratio(joint / joint.sum(), objects)[order],
        threshold,
    )


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
    """

    order: npt.NDArray[np.intp]
    ratio: Floats
    cumulative: Floats


def background_ratio(seen: TrainingPass) -> BackgroundRatio:
    """Fig. 1b: how few foreground proposals there are compared to the background, per class and in all."""
    if not seen.background:
        raise InputError("Every proposal overlaps an object, so there is no background to compare with.")
    order = np.argsort(-seen.per_class, kind="stable")
    ratio = seen.per_class[order] / seen.background
    return BackgroundRatio(order, ratio, np.cumsum(ratio))


@dataclass(frozen=True, eq=False)
class LogitStatistics:
    """Mean and variance of each class's logit, classes from the most frequent in training on.

    Args:
        order: `(F,)` the classes.
        log_share: `(F,)` logarithm of the class's share among the training objects, as often as they were shown.
        mean: `(F,)` mean logit; NaN where the class has no sample.
        variance: `(F,)` its variance; NaN where it has fewer than two.
        mean_link: Rank correlation of the mean with `log_share`.
        variance_link: Rank correlation of the variance with `log_share`.
    """

    order: npt.NDArray[np.intp]
    log_share: Floats
    mean: Floats
    variance: Floats
    mean_link: float
    variance_link: float


def logit_statistics(
    moments: ClassMoments, instance_counts: npt.ArrayLike, shown: npt.ArrayLike | None = None
) -> LogitStatistics:
    """Fig. 2 and 6: pair statistics with the training frequency.

    Args:
        moments: The statistics.
        instance_counts: Objects of each foreground class, which give the order.
        shown: How often the objects of each class were shown, where a sampler repeated some; else once each.
    """
    foreground = foreground_columns(moments.num_columns, moments.head.background)
    counts = np.maximum(np.asarray(instance_counts, np.float64), 1.0)
    mean = np.where(moments.count[foreground] > 0, moments.mean[foreground], np.nan)
    if len(counts) != len(mean):
        raise InputError(f"Expected the counts to have {len(mean)} classes, but they have {len(counts)}.")
    order = np.argsort(-counts, kind="stable")
    labels = counts if shown is None else np.maximum(np.asarray(shown, np.float64), 1e-12)
    log_share = np.log(labels / labels.sum())[order]
    mean, variance = mean[order], moments.variance[foreground][order]
    return LogitStatistics(order, log_share, mean, variance, _link(mean, log_share), _link(variance, log_share))


def resampled_shares(training: SampleDataset, threshold: float) -> Floats:
    """The label distribution that repeat factor sampling shows."""
    labels = training.labels_per_image()
    sampler = RepeatFactorSampler(labels, training.num_classes, threshold=threshold, rounding="stochastic")
    return sampler.label_distribution()


def _link(values: Floats, other: Floats) -> float:
    known = np.isfinite(values)
    return spearman(values[known], other[known])


@dataclass(frozen=True)
class OnlineComparison:
    """AP between 0 and 1 by series, in the order of `metrics`."""

    metrics: tuple[str, ...]
    series: Mapping[str, tuple[float, ...]]


#: Rows of the table on online LogN, and what the paper's figure calls them.
ONLINE_ROWS = {
    "CE": "Baseline",
    "online LogN": "Online LogN, margin 0",
    "online LogN, margin min": "Online LogN, margin min",
    "LogN": "Post-hoc LogN",
}
#: Rows of the table of components: the paper's Fig. 4 has the first and the last, Fig. 5 all of them.
ERROR_ROWS = {
    "none": "Baseline",
    "mean": "+ mean",
    "std": "+ std",
    "margin": "+ margin",
    "mean, std and margin: LogN": "LogN (all)",
}


def online_comparison(table: Mapping[str, Any], section: str | None = None) -> OnlineComparison:
    """Fig. 3: the paper's LogN during training and after it, from `logn bench online`.

    Args:
        table: The content of `online.json`.
        section: Title of the section; by default the last, repeat factor sampling as in the paper.
    """
    rows = _rows(table, "online", section)
    metrics = ("APr", "APc", "APf", "AP")
    series = {
        title: tuple(_mean(rows[label]["metrics"], metric) for metric in metrics)
        for label, title in ONLINE_ROWS.items()
    }
    return OnlineComparison(metrics, series)


def error_panels(table: Mapping[str, Any], labels: Sequence[str], section: str | None = None) -> dict[str, Any]:
    """Fig. 4 and 5: AP50 and what fixing each kind of error would add, from `logn bench components`.

    Args:
        table: The content of `components.json`.
        labels: Rows of `ERROR_ROWS`.
        section: Title of the section; by default the last, the paper's detector.
    """
    rows = _rows(table, "components", section)
    return {
        ERROR_ROWS[label]: {"AP50": _mean(rows[label]["metrics"], "AP50")}
        | {kind: _mean(rows[label]["errors"], kind) for kind in (*ERROR_TYPES, *SPECIAL_ERRORS)}
        for label in labels
    }


def _rows(table: Mapping[str, Any], name: str, section: str | None) -> dict[str, Any]:
    if table.get("table") != name:
        raise InputError(
            f"The figure needs the JSON file that `logn bench {name}` writes, not that of `{table.get('table')}`."
        )
    sections = {each["title"]: each["rows"] for each in table["sections"]}
    if section is not None and section not in sections:
        raise InputError(f"Expected `--section` to be one of {', '.join(sections)}, but got {section!r}.")
    rows = sections[section] if section else list(sections.values())[-1]
    return {row["method"]: row for row in rows}


def _mean(of_seeds: Mapping[str, Mapping[str, float]], metric: str) -> float:
    values = [numbers[metric] for numbers in of_seeds.values()]
    return sum(values) / len(values) if values else NAN


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
    """Eq. 4 to 6: a margin as a shift of the background; the share of the class is added to the logarithm of a score.

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
