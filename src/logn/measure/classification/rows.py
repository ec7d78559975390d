"""Logits of a classifier's test rows, of any size, and what happens in each row: arrays, tensors and mapped files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray, as_rows
from logn.data.logit_files import DEFAULT_BATCH_ROWS, as_floats, locate_array
from logn.errors import InputError, warn
from logn.statistics.from_files import in_order
from logn.statistics.head import FEWEST_ROWS, SAMPLED_ROWS, Head, probability_kind
from logn.statistics.moments import ClassMoments
from logn.statistics.row_sample import default_sample_rows

# A map of logits: a ClassAffine, any callable from logits to logits, or None for no change.
LogitMap = Any
# Numbers of one block: enough to be quick, little enough for several threads at once.
NUMBERS_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class RowOutcomes:
    """What a classifier says of each row.

    Args:
        predicted: The class of the highest logit (the first of several), int64 (N,).
        confidence: Its softmax probability, float64 (N,).
        nll: Minus the logarithm of the probability of the true class, float64 (N,).
    """

    predicted: npt.NDArray[np.int64]
    confidence: FloatArray
    nll: FloatArray


@dataclass(frozen=True, eq=False)
class ClassifierLogits:
    """Logits (N, C) of a classifier, in memory or in a file, read in blocks of float64.

    Args:
        rows: The array; a mapped file stays one.
        name: What to call it in messages.

    Example:
        >>> list(open_logits([[1.0, 2.0], [0.5, float("nan")]]).blocks())
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected `logits` to be finite, but row 1, class 1 is nan.
    """

    rows: npt.NDArray[Any]
    name: str = "logits"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_classes(self) -> int:
        """Columns of the logits."""
        return int(self.rows.shape[1])

    def blocks(self, size: int | None = None) -> Iterator[tuple[int, FloatArray]]:
        """Give the first row and the float64 values of each block; values that are not finite are refused."""
        size = size or max(1, NUMBERS_AT_ONCE // self.num_classes)
        for start in range(0, len(self.rows), size):
            block = np.asarray(self.rows[start : start + size], np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                suspicious = not np.isfinite(block.sum())
            if suspicious and not np.isfinite(block).all():
                row, column = np.argwhere(~np.isfinite(block))[0]
                raise InputError(
                    f"Expected `{self.name}` to be finite, but row {start + row}, class {column} is "
                    f"{block[row, column]}."
                )
            yield start, block


def open_logits(source: Any, name: str = "logits") -> ClassifierLogits:
    """Open an array, a tensor, a list of rows or the path of a `.npy`, `.npz` or `.safetensors` file.

    Plain arrays in files are mapped, not read. Errors call the logits `name`, or by their path.
    """
    if isinstance(source, str | os.PathLike):
        stored = locate_array(source)
        rows: Any = as_floats(stored.mapped(), stored.dtype)
        name = os.fspath(source)
    else:
        rows = source if hasattr(source, "shape") else np.asarray(source)
    shape = tuple(rows.shape)
    if len(shape) != 2 or 0 in shape:
        raise InputError(f"Expected `{name}` to be (rows, classes) with at least one row, but got shape {shape}.")
    logits = ClassifierLogits(as_rows(rows, shape[1]), name)
    # From the middle of each stretch: the ends of a file are often special.
    places = (np.arange(SAMPLED_ROWS) + 0.5) * len(logits) / SAMPLED_ROWS
    sample = logits.rows[np.unique(places.astype(np.intp))]
    kind = probability_kind(sample) if len(logits) >= FEWEST_ROWS else None
    if kind == "softmax":
        raise InputError(
            f"`{name}` holds probabilities (between 0 and 1, each row sums to 1), not logits. Pass the logits, or "
            "numpy.log(probabilities.clip(1e-12))."
        )
    if kind == "sigmoid":
        warn(
            f"`{name}` seems to hold sigmoid scores: all sampled values lie between 0 and 1. Pass logits; those of "
            "scores p are numpy.log(p / (1 - p))."
        )
    return logits


def moments_of_logits(source: Any, name: str = "train_logits") -> ClassMoments:
    """Statistics of the logits of training images, with a row sample; no labels are involved.

    Example:
        >>> moments_of_logits([[1.0, 2.0], [3.0, 6.0]]).mean.tolist()
        [2.0, 4.0]
    """
    logits = open_logits(source, name)
    columns = logits.num_classes
    rows = default_sample_rows(columns)
    moments = ClassMoments(Head(columns, activation="softmax"), sample_rows=rows, mean_probability=True)
    for _, block in logits.blocks(DEFAULT_BATCH_ROWS):
        moments.update(block)
    return moments


def row_outcomes(
    logits: ClassifierLogits,
    labels: npt.NDArray[np.int64],
    maps: Sequence[LogitMap] = (None,),
    progress: Callable[[int], object] = lambda rows: None,
) -> list[RowOutcomes]:
    """What happens in each row under each map; the logits are read once.

    Args:
        logits: Of the test rows.
        labels: The class of each.
        maps: None for no change, a `ClassAffine`, or any function from logits to logits.
        progress: Called with the number of rows that were done since the last call.

    Example:
        >>> (outcome,) = row_outcomes(open_logits([[0.0, np.log(3.0)], [1.0, 1.0]]), np.array([1, 0]))
        >>> outcome.predicted.tolist(), outcome.confidence.round(2).tolist(), outcome.nll.round(3).tolist()
        ([1, 0], [0.75, 0.5], [0.288, 0.693])
    """
    if len(labels) != len(logits):
        raise InputError(
            f"There are {len(labels):,} labels for {len(logits):,} rows of `{logits.name}`. Pass one label per row."
        )
    outcomes = [RowOutcomes(np.empty(len(labels), np.int64), *np.empty((2, len(labels)))) for _ in maps]

    def work(item: tuple[int, FloatArray]) -> int:
        start, block = item
        rows = slice(start, start + len(block))
        for outcome, transform in zip(outcomes, maps, strict=True):
            mapped = np.array(block if transform is None else transform(block), np.float64)
            if mapped.shape != block.shape:
                raise InputError(
                    f"A method gave shape {mapped.shape} for logits of shape {block.shape}. It must keep the shape."
                )
            _fill(outcome, rows, mapped, labels[rows])
        return len(block)

    for _, done in in_order(logits.blocks(), work):
        progress(done)
    return outcomes


def _fill(outcome: RowOutcomes, rows: slice, logits: FloatArray, labels: npt.NDArray[np.int64]) -> None:
    """Write the outcomes of one block; `logits` is used up."""
    order = np.arange(len(logits))
    predicted = logits.argmax(axis=1)
    logits -= logits[order, predicted, None]
    behind = logits[order, labels]
    total = np.exp(logits, out=logits).sum(axis=1)
    outcome.predicted[rows] = predicted
    outcome.confidence[rows] = 1.0 / total
    outcome.nll[rows] = np.log(total) - behind
