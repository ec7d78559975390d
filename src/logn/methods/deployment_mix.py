"""estimate_prior: the class mix of a deployment from its logits, without labels, with an interval for each class.

Expectation maximisation of Saerens, Latinne and Decaestecker (2002). Under the mix t, a row x has the likelihood
`sum_c t_c r_c(x)` with `r_c(x) = p(c | x) / p_c`: what the model says of the row over the mix p it was trained on. Its
logarithm is concave in t, and `t_c <- mean(t_c r_c / sum_k t_k r_k)` climbs to the maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray, as_rows, log_softmax
from logn.data.class_counts import ClassCounts
from logn.errors import InputError, warn
from logn.statistics.head import Head, foreground_columns
from logn.statistics.moments import ClassMoments

# Larger inputs are subsampled (seeded).
MOST_ROWS, MOST_VALUES = 100_000, 2**24
# EM stops when twice the log-likelihood of all rows can rise by no more than this.
TOLERANCE = 0.01
MAX_STEPS = 5000
TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class PriorEstimate:
    """The class mix of a deployment.

    Attributes:
        shares: `(C,)` share of each column among the rows, the background included; for sigmoids the share of rows that
            have the class.
        lower: `(C,)` lower end of the interval of each share.
        upper: `(C,)` upper end.
        training: `(C,)` the shares in training.
        background: Index of the background column.
        num_rows: Rows that were used.
    """

    shares: FloatArray
    lower: FloatArray
    upper: FloatArray
    training: FloatArray
    background: int | None
    num_rows: int

    @property
    def target(self) -> FloatArray:
        """Shares of the foreground classes, which sum to 1, for the `target` of a method; each at least half a row."""
        foreground = foreground_columns(len(self.shares), self.background)
        shares = np.maximum(self.shares[foreground], 0.5 / self.num_rows)
        return np.asarray(shares / shares.sum())


def estimate_prior(
    logits: Any,
    moments: ClassMoments | None = None,
    *,
    counts: ClassCounts | npt.ArrayLike | None = None,
    background: int | None = None,
    activation: str | None = None,
    num_bootstrap: int = 100,
    confidence: float = 0.95,
    seed: int = 0,
) -> PriorEstimate:
    """Estimate how frequent each class is where a model is used, from its logits alone.

    This assumes label shift: classes may be more or less frequent than in training, but each looks as it did. It also
    relies on the model's calibration: the intervals cover chance, not a model that is wrongly sure.

    Args:
        logits: Of the deployment: an array `(rows, columns)` or `(images, proposals, columns)`, or `logn.ClassMoments`
            with a row sample.
        moments: Statistics over training images: their mean probabilities are the mix of training.
        counts: Training counts of each class, for softmax classifiers without such statistics.
        background: Index of the background column, 0 or -1; by default that of the statistics.
        activation: "softmax" or "sigmoid"; by default that of the statistics.
        num_bootstrap: Draws of images (of rows, where each stands alone) that the intervals are made from.
        confidence: Of the intervals.
        seed: Of the draws.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> classes = rng.choice(3, size=4000, p=[0.2, 0.3, 0.5])
        >>> rows = 3 * np.eye(3)[classes] + rng.normal(size=(4000, 3))
        >>> posterior = 3 * rows + np.log([0.7, 0.2, 0.1])  # calibrated for the mix of training
        >>> estimate = estimate_prior(posterior, counts=[700, 200, 100], activation="softmax")
        >>> estimate.shares.round(1).tolist()
        [0.2, 0.3, 0.5]
    """
    if num_bootstrap < 2 or not 0.0 < confidence < 1.0:
        raise InputError(
            f"Expected `num_bootstrap` to be at least 2 and `confidence` between 0 and 1, but got {num_bootstrap} and "
            f"{confidence}."
        )
    rows, unit = _read_rows(logits, seed)
    statistics = moments if moments is not None or not isinstance(logits, ClassMoments) else logits
    recorded = Head() if statistics is None else statistics.head
    head = recorded.settled(background, activation)
    index, kind = head.background, head.activation
    if kind is None:
        raise InputError('Softmax or sigmoid? Pass activation="softmax" or activation="sigmoid".')
    training = _training_mix(moments, counts, rows.shape[1], index, kind)
    units = int(unit.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(units, np.full(units, 1.0 / units), size=num_bootstrap)
    weights = np.vstack([np.ones(len(rows)), drawn[:, unit]])
    mixes = np.zeros((len(weights), len(training)))
    if kind == "softmax":
        used = training > 0
        mixes[:, used] = _most_likely(log_softmax(rows[:, used]), training[used], weights)
    else:
        for column, share in enumerate(training):  # each sigmoid is a mixture of its own: has the class, has it not
            pair = np.stack([-np.logaddexp(0.0, -rows[:, column]), -np.logaddexp(0.0, rows[:, column])], axis=1)
            mixes[:, column] = _most_likely(pair, np.array([share, 1.0 - share]), weights)[:, 0]
    tail = (1 - confidence) / 2
    lower, upper = np.quantile(mixes[1:], [tail, 1 - tail], axis=0)
    return PriorEstimate(mixes[0], lower, upper, training, index, len(rows))


def _most_likely(log_probabilities: FloatArray, training: FloatArray, weights: FloatArray) -> FloatArray:
    """The most likely mix `(B, C)` of rows `(N, C)` under each weighting `(B, N)` of them."""
    ratios = log_probabilities - np.log(np.maximum(training, TINY))
    ratios = np.exp(ratios - ratios.max(axis=1, keepdims=True))
    total = weights.sum(axis=1, keepdims=True)
    shares: FloatArray = np.repeat(training[None] / training.sum(), len(weights), axis=0)
    for _ in range(MAX_STEPS):
        gain = (weights / np.maximum(shares @ ratios.T, TINY)) @ ratios / total
        shares = shares * gain
        # max(gain) - 1 bounds what is missing of the mean log-likelihood.
        if (2 * total[:, 0] * (gain.max(axis=1) - 1) < TOLERANCE).all():
            return shares
    warn(
        f"The class mix did not converge in {MAX_STEPS} steps: some classes cannot be told apart, so their shares are "
        "uncertain."
    )
    return shares


def _read_rows(logits: Any, seed: int) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Rows of finite logits, at most as many as memory should hold, and the image of each."""
    source = logits.sample if isinstance(logits, ClassMoments) else logits
    source = source if hasattr(source, "shape") else np.asarray(source)
    shape = tuple(source.shape)
    if len(shape) not in (2, 3) or 0 in shape:
        raise InputError(
            "Expected `logits` to be (rows, columns), (images, proposals, columns), or statistics with a row sample, "
            f"but got shape {shape}."
        )
    rows, proposals = as_rows(source, shape[-1]), shape[1] if len(shape) == 3 else 1
    unit = np.arange(len(rows)) // proposals
    most = max(1, min(MOST_ROWS, MOST_VALUES // shape[-1]) // proposals)
    if unit[-1] >= most:
        chosen = np.sort(np.random.default_rng(seed).choice(unit[-1] + 1, most, replace=False))
        rows = rows[np.isin(unit, chosen)]
        unit = np.arange(len(rows)) // proposals
    values = np.asarray(rows, np.float64)
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise InputError(f"Expected `logits` to be finite, but got {values[row, column]} in column {column}.")
    return values, unit


def _training_mix(
    moments: ClassMoments | None, counts: Any, columns: int, background: int | None, activation: str
) -> FloatArray:
    """The mix that the model was trained on, per column."""
    mean = None if moments is None else moments.mean_probability_of(activation)
    if moments is not None and mean is not None:
        if len(mean) != columns:
            raise InputError(f"Expected `logits` to have the {len(mean)} columns of `moments`, but got {columns}.")
        mean[list(moments.head.unused)] = 0.0
        return np.asarray(mean / mean.sum() if activation == "softmax" else mean)
    if counts is None or background is not None or activation == "sigmoid":
        raise InputError(
            "The class mix of training is unknown: pass `moments` (in Python collected with mean_probability=True), "
            "or, for a softmax without a background, `counts`."
        )
    shares = (
        ClassCounts.of(counts).fitting(None if moments is None else moments.head.names, columns, None).instance_counts
    )
    return np.asarray(shares / shares.sum())
