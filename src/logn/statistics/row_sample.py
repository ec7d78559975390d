"""RowSample: an unbiased fixed-size sample of the recorded rows; parts merge exactly, in any order.

Every row gets a pseudo-random key, and the rows with the smallest keys are kept (bottom-k sampling). The key comes from
the row's batch and its position in it, not from its own content: so each of many equal rows, such as padding, is as
likely as any other row to be kept. No random numbers are drawn: the same batches always give the same sample.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

# Columns whose bytes tell batches apart: reading them all would cost as much as the moments.
SALT_COLUMNS = 8


# Rows that are kept by default: so many, or as many as fit into so many bytes.
SAMPLE_ROWS = 4096
SAMPLE_BYTES = 4 << 20


def default_sample_rows(num_columns: int) -> int:
    """Enough rows to match thresholds, in at most 4 MiB of float16.

    Example:
        >>> default_sample_rows(81), default_sample_rows(1204)
        (4096, 1741)
    """
    return max(1, min(SAMPLE_ROWS, SAMPLE_BYTES // (2 * num_columns)))


class RowSample:
    """The `capacity` rows with the smallest keys, as float16.

    Example:
        >>> rows = np.arange(12.0).reshape(6, 2)
        >>> whole, head, tail = RowSample(2, 3), RowSample(2, 3), RowSample(2, 3)
        >>> head.update(rows[:4]); tail.update(rows[4:])
        >>> whole.merge(head); whole.merge(tail); tail.merge(head)
        >>> np.array_equal(whole.rows, tail.rows)
        True
    """

    def __init__(
        self,
        num_columns: int,
        capacity: int,
        rows: npt.NDArray[np.float16] | None = None,
        keys: npt.NDArray[np.uint64] | None = None,
    ) -> None:
        self.capacity = capacity
        self._rows = [np.empty((0, num_columns), np.float16) if rows is None else rows]
        self._keys = [np.empty(0, np.uint64) if keys is None else keys]
        # A key that a row must fall below to get in; None while there is room. Safe to read from any thread.
        self.limit: np.uint64 | None = None
        self._salt = self._pending = 0
        self._settle()

    @property
    def rows(self) -> npt.NDArray[np.float16]:
        """The sampled rows, by ascending key."""
        self._settle()
        return self._rows[0]

    @property
    def keys(self) -> npt.NDArray[np.uint64]:
        """The keys of the sampled rows, ascending."""
        self._settle()
        return self._keys[0]

    def update(self, rows: npt.NDArray[Any]) -> None:
        """Offer (N, C) rows; those with a value that is not finite are left out."""
        keys = self._new_keys(rows)
        candidates = np.arange(len(rows)) if self.limit is None else np.flatnonzero(keys < self.limit)
        if len(candidates) == 0:
            return
        chosen = self._smallest(keys, candidates)
        finite = np.isfinite(rows[chosen]).all(axis=1)
        if not finite.all():
            # Rows that cannot be kept must not take the place of others: choose again among those that can.
            chosen = self._smallest(keys, candidates[np.isfinite(rows[candidates]).all(axis=1)])
        self._offer(_to_half(rows[chosen]), keys[chosen])

    def merge(self, other: RowSample) -> None:
        """Take over the rows of another sample; the smaller capacity wins."""
        self.capacity = min(self.capacity, other.capacity)
        # What is beyond the limit would only be copied to be dropped.
        end = None if self.limit is None else int(np.searchsorted(other.keys, self.limit))
        self._offer(other.rows[:end].copy(), other.keys[:end].copy())

    def _smallest(self, keys: npt.NDArray[np.uint64], candidates: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """As many of the candidates as the sample holds, those with the smallest keys."""
        if len(candidates) <= self.capacity:
            return candidates
        return candidates[np.argpartition(keys[candidates], self.capacity - 1)[: self.capacity]]

    def _offer(self, rows: npt.NDArray[np.float16], keys: npt.NDArray[np.uint64]) -> None:
        if len(rows) == 0:
            return
        self._rows.append(rows)
        self._keys.append(keys)
        self._pending += len(rows)
        # Sorting out after every batch would copy the whole sample each time; so often, it costs next to nothing.
        if self._pending >= self.capacity:
            self._settle()

    def _settle(self) -> None:
        """Keep the smallest keys of what was kept and what was offered, and lower the limit to the largest of them."""
        if self._pending or len(self._keys[0]) > self.capacity:
            rows, keys = np.concatenate(self._rows), np.concatenate(self._keys)
            order = np.argsort(keys, kind="stable")[: self.capacity]
            self._rows, self._keys, self._pending = [rows[order]], [keys[order]], 0
        if len(self._keys[0]) == self.capacity:
            largest = self._keys[0][-1]
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


def _to_half(rows: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Round to float16; logits beyond its range (65,504) mean certainty either way and are clipped."""
    limit = float(np.finfo(np.float16).max)
    half: npt.NDArray[np.float16] = np.clip(rows, -limit, limit).astype(np.float16)
    return half
