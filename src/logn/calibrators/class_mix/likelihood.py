"""The most likely class mix of unlabelled rows (Saerens, Latinne, Decaestecker 2002), for many weightings at once.

A row x has the likelihood `m(x) = sum_c t_c r_c(x)` under the mix t, with `r_c(x) = p(c | x) / p_c` what the calibrated
model says of it over the mix p that it was trained on. Its logarithm is concave in t, so there is one maximum, and EM,
`t_c <- mean(t_c r_c / m)`, climbs to it. Squared extrapolation makes that quick; `max_c mean(r_c / m) - 1` bounds what
is still missing of the mean log-likelihood, which says when to stop.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logn.logits.arrays import FloatArray

# What may be missing of twice the log-likelihood of all rows; its chance fluctuations are of the order of 1 per class.
TOLERANCE = 0.01
MAX_STEPS = 2000
TINY = float(np.finfo(np.float64).tiny)
# Numbers of the table rows x weightings that are worked on at once.
VALUES_AT_ONCE = 2**22


class Mixes(NamedTuple):
    """The most likely mix under each weighting.

    Args:
        shares: `(B, C)`, each row sums to 1.
        log_likelihood: `(B,)` of all rows, up to what does not depend on the mix.
        converged: `(B,)` whether the bound was reached.
    """

    shares: FloatArray
    log_likelihood: FloatArray
    converged: FloatArray


def likelihood_ratios(log_probabilities: FloatArray, prior: FloatArray) -> FloatArray:
    """`p(c | x) / p_c` for rows of log-probabilities, each row divided by its largest: the mix does not change by that.

    Example:
        >>> likelihood_ratios(np.log([[0.5, 0.5]]), np.array([0.8, 0.2])).tolist()
        [[0.25, 1.0]]
    """
    ratios = log_probabilities - np.log(prior)
    result: FloatArray = np.exp(ratios - ratios.max(axis=1, keepdims=True))
    return result


def most_likely_mixes(
    ratios: FloatArray, start: FloatArray, weights: FloatArray | None = None, max_steps: int = MAX_STEPS
) -> Mixes:
    """The most likely mix of the rows under each weighting of them.

    Args:
        ratios: `(N, C)` of `likelihood_ratios`.
        start: `(C,)` where to begin, above 0.
        weights: `(B, N)` how often each row counts, or None for once.
        max_steps: Extrapolations after which to give up.

    Example:
        >>> rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> most_likely_mixes(rows, np.array([0.5, 0.5])).shares.round(4).tolist()
        [[0.6667, 0.3333]]
    """
    weights = np.ones((1, len(ratios))) if weights is None else weights
    size = max(1, VALUES_AT_ONCE // len(ratios))
    parts = [_climb(ratios, weights[first : first + size], start, max_steps) for first in range(0, len(weights), size)]
    return Mixes(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def log_likelihood(ratios: FloatArray, shares: FloatArray, weights: FloatArray | None = None) -> FloatArray:
    """The log-likelihood of all rows under one mix, for each weighting."""
    logs = np.log(ratios @ shares)
    return np.array([logs.sum()]) if weights is None else np.asarray(weights @ logs)


def _climb(ratios: FloatArray, weights: FloatArray, start: FloatArray, max_steps: int) -> Mixes:
    shares = np.repeat(start[None], len(weights), axis=0)
    total = weights.sum(axis=1)
    limit = TOLERANCE / (2.0 * total)
    open_, found = np.arange(len(weights)), np.full(len(weights), -np.inf)
    converged = np.zeros(len(weights))
    for _ in range(max_steps):
        better, likelihood, gap = _extrapolated(ratios, weights[open_], shares[open_], total[open_])
        shares[open_], found[open_] = better, likelihood
        done = gap <= limit[open_]
        converged[open_[done]] = 1.0
        open_ = open_[~done]
        if not len(open_):
            break
    return Mixes(shares, found, converged)


def _step(
    ratios: FloatArray, weights: FloatArray, shares: FloatArray, total: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """One step of EM from `shares`: the next ones, the likelihood of each row at these, and the bound."""
    mixed = np.maximum(shares @ ratios.T, TINY)
    gradient = (weights / mixed) @ ratios / total[:, None]
    return shares * gradient, mixed, gradient.max(axis=1) - 1.0


def _log_sum(weights: FloatArray, mixed: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("bn,bn->b", weights, np.log(mixed)))


def _extrapolated(
    ratios: FloatArray, weights: FloatArray, shares: FloatArray, total: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Two steps of EM and the squared extrapolation from them, kept where it is not worse (SQUAREM, Varadhan 2008)."""
    first, _, _ = _step(ratios, weights, shares, total)
    second, mixed, gap_below = _step(ratios, weights, first, total)
    below = _log_sum(weights, mixed)
    change = first - shares
    bend = (second - first) - change
    with np.errstate(divide="ignore", invalid="ignore"):
        length = -np.linalg.norm(change, axis=1) / np.linalg.norm(bend, axis=1)
    length = np.where(np.isfinite(length), np.minimum(length, -1.0), -1.0)[:, None]
    far = shares - 2.0 * length * change + length**2 * bend
    # A share of exactly 0 could never rise again.
    far = np.maximum(far, 1e-3 * second)
    far /= far.sum(axis=1, keepdims=True)
    next_, mixed, gap = _step(ratios, weights, far, total)
    likelihood = _log_sum(weights, mixed)
    worse = ~(likelihood >= below)
    # Of the worse ones the two plain steps remain; their bound is that of the first of the two.
    return (
        np.where(worse[:, None], second, next_),
        np.where(worse, below, likelihood),
        np.where(worse, gap_below, gap),
    )
