"""Samples of the recorded rows, of fixed size: an unbiased one, and one of high scores. Parts merge in any order.

Every row gets a pseudo-random key, and the rows with the smallest keys are kept (bottom-k sampling). The key comes from
the row's batch and its position in it, not from its own content: so each of many equal rows, such as padding, is as
likely as any other row to be kept. No random numbers are drawn: the same batches always give the same sample.

Of a dense detector hardly one row in a hundred scores high enough to count. So a second sample divides the keys by the
rows' scores (priority sampling of Duffield, Lund and Thorup, 2007) and knows how many rows each of its rows stands for.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.statistics.sums import Arrays, checked_array

Score = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
# Columns whose bytes tell batches apart: reading them all would cost as much as the moments.
SALT_COLUMNS = 8


# Rows that are kept by default: so many, or as many as fit into so many bytes.
SAMPLE_ROWS = 4096
SAMPLE_BYTES = 4 << 20
# How often the limit is lowered while a sample of new rows comes in.
LIMIT_STEPS = 4
# A row weighs its score in the sample of high scores, and this much more, so that rows without a score are there, too.
LEAST_WEIGHT = 5e-4


def default_sample_rows(num_columns: int) -> int:
    """Enough rows to match thresholds, in at most 4 MiB of float16.

    Example:
        >>> default_sample_rows(81), default_sample_rows(1204)
        (4096, 1741)
    """
    return max(1, min(SAMPLE_ROWS, SAMPLE_BYTES // (2 * num_columns)))


def scored_rows(num_columns: int, sample_rows: int) -> int:
    """How many rows the sample of high scores holds: twice as many, if they fit into 4 MiB.

    Example:
        >>> scored_rows(81, 4096), scored_rows(1204, 1741)
        (8192, 1741)
    """
    return max(sample_rows, min(2 * sample_rows, SAMPLE_BYTES // (2 * num_columns)))


class RowSample:
    """The `capacity` rows with the smallest keys, as float16.

    Args:
        num_columns: Columns of the rows.
        capacity: How many rows to keep; 0 keeps none.
        rows: Kept before, by ascending key.
        keys: Theirs.

    Example:
        >>> rows = np.arange(12.0).reshape(6, 2)
        >>> whole, head, tail = RowSample(2, 3), RowSample(2, 3), RowSample(2, 3)
        >>> _ = head.update(rows[:4]); _ = tail.update(rows[4:])
        >>> whole.merge(head); whole.merge(tail); tail.merge(head)
        >>> np.array_equal(whole.rows, tail.rows)
        True
    """

    def __init__(
        self,
        num_columns: int,
        capacity: int,
        rows: npt.NDArray[np.float16] | None = None,
        keys: npt.NDArray[Any] | None = None,
    ) -> None:
        self.capacity = capacity
        # As they were offered: they are rounded when somebody asks for them, as most do not stay until then.
        self._rows: list[npt.NDArray[Any]] = [np.empty((0, num_columns), np.float16) if rows is None else rows]
        self._keys: list[npt.NDArray[Any]] = [np.empty(0, np.uint64) if keys is None else keys]
        # A key that a row must fall below to get in; None while there is room. Safe to read from any thread.
        self.limit: Any = None
        self._salt = self._pending = self._unsorted = 0
        self._is_sorted = True
        self._settle()

    @property
    def rows(self) -> npt.NDArray[np.float16]:
        """The sampled rows, by ascending key."""
        self._sort()
        self._rows[0] = _to_half(self._rows[0])
        return np.asarray(self._rows[0])

    @property
    def keys(self) -> npt.NDArray[Any]:
        """The keys of the sampled rows, ascending."""
        self._sort()
        return self._keys[0]

    def update(self, rows: npt.NDArray[Any], *, is_finite: bool = False) -> npt.NDArray[np.uint64]:
        """Offer (N, C) rows and return their keys; rows with a value that is not finite are left out."""
        keys = self._new_keys(rows)
        self.offer(rows, keys, is_finite=is_finite)
        return keys

    def offer(
        self,
        rows: npt.NDArray[Any],
        keys: npt.NDArray[Any],
        last_column: npt.NDArray[np.float16] | None = None,
        *,
        is_finite: bool = False,
    ) -> None:
        """Offer rows by their keys; `last_column` is appended to those that are kept."""
        candidates = np.arange(len(rows)) if self.limit is None else np.flatnonzero(keys < self.limit)
        if len(candidates) == 0 or self.capacity == 0:
            return
        chosen = self._smallest(keys, candidates)
        if not is_finite and not np.isfinite(rows[chosen]).all():
            # Rows that cannot be kept must not take the place of others: choose again among those that can.
            chosen = self._smallest(keys, candidates[np.isfinite(rows[candidates]).all(axis=1)])
        kept = rows[chosen] if rows.dtype.itemsize <= 4 else _to_half(rows[chosen])
        self._add(kept if last_column is None else np.column_stack([kept, last_column[chosen]]), keys[chosen])

    def merge(self, other: RowSample) -> None:
        """Take over the rows of another sample; the smaller capacity wins."""
        self.capacity = min(self.capacity, other.capacity)
        other._settle()
        rows, keys = other._rows[0], other._keys[0]
        if self.limit is not None:
            # What is beyond the limit would only be copied to be dropped.
            inside = np.flatnonzero(keys < self.limit)
            rows, keys = rows[inside], keys[inside]
        self._add(rows, keys)

    def _smallest(self, keys: npt.NDArray[Any], candidates: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """As many of the candidates as the sample holds, those with the smallest keys."""
        if len(candidates) <= self.capacity:
            return candidates
        return candidates[np.argpartition(keys[candidates], self.capacity - 1)[: self.capacity]]

    def _add(self, rows: npt.NDArray[Any], keys: npt.NDArray[Any]) -> None:
        if len(rows) == 0:
            return
        self._rows.append(rows)
        self._keys.append(keys)
        self._pending += len(rows)
        self._unsorted += len(rows)
        # Sorting out after every batch would copy the whole sample each time; the limit needs the keys alone.
        if self._pending >= self.capacity:
            self._settle()
        elif self._unsorted * LIMIT_STEPS >= self.capacity:
            self._lower_limit(np.concatenate(self._keys))

    def _settle(self) -> None:
        """Keep the smallest keys of what was kept and what was offered, and lower the limit to the largest of them."""
        if self._pending or len(self._keys[0]) > self.capacity:
            rows, keys = np.concatenate(self._rows), np.concatenate(self._keys)
            chosen = self._smallest(keys, np.arange(len(keys)))
            self._rows, self._keys, self._pending, self._is_sorted = [rows[chosen]], [keys[chosen]], 0, False
        self._lower_limit(self._keys[0])

    def _sort(self) -> None:
        self._settle()
        if not self._is_sorted:
            order = np.argsort(self._keys[0], kind="stable")
            self._rows, self._keys, self._is_sorted = [self._rows[0][order]], [self._keys[0][order]], True

    def _lower_limit(self, keys: npt.NDArray[Any]) -> None:
        """No row with a key above the largest of the smallest ones can get in any more."""
        self._unsorted = 0
        if len(keys) >= self.capacity > 0:
            largest = np.partition(keys, self.capacity - 1)[self.capacity - 1]
            self.limit = largest if self.limit is None else min(self.limit, largest)

    def _new_keys(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """A key per row: its position, salted with a checksum of this batch and of those before it."""
        with np.errstate(over="ignore", invalid="ignore"):
            some = rows[:, :: -(-rows.shape[1] // SALT_COLUMNS)].astype(np.float32, order="C")
        self._salt = zlib.crc32(some.tobytes(), self._salt)
        keys = np.arange(len(rows), dtype=np.uint64) | np.uint64(self._salt << 32)
        # The finalizer of MurmurHash3 gives different keys to different inputs, and mixes their bits.
        for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            keys ^= keys >> np.uint64(33)
            keys *= np.uint64(multiplier)
        return keys ^ (keys >> np.uint64(33))

    def to_arrays(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """The content, by the names that files have for it."""
        arrays = {"rows": self.rows.copy(), "keys": self.keys.copy(), "capacity": np.array([self.capacity])}
        return {f"{prefix}_{name}": array for name, array in arrays.items()}

    @classmethod
    def from_arrays(cls, arrays: Arrays, prefix: str, num_columns: int, key_type: type) -> RowSample:
        """The opposite of `to_arrays`, checked."""
        capacity = int(checked_array(arrays, f"{prefix}_capacity", np.int64, (1,))[0])
        number = len(arrays.get(f"{prefix}_keys", ()))
        keys = checked_array(arrays, f"{prefix}_keys", key_type, (number,))
        rows = checked_array(arrays, f"{prefix}_rows", np.float16, (number, num_columns))
        if not number <= capacity or (keys[1:] < keys[:-1]).any():
            raise InputError(f"`{prefix}_keys` should be at most {capacity} ascending numbers.")
        return cls(num_columns, capacity, rows, keys)


class ScoredSample:
    """Rows with high scores, and how many of all rows each stands for: sums over them are unbiased for all rows.

    Args:
        kept: Rows with their weights in one more column, and one row more than are sampled, whose key is the limit
            that the others fell below.

    Example:
        >>> rows = np.zeros((5000, 1)); rows[::100] = 2.0
        >>> sample = ScoredSample.of(1, 100)
        >>> sample.update(rows, RowSample(1, 1).update(rows), lambda part: part[:, 0] / 2)
        >>> kept = sample.rows[:, 0] > 0
        >>> int(kept.sum()), round(float(sample.stands_for[kept].sum()))
        (50, 50)
    """

    def __init__(self, kept: RowSample) -> None:
        self.kept = kept

    @classmethod
    def of(cls, num_columns: int, capacity: int) -> ScoredSample:
        """An empty sample of `capacity` rows."""
        return cls(RowSample(num_columns + 1, capacity + 1, keys=np.empty(0)))

    @property
    def rows(self) -> npt.NDArray[np.float16]:
        """The sampled rows."""
        return self.kept.rows[: self.kept.capacity - 1, :-1]

    @property
    def stands_for(self) -> npt.NDArray[np.float64]:
        """How many rows each sampled row stands for: 1 over the probability by which it got in."""
        weights = self.kept.rows[: self.kept.capacity - 1, -1].astype(np.float64)
        if len(self.kept.rows) < self.kept.capacity:
            return np.ones(len(weights))
        result: npt.NDArray[np.float64] = 1.0 / np.minimum(weights * self.kept.keys[-1], 1.0)
        return result

    def update(
        self,
        rows: npt.NDArray[Any],
        keys: npt.NDArray[np.uint64],
        score: Score | None,
        bound: npt.NDArray[Any] | None = None,
        *,
        is_finite: bool = False,
    ) -> None:
        """Offer (N, C) rows.

        Args:
            rows: The rows.
            keys: Theirs in the unbiased sample.
            score: The highest score of each of some rows, from 0 to 1; None where the bound is it.
            bound: A number for each row that its score does not exceed: rows that cannot get in are not scored.
            is_finite: Whether all rows are surely finite.
        """
        uniform = (keys >> np.uint64(11)) * 2.0**-53
        highest = np.full(len(rows), 1.0 + LEAST_WEIGHT) if bound is None else _weights(bound)
        if self.kept.limit is not None:
            # A little more, as weights are rounded.
            index = np.flatnonzero(uniform < 1.001 * self.kept.limit * highest)
            rows, uniform, highest = rows[index], uniform[index], highest[index]
        if len(rows):
            weights = (highest if score is None else _weights(score(rows))).astype(np.float16)
            self.kept.offer(rows, uniform / weights, weights, is_finite=is_finite)

    @classmethod
    def from_arrays(cls, arrays: Arrays, num_columns: int) -> ScoredSample:
        """The rows in a file, checked."""
        kept = RowSample.from_arrays(arrays, "scored", num_columns + 1, np.float64)
        if not (kept.rows[:, -1] > 0).all():
            raise InputError("`scored_rows` has a weight in its last column that is not positive.")
        return cls(kept)


def _weights(scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What rows with such scores weigh; those that are not finite are left out anyway."""
    result: npt.NDArray[Any] = np.fmin(np.fmax(scores, 0.0), 1.0) + LEAST_WEIGHT
    return result


def _to_half(rows: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Round to float16; logits beyond its range (65,504) mean certainty either way and are clipped."""
    if rows.dtype == np.float16:
        return rows
    limit = float(np.finfo(np.float16).max)
    half: npt.NDArray[np.float16] = np.clip(rows, -limit, limit).astype(np.float16)
    return half
