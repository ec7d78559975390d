"""The class mix by the mean probabilities of labelled rows (BBSE, Lipton et al. 2018, with soft predictions)."""

from __future__ import annotations

import numpy as np

from logn.calibrators.labelled_rows import LabelledRows
from logn.errors import InputError
from logn.logits.arrays import FloatArray


def mix_by_confusion(
    probabilities: FloatArray,
    labelled: FloatArray,
    dev: LabelledRows,
    weights: FloatArray | None = None,
    dev_weights: FloatArray | None = None,
) -> FloatArray:
    """Solve `mean of probabilities = sum_c share_c * mean of the labelled rows of class c` for the shares.

    Shares below 0, which chance gives, become 0, and the sum becomes 1. A class that lost all its rows to the weights
    keeps those of the whole.

    Args:
        probabilities: `(N, C)` of the rows without labels.
        labelled: `(M, C)` of the labelled rows.
        dev: Their labels.
        weights: `(N,)` how often each row counts.
        dev_weights: `(M,)` the same of the labelled rows.

    Example:
        >>> dev = LabelledRows(np.zeros((2, 2)), np.array([0, 1]))
        >>> mix_by_confusion(np.array([[0.5, 0.5]]), np.array([[0.9, 0.1], [0.3, 0.7]]), dev).round(4).tolist()
        [0.3333, 0.6667]
    """
    columns = labelled.shape[1]
    seen = dev.per_column
    if (seen == 0).any() or (dev.labels < 0).any():
        column = int(np.flatnonzero(seen == 0)[0]) if (seen == 0).any() else -1
        raise InputError(
            f'Expected labelled rows of every column for method="bbse", but column {column} has none; take '
            'method="em" (`--method em`).'
        )
    counted = np.ones(len(labelled)) if dev_weights is None else dev_weights
    one_hot = np.zeros((len(labelled), columns))
    one_hot[np.arange(len(labelled)), dev.labels] = 1.0
    lost = (counted @ one_hot) == 0
    counted = np.where(lost[dev.labels], 1.0, counted)
    means = (labelled * counted[:, None]).T @ one_hot / (counted @ one_hot)
    mean = probabilities.mean(axis=0) if weights is None else weights @ probabilities / weights.sum()
    shares = np.maximum(np.linalg.lstsq(means, mean, rcond=None)[0], 0.0)
    return np.asarray(shares / shares.sum())
