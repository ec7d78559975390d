"""Sums over batches of rows: count, mean and squared deviations of every column, and the mean probabilities.

Large batches of float32 are added in short runs of float32, which float64 takes over. Where a mean is many standard
deviations from zero, it is subtracted before squaring, so that no digits cancel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray, is_finite, row_blocks, sigmoid, softmax, widen
from logn.errors import InputError, warn
from logn.statistics.head import ACTIVATIONS

VECTORS = ("count", "mean", "m2", "skipped")
# Batches of at most this many values are summed in float64 throughout: their speed does not matter.
SMALL_BATCH = 2**15
# Columns of a run: narrow rows are laid side by side, since NumPy is slow at short loops.
WIDE_COLUMNS = 2048
# Rows of a run: enough to hide the cost of a NumPy call, few enough for the cache and for float32.
RUN_ROWS = 128
# A batch is summed again around its mean where that is more than this many variances (squared) away.
FAR = 36.0
# Where squares exceed float64, values up to this one are not to blame: their sum would still fit.
LARGEST = 1e140
# Values of a block of exponentials, which should stay in the cache.
BLOCK_VALUES = 2**18
# Sums of the exponentials of a row between which none that counts has left the range of float32.
SMALLEST_MASS, LARGEST_MASS = 1e-10, 1e35
# The softmax probabilities of a column in the rows whose top column is another one: what it gets where it loses.
LOSING = "losing"
SUMMED = (*ACTIVATIONS, LOSING)
Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Totals:
    """What was seen of each column: count, mean, M2 (sum of squared deviations), and values that were left out.

    Example:
        >>> first, second = (Totals(np.ones(1), np.array([mean]), np.zeros(1), np.zeros(1)) for mean in (2.0, 4.0))
        >>> both = first.merged(second)
        >>> both.count.tolist(), both.mean.tolist(), both.m2.tolist()
        ([2.0], [3.0], [2.0])
    """

    count: FloatArray
    mean: FloatArray
    m2: FloatArray
    skipped: FloatArray

    @classmethod
    def zeros(cls, num_columns: int) -> Totals:
        """Totals of no rows."""
        return cls(*(np.zeros(num_columns) for _ in VECTORS))

    def merged(self, other: Totals) -> Totals:
        """Totals of both (the pairwise update of Chan, Golub and LeVeque)."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1.0)
        delta = other.mean - self.mean
        return Totals(
            count=count,
            mean=self.mean + delta * share,
            m2=self.m2 + other.m2 + delta * delta * self.count * share,
            skipped=self.skipped + other.skipped,
        )

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Totals:
        """The totals in a file, checked."""
        shape = arrays["count"].shape[:1] if "count" in arrays else (0,)
        totals = cls(*(checked_array(arrays, name, np.float64, shape) for name in VECTORS))
        few = totals.count < 2
        for name, is_wrong in {
            "count": (totals.count < 0) | (totals.count % 1 != 0),
            "skipped": (totals.skipped < 0) | (totals.skipped % 1 != 0),
            "m2": (totals.m2 < 0) | (few & (totals.m2 > 0)),
        }.items():
            if is_wrong.any():
                column = int(np.flatnonzero(is_wrong)[0])
                raise InputError(f"`{name}` cannot be {getattr(totals, name)[column]:g} for class {column}.")
        return totals


class RunningSums:
    """Totals to which batches are added.

    Args:
        totals: What was seen before.

    Example:
        >>> sums = RunningSums(Totals.zeros(1))
        >>> for batch in ([[1.0], [3.0]], [[5.0]]):
        ...     _ = sums.add(np.array(batch))
        >>> sums.totals.mean.tolist(), sums.totals.m2.tolist()
        ([3.0], [8.0])
    """

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        self._pilot: FloatArray | None = None

    # A value that is not finite shows in the sums: no need to look for it in every block, nor to warn of it.
    @np.errstate(invalid="ignore", over="ignore")
    def add(self, rows: npt.NDArray[Any], nonfinite: str = "error") -> bool:
        """Add a batch of (N, C) `rows`, N at least 1; True where all of it is surely finite."""
        count, pilot = float(len(rows)), self._pilot
        total, squares = column_sums(rows, pilot)
        m2 = squares - total * total / count
        if _is_far(total, m2, count, pilot):
            pilot = total / count if pilot is None else pilot + total / count
            pilot = pilot.astype(np.float32).astype(np.float64)
            total, squares = column_sums(rows, pilot)
            m2 = squares - total * total / count
        finite = bool(np.isfinite(m2.sum()))
        if finite:
            mean = total / count if pilot is None else pilot + total / count
            batch = Totals(np.full_like(m2, count), mean, np.maximum(m2, 0.0), np.zeros_like(m2))
            self._pilot = pilot
        else:
            batch = _careful_totals(rows, nonfinite)
        self.totals = self.totals.merged(batch)
        return finite


