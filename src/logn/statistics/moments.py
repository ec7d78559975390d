"""ClassMoments: count, mean and variance of every class's logit, streaming, mergeable to rounding, and their file."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray, as_numpy, as_rows, ratio, sigmoid, softmax
from logn.base.files import read_safetensors, safetensors_from_bytes, safetensors_to_bytes, write_safetensors
from logn.errors import InputError
from logn.statistics.head import HEAD_KEY, Head
from logn.statistics.row_sample import RowSample, ScoredSample, scored_rows
from logn.statistics.sums import LOSING, VECTORS, Arrays, ProbabilitySums, RunningSums, Totals

FILE_FORMAT = "logn.statistics"
FILE_SCHEMA = 5
Nonfinite = Literal["error", "skip"]


class ClassMoments:
    """Streaming moments of logits, per class, in float64.

    Any split of the data into batches, shards, ranks or machines, merged in any order, gives the same result: to the
    last digits of float64, or where large batches are float32 to some millionths of a variance, as float32 is summed
    in short runs.

    Args:
        head: What the logits are, or just how many columns they have, the background included. With an objectness,
            every batch must bring it.
        nonfinite: "error" refuses NaN and infinity and names the class; "skip" leaves such values out and counts
            them in `skipped`.
        sample_rows: How many rows to keep as an unbiased sample, in float16; 0 keeps none. Of heads whose scores a
            threshold may cut, up to twice as many rows with high scores are kept beside it.
        mean_probability: Whether to add up the probabilities of each class too, which `logn.recommend` needs; it takes
            about as long as a softmax of the rows. Where the activation is unknown and there is no background, both
            softmax and sigmoid are added up.

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
        head: Head | int,
        *,
        nonfinite: Nonfinite = "error",
        sample_rows: int = 0,
        mean_probability: bool = True,
    ) -> None:
        if nonfinite not in ("error", "skip"):
            raise InputError(f"Expected `nonfinite` to be one of ('error', 'skip'), but got {nonfinite!r}.")
        if sample_rows < 0:
            raise InputError(f"Expected `sample_rows` to be at least 0, but got {sample_rows}.")
        self.head = head if isinstance(head, Head) else Head(head)
        self.nonfinite: Nonfinite = nonfinite
        columns = self.head.width
        self._sums = RunningSums(Totals.zeros(columns))
        self._probabilities = ProbabilitySums(columns)
        self._sums_probabilities = mean_probability
        # With an objectness, it is the last column of the samples.
        width = columns + self.head.objectness
        self._sample = RowSample(width, sample_rows)
        self._scored = ScoredSample.of(width, scored_rows(columns, sample_rows))

    def update(self, logits: Any, objectness: Any = None) -> None:
        """Add a batch of logits, NumPy arrays or torch tensors on any device.

        Args:
            logits: Of the classes, (…, C).
            objectness: Logits of whether a row is an object of any class, (…), for heads whose score is the product of
                both probabilities. The mean probabilities are then those of the scores; mean and variance stay those
                of the class logits.

        Example:
            >>> moments = ClassMoments(Head(2, activation="sigmoid", objectness=True))
            >>> moments.update(np.zeros((3, 2)), objectness=np.array([0.0, 50.0, -50.0]))
            >>> moments.mean_probability
            array([0.25, 0.25])
        """
        rows = as_rows(logits, self.num_columns)
        if (objectness is not None) != self.head.objectness:
            raise InputError(
                "Expected `objectness` beside the logits, as the head says."
                if self.head.objectness
                else "Expected no `objectness`: a head that has one is `logn.Head(…, objectness=True)`."
            )
        if len(rows) == 0:
            return
        whole = rows
        if objectness is not None:
            whole = np.column_stack([rows, self._objectness_of(rows, objectness)])
        is_finite = self._sums.add(rows, self.nonfinite)
        if objectness is not None:
            is_finite = is_finite and bool(np.isfinite(whole[:, -1]).all())
        bound = self._add_probabilities(whole, is_finite=is_finite)
        if self._sample.capacity == 0:
            return
        keys = self._sample.update(whole, is_finite=is_finite)
        if self.head.scored_by is not None:
            is_score = self._is_softmax_detector and bound is not None
            self._scored.update(whole, keys, None if is_score else self._top_scores, bound, is_finite=is_finite)

    def merge(self, other: ClassMoments) -> ClassMoments:
        """Add the statistics of `other`, in place, and return self; those of another model or layer are refused."""
        if not isinstance(other, ClassMoments):
            raise InputError(f"Expected `other` to be ClassMoments, but got {type(other).__name__}.")
        self.head.check_mergeable(other.head)
        if (self.sample_rows == 0) != (other.sample_rows == 0):
            raise InputError(
                "Only one of the statistics has a row sample: collect both alike (in Python with `sample_rows`)."
            )
        self._sums.totals = self._sums.totals.merged(other._sums.totals)
        self._probabilities.merge(other._probabilities)
        self._sample.merge(other._sample)
        self._scored.kept.merge(other._scored.kept)
        return self

    @classmethod
    def merge_all(cls, parts: Iterable[ClassMoments]) -> ClassMoments:
        """Merge any number of statistics into new ones; the parts stay as they are, and may come from a generator.

        Example:
            >>> parts = [ClassMoments(1) for _ in range(3)]
            >>> for number, part in enumerate(parts):
            ...     part.update(np.array([[1.0], [3.0]]) + number)
            >>> ClassMoments.merge_all(parts).mean.tolist(), parts[0].mean.tolist()
            ([3.0], [2.0])
        """
        merged: ClassMoments | None = None
        for number, part in enumerate(parts):
            if not isinstance(part, ClassMoments):
                raise InputError(f"Expected `parts` to be ClassMoments, but number {number} is {type(part).__name__}.")
            merged = copy.copy(part) if merged is None else merged.merge(part)
        if merged is None:
            raise InputError("Expected `parts` to be at least one ClassMoments, but got none.")
        return merged

    def new_part(self) -> ClassMoments:
        """Empty statistics of the same kind, to be merged into these; rows that cannot enter the samples are not kept.

        Example:
            >>> total = ClassMoments(Head(2, population="images"), nonfinite="skip")
            >>> total.new_part().head == total.head
            True
        """
        part = ClassMoments(
            self.head,
            nonfinite=self.nonfinite,
            sample_rows=self.sample_rows,
            mean_probability=self._sums_probabilities,
        )
        part._sample.limit, part._scored.kept.limit = self._sample.limit, self._scored.kept.limit
        return part

    @property
    def num_columns(self) -> int:
        """How many columns the logits have, the background included."""
        return self.head.width

    @property
    def num_classes(self) -> int:
        """How many classes there are: the columns without the background and the unused ones."""
        return self.head.num_classes

    @property
    def count(self) -> FloatArray:
        """How many values of each class were seen."""
        return self._sums.totals.count.copy()

    @property
    def mean(self) -> FloatArray:
        """Mean of each class's logit (0 where nothing was seen)."""
        return self._sums.totals.mean.copy()

    @property
    def m2(self) -> FloatArray:
        """Sum of the squared deviations from the mean."""
        return self._sums.totals.m2.copy()

    @property
    def variance(self) -> FloatArray:
        """Unbiased variance; NaN where fewer than two values were seen."""
        seen = self._sums.totals
        return ratio(seen.m2, seen.count - 1)

    @property
    def std(self) -> FloatArray:
        """Square root of the variance."""
        return np.sqrt(self.variance)

    @property
    def skipped(self) -> FloatArray:
        """How many values that were not finite were left out, per class."""
        return self._sums.totals.skipped.copy()

    @property
    def sample(self) -> npt.NDArray[np.float16]:
        """The sampled rows (k, C), k at most `sample_rows`."""
        return self._sample.rows[:, : self.num_columns].copy()

    @property
    def sample_objectness(self) -> npt.NDArray[np.float16] | None:
        """Objectness logit of each sampled row; None for heads without one."""
        return self._sample.rows[:, -1].copy() if self.head.objectness else None

    def scored_sample(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Rows to ask about scores: among them many of high ones, which are rare in the unbiased sample.

        Returns:
            The logits (k, C), the probability (k,) of the objectness, 1 for heads without one, and how many rows each
            of them stands for (k,).

        Example:
            >>> moments = ClassMoments(Head(2, activation="sigmoid"), sample_rows=50)
            >>> moments.update(np.repeat([[-8.0, -9.0], [2.0, -9.0]], [9900, 100], axis=0))
            >>> logits, objectness, stands_for = moments.scored_sample()
            >>> int((logits > 0).sum()) > 50, round(float(stands_for[logits[:, 0] > 0].sum()), -1)
            (True, 100.0)
        """
        if self.head.scored_by is None:
            values, stands_for = self._sample.rows.astype(np.float64), np.ones(len(self._sample.rows))
        else:
            values, stands_for = self._scored.rows.astype(np.float64), self._scored.stands_for
        objectness = sigmoid(values[:, -1]) if self.head.objectness else np.ones(len(values))
        return values[:, : self.num_columns], objectness, stands_for

    @property
    def sample_rows(self) -> int:
        """How many rows the sample may hold."""
        return self._sample.capacity

    @property
    def mean_probability(self) -> FloatArray | None:
        """Mean probability of each column, or None where it was not asked for; NaN where nothing was seen.

        The probabilities are those of the recorded activation: sigmoids, or a softmax over all columns, the background
        included. Where no activation is recorded they are those of a softmax; `mean_probability_of` gives the others.
        With an objectness they are multiplied by its sigmoid, as scores are.

        Example:
            >>> moments = ClassMoments(2)
            >>> moments.update(np.log([[1.0, 3.0], [1.0, 1.0]]))
            >>> moments.mean_probability.round(6), moments.mean_probability_of("sigmoid").round(6)
            (array([0.375, 0.625]), array([0.5  , 0.625]))
        """
        return self.mean_probability_of(self.head.activations[0])

    def mean_probability_of(self, activation: str) -> FloatArray | None:
        """The same by "softmax" or "sigmoid"; an activation other than the recorded one is refused."""
        is_there = self._sums_probabilities or self._probabilities.rows
        return self._probabilities.mean(activation) if is_there else None

    @property
    def losing_probability(self) -> FloatArray | None:
        """Mean softmax probability of each column, as 0 in rows where it is the highest; None beside a background."""
        return self._probabilities.mean(LOSING) if LOSING in self._probabilities.sums else None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a safetensors file, atomically; `docs/reference/file-formats.md` specifies it."""
        write_safetensors(path, self.to_arrays(), self._text())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ClassMoments:
        """Read what `save` wrote; a file that is not valid is refused with the reason."""
        return cls._checked(path, *read_safetensors(path, expected_format=FILE_FORMAT, schema=FILE_SCHEMA))

    def to_bytes(self) -> bytes:
        """The bytes of the file that `save` would write: for queues, tables and workers of other engines.

        Example:
            >>> moments = ClassMoments(2)
            >>> moments.update(np.array([[2.0, 0.5], [0.0, 1.5]]))
            >>> ClassMoments.from_bytes(moments.to_bytes()).mean
            array([1., 1.])
        """
        return safetensors_to_bytes(self.to_arrays(), self._text())

    @classmethod
    def from_bytes(cls, data: bytes) -> ClassMoments:
        """Read what `to_bytes` gave; bytes that are not valid are refused with the reason, as a file would be."""
        read = safetensors_from_bytes(data, name="data", expected_format=FILE_FORMAT, schema=FILE_SCHEMA)
        return cls._checked("data", *read)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of all numbers, by the names that files have for them."""
        arrays: dict[str, npt.NDArray[Any]] = {name: getattr(self._sums.totals, name).copy() for name in VECTORS}
        arrays |= self._probabilities.to_arrays()
        if self.sample_rows:
            arrays |= self._sample.to_arrays("sample")
            arrays |= self._scored.kept.to_arrays("scored") if self.head.scored_by is not None else {}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Arrays, head: Head | None = None, nonfinite: Nonfinite = "error") -> ClassMoments:
        """The opposite of `to_arrays`; arrays that do not fit together are refused."""
        totals = Totals.from_arrays(arrays)
        head = Head(len(totals.count)) if head is None else head
        moments = cls(head, nonfinite=nonfinite)
        if len(totals.count) != moments.num_columns:
            raise InputError(f"`head` is of {moments.num_columns} columns, but the numbers are of {len(totals.count)}.")
        moments._sums = RunningSums(totals)
        moments._probabilities = ProbabilitySums.from_arrays(arrays, moments.num_columns)
        moments._sums_probabilities = bool(moments._probabilities.sums) or not moments._probabilities.rows
        if "sample_rows" in arrays:
            width = moments.num_columns + head.objectness
            moments._sample = RowSample.from_arrays(arrays, "sample", width, np.uint64)
            if head.scored_by is not None:
                moments._scored = ScoredSample.from_arrays(arrays, width)
        return moments

    @classmethod
    def _checked(cls, name: str | os.PathLike[str], arrays: Arrays, text: Mapping[str, str]) -> ClassMoments:
        try:
            return cls.from_arrays(arrays, Head.from_json(text))
        except (InputError, ValueError, TypeError) as error:
            raise InputError(f"`{name}` does not hold valid statistics: {error}") from error

    def _text(self) -> dict[str, str]:
        return {"format": FILE_FORMAT, "schema": str(FILE_SCHEMA), HEAD_KEY: self.head.to_json()}

    def __copy__(self) -> ClassMoments:
        return copy.deepcopy(self)  # two objects that write to the same memory would be of no use

    def __repr__(self) -> str:
        return f"ClassMoments(num_columns={self.num_columns}, rows={int(self._sums.totals.count.max())})"

    @property
    def _is_softmax_detector(self) -> bool:
        return self.head.background is not None and self.head.activation != "sigmoid"

    def _objectness_of(self, rows: npt.NDArray[Any], objectness: Any) -> npt.NDArray[Any]:
        """One logit per row, (N, 1)."""
        values = as_rows(as_numpy(objectness).reshape(-1, 1), 1)
        if len(values) != len(rows):
            raise InputError(
                f"Expected `objectness` to be one logit for each of {len(rows)} rows, but got {len(values)}."
            )
        if self.nonfinite == "error" and not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise InputError(f"Expected `objectness` to be finite, but that of row {row} is {values[row, 0]}.")
        return values

    def _add_probabilities(self, whole: npt.NDArray[Any], *, is_finite: bool) -> npt.NDArray[Any] | None:
        """Add up the probabilities; for each row a number that no score exceeds, None where it is not known."""
        if not self._sums_probabilities:
            self._probabilities.rows += len(whole)
            return None
        rows = whole if is_finite else whole[np.isfinite(whole).all(axis=1)]
        weights = sigmoid(rows[:, -1]) if self.head.objectness else None
        kinds = self.head.activations
        losing = (LOSING,) if self.head.background is None and "softmax" in kinds else ()
        logits = rows[:, : self.num_columns]
        bound = self._probabilities.update(logits, (*kinds, *losing), weights, self.head.background)
        return bound if len(rows) == len(whole) else None

    def _top_scores(self, whole: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The highest score of a class in each row; of a softmax the probability of all classes together."""
        rows = whole[:, : self.num_columns]
        if self._is_softmax_detector:
            return np.asarray(1.0 - softmax(rows)[:, self.head.background])
        # Along the rows NumPy is slow where they are short.
        highest = sigmoid(np.ascontiguousarray(rows.T).max(axis=0))
        return np.asarray(highest * sigmoid(whole[:, -1]) if self.head.objectness else highest)
