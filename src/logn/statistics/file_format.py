"""The statistics file: safetensors with a schema version, validated on load. Specified in `docs/file-format.md`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.files import read_safetensors, safetensors_from_bytes, safetensors_to_bytes, write_safetensors
from logn.logits.arrays import FloatArray
from logn.statistics.mean_probability import ProbabilitySums
from logn.statistics.metadata import StatisticsMetadata

FILE_FORMAT = "logn.statistics"
FILE_SCHEMA = 2
# Files of schema 1 have no mean probabilities.
READABLE_SCHEMAS = (1, FILE_SCHEMA)
VECTORS = ("count", "mean", "m2", "within_variance_sum", "batches", "skipped")
WHOLE_NUMBERS = ("count", "batches", "skipped")


@dataclass(frozen=True)
class StatisticsFile:
    """The content of a statistics file as plain arrays."""

    count: FloatArray
    mean: FloatArray
    m2: FloatArray
    within_variance_sum: FloatArray
    batches: FloatArray
    skipped: FloatArray
    metadata: StatisticsMetadata
    sample_capacity: int = 0
    sample_rows: npt.NDArray[np.float16] | None = None
    sample_keys: npt.NDArray[np.uint64] | None = None
    sample_objectness: npt.NDArray[np.float16] | None = None
    probabilities: ProbabilitySums | None = None

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All arrays by name, as files have them and processes exchange them."""
        arrays: dict[str, npt.NDArray[Any]] = {name: getattr(self, name) for name in VECTORS}
        if self.sample_rows is not None and self.sample_keys is not None:
            arrays |= {"sample_rows": self.sample_rows, "sample_keys": self.sample_keys}
        if self.sample_objectness is not None:
            arrays["sample_objectness"] = self.sample_objectness
        return arrays if self.probabilities is None else arrays | self.probabilities.arrays()

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, npt.NDArray[Any]], metadata: StatisticsMetadata, sample_capacity: int = 0
    ) -> StatisticsFile:
        """The opposite of `arrays`; names that are not ours are ignored."""
        return cls(
            **{name: arrays[name] for name in VECTORS},
            metadata=metadata,
            sample_capacity=sample_capacity,
            sample_rows=arrays.get("sample_rows"),
            sample_keys=arrays.get("sample_keys"),
            sample_objectness=arrays.get("sample_objectness"),
            probabilities=ProbabilitySums.from_arrays(arrays, len(arrays["count"])),
        )


def write_statistics(path: str | os.PathLike[str], content: StatisticsFile) -> None:
    """Write `content` to `path` in one atomic step."""
    write_safetensors(path, content.arrays(), _text_of(content))


def statistics_to_bytes(content: StatisticsFile) -> bytes:
    """The bytes of the file that `write_statistics` would write."""
    return safetensors_to_bytes(content.arrays(), _text_of(content))


def statistics_from_bytes(data: bytes, name: str = "data") -> StatisticsFile:
    """The opposite of `statistics_to_bytes`, checked as a file is."""
    tensors, text = safetensors_from_bytes(data, name=name, expected_format=FILE_FORMAT, schema=READABLE_SCHEMAS)
    return _checked(tensors, text, name)


def _text_of(content: StatisticsFile) -> dict[str, str]:
    about = {"format": FILE_FORMAT, "schema": str(FILE_SCHEMA), "sample_capacity": str(content.sample_capacity)}
    return about | content.metadata.to_text()


def read_statistics(path: str | os.PathLike[str]) -> StatisticsFile:
    """Read a statistics file and check all that can be wrong with it."""
    tensors, text = read_safetensors(path, expected_format=FILE_FORMAT, schema=READABLE_SCHEMAS)
    return _checked(tensors, text, path)


def _checked(
    tensors: dict[str, npt.NDArray[Any]], text: Mapping[str, str], name: str | os.PathLike[str]
) -> StatisticsFile:
    try:
        _check_tensors(tensors)
        capacity = int(text.get("sample_capacity", "0"))
        _check_sample(tensors, capacity)
        metadata = StatisticsMetadata.from_text(text)
        metadata.check_width(len(tensors["count"]))
        return StatisticsFile.from_arrays(tensors, metadata, capacity)
    except (InputError, ValueError, TypeError) as error:
        raise InputError(f"Expected `{name}` to hold valid statistics, but it does not: {error}") from error


def _check_tensors(tensors: dict[str, npt.NDArray[Any]]) -> None:
    for name in VECTORS:
        if name not in tensors:
            raise InputError(f"`{name}` is missing.")
        vector = tensors[name]
        if vector.dtype != np.float64 or vector.ndim != 1 or vector.shape != tensors["count"].shape:
            raise InputError(f"`{name}` should be one float64 per class, but is {vector.dtype} {vector.shape}.")
        if len(vector) == 0:
            raise InputError(f"`{name}` is empty.")
        if not np.isfinite(vector).all():
            raise InputError(f"`{name}` is not finite for class {int(np.flatnonzero(~np.isfinite(vector))[0])}.")
        if name != "mean" and (vector < 0).any():
            raise InputError(f"`{name}` is negative for class {int(np.flatnonzero(vector < 0)[0])}.")
        if name in WHOLE_NUMBERS and (vector != np.floor(vector)).any():
            raise InputError(f"`{name}` is not a whole number for class {int(np.flatnonzero(vector % 1)[0])}.")
    lonely = (tensors["count"] < 2) & (tensors["m2"] > 0)
    if lonely.any():
        raise InputError(f"`m2` is not 0 for class {int(np.flatnonzero(lonely)[0])}, which was seen less than twice.")


def _check_sample(tensors: dict[str, npt.NDArray[Any]], capacity: int) -> None:
    rows, keys = tensors.get("sample_rows"), tensors.get("sample_keys")
    objectness = tensors.get("sample_objectness")
    if objectness is not None:
        expected = 0 if rows is None else len(rows)
        if objectness.dtype != np.float16 or objectness.shape != (expected,) or not np.isfinite(objectness).all():
            raise InputError("`sample_objectness` should be one finite float16 per sampled row.")
    if rows is None and keys is None and capacity == 0:
        return
    if rows is None or keys is None or capacity < 1:
        raise InputError("`sample_rows`, `sample_keys` and `sample_capacity` go together.")
    columns = len(tensors["count"])
    if rows.dtype != np.float16 or rows.ndim != 2 or rows.shape[1] != columns or len(rows) > capacity:
        raise InputError(
            f"`sample_rows` should be float16 (at most {capacity}, {columns}), but is {rows.dtype} {rows.shape}."
        )
    if keys.dtype != np.uint64 or keys.shape != (len(rows),) or (np.diff(keys.astype(np.float64)) < 0).any():
        raise InputError("`sample_keys` should be one ascending uint64 per sampled row.")
    if not np.isfinite(rows).all():
        raise InputError("`sample_rows` is not finite.")
