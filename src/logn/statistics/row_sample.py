"""RowSample: an unbiased fixed-size sample of the recorded rows, the same whatever the order and the split.

Every row gets a key that is a hash of its own content; the rows with the smallest keys are kept (bottom-k sampling).
The hash has nothing to do with the meaning of the row, so each row is as likely as any other to be kept; and since no
random numbers are drawn, shards, ranks and resumed runs end with the very same sample as one pass.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

# Few columns tell rows apart well enough, and hashing them all would cost more than the moments.
HASHED_COLUMNS = 32


class RowSample:
    """The `capacity` rows with the smallest keys, as float16.

    Example:
        >>> rows = np.arange(12.0).reshape(6, 2)
        >>> whole, half, rest = RowSample(2, 3), RowSample(2, 3), RowSample(2, 3)
        >>> whole.update(rows); half.update(rows[4:]); rest.update(rows[:4])
        >>> half.merge(rest)
        >>> np.array_equal(whole.rows, half.rows)
        True
    """

    def __init__(
        self,
        num_classes: int,
        capacity: int,
        rows: npt.NDArray[np.float16] | None = None,
        keys: npt.NDArray[np.uint64] | None = None,
    ) -> None:
        self.capacity = capacity
        self._rows = [np.empty((0, num_classes), np.float16) if rows is None else rows]
        self._keys = [np.empty(0, np.uint64) if keys is None else keys]
        self._pending, self._unseen_by_limit = 0, 0
        self._limit: np.uint64 | None = None
        self._columns, self._multipliers, self._all_multipliers = _hashing(num_classes)
        self._tighten()

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

    @property
    def limit(self) -> np.uint64 | None:
        """A key that a row must fall below to get in; None while there is room. Safe to read from any thread."""
        return self._limit

    def update(self, rows: npt.NDArray[Any], limit: np.uint64 | None = None) -> None:
        """Offer (N, C) rows; those with a value that is not finite are left out.

        A `limit` of another sample, into which this one will be merged, spares the work on rows that it would drop.
        """
        keys = self._hash(rows)
        bounds = [bound for bound in (self.limit, limit) if bound is not None]
        candidates = np.flatnonzero(keys < min(bounds)) if bounds else np.arange(len(rows))
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
        # What is beyond the limit would only be copied to be dropped. So the more samples there are to merge into this
        # one, the less each of them costs.
        news = other if self.limit is None else other.below(self.limit)
        self._offer(news.rows, news.keys)

    def below(self, limit: np.uint64) -> RowSample:
        """A sample with those of the rows only whose keys are below `limit`."""
        end = int(np.searchsorted(self.keys, limit))
        # Copies, since views would keep all of this sample in memory.
        return RowSample(self.rows.shape[1], self.capacity, self.rows[:end].copy(), self.keys[:end].copy())

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
        self._unseen_by_limit += len(rows)
        # Sorting out after every batch would copy the whole sample each time; so often, it costs next to nothing.
        if self._pending >= self.capacity:
            self._settle()
        elif 8 * self._unseen_by_limit >= self.capacity:
            self._tighten()

    def _tighten(self) -> None:
        """Lower the limit to the largest key that can stay; keys are small, so this may be done more often."""
        self._unseen_by_limit = 0
        if len(self._keys[0]) + self._pending >= self.capacity:
            keys = np.concatenate(self._keys)
            self._limit = np.uint64(np.partition(keys, self.capacity - 1)[self.capacity - 1])

    def _settle(self) -> None:
        """Keep the smallest keys of what was kept and what was offered."""
        if self._pending == 0 and len(self._keys[0]) <= self.capacity:
            return
        rows, keys = np.concatenate(self._rows), np.concatenate(self._keys)
        order = np.argsort(keys, kind="stable")[: self.capacity]  # rows of one key are the same row
        self._rows, self._keys, self._pending = [rows[order]], [keys[order]], 0
        self._tighten()

    def _hash(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """Hash each row by itself: some of its columns, or all of it where those hold one number only."""
        bits = _bits(rows[:, self._columns])
        keys = _mixed(bits, self._multipliers)
        # Where most columns have been filled up with a number, these rows would all be one; hardly any row comes into
        # question, and comparing all columns of all of them would take as long as the hashing.
        filled = np.flatnonzero(bits[:, 0] == bits[:, -1])
        filled = filled[(bits[filled] == bits[filled, :1]).all(axis=1)]
        if len(filled) and len(self._all_multipliers) > len(self._multipliers):
            keys[filled] = _mixed(_bits(rows[filled]), self._all_multipliers)
        return keys


def _bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """The bits of the values as float32, whatever their precision."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32, copy=False).view(np.uint32).astype(np.uint64)


def _mixed(bits: npt.NDArray[np.uint64], multipliers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Multiply, add up and mix the bits of each row."""
    mixed: npt.NDArray[np.uint64] = np.einsum("ij,j->i", bits, multipliers)
    for shift in (33, 29):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(0xFF51AFD7ED558CCD)
    return mixed ^ (mixed >> np.uint64(32))


@lru_cache(maxsize=64)
def _hashing(
    num_classes: int,
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The columns that are hashed, an odd multiplier for each, and one for each of all columns."""
    columns = min(HASHED_COLUMNS, num_classes)
    odd, all_odd = (
        np.random.default_rng(20240417).integers(0, 2**63, size=size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        for size in (columns, num_classes)
    )
    return np.linspace(0, num_classes - 1, columns).astype(np.intp), odd, all_odd


def _to_half(rows: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Round to float16; logits beyond its range (65,504) mean certainty either way and are clipped."""
    limit = float(np.finfo(np.float16).max)
    half: npt.NDArray[np.float16] = np.clip(rows, -limit, limit).astype(np.float16)
    return half
