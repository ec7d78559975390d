"""One temperature by labelled rows: how sure a model may be."""

from __future__ import annotations

import numpy as np

from logn.calibrators.labelled_rows import LabelledRows
from logn.logits.arrays import FloatArray

# Between these the inverse temperature is searched for.
COLDEST, HOTTEST = 1e3, 1e-3


def log_probabilities(logits: FloatArray, activation: str) -> FloatArray:
    """Logarithms of the softmax, or of each sigmoid.

    Example:
        >>> np.exp(log_probabilities(np.array([[0.0, 0.0]]), "softmax")).round(6).tolist()
        [[0.5, 0.5]]
    """
    if activation == "sigmoid":
        return np.asarray(-np.logaddexp(0.0, -logits))
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def fit_temperature(dev: LabelledRows, activation: str) -> float:
    """The temperature with the least log-loss on labelled rows (Guo et al. 2017); the loss is convex in its inverse.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(5000, 3))
        >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)  # drawn by the softmax of the logits
        >>> round(fit_temperature(LabelledRows(3 * logits, labels), "softmax"), 1)
        3.0
    """
    low, high = np.log(HOTTEST), np.log(COLDEST)
    for _ in range(60):
        middle = (low + high) / 2
        if _slope(dev, float(np.exp(middle)), activation) > 0:
            high = middle
        else:
            low = middle
    return float(np.exp(-(low + high) / 2))


def _slope(dev: LabelledRows, inverse: float, activation: str) -> float:
    """Derivative of the log-loss by the inverse temperature."""
    expected = np.exp(log_probabilities(dev.logits * inverse, activation))
    real = np.zeros_like(expected)
    known = dev.labels >= 0
    real[np.flatnonzero(known), dev.labels[known]] = 1.0
    return float(((expected - real) * dev.logits).sum())
