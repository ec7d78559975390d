"""estimate_prior: the class mix of a deployment from logits without labels, with intervals and a test."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_mix.calibration import fit_temperature, log_probabilities
from logn.calibrators.class_mix.confusion import mix_by_confusion
from logn.calibrators.class_mix.likelihood import likelihood_ratios, log_likelihood, most_likely_mixes
from logn.calibrators.class_mix.prior_estimate import PriorEstimate, total_variation
from logn.calibrators.class_mix.rows import LogitRows, read_logit_rows
from logn.calibrators.known_activation import known_activation
from logn.calibrators.labelled_rows import LabelledRows
from logn.classes.counts import ClassCounts
from logn.errors import InputError, LogNWarning
from logn.logits.arrays import FloatArray, check_background
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments

# How far a mix may be off, in total variation, before it is called doubtful.
PRECISION = 0.02


def estimate_prior(
    logits: Any,
    moments: ClassMoments | None = None,
    *,
    method: Literal["em", "bbse"] = "em",
    counts: ClassCounts | npt.ArrayLike | None = None,
    dev: tuple[Any, npt.ArrayLike] | LabelledRows | None = None,
    background: int | str | None = "recorded",
    activation: str | None = "recorded",
    num_bootstrap: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
    key: str | None = None,
) -> PriorEstimate:
    """Estimate how frequent each class is where a model is used, from its logits alone.

    The classes may be more or less frequent than in training, but each must look as it did: this is label shift. "em"
    finds the most likely mix and relies on the calibration of the model; labelled `dev` rows make it better (one
    temperature) and show how good it is. "bbse" compares mean probabilities with those of the labelled rows of each
    class and needs no calibration, but labels of every class.

    What there is to doubt is in `doubts`, and is warned of.

    Args:
        logits: Of the deployment, without labels: an array `(rows, classes)` or `(images, proposals, classes)`, paths,
            a `logn.PredictionStore`, or `logn.ClassMoments` with a row sample. Files may be larger than memory.
        moments: Statistics over training images: the model's mean probabilities are the mix that it was trained on.
        method: "em" or "bbse".
        counts: Training counts of each class, for classifiers without such statistics.
        dev: Logits and labels (columns) of rows that the model was not trained on, of the mix of training.
        background: Place of the background column: None, 0, -1, or "recorded" to take it from the statistics.
        activation: "softmax", "sigmoid", or "recorded" to take it from the statistics.
        num_bootstrap: Draws of images, or rows, that intervals and the test are made from.
        confidence: Of the intervals.
        seed: Of the draws.
        key: Name of the array in `.npz` and `.safetensors` files.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> classes = rng.choice(3, size=4000, p=[0.2, 0.3, 0.5])
        >>> rows = 3 * np.eye(3)[classes] + rng.normal(size=(4000, 3))
        >>> posterior = 3 * rows + np.log([0.7, 0.2, 0.1])  # calibrated for the mix of training
        >>> found = estimate_prior(posterior, counts=[700, 200, 100], activation="softmax")
        >>> found.shares.round(1).tolist(), found.shifted
        ([0.2, 0.3, 0.5], True)
    """
    if method not in ("em", "bbse"):
        raise InputError(f'Expected `method` to be "em" or "bbse", but got {method!r}.')
    if num_bootstrap < 2 or not 0.0 < confidence < 1.0:
        raise InputError("Expected `num_bootstrap` to be at least 2 and `confidence` between 0 and 1.")
    rows = read_logit_rows(logits, key=key, seed=seed)
    recorded = _recorded(logits, moments)
    place = check_background(recorded.background if background == "recorded" else background)
    known = _known(recorded, place, activation)
    labelled = None if dev is None else _labelled(dev, rows)
    prior = _training_mix(moments, counts, rows, place, known)
    counted = moments is None or moments.mean_probability is None
    problem = _Problem(rows, prior, counted, labelled, place, known, num_bootstrap, confidence, seed)
    found = problem.by_likelihood() if method == "em" else problem.by_confusion()
    names = recorded.class_names or _count_names(counts, place)
    found = replace(found, names=names, doubts=(*found.doubts, *_other_counts(found, counts)))
    for doubt in found.doubts:
        warnings.warn(doubt, LogNWarning, stacklevel=2)
    return found


class _Problem:
    """What one estimate is made from."""

    def __init__(
        self,
        rows: LogitRows,
        prior: FloatArray | None,
        counted: bool,
        dev: LabelledRows | None,
        background: int | None,
        activation: str,
        num_bootstrap: int,
        confidence: float,
        seed: int,
    ) -> None:
        self.rows, self.prior, self.counted, self.dev = rows, prior, counted, dev
        self.background, self.activation = background, activation
        self.num_bootstrap, self.confidence = num_bootstrap, confidence
        self.random = np.random.default_rng(seed)

    def by_likelihood(self) -> PriorEstimate:
        """The most likely mix."""
        temperature = 1.0
        if self.dev is not None:
            temperature = fit_temperature(self.dev, self.activation)
        prior = self._prior_of_tempered(temperature)
        weights = self._draws(self.rows.units)
        shares, drawn, ratio, drawn_ratio, converged = self._most_likely(self.rows.logits, prior, temperature, weights)
        # In the world of the draws the mix is the one that was found: how far they stray from it is what chance does.
        p_value = float((1 + (drawn_ratio >= ratio).sum()) / (1 + len(drawn_ratio)))
        doubts = [] if converged else ["EM did not converge: some classes cannot be told apart."]
        if self.dev is not None:
            doubts += self._doubts_by_labels(prior, temperature, shares)
        return self._estimate("em", shares, drawn, doubts, prior, temperature, (ratio, p_value))

    def by_confusion(self) -> PriorEstimate:
        """The mix by the mean probabilities of labelled rows."""
        if self.dev is None:
            raise InputError(
                'Expected labelled rows (`dev`, `--dev` and `--dev-labels`) for method="bbse", but got none.'
            )
        if self.activation != "softmax":
            raise InputError('Expected a softmax for method="bbse", but got sigmoids; take method="em".')
        probabilities = np.exp(log_probabilities(self.rows.logits, "softmax"))
        labelled = np.exp(log_probabilities(self.dev.logits, "softmax"))
        drawn = [
            mix_by_confusion(probabilities, labelled, self.dev, first, second)
            for first, second in zip(self._draws(self.rows.units), self._draws(self.dev.units), strict=True)
        ]
        shares = mix_by_confusion(probabilities, labelled, self.dev)
        known = self.prior if self.prior is not None else self.dev.per_column / len(self.dev)
        return self._estimate("bbse", shares, np.array(drawn), [], known, 1.0, (None, None))

    def _estimate(
        self,
        method: str,
        shares: FloatArray,
        drawn: FloatArray,
        doubts: list[str],
        prior: FloatArray,
        temperature: float,
        test: tuple[float | None, float | None],
    ) -> PriorEstimate:
        tail = 100 * (1 - self.confidence) / 2
        lower, upper = np.percentile(drawn, [tail, 100 - tail], axis=0)
        precision = float(np.quantile([total_variation(one, shares) for one in drawn], self.confidence))
        if precision > PRECISION:
            doubts.append(
                f"{len(self.rows.logits):,} rows tell the class mix only to ± {precision:.1%} (total variation, "
                f"{self.confidence:.0%} of draws): take more rows, or a model that tells the classes better apart."
            )
        return PriorEstimate(
            shares=shares,
            lower=lower,
            upper=upper,
            training=prior,
            method=method,
            background=self.background,
            activation=self.activation,
            rows=len(self.rows.logits),
            of_rows=self.rows.total,
            units=self.rows.num_units,
            confidence=self.confidence,
            precision=precision,
            likelihood_ratio=test[0],
            p_value=test[1],
            temperature=temperature,
            labelled_rows=0 if self.dev is None else len(self.dev),
            doubts=tuple(doubts),
        )

    def _prior_of_tempered(self, temperature: float) -> FloatArray:
        """The mean probability of the tempered model: that of the model, changed as the labelled rows say."""
        if self.dev is None and self.prior is None:
            raise InputError(
                "Expected `moments` with the mean probability, `counts` or labelled rows (`dev`) to know the mix "
                "of training, but got none; collect the statistics with mean_probability=True (`--prior`)."
            )
        # Counts are of labels, and so is what a calibrated model says on average.
        if self.dev is None or (self.prior is not None and self.counted):
            return np.asarray(self.prior)
        tempered: FloatArray = np.exp(log_probabilities(self.dev.logits / temperature, self.activation)).mean(axis=0)
        if self.prior is None:
            return tempered
        plain = np.exp(log_probabilities(self.dev.logits, self.activation)).mean(axis=0)
        # Both means are of the same rows, so most of their chance cancels.
        changed = self.prior * np.divide(tempered, plain, out=np.ones_like(plain), where=plain > 0)
        return np.asarray(changed / changed.sum() if self.activation == "softmax" else np.minimum(changed, 1.0))

    def _most_likely(
        self, logits: FloatArray, prior: FloatArray, temperature: float, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray, float, FloatArray, bool]:
        """The mix, those of the draws, twice the log-likelihood over that of the training mix and of the draws."""
        logs = log_probabilities(logits / temperature, self.activation)
        if self.activation == "softmax":
            return _mixture(logs, prior, weights)
        shares, drawn = np.zeros(len(prior)), np.zeros((len(weights), len(prior)))
        ratio, drawn_ratio, converged = 0.0, np.zeros(len(weights)), True
        for column, share in enumerate(prior):  # each sigmoid is a mixture of its own, of being there and not
            pair = np.stack([logs[:, column], np.log(-np.expm1(np.minimum(logs[:, column], -1e-300)))], axis=1)
            mine, mine_drawn, more, more_drawn, fine = _mixture(pair, np.array([share, 1.0 - share]), weights)
            shares[column], drawn[:, column] = mine[0], mine_drawn[:, 0]
            ratio, drawn_ratio, converged = ratio + more, drawn_ratio + more_drawn, converged and fine
        return shares, drawn, ratio, drawn_ratio, converged

    def _doubts_by_labels(self, prior: FloatArray, temperature: float, found: FloatArray) -> list[str]:
        """A sentence where the mix of the labelled rows is missed: as they are, or weighted to the mix that was found.

        The second shows what the first cannot: errors of rare classes, which weigh more where these are frequent.
        """
        if self.dev is None:
            return []
        labelled = self.dev.per_column
        as_they_are = labelled / len(self.dev)
        mixes = {"whose mix is known": as_they_are}
        if self.activation == "softmax":
            mixes["weighted to the mix that was found"] = np.where(labelled > 0, found, 0.0)
        for what, mix in mixes.items():
            if mix.sum() == 0:
                continue
            off, chance = self._missed(prior, temperature, mix if mix is as_they_are else mix / mix.sum())
            if off > max(PRECISION, chance):
                return [
                    f"The model is too uncalibrated for EM: of the labelled rows, {what}, it finds one that is off by "
                    f'{off:.1%} (total variation; chance explains {chance:.1%}); take method="bbse" (`--method bbse`), '
                    "or half the strength instead of a target."
                ]
        return []

    def _missed(self, prior: FloatArray, temperature: float, mix: FloatArray) -> tuple[float, float]:
        """How far the mix of labelled rows, weighted to be `mix`, is missed, and how far by chance."""
        dev = self.dev
        if dev is None:
            raise ValueError("only with labelled rows")
        draws = np.vstack([np.ones(len(dev)), self._draws(dev.units)])
        if self.activation == "softmax":
            share = dev.per_column / len(dev)
            draws = draws * (mix / np.where(share > 0, share, 1.0))[dev.labels]
        _, found, *_ = self._most_likely(dev.logits, prior, temperature, draws)
        chance = [total_variation(one, found[0]) for one in found[1:]]
        return total_variation(found[0], mix), float(np.quantile(chance, self.confidence))

    def _draws(self, units: npt.NDArray[np.int64]) -> FloatArray:
        """How often each row counts in each bootstrap sample of the units."""
        _, unit = np.unique(units, return_inverse=True)
        number = int(unit.max()) + 1
        picked = self.random.multinomial(number, np.full(number, 1.0 / number), size=self.num_bootstrap)
        return picked[:, unit].astype(np.float64)


def _mixture(
    logs: FloatArray, prior: FloatArray, weights: FloatArray
) -> tuple[FloatArray, FloatArray, float, FloatArray, bool]:
    alive = prior > 0
    ratios = likelihood_ratios(logs[:, alive], prior[alive])
    start = prior[alive] / prior[alive].sum()
    best = most_likely_mixes(ratios, start)
    drawn = most_likely_mixes(ratios, 0.99 * best.shares[0] + 0.01 * start, weights)
    ratio = 2.0 * (best.log_likelihood - log_likelihood(ratios, start))[0]
    drawn_ratio = 2.0 * (drawn.log_likelihood - log_likelihood(ratios, best.shares[0], weights))
    shares, drawn_shares = np.zeros(len(prior)), np.zeros((len(weights), len(prior)))
    shares[alive], drawn_shares[:, alive] = best.shares[0], drawn.shares
    return shares, drawn_shares, float(ratio), drawn_ratio, bool(best.converged[0])


def _recorded(logits: Any, moments: ClassMoments | None) -> StatisticsMetadata:
    """What is known of the logits: from the statistics, else from what holds them."""
    if moments is not None:
        return moments.metadata
    if isinstance(logits, ClassMoments):
        return logits.metadata
    header = getattr(logits, "header", None)
    if header is None:
        return StatisticsMetadata()
    return StatisticsMetadata(background=header.background, activation=header.activation)


def _known(recorded: StatisticsMetadata, background: int | None, given: str | None) -> str:
    known = known_activation(recorded, background, given)
    if known is None:
        raise InputError(
            "Expected `activation` to be known, but nothing says it; say "
            'activation="softmax" or activation="sigmoid" (`--activation`).'
        )
    return known


def _labelled(dev: tuple[Any, npt.ArrayLike] | LabelledRows, rows: LogitRows) -> LabelledRows:
    labelled = dev if isinstance(dev, LabelledRows) else LabelledRows(dev[0], np.asarray(dev[1]))
    if labelled.num_columns != rows.logits.shape[1]:
        raise InputError(
            f"Expected the labelled rows to have the {rows.logits.shape[1]} columns of `{rows.name}`, but got "
            f"{labelled.num_columns}."
        )
    return labelled


def _training_mix(
    moments: ClassMoments | None,
    counts: ClassCounts | npt.ArrayLike | None,
    rows: LogitRows,
    background: int | None,
    activation: str,
) -> FloatArray | None:
    """The mix that the model was trained on, per column; None where neither statistics nor counts tell."""
    columns = rows.logits.shape[1]
    if columns == 1 and activation == "softmax":
        raise InputError(f"Expected `{rows.name}` to have at least two columns, but got 1: a single class has no mix.")
    mean = None
    if moments is not None:
        if moments.num_columns != columns:
            raise InputError(
                f"Expected `{rows.name}` to have the {moments.num_columns} columns of the statistics, but got "
                f"{columns}."
            )
        mean = moments.mean_probability_of(activation)
    if mean is not None:
        used = np.ones(columns, bool)
        used[list(moments.metadata.unused) if moments is not None else []] = False
        mean = np.where(used, mean, 0.0)
        return mean / mean.sum() if activation == "softmax" else mean
    if counts is None or background is not None or activation == "sigmoid":
        return None  # counts do not say how much is background, nor how many labels a row has
    names = None if moments is None else moments.metadata.class_names
    table = counts if isinstance(counts, ClassCounts) else ClassCounts(np.asarray(counts, np.float64))
    shares = table.fitting(names, columns, None).instance_counts
    return np.asarray(shares / shares.sum())


def _count_names(counts: Any, background: int | None) -> tuple[str, ...] | None:
    return counts.names if isinstance(counts, ClassCounts) and background is None else None


def _other_counts(found: PriorEstimate, counts: ClassCounts | npt.ArrayLike | None) -> list[str]:
    """A sentence where the model's mean probabilities are not the training counts."""
    if counts is None or found.activation != "softmax":
        return []
    table = counts if isinstance(counts, ClassCounts) else ClassCounts(np.asarray(counts, np.float64))
    training = found.foreground(found.training)
    if table.num_classes != len(training) or table.instance_counts.sum() == 0:
        raise InputError(f"Expected `counts` to have {len(training)} foreground classes, but got {table.num_classes}.")
    aligned = table.aligned_to(found.foreground_names).instance_counts
    off = total_variation(aligned / aligned.sum(), training / training.sum())
    if off <= PRECISION:
        return []
    return [
        f"The model's mean probabilities over training images and the training counts differ by {off:.1%} (total "
        "variation): it is not calibrated even there, or a sampler or a loss changed the mix; the mean probabilities "
        "were used."
    ]
