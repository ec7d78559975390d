"""Rows of logits from wherever they are: arrays, files larger than memory, stores of proposals, statistics."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import FloatArray, as_rows
from logn.logits.probabilities import FEWEST_ROWS, probability_kind
from logn.logits.shards import find_shards, open_shards, read_blocks
from logn.statistics.moments import ClassMoments

# Numbers that are kept of a source: 134 MB. Of more rows a sample, drawn by `seed`, serves.
MOST_VALUES = 2**24

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LogitRows:
    """Rows of logits in memory.

    Args:
        logits: `(N, C)` float64.
        units: `(N,)` which rows belong together, such as the proposals of an image.
        total: Rows of the source.
        name: What to call it in messages.
    """

    logits: FloatArray
    units: Indices
    total: int
    name: str

    @property
    def num_units(self) -> int:
        """How many images, or rows where each stands alone."""
        return len(np.unique(self.units))


def read_logit_rows(
    source: Any, *, name: str = "logits", key: str | None = None, seed: int = 0, most_values: int = MOST_VALUES
) -> LogitRows:
    """Read rows of logits in one pass; of more than memory should hold, rows that are drawn beforehand.

    Args:
        source: An array or tensor `(rows, classes)` or `(images, proposals, classes)`; paths of such arrays, folders
            and globs of them; a `logn.PredictionStore`; or `logn.ClassMoments`, whose row sample then serves.
        name: What to call it in messages.
        key: Name of the array in `.npz` and `.safetensors` files.
        seed: Of the rows that are drawn.
        most_values: Numbers to keep at most.

    Example:
        >>> read_logit_rows(np.zeros((2, 3, 4)) + [0.0, 1.0, 2.0, 3.0]).units.tolist()
        [0, 0, 0, 1, 1, 1]
    """
    total, columns, blocks, name = _open(source, name, key)
    if total == 0:
        raise InputError(f"Expected `{name}` to hold rows of logits, but it holds none.")
    kept = max(1, most_values // columns)
    chosen = None if total <= kept else np.sort(np.random.default_rng(seed).choice(total, kept, replace=False))
    parts, units, first = [], [], 0
    for rows, unit in blocks:
        picked: Any = slice(None)
        if chosen is not None:
            low, high = np.searchsorted(chosen, [first, first + len(rows)])
            picked = chosen[low:high] - first
        block = np.asarray(rows[picked], np.float64)
        _refuse_nonfinite(block, np.arange(first, first + len(rows))[picked], name)
        parts.append(block)
        units.append(unit[picked])
        first += len(rows)
    found = LogitRows(np.concatenate(parts), np.concatenate(units), total, name)
    _refuse_probabilities(found)
    return found


Blocks = Iterator[tuple[npt.NDArray[Any], Indices]]


def _open(source: Any, name: str, key: str | None) -> tuple[int, int, Blocks, str]:
    """Rows and columns of a source, its blocks with the unit of each row, and its name."""
    if isinstance(source, ClassMoments):
        if not len(source.sample):
            raise InputError(
                f"Expected `{name}` to be logits, or statistics with a row sample, but it has none; collect with "
                "sample_rows=4096 (`--sample-rows`)."
            )
        rows: Any = source.sample
        return len(rows), rows.shape[1], iter([(rows, np.arange(len(rows)))]), name
    if hasattr(source, "num_proposals"):
        return source.num_proposals, source.num_columns, _of_store(source), str(getattr(source, "path", name))
    if isinstance(source, str | os.PathLike) or _is_paths(source):
        paths = [source] if isinstance(source, str | os.PathLike) else list(source)
        shards = open_shards(find_shards(paths), key)
        return sum(shard.rows for shard in shards), shards[0].num_classes, _of_shards(shards), str(paths[0])
    array = source if hasattr(source, "shape") else np.asarray(source)
    shape = tuple(array.shape)
    if len(shape) not in (2, 3):
        raise InputError(
            f"Expected `{name}` to be (rows, classes) or (images, proposals, classes), but got shape {shape}."
        )
    rows = as_rows(array, shape[-1])
    together = shape[1] if len(shape) == 3 else 1
    return len(rows), shape[-1], iter([(rows, np.arange(len(rows)) // max(together, 1))]), name


def _is_paths(source: Any) -> bool:
    is_list = isinstance(source, Sequence) and len(source) > 0
    return is_list and all(isinstance(item, str | os.PathLike) for item in source)


def _of_store(store: Any) -> Blocks:
    for unit, proposals in enumerate(store):
        yield proposals.logits, np.full(len(proposals.logits), unit)


def _of_shards(shards: Sequence[Any]) -> Blocks:
    before = 0
    for shard in shards:
        together = shard.item_rows if len(shard.shape) == 3 else 1
        for block in read_blocks(shard):
            for (start, stop), rows in zip(block.batches, block.read_batches(), strict=True):
                yield rows, before + np.arange(start, stop) // together
        before += -(-shard.rows // together)


def _refuse_nonfinite(block: FloatArray, places: Indices, name: str) -> None:
    if np.isfinite(block).all():
        return
    row, column = np.argwhere(~np.isfinite(block))[0]
    raise InputError(f"Expected `{name}` to be finite, but row {places[row]}, column {column} is {block[row, column]}.")


def _refuse_probabilities(rows: LogitRows) -> None:
    if len(rows.logits) >= FEWEST_ROWS and probability_kind(rows.logits) == "softmax":
        raise InputError(
            f"Expected `{rows.name}` to be logits, but its rows sum to 1, as probabilities do; take their logarithm."
        )