def column_sums(rows: npt.NDArray[Any], pilot: FloatArray | None = None) -> FloatArray:
    """Sums of the columns of `rows` minus `pilot`, and of the squares of that: (2, C) in float64.

    Example:
        >>> column_sums(np.array([[2.0, 0.5], [0.0, 1.5]])).tolist()
        [[2.0, 2.0], [4.0, 2.5]]
    """
    abreast = max(1, round(WIDE_COLUMNS / rows.shape[1]))
    whole = len(rows) - len(rows) % abreast
    working = _working_type(rows)
    sums = _run_sums(rows[:whole], pilot, working, abreast)
    return sums if whole == len(rows) else sums + _run_sums(rows[whole:], pilot, working, 1)


def _working_type(rows: npt.NDArray[Any]) -> np.dtype[Any]:
    """The precision that a batch is summed in, by its letter, since the other byte order is another type."""
    return np.dtype(np.float64 if rows.dtype.char == "d" or rows.size <= SMALL_BATCH else np.float32)


def _run_sums(rows: npt.NDArray[Any], pilot: FloatArray | None, working: np.dtype[Any], abreast: int) -> FloatArray:
    """The same of a number of rows that is a multiple of `abreast`, which are laid side by side."""
    width = abreast * rows.shape[1]
    sums, added = np.zeros((2, width)), np.empty((2, width), working)
    ones: npt.NDArray[Any] = np.ones(RUN_ROWS, working)
    shift = None if pilot is None else np.tile(pilot, abreast).astype(working)
    scratch: npt.NDArray[Any] | None = None
    if shift is not None or rows.dtype != working or not rows.flags.c_contiguous:
        scratch = np.empty((min(RUN_ROWS, len(rows) // abreast), width), working)
    for block in row_blocks(rows, RUN_ROWS * abreast):
        run = block.reshape(-1, width)
        if scratch is not None:
            run = _shifted(run, shift, scratch[: len(run)])
        # The squares first: their loop computes while it waits for memory, and the product then finds it cached.
        np.einsum("ij,ij->j", run, run, out=added[1])
        np.matmul(ones[: len(run)], run, out=added[0])
        sums += added
    result: FloatArray = sums.reshape(2, abreast, -1).sum(axis=1)
    return result


def _shifted(run: npt.NDArray[Any], shift: npt.NDArray[Any] | None, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The run minus the shift, in the precision of `out`."""
    if run.dtype == np.float16 and out.dtype == np.float32 and is_finite(run):
        run = widen(run, out=out)
    elif shift is None:
        np.copyto(out, run)
    return out if shift is None else np.subtract(run, shift, out=out)


def _is_far(total: FloatArray, m2: FloatArray, count: float, pilot: FloatArray | None) -> bool:
    """Whether some mean is too far from the pilot; not where the rounding of the pilot explains it."""
    between = total * total / count
    if pilot is not None:
        between = between - count * (1e-6 * pilot) ** 2
    return bool((between > FAR * m2).any())


def _careful_totals(rows: npt.NDArray[Any], nonfinite: str) -> Totals:
    """Two passes, for batches with values that are not finite or whose squares exceed float32."""
    block_rows = max(1, BLOCK_VALUES // rows.shape[1])
    count, total, mean, m2 = (np.zeros(rows.shape[1]) for _ in range(4))
    for block in row_blocks(rows, block_rows):
        finite = np.isfinite(block)
        if nonfinite == "error" and not finite.all():
            row, column = np.argwhere(~finite)[0]
            raise InputError(
                f"Expected `logits` to be finite, but got {block[row, column]} for class {column} "
                '(in Python nonfinite="skip" leaves such values out and counts them).'
            )
        if block.dtype.char == "d" and (too_large := finite & (np.abs(block) > LARGEST)).any():
            row, column = np.argwhere(too_large)[0]
            raise InputError(
                f"Expected `logits` to be at most {LARGEST:g}, so that their squares can be added up, "
                f"but got {block[row, column]} for class {column}."
            )
        count += finite.sum(axis=0)
        total += np.where(finite, block, 0.0).sum(axis=0, dtype=np.float64)
    np.divide(total, count, out=mean, where=count > 0)
    for block in row_blocks(rows, block_rows):
        deviation = np.where(np.isfinite(block), block, mean).astype(np.float64) - mean
        m2 += (deviation * deviation).sum(axis=0)
    return Totals(count, mean, m2, skipped=len(rows) - count)


class ProbabilitySums:
    """Sums of the probabilities of each column over the rows, by softmax, sigmoid or both; and those of losing columns.

    Rows with a value that is not finite have no probabilities; the caller leaves them out. The sums are float64; in
    large batches that are not, the exponentials and the sums of a block are float32, so they are right to some
    millionths.

    Args:
        num_columns: Columns of the logits.
        rows: How many rows were added up.
        sums: The sums, by activation.

    Example:
        >>> probabilities = ProbabilitySums(2)
        >>> _ = probabilities.update(np.array([[0.0, 0.0], [0.0, np.log(3.0)]]), ("softmax",))
        >>> probabilities.mean("softmax").round(6).tolist()
        [0.375, 0.625]
    """

    def __init__(self, num_columns: int, rows: float = 0.0, sums: Mapping[str, FloatArray] | None = None) -> None:
        self._num_columns = num_columns
        self.rows = rows
        self.sums: dict[str, FloatArray] = dict(sums or {})

    def update(
        self,
        rows: npt.NDArray[Any],
        kinds: tuple[str, ...],
        weights: npt.NDArray[Any] | None = None,
        background: int | None = None,
    ) -> npt.NDArray[Any]:
        """Add (N, C) finite `rows`; each of the `weights` multiplies the probabilities of its row.

        A kind (an activation, or LOSING beside softmax) that earlier rows were not summed for is left out.

        Returns:
            For each row a number that the score of no class exceeds: the probability of all classes together.
        """
        if len(rows) == 0:
            return np.empty(0)
        kept = [kind for kind in kinds if not self.rows or kind in self.sums]
        self.sums = {kind: self.sums.get(kind, np.zeros(self._num_columns)) for kind in kept}
        self.rows += len(rows)
        working = _working_type(rows)
        factors = np.ones(len(rows), working) if weights is None else weights.astype(working, copy=False)
        size = max(1, BLOCK_VALUES // self._num_columns)
        scratch = np.empty((2, min(size, len(rows)), self._num_columns), working)
        bounds = np.ones(len(rows), working)
        for block, factor, bound in zip(*(row_blocks(part, size) for part in (rows, factors, bounds)), strict=True):
            self._add_block(block, factor, scratch[:, : len(block)], bound, background)
        return bounds if weights is None else np.multiply(bounds, factors)

    def merge(self, other: ProbabilitySums) -> None:
        """Add the sums of other rows; the activations that both sides have are kept."""
        if not other.rows:
            return
        if self.rows and bool(self.sums) != bool(other.sums):
            warn(
                "One of the statistics has no mean probabilities, so the merged ones have none: collect it "
                "again (in Python with mean_probability=True)."
            )
        own = self.sums if self.rows else dict.fromkeys(other.sums, np.zeros(self._num_columns))
        self.sums = {kind: own[kind] + other.sums[kind] for kind in own if kind in other.sums}
        self.rows += other.rows

    def mean(self, activation: str) -> FloatArray | None:
        """Mean probability of each column; NaN where there was no row, None where rows were not summed."""
        if not self.rows:
            return np.full(self._num_columns, np.nan)
        if not self.sums:
            return None
        if activation not in self.sums:
            listed = " and ".join(kind for kind in self.sums if kind != LOSING)
            raise InputError(
                f"Expected `activation` to be {listed}, whose mean probability was recorded, but got {activation!r}."
            )
        return np.asarray(self.sums[activation] / self.rows)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The content, by the names that files have for it."""
        sums = {f"{kind}_sum": values.copy() for kind, values in self.sums.items()}
        return {"probability_rows": np.array([self.rows]), **sums}

    @classmethod
    def from_arrays(cls, arrays: Arrays, num_columns: int) -> ProbabilitySums:
        """The opposite of `to_arrays`, checked."""
        rows = float(checked_array(arrays, "probability_rows", np.float64, (1,))[0])
        kinds = [kind for kind in SUMMED if f"{kind}_sum" in arrays]
        sums = {kind: checked_array(arrays, f"{kind}_sum", np.float64, (num_columns,)) for kind in kinds}
        if rows < 0 or rows % 1:
            raise InputError(f"`probability_rows` cannot be {rows:g}.")
        # Sums of float32 may be a little above the number of rows.
        if any(((values < 0) | (values > rows * (1.0 + 1e-4))).any() for values in sums.values()):
            raise InputError(f"The sums of probabilities should be from 0 to `probability_rows`, {rows:g}.")
        return cls(num_columns, rows, sums)

    # What leaves the range of float32 shows in the sums; no need to warn of it.
    @np.errstate(over="ignore", under="ignore", invalid="ignore")
    def _add_block(
        self,
        block: npt.NDArray[Any],
        factor: npt.NDArray[Any],
        scratch: npt.NDArray[Any],
        bound: npt.NDArray[Any],
        background: int | None,
    ) -> None:
        exponentials, odds = scratch
        ones = np.ones(self._num_columns, scratch.dtype)
        if block.dtype == np.float16 and scratch.dtype == np.float32:
            np.exp(widen(block, out=exponentials), out=exponentials)
        else:
            np.exp(block, out=exponentials, dtype=scratch.dtype)
        if "softmax" in self.sums:
            # Not shifted by the highest logit of the row, which costs a pass: the sums tell whether it was needed.
            mass = exponentials @ ones
            safe = mass.min() > SMALLEST_MASS and mass.max() < LARGEST_MASS
            self.sums["softmax"] += (factor / mass) @ exponentials if safe else factor @ softmax(block)
            if LOSING in self.sums:
                self.sums[LOSING] += (
                    _of_losers(exponentials, factor / mass) if safe else _of_losers(softmax(block), factor)
                )
            if safe and background is not None:
                np.subtract(1.0, exponentials[:, background] / mass, out=bound)
        if "sigmoid" in self.sums:
            np.add(exponentials, 1.0, out=odds)
            np.divide(exponentials, odds, out=exponentials)
            total = factor @ exponentials
            is_exact = bool(np.isfinite(total).all())
            self.sums["sigmoid"] += total if is_exact else factor @ sigmoid(block)
            if is_exact:
                np.matmul(exponentials, ones, out=bound)


def _of_losers(values: npt.NDArray[Any], factor: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`factor @ values` without the highest value of each row; the values are as before."""
    rows, top = np.arange(len(values)), values.argmax(axis=1)
    highest = values[rows, top]
    values[rows, top] = 0.0
    total: npt.NDArray[Any] = factor @ values
    values[rows, top] = highest
    return total


def checked_array(arrays: Arrays, name: str, dtype: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A copy of an array of a file, whose type and shape must be these and whose values must be finite.

    Example:
        >>> checked_array({"keys": np.zeros(2)}, "keys", np.float64, (3,))
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `keys` should be float64 (3,), but is float64 (2,).
    """
    if name not in arrays:
        raise InputError(f"`{name}` is missing.")
    array = arrays[name]
    if array.dtype != dtype or array.shape != shape:
        raise InputError(f"`{name}` should be {np.dtype(dtype)} {shape}, but is {array.dtype} {array.shape}.")
    if not np.isfinite(array).all():
        raise InputError(f"`{name}` is not finite.")
    return array.copy()
