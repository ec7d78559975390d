"""ClassAffine: what every method makes, `logit * scale + shift` per class."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray, check_background, foreground_columns, is_torch_tensor
from logn.base.files import read_safetensors, write_safetensors
from logn.base.strict_json import parse_json
from logn.errors import InputError
from logn.methods.provenance import UNKNOWN, LogitFacts, foreground_names
from logn.statistics.metadata import StatisticsMetadata

ArrayT = TypeVar("ArrayT")

FILE_FORMAT = "logn.affine"
FILE_SCHEMA = 2


@dataclass(frozen=True, eq=False)
class ClassAffine:
    """A per-class affine map of the logits.

    Args:
        scale: Factor of each column, finite and not zero. All columns are covered, the background included.
        shift: Summand of each column.
        background: Index of the background column: None, 0 or -1.
        method: Name of the method that made the map.
        settings: Its parameters, for the record; anything JSON can hold.
        source: What it was made for, as far as that is known: class names, background, activation, fingerprint of the
            model and so on. `check_fits` compares it with a model.

    Example:
        >>> halve = ClassAffine([0.5, 0.5], [0.0, 1.0])
        >>> halve(np.array([[2.0, 4.0]]))
        array([[1., 3.]])
        >>> halve.then(halve.inverse()) == ClassAffine.identity(2)
        True
    """

    scale: FloatArray
    shift: FloatArray
    background: int | None = None
    method: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: StatisticsMetadata | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "background", check_background(self.background))
        object.__setattr__(self, "scale", _checked_vector("scale", self.scale))
        object.__setattr__(self, "shift", _checked_vector("shift", self.shift))
        if len(self.scale) != len(self.shift):
            raise InputError(
                f"Expected `scale` and `shift` to be of one length, but got {len(self.scale)} and {len(self.shift)}."
            )
        if not self.scale.all():
            column = int(np.flatnonzero(self.scale == 0)[0])
            raise InputError(f"Expected `scale` to be other than 0, but got 0 for column {column}.")
        self._check_source()

    def _check_source(self) -> None:
        """Refuse a source that contradicts the map itself."""
        if self.source is None:
            return
        self.source.check_width(len(self.scale))
        if self.source.background != self.background:
            raise InputError(
                f"Expected `source` to have the background of the map, {self.background}, but got "
                f"{self.source.background}."
            )

    @classmethod
    def identity(cls, num_columns: int, background: int | None = None) -> ClassAffine:
        """The map that changes nothing; `num_columns` includes the background."""
        return cls(np.ones(num_columns), np.zeros(num_columns), background, method="none")

    @classmethod
    def over_foreground(
        cls,
        scale: npt.ArrayLike,
        shift: npt.ArrayLike,
        background: int | None,
        *,
        method: str,
        settings: Mapping[str, Any] | None = None,
        source: StatisticsMetadata | None = None,
    ) -> ClassAffine:
        """Make the map of foreground scales and shifts; a background column, where there is one, is left alone.

        Example:
            >>> ClassAffine.over_foreground([2.0], [1.0], background=0, method="example").scale.tolist()
            [1.0, 2.0]
        """
        index = check_background(background)
        scale, shift = np.broadcast_arrays(np.asarray(scale, np.float64), np.asarray(shift, np.float64))
        columns = len(scale) + (index is not None)
        full_scale, full_shift = np.ones(columns), np.zeros(columns)
        foreground = foreground_columns(columns, index)
        full_scale[foreground], full_shift[foreground] = scale, shift
        return cls(full_scale, full_shift, index, method, settings or {}, source)

    @property
    def num_columns(self) -> int:
        """How many columns the map covers, the background included."""
        return len(self.scale)

    def __call__(self, logits: ArrayT, axis: int = -1) -> ArrayT:
        """Map `logits`, whose `axis` is the class; what comes back is of the same kind, dtype and device.

        Half-precision logits are mapped in float32 and rounded once. The input never changes.
        """
        array: Any = logits if is_torch_tensor(logits) else np.asarray(logits)
        shape = tuple(array.shape)
        if not -len(shape) <= axis < len(shape) or shape[axis] != self.num_columns:
            raise InputError(f"Expected `logits` to have {self.num_columns} columns on axis {axis}, but got {shape}.")
        broadcast = [1] * len(shape)
        broadcast[axis] = self.num_columns
        scale, shift = self.scale.reshape(broadcast), self.shift.reshape(broadcast)
        mapped: Any = (_map_tensor if is_torch_tensor(array) else _map_array)(array, scale, shift)
        return cast(ArrayT, mapped)

    def with_source(self, source: StatisticsMetadata | None) -> ClassAffine:
        """The same map with another record of what it was made for.

        Example:
            >>> ClassAffine.identity(2).with_source(StatisticsMetadata(activation="softmax")).source.activation
            'softmax'
        """
        return replace(self, source=source)

    def check_fits(self, facts: LogitFacts, *, what: str = "`affine`", allow_mismatch: bool = False) -> None:
        """Refuse to be used on logits of other columns, or of another model as far as both sides are known.

        Args:
            facts: What is known of the logits.
            what: What to call this map in messages.
            allow_mismatch: Only warn of other class names, another activation and other weights.

        Example:
            >>> ClassAffine.identity(3).check_fits(LogitFacts("`head`", num_columns=4))
            Traceback (most recent call last):
            ...
            logn.errors.InputError: The number of columns differs: 3 in `affine`, 4 in `head`.
        """
        facts.check_width(what, self.num_columns)
        # A map made by hand that names no background says nothing about it.
        if self.source is not None or (self.background is not None and facts.background is not None):
            facts.check_background(what, self.background)
        if self.source is not None:
            facts.check_source(what, self.source, allow_mismatch=allow_mismatch)

    def then(self, other: ClassAffine) -> ClassAffine:
        """The map that applies this one first and `other` to its result; both must be made for one model."""
        if other.num_columns != self.num_columns or other.background != self.background:
            raise InputError(
                f"Expected `other` to cover {self.num_columns} columns with background {self.background}, "
                f"but got {other.num_columns} with {other.background}."
            )
        return ClassAffine(
            self.scale * other.scale,
            self.shift * other.scale + other.shift,
            self.background,
            method=" then ".join(name for name in (self.method, other.method) if name),
            settings={"first": dict(self.settings), "then": dict(other.settings)},
            source=_joined(self.source, other.source),
        )

    def inverse(self) -> ClassAffine:
        """The map that undoes this one."""
        return ClassAffine(
            1.0 / self.scale,
            -self.shift / self.scale,
            self.background,
            method=f"inverse of {self.method}" if self.method else "",
            settings=self.settings,
            source=self.source,
        )

    def __eq__(self, other: object) -> bool:
        """Two maps are equal when they map alike; how they were made does not count."""
        if not isinstance(other, ClassAffine):
            return NotImplemented
        return (
            self.background == other.background
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.shift, other.shift)
        )

    __hash__ = None  # type: ignore[assignment]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the map to a safetensors file; `docs/reference/file-formats.md` specifies it."""
        metadata = {
            "format": FILE_FORMAT,
            "schema": str(FILE_SCHEMA),
            "background": json.dumps(self.background),
            "method": self.method,
            "settings": json.dumps(dict(self.settings), sort_keys=True),
            "source": json.dumps(None if self.source is None else asdict(self.source), sort_keys=True),
        }
        write_safetensors(path, {"scale": self.scale, "shift": self.shift}, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ClassAffine:
        """Read a map that `save` wrote; InputError if the file is not valid."""
        tensors, metadata = read_safetensors(path, expected_format=FILE_FORMAT, schema=FILE_SCHEMA)
        try:
            return cls(
                tensors["scale"],
                tensors["shift"],
                parse_json(metadata["background"]),
                metadata["method"],
                parse_json(metadata["settings"]),
                _source_of(metadata["source"]),
            )
        except KeyError as error:
            raise InputError(f"`{path}` is not a valid map: {error} is missing.") from error
        except (TypeError, ValueError) as error:
            raise InputError(f"`{path}` is not a valid map: {error}") from error


def _joined(first: StatisticsMetadata | None, then: StatisticsMetadata | None) -> StatisticsMetadata | None:
    """The source of a map that was composed of two; those of different models or classes are refused."""
    if first is None or then is None:
        return first or then
    facts = LogitFacts("this one", None, UNKNOWN, foreground_names(first), first.activation, first.fingerprint)
    for sentence in facts.mismatches("`other`", then):
        raise InputError(f"{sentence}; take its source off with other.with_source(None) if they belong together.")
    return first.with_changes(
        class_names=first.class_names or then.class_names,
        activation=first.activation or then.activation,
        fingerprint=first.fingerprint or then.fingerprint,
    )


def _source_of(text: str) -> StatisticsMetadata | None:
    values = parse_json(text)
    if values is not None and not isinstance(values, dict):
        raise InputError(f"Expected `source` to be an object, but got {values!r}.")
    return None if values is None else StatisticsMetadata.from_values(values)


def _checked_vector(name: str, values: npt.ArrayLike) -> FloatArray:
    """A read-only float64 copy of `values`, one-dimensional and finite."""
    vector = np.array(values, dtype=np.float64)
    if vector.ndim != 1 or len(vector) == 0:
        raise InputError(f"Expected `{name}` to be one number per class, but got shape {vector.shape}.")
    if not np.isfinite(vector).all():
        column = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise InputError(f"Expected `{name}` to be finite, but got {vector[column]} for column {column}.")
    vector.flags.writeable = False
    return vector


def _map_array(array: npt.NDArray[Any], scale: FloatArray, shift: FloatArray) -> npt.NDArray[Any]:
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(f"Expected `logits` to be floating point, but got {array.dtype}.")
    working = np.float32 if array.dtype == np.float16 else array.dtype
    result: npt.NDArray[Any] = np.multiply(array, scale.astype(working), dtype=working)
    result += shift.astype(working)
    return result.astype(array.dtype, copy=False)


def _map_tensor(tensor: Any, scale: FloatArray, shift: FloatArray) -> Any:
    if not tensor.is_floating_point():
        raise InputError(f"Expected `logits` to be floating point, but got {tensor.dtype}.")
    working = tensor.float() if tensor.element_size() < 4 else tensor
    # new_tensor copies, which also silences torch's warning about the read-only arrays.
    factor, summand = working.new_tensor(scale.tolist()), working.new_tensor(shift.tolist())
    return (working * factor + summand).to(tensor.dtype)
