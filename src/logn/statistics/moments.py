"""ClassMoments: count, mean and variance of every class's logit, streaming, mergeable to rounding, and their file."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from logn.base.arrays import (
    FloatArray,
    as_numpy,
    as_rows,
    ratio,
    sigmoid,
    softmax,
)
from logn.base.files import read_safetensors, safetensors_from_bytes, safetensors_to_bytes, write_safetensors
from logn.errors import InputError, warn
from logn.statistics.head import HEAD_KEY, Head
from logn.statistics.row_sample import Arrays, RowSample, ScoredSample, check_sample, scored_rows
from logn.statistics.sums import LOSING, VECTORS, ProbabilitySums, RunningSums, Totals, check_vectors

FILE_FORMAT = "logn.statistics"
FILE_SCHEMA = 5
Nonfinite = Literal["error", "skip"]


class ClassMoments:
    """Streaming moments of logits, per class, in float64.

    Any split of the data into batches, shards, ranks or machines, merged in any order, gives the same result: to the
    last digits of float64, or where large batches are float32 to some millionths of a variance, as float32 is summed
    in short runs.

    Args:
        head: What the logits are, or just how many columns they have, the background included.
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
        columns = self.head.width
        self.nonfinite: Nonfinite = nonfinite
        self._sums = RunningSums(Totals.zeros(columns))
        self._sample, self._scored = self._new_samples(sample_rows)
        self._probabilities = ProbabilitySums(columns) if mean_probability else None

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
        self._settle_objectness(has_objectness, seen=self._has_rows)
        finite = self._sums.add(rows, self.nonfinite)
        if has_objectness:
            finite = finite and bool(np.isfinite(whole[:, -1]).all())
        bound = self._add_probabilities(whole, finite=finite)
        if self._sample is not None:
            keys = self._sample.update(whole, is_finite=finite)
            if self._scored is not None:
                is_score = self._is_softmax_detector and bound is not None
                self._scored.update(whole, keys, None if is_score else self._top_scores, bound, is_finite=finite)

    def merge(self, other: ClassMoments) -> ClassMoments:
        """Add the statistics of `other`, in place, and return self; those of another model or layer are refused."""
        self._merge_samples_and_probabilities(other, seen=self._has_rows)
        self._sums.totals = self._sums.totals.merged(other._sums.totals)
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
        merged: list[ClassMoments] = []

        def totals() -> Iterator[Totals]:
            seen = False
            for number, part in enumerate(parts):
                if not isinstance(part, ClassMoments):
                    raise InputError(
                        f"Expected `parts` to be ClassMoments, but number {number} is {type(part).__name__}."
                    )
                if merged:
                    merged[0]._merge_samples_and_probabilities(part, seen=seen)
                else:
                    merged.append(copy.copy(part))
                seen = seen or part._has_rows
                yield part._sums.totals
            if not merged:
                raise InputError("Expected `parts` to be at least one ClassMoments, but got none.")

        total = Totals.merged_all(totals())
        merged[0]._sums = RunningSums(total)
        return merged[0]

    def become(self, other: ClassMoments) -> None:
        """Take the numbers and the head of `other`, for those who hold this object; both share them from then on.

        Example:
            >>> held, total = ClassMoments(1), ClassMoments(1)
            >>> total.update(np.array([[1.0], [3.0]]))
            >>> held.become(total)
            >>> held.mean.tolist()
            [2.0]
        """
        self.head, self._sums = other.head, other._sums
        self._sample, self._scored = other._sample, other._scored
        self._probabilities = other._probabilities

    def new_part(self) -> ClassMoments:
        """Empty statistics of the same kind, to be merged into these; rows that cannot enter the sample are not kept.

        Example:
            >>> moments = ClassMoments(2, sample_rows=8)
            >>> part = moments.new_part()
            >>> part.update(np.zeros((3, 2)))
            >>> moments.merge(part).count.tolist()
            [3.0, 3.0]
        """
        part = ClassMoments(
            self.head,
            nonfinite=self.nonfinite,
            sample_rows=self.sample_rows,
            mean_probability=self._probabilities is not None,
        )
        if self._sample is not None and part._sample is not None:
            part._sample.limit = self._sample.limit
        if self._scored is not None and part._scored is not None:
            part._scored.kept.limit = self._scored.kept.limit
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
        """The sampled rows (k, C), k at most `sample_rows`; empty when none were asked for."""
        if self._sample is None:
            return np.empty((0, self.num_columns), np.float16)
        return self._sample.rows[:, : self.num_columns].copy()

    @property
    def sample_objectness(self) -> npt.NDArray[np.float16] | None:
        """Objectness logit of each sampled row; None for heads without one."""
        if not self.head.objectness:
            return None
        return np.empty(0, np.float16) if self._sample is None else self._sample.rows[:, -1].copy()

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
        if self._scored is None:
            rows = np.empty((0, self.num_columns + self.head.objectness)) if self._sample is None else self._sample.rows
            stands_for = np.ones(len(rows))
        else:
            rows, stands_for = self._scored.rows, self._scored.stands_for
        values = rows.astype(np.float64)
        objectness = sigmoid(values[:, -1]) if self.head.objectness else np.ones(len(values))
        return values[:, : self.num_columns], objectness, stands_for

    @property
    def sample_rows(self) -> int:
        """How many rows the sample may hold."""
        return 0 if self._sample is None else self._sample.capacity

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
        return None if self._probabilities is None else self._probabilities.mean(activation)

    @property
    def losing_probability(self) -> FloatArray | None:
        """Mean softmax probability of each column, as 0 in rows where it is the highest; None beside a background."""
        sums = self._probabilities
        return None if sums is None or LOSING not in sums.sums else sums.mean(LOSING)

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
        if self._sample is not None:
            arrays["sample_capacity"] = np.array([self._sample.capacity])
            arrays |= {"sample_rows": self.sample, "sample_keys": self._sample.keys.copy()}
        if (objectness := self.sample_objectness) is not None:
            arrays["sample_objectness"] = objectness
        if self._scored is not None:
            arrays |= self._scored.to_arrays()
        return arrays if self._probabilities is None else arrays | self._probabilities.to_arrays()

    @classmethod
    def from_arrays(cls, arrays: Arrays, head: Head | None = None, nonfinite: Nonfinite = "error") -> ClassMoments:
        """The opposite of `to_arrays`; arrays that do not fit together are refused."""
        check_vectors(arrays)
        capacity = check_sample(arrays)
        head, columns = head or Head(), len(arrays["count"])
        if head.num_columns not in (None, columns):
            raise InputError(f"`head` is of {head.num_columns} columns, but the numbers are of {columns}.")
        head = replace(head, num_columns=columns, objectness="sample_objectness" in arrays)
        moments = cls(head, nonfinite=nonfinite, sample_rows=capacity)
        moments._sums = RunningSums(Totals(**{name: arrays[name].copy() for name in VECTORS}))
        if capacity:
            rows = arrays["sample_rows"]
            if moments.head.objectness:
                rows = np.column_stack([rows, arrays["sample_objectness"]])
            moments._sample = RowSample(rows.shape[1], capacity, rows.copy(), arrays["sample_keys"].copy())
            is_scored = moments.head.scored_by is not None
            moments._scored = ScoredSample.from_arrays(arrays, rows.shape[1]) if is_scored else None
        moments._probabilities = ProbabilitySums.from_arrays(arrays, moments.num_columns)
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
    def _has_rows(self) -> bool:
        return bool(self._sums.totals.count.any())

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

    def _settle_objectness(self, has_objectness: bool, *, seen: bool) -> None:
        """The first rows decide whether there is an objectness; the others must agree, or probabilities would mix."""
        if has_objectness == self.head.objectness:
            return
        if seen:
            raise InputError("Some rows have an `objectness` and some have none: pass it with all rows or with none.")
        self.head = replace(self.head, objectness=has_objectness)
        self._sample, self._scored = self._new_samples(self.sample_rows)

    def _new_samples(self, capacity: int) -> tuple[RowSample | None, ScoredSample | None]:
        """Empty samples; none of high scores for heads without a threshold."""
        width = self.num_columns + self.head.objectness
        if not capacity:
            return None, None
        is_scored = self.head.scored_by is not None
        scored = ScoredSample(width, scored_rows(self.num_columns, capacity)) if is_scored else None
        return RowSample(width, capacity), scored

    def _add_probabilities(self, whole: npt.NDArray[Any], *, finite: bool) -> npt.NDArray[Any] | None:
        """Add up the probabilities; for each row a number that no score exceeds, None where it is not known."""
        if self._probabilities is None:
            return None
        rows = whole if finite else whole[np.isfinite(whole).all(axis=1)]
        weights = sigmoid(rows[:, -1]) if self.head.objectness else None
        logits, known = rows[:, : self.num_columns], self.head
        losing = (LOSING,) if known.background is None and "softmax" in known.activations else ()
        bound = self._probabilities.update(logits, (*known.activations, *losing), weights, known.background)
        return bound if len(rows) == len(whole) else None

    def _top_scores(self, whole: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The highest score of a class in each row; of a softmax the probability of all classes together."""
        rows = whole[:, : self.num_columns]
        if self._is_softmax_detector:
            return np.asarray(1.0 - softmax(rows)[:, self.head.background])
        # Along the rows NumPy is slow where they are short.
        highest = sigmoid(np.ascontiguousarray(rows.T).max(axis=0))
        return np.asarray(highest * sigmoid(whole[:, -1]) if self.head.objectness else highest)

    def _merge_samples_and_probabilities(self, other: ClassMoments, *, seen: bool) -> None:
        """Check that `other` may be merged, and take over all that it holds beside the sums."""
        if not isinstance(other, ClassMoments):
            raise InputError(f"Expected `other` to be ClassMoments, but got {type(other).__name__}.")
        if other.num_columns != self.num_columns:
            raise InputError(f"Expected `other` to have {self.num_columns} columns, but got {other.num_columns}.")
        self.head.check_mergeable(replace(other.head, objectness=self.head.objectness))
        joins = other._has_rows
        if joins:
            self._settle_objectness(other.head.objectness, seen=seen)
        if seen and joins and (self._sample is None) != (other._sample is None):
            raise InputError(
                "Only one of the statistics has a row sample: collect both alike (in Python with `sample_rows`)."
            )
        # Drop the sample if any merged rows were not sampled.
        if joins and other._sample is None:
            self._sample = self._scored = None
        elif other._sample is not None and (joins or not seen):
            if self._sample is None:
                self._sample, self._scored = self._new_samples(other.sample_rows)
            self._merge_samples(other)
        self._merge_probabilities(other._probabilities, seen, joins)

    def _merge_samples(self, other: ClassMoments) -> None:
        if self._sample is not None and other._sample is not None:
            self._sample.merge(other._sample)
        if self._scored is not None and other._scored is not None:
            self._scored.merge(other._scored)

    def _merge_probabilities(self, other: ProbabilitySums | None, seen: bool, joins: bool) -> None:
        mine = self._probabilities
        if joins and seen and (mine is None) != (other is None):
            warn(
                "One of the statistics has no mean probabilities, so the merged ones have none: collect it "
                "again (in Python with mean_probability=True)."
            )
        # Drop the sums if any merged rows were not summed.
        if joins and other is None:
            self._probabilities = None
        elif other is not None and not (seen and mine is None):
            self._probabilities = mine or ProbabilitySums(self.num_columns)
            self._probabilities.merge(other)
