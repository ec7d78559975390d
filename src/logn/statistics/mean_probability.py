"""ProbabilitySums: what the model's mean probability of each class is made of, streaming and exactly mergeable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.logits.arrays import FloatArray, is_finite, row_blocks, sigmoid, softmax, widen
from logn.statistics.batch_sums import SMALL_BATCH
from logn.statistics.metadata import ACTIVATIONS, StatisticsMetadata

# Values of a block: enough to hide the cost of a NumPy call, few enough for the exponentials to stay in the cache.
BLOCK_VALUES = 2**18
# Sums of the exponentials of a row between which none that counts has left the range of float32.
SMALLEST_MASS, LARGEST_MASS = 1e-10, 1e35
ROWS_NAME = "probability_rows"
SUM_NAMES = {kind: f"{kind}_sum" for kind in ACTIVATIONS}


def activations_of(metadata: StatisticsMetadata) -> tuple[str, ...]:
    """Which activations may follow the logits: both where nobody said, and beside a background a softmax.

    Example:
        >>> activations_of(StatisticsMetadata(background=0)), activations_of(StatisticsMetadata())
        (('softmax',), ('softmax', 'sigmoid'))
    """
    if metadata.activation is not None:
        return (metadata.activation,)
    return ACTIVATIONS if metadata.background is None else ("softmax",)


class ProbabilitySums:
    """Sums of the probabilities of each class over the rows, by softmax, sigmoid or both.

    Rows with a value that is not finite have no probabilities and are left out. The sums are float64; in large batches
    that are not, the exponentials and the sums of a block are float32, so they are right to some millionths.

    Args:
        num_classes: Columns of the logits.
        rows: How many rows were added up.
        sums: The sums, by activation.

    Example:
        >>> probabilities = ProbabilitySums(2)
        >>> probabilities.update(np.array([[0.0, 0.0], [0.0, np.log(3.0)]]), ("softmax",))
        >>> probabilities.mean("softmax").round(6).tolist()
        [0.375, 0.625]
    """

    def __init__(self, num_classes: int, rows: float = 0.0, sums: Mapping[str, FloatArray] | None = None) -> None:
        self._num_classes = num_classes
        self.rows = rows
        self.sums: dict[str, FloatArray] = dict(sums or {})
        self._scratch: dict[type, npt.NDArray[Any]] = {}

    def update(
        self, rows: npt.NDArray[Any], activations: tuple[str, ...], weights: npt.NDArray[Any] | None = None
    ) -> None:
        """Add (N, C) finite `rows`; an activation that earlier rows were not summed for is not taken up again.

        Each of the `weights` multiplies the probabilities of its row; without them they count as they are.
        """
        if len(rows) == 0:
            return
        kept = [kind for kind in activations if not self.rows or kind in self.sums]
        self.sums = {kind: self.sums.get(kind, np.zeros(self._num_classes)) for kind in kept}
        self.rows += len(rows)
        small = rows.dtype.char == "d" or rows.size <= SMALL_BATCH
        working = np.float64 if small else np.float32
        factors = np.ones(len(rows), working) if weights is None else weights.astype(working, copy=False)
        size = max(1, BLOCK_VALUES // self._num_classes)
        for block, factor in zip(row_blocks(rows, size), row_blocks(factors, size), strict=True):
            self._add_block(block, factor, working)

    def merge(self, other: ProbabilitySums) -> None:
        """Add the sums of other rows; of the activations those stay that both sides have."""
        if not other.rows:
            return
        mine = self.sums if self.rows else dict.fromkeys(other.sums, np.zeros(self._num_classes))
        self.sums = {kind: mine[kind] + other.sums[kind] for kind in mine if kind in other.sums}
        self.rows += other.rows

    def clear(self) -> None:
        """Forget all rows; the scratch memory is kept."""
        self.rows, self.sums = 0.0, {}

    def mean(self, activation: str) -> FloatArray:
        """Mean probability of each class; NaN where there was no row."""
        if not self.rows:
            return np.full(self._num_classes, np.nan)
        if activation not in self.sums:
            listed = " and ".join(self.sums) or "no activation"
            raise InputError(
                f"Expected `activation` to be {listed}, whose mean probability was recorded, but got {activation!r}."
            )
        result: FloatArray = self.sums[activation] / self.rows
        return result

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The content by the names that files have for it."""
        sums = {SUM_NAMES[kind]: values.copy() for kind, values in self.sums.items()}
        return {ROWS_NAME: np.array([self.rows], np.float64), **sums}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], num_classes: int) -> ProbabilitySums | None:
        """The opposite of `arrays`, checked; None where nothing of it is there."""
        sums = {kind: arrays[name] for kind, name in SUM_NAMES.items() if name in arrays}
        if ROWS_NAME not in arrays and not sums:
            return None
        rows = arrays.get(ROWS_NAME)
        if rows is None or rows.shape != (1,) or rows.dtype != np.float64 or not (rows >= 0).all() or rows % 1:
            raise InputError(f"`{ROWS_NAME}` should be one whole number as float64, beside the sums of probabilities.")
        if rows[0] and not sums:
            raise InputError(f"there is no sum of probabilities of the {rows[0]:g} rows.")
        for kind, values in sums.items():
            if values.dtype != np.float64 or values.shape != (num_classes,):
                raise InputError(
                    f"`{SUM_NAMES[kind]}` should be one float64 per class, but is {values.dtype} {values.shape}."
                )
            # Float32 inside a block may leave a sum of certainties a little above their number.
            if not ((values >= 0) & (values <= float(rows[0]) * (1.0 + 1e-4))).all():
                raise InputError(f"`{SUM_NAMES[kind]}` should be between 0 and the {rows[0]:g} rows, but is not.")
        return cls(num_classes, float(rows[0]), {kind: values.copy() for kind, values in sums.items()})

    def __getstate__(self) -> tuple[int, float, dict[str, FloatArray]]:
        return self._num_classes, self.rows, self.sums  # without the scratch memory

    def __setstate__(self, state: tuple[int, float, dict[str, FloatArray]]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    # What leaves the range of float32 shows in the sums; no need to warn of it.
    @np.errstate(over="ignore", under="ignore", invalid="ignore")
    def _add_block(self, block: npt.NDArray[Any], factor: npt.NDArray[Any], working: type) -> None:
        exponentials, odds = self._reserved(len(block), working)
        halves = block.dtype == np.float16 and working is np.float32 and is_finite(block)
        np.exp(widen(block, out=exponentials) if halves else block, out=exponentials, dtype=working)
        if "softmax" in self.sums:
            # Not shifted by the highest logit of the row, which costs a pass: the sums tell whether it was needed.
            mass = exponentials.dot(np.ones(self._num_classes, working))
            safe = mass.min() > SMALLEST_MASS and mass.max() < LARGEST_MASS
            self.sums["softmax"] += (factor / mass).dot(exponentials) if safe else factor.dot(softmax(block))
        if "sigmoid" in self.sums:
            np.add(exponentials, 1.0, out=odds)
            np.divide(exponentials, odds, out=exponentials)
            total = factor.dot(exponentials)
            self.sums["sigmoid"] += total if np.isfinite(total).all() else factor.dot(sigmoid(block))

    def _reserved(self, rows: int, working: type) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Scratch memory, kept between calls: fresh memory would cost as much as the exponentials."""
        scratch = self._scratch.get(working)
        if scratch is None or scratch.shape[1] < rows:
            scratch = self._scratch[working] = np.empty((2, rows, self._num_classes), working)
        return scratch[0, :rows], scratch[1, :rows]
