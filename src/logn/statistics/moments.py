"""ClassMoments: count, mean and variance of every class's logit, streaming, exact, mergeable."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from logn.errors import InputError, LogNWarning
from logn.logits.arrays import FloatArray, as_rows, is_torch_tensor, sigmoid
from logn.statistics.batch_sums import Totals, TotalsTree
from logn.statistics.file_format import (
    VECTORS,
    StatisticsFile,
    read_statistics,
    statistics_from_bytes,
    statistics_to_bytes,
    write_statistics,
)
from logn.statistics.mean_probability import ProbabilitySums, activations_of
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.row_sample import RowSample
from logn.statistics.running_sums import RunningSums

Nonfinite = Literal["error", "skip"]


class ClassMoments:
    """Streaming moments of logits, per class, in float64.

    Any split of the data into batches, shards, ranks or machines, merged in any order, gives the same result: to the
    last digits of float64, or where large batches are float32 to some millionths of a variance, as float32 is summed
    in short runs. One call of `update` is one batch; the mean of the variances within batches, which is what the
    paper's moving average tends to, is kept beside the pooled variance.

    Args:
        num_columns: Columns of the logits, the background included.
        nonfinite: "error" refuses NaN and infinity and names the class; "skip" leaves such values out and counts
            them in `skipped`.
        sample_rows: How many rows to keep as an unbiased sample, in float16. Matching thresholds needs some
            thousands; 0 keeps none.
        mean_probability: Whether to add up the probabilities of each class too, which `logn.recommend` needs; it takes
            about as long as a softmax of the rows. Where the activation is not known and there is no background, both
            softmax and sigmoid are added up.
        metadata: What the logits are.

    Example:
        >>> moments = ClassMoments(2)
        >>> moments.update(np.array([[2.0, 0.5], [0.0, 1.5]]))
        >>> other = ClassMoments(2)
        >>> other.update(np.array([[1.0, -0.5], [-1.0, 0.0]]))
        >>> moments.merge(other).mean
        array([0.5  , 0.375])
        >>> moments.variance.round(6)
        array([1.666667, 0.729167])
    """

    def __init__(
        self,
        num_columns: int,
        *,
        nonfinite: Nonfinite = "error",
        sample_rows: int = 0,
        mean_probability: bool = True,
        metadata: StatisticsMetadata | None = None,
    ) -> None:
        if isinstance(num_columns, bool) or not isinstance(num_columns, int | np.integer) or num_columns < 1:
            raise InputError(f"Expected `num_columns` to be a whole number of at least 1, but got {num_columns!r}.")
        if nonfinite not in ("error", "skip"):
            raise InputError(f"Expected `nonfinite` to be one of ('error', 'skip'), but got {nonfinite!r}.")
        if sample_rows < 0:
            raise InputError(f"Expected `sample_rows` to be at least 0, but got {sample_rows}.")
        self.metadata = metadata or StatisticsMetadata()
        self.metadata.check_width(num_columns)
        self.num_columns = int(num_columns)
        self._nonfinite: Nonfinite = nonfinite
        self._sums = RunningSums(self.num_columns, nonfinite)
        # With an objectness, it is the last column of the sample.
        self._has_objectness = False
        self._sample = self._new_sample(sample_rows) if sample_rows else None
        self._probabilities = ProbabilitySums(self.num_columns) if mean_probability else None

    def update(self, logits: Any, objectness: Any = None) -> None:
        """Add a batch of logits, NumPy arrays or torch tensors on any device.

        Args:
            logits: Of the classes, (…, C).
            objectness: Logits of whether a row is an object of any class, (…), for heads whose score is the product of
                both probabilities: with all batches or with none. The mean probabilities are then those of the
                scores; mean and variance stay those of the class logits.

        Example:
            >>> moments = ClassMoments(2)
            >>> moments.update(np.zeros((3, 2)), objectness=np.array([0.0, 50.0, -50.0]))
            >>> moments.mean_probability_of("sigmoid")
            array([0.25, 0.25])
        """
        rows = as_rows(logits, self.num_columns)
        if len(rows) == 0:
            return
        has_objectness, whole = objectness is not None, rows
        if has_objectness:
            whole = np.column_stack([rows, self._objectness_of(rows, objectness)])
        if has_objectness != self._has_objectness:
            self._settle_objectness(has_objectness, seen=bool(self._totals.count.any()))
        finite = self._sums.add(rows)
        if self._sample is not None:
            self._sample.update(whole)
        if self._probabilities is not None:
            if not finite or has_objectness:
                whole = whole[np.isfinite(whole).all(axis=1)]
            weights = sigmoid(whole[:, -1]) if has_objectness else None
            self._probabilities.update(whole[:, : self.num_columns], activations_of(self.metadata), weights)

    def merge(self, other: ClassMoments) -> ClassMoments:
        """Add what `other` has seen, in place, and return self; statistics of different things are refused."""
        self._take_beside(other, seen=bool(self._totals.count.any()))
        self._sums.merge(other._totals)
        return self

    @classmethod
    def merge_all(cls, parts: Iterable[ClassMoments]) -> ClassMoments:
        """Merge any number of statistics into new ones; the parts stay as they are.

        The sums are added in a tree, so a thousand parts round no worse than ten, and only one part and a few sums are
        held at a time: `parts` may be a generator that reads files.

        Example:
            >>> parts = [ClassMoments(1) for _ in range(3)]
            >>> for number, part in enumerate(parts):
            ...     part.update(np.array([[1.0], [3.0]]) + number)
            >>> ClassMoments.merge_all(parts).mean.tolist(), parts[0].mean.tolist()
            ([3.0], [2.0])
        """
        total: ClassMoments | None = None
        tree, seen = TotalsTree(), False
        for number, part in enumerate(parts):
            if not isinstance(part, ClassMoments):
                raise InputError(f"Expected `parts` to be ClassMoments, but number {number} is {_kind(part)}.")
            if total is None:
                total = copy.copy(part)
            else:
                total._take_beside(part, seen=seen)
            tree.add(part._totals)
            seen = seen or bool(part._totals.count.any())
        if total is None:
            raise InputError("Expected `parts` to be at least one ClassMoments, but got none.")
        total._sums.restart(tree.total())
        return total

    def _take_beside(self, other: ClassMoments, *, seen: bool) -> None:
        """Check that `other` may be merged, and take over all that it holds beside the sums."""
        if not isinstance(other, ClassMoments):
            raise InputError(f"Expected `other` to be ClassMoments, but got {_kind(other)}.")
        if other.num_columns != self.num_columns:
            raise InputError(f"Expected `other` to have {self.num_columns} classes, but got {other.num_columns}.")
        self.metadata.check_mergeable(other.metadata)
        joins = bool(other._totals.count.any())
        if joins:
            self._settle_objectness(other._has_objectness, seen=seen)
        if seen and joins and (self._sample is None) != (other._sample is None):
            raise InputError(
                "Expected both or none of the statistics to hold a row sample, but got one of them with it."
            )
        # A sample must know of every row: one of nothing does not outlive rows that nobody sampled.
        if joins and other._sample is None:
            self._sample = None
        elif joins or not seen:
            self._merge_sample(other._sample)
        self._merge_probabilities(other._probabilities, seen, joins)

    def clear(self) -> None:
        """Forget everything that was seen; cheaper than a new object, since the scratch memory is kept."""
        self._sums.restart(Totals.nothing(self.num_columns))
        if self._sample is not None:
            self._sample = self._new_sample(self._sample.capacity)
        if self._probabilities is not None:
            self._probabilities.clear()

    @property
    def num_classes(self) -> int:
        """How many classes there are: the columns without the background."""
        return self.num_columns - (self.metadata.background is not None)

    @property
    def count(self) -> FloatArray:
        """How many values of each class were seen."""
        return self._totals.count.copy()

    @property
    def mean(self) -> FloatArray:
        """Mean of each class's logit (0 where nothing was seen)."""
        return self._totals.mean.copy()

    @property
    def m2(self) -> FloatArray:
        """Sum of the squared deviations from the mean."""
        return self._totals.m2.copy()

    @property
    def variance(self) -> FloatArray:
        """Unbiased variance, pooled over all batches; NaN where fewer than two values were seen."""
        seen = self._totals
        return np.divide(seen.m2, seen.count - 1, out=np.full_like(seen.m2, np.nan), where=seen.count > 1)

    @property
    def std(self) -> FloatArray:
        """Square root of the variance."""
        return np.sqrt(self.variance)

    @property
    def within_batch_variance(self) -> FloatArray:
        """Mean over the batches of the unbiased variance within each; NaN where no batch had two values."""
        seen = self._totals
        unknown = np.full_like(seen.m2, np.nan)
        return np.divide(seen.within_variance_sum, seen.batches, out=unknown, where=seen.batches > 0)

    @property
    def skipped(self) -> FloatArray:
        """How many values that were not finite were left out, per class."""
        return self._totals.skipped.copy()

    @property
    def sample(self) -> npt.NDArray[np.float16]:
        """The sampled rows (k, C), k at most `sample_rows`; empty when none were asked for."""
        if self._sample is None:
            return np.empty((0, self.num_columns), np.float16)
        return self._sample.rows[:, : self.num_columns].copy()

    @property
    def sample_objectness(self) -> npt.NDArray[np.float16] | None:
        """Objectness logit of each sampled row; None for heads without one."""
        if not self._has_objectness:
            return None
        return np.empty(0, np.float16) if self._sample is None else self._sample.rows[:, -1].copy()

    @property
    def sample_rows(self) -> int:
        """How many rows the sample may hold."""
        return 0 if self._sample is None else self._sample.capacity

    def take_new_rows_of(self, part: ClassMoments) -> ClassMoments:
        """Merge `part` into these statistics, and give it back with those sampled rows only that found a place here.

        A worker that sends one part after the other need not send sampled rows that its own earlier parts have
        displaced: they would find no place in the sum of all parts either.
        """
        limit = None if self._sample is None else self._sample.limit
        self.merge(part)
        thinned = copy.copy(part)
        if limit is not None and thinned._sample is not None:
            thinned._sample = thinned._sample.below(limit)
        return thinned

    @property
    def mean_probability(self) -> FloatArray | None:
        """Mean probability of each column, or None where it was not asked for; NaN where nothing was seen.

        The probabilities are those of the recorded activation: sigmoids, or a softmax over all columns, the background
        included. Where no activation is recorded they are those of a softmax; `mean_probability_of` gives the others.
        With an objectness they are times its sigmoid, as scores are.

        Example:
            >>> moments = ClassMoments(2)
            >>> moments.update(np.log([[1.0, 3.0], [1.0, 1.0]]))
            >>> moments.mean_probability.round(6), moments.mean_probability_of("sigmoid").round(6)
            (array([0.375, 0.625]), array([0.5  , 0.625]))
        """
        return self.mean_probability_of(activations_of(self.metadata)[0])

    def mean_probability_of(self, activation: str) -> FloatArray | None:
        """The same by "softmax" or "sigmoid"; an activation other than the recorded one is refused."""
        return None if self._probabilities is None else self._probabilities.mean(activation)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a safetensors file, atomically; `docs/file-format.md` specifies it."""
        write_statistics(path, self.to_file())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ClassMoments:
        """Read what `save` wrote; a file that is not valid is refused with the reason."""
        return cls.from_file(read_statistics(path))

    def to_bytes(self) -> bytes:
        """The bytes of the file that `save` would write: for queues, tables and workers of other engines.

        Example:
            >>> moments = ClassMoments(2)
            >>> moments.update(np.array([[2.0, 0.5], [0.0, 1.5]]))
            >>> ClassMoments.from_bytes(moments.to_bytes()).mean
            array([1., 1.])
        """
        return statistics_to_bytes(self.to_file())

    @classmethod
    def from_bytes(cls, data: bytes) -> ClassMoments:
        """Read what `to_bytes` gave; bytes that are not valid are refused with the reason, as a file would be."""
        return cls.from_file(statistics_from_bytes(data))

    def to_file(self) -> StatisticsFile:
        """The content as plain arrays; what `save` writes and processes exchange."""
        sample, seen = self._sample, self._totals
        return StatisticsFile(
            **{name: getattr(seen, name).copy() for name in VECTORS},
            sample_capacity=self.sample_rows,
            sample_rows=None if sample is None else self.sample,
            sample_keys=None if sample is None else sample.keys.copy(),
            sample_objectness=self.sample_objectness,
            probabilities=copy.deepcopy(self._probabilities),
            metadata=self.metadata,
        )

    @classmethod
    def from_file(cls, content: StatisticsFile) -> ClassMoments:
        """The opposite of `to_file`."""
        moments = cls(len(content.count), sample_rows=content.sample_capacity, metadata=content.metadata)
        moments._sums.restart(Totals(**{name: getattr(content, name).copy() for name in VECTORS}))
        rows, objectness = content.sample_rows, content.sample_objectness
        moments._has_objectness = objectness is not None
        if content.sample_capacity:
            if rows is not None and objectness is not None:
                rows = np.column_stack([rows, objectness])
            moments._sample = moments._new_sample(content.sample_capacity, rows, content.sample_keys)
        moments._probabilities = copy.deepcopy(content.probabilities)
        return moments

    def __copy__(self) -> ClassMoments:
        return copy.deepcopy(self)  # two objects that write to the same memory would be of no use

    def __repr__(self) -> str:
        rows = int(self._totals.count.max(initial=0))
        return f"ClassMoments(num_columns={self.num_columns}, rows={rows})"

    @property
    def _totals(self) -> Totals:
        return self._sums.totals()

    def _objectness_of(self, rows: npt.NDArray[Any], objectness: Any) -> npt.NDArray[Any]:
        """One logit per row, (N, 1)."""
        array = objectness if is_torch_tensor(objectness) else np.asarray(objectness)
        values = as_rows(array.reshape(-1, 1), 1)
        if len(values) != len(rows):
            raise InputError(
                f"Expected `objectness` to be one logit for each of {len(rows)} rows, but got {len(values)}."
            )
        if self._nonfinite == "error" and not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise InputError(f"Expected `objectness` to be finite, but that of row {row} is {values[row, 0]}.")
        return values

    def _settle_objectness(self, has_objectness: bool, *, seen: bool) -> None:
        """The first rows say whether there is an objectness; the others must agree, or the probabilities would mix."""
        if has_objectness == self._has_objectness:
            return
        if seen:
            raise InputError("Expected `objectness` with all rows or with none, but got it with some of them.")
        self._has_objectness = has_objectness
        if self._sample is not None:
            self._sample = self._new_sample(self._sample.capacity)

    def _new_sample(self, capacity: int, *rows_and_keys: Any) -> RowSample:
        return RowSample(self.num_columns + self._has_objectness, capacity, *rows_and_keys)

    def _merge_sample(self, other: RowSample | None) -> None:
        if other is None:
            return
        if self._sample is None:
            self._sample = self._new_sample(other.capacity)
        self._sample.merge(other)

    def _merge_probabilities(self, other: ProbabilitySums | None, seen: bool, joins: bool) -> None:
        mine = self._probabilities
        if joins and seen and (mine is None) != (other is None):
            warnings.warn(
                "One of the statistics to merge holds no mean probability of the classes, so their sum holds none; "
                "collect it with mean_probability=True (`--prior`).",
                LogNWarning,
                stacklevel=4,
            )
        # Sums must know of every row: those of nothing do not outlive rows that nobody summed.
        if joins and other is None:
            self._probabilities = None
        elif other is not None and not (seen and mine is None):
            self._probabilities = mine or ProbabilitySums(self.num_columns)
            self._probabilities.merge(other)


def _kind(value: object) -> str:
    return type(value).__name__
