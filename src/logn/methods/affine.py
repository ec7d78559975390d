"""ClassAffine: what every method makes, `logit * scale + shift` per class."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray, is_torch_tensor
from logn.base.files import read_safetensors, write_safetensors
from logn.base.strict_json import parse_json
from logn.errors import InputError
from logn.statistics.head import HEAD_KEY, Head, foreground_columns

ArrayT = TypeVar("ArrayT")

FILE_FORMAT = "logn.affine"
FILE_SCHEMA = 3


@dataclass(frozen=True, eq=False)
class ClassAffine:
    """A per-class affine map of the logits.

    Args:
        scale: Factor of each column, finite and not zero. All columns are covered, the background included.
        shift: Summand of each column.
        head: What the logits are that it was made for, as far as that is known. None for a map made by hand, which says
            nothing of them.
        method: Name of the method that made the map.
        settings: Its parameters, for the record; anything JSON can hold.

    Example:
        >>> halve = ClassAffine([0.5, 0.5], [0.0, 1.0])
        >>> halve(np.array([[2.0, 4.0]]))
        array([[1., 3.]])
        >>> halve.then(halve.inverse()) == ClassAffine.identity(2)
        True
    """

    scale: FloatArray
    shift: FloatArray
    head: Head | None = None
    method: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _checked_vector("scale", self.scale))
        object.__setattr__(self, "shift", _checked_vector("shift", self.shift))
        if len(self.scale) != len(self.shift):
            raise InputError(
                f"Expected `scale` and `shift` to be of one length, but got {len(self.scale)} and {len(self.shift)}."
            )
        if not self.scale.all():
            column = int(np.flatnonzero(self.scale == 0)[0])
            raise InputError(f"Expected `scale` to be other than 0, but got 0 for column {column}.")
        if self.head is not None:
            if self.head.num_columns not in (None, len(self.scale)):
                columns = f"{len(self.scale)} columns of the map, but got {self.head.num_columns}"
                raise InputError(f"Expected `head` to have the {columns}.")
            object.__setattr__(self, "head", replace(self.head, num_columns=len(self.scale)))

    @classmethod
    def identity(cls, num_columns: int, head: Head | None = None) -> ClassAffine:
        """The map that changes nothing; `num_columns` includes the background."""
        return cls(np.ones(num_columns), np.zeros(num_columns), head, method="none")

    @classmethod
    def over_foreground(
        cls,
        scale: npt.ArrayLike,
        shift: npt.ArrayLike,
        head: Head | None,
        *,
        method: str,
        settings: Mapping[str, Any] | None = None,
    ) -> ClassAffine:
        """Make the map of foreground scales and shifts; a background column, where there is one, is left alone.

        Example:
            >>> ClassAffine.over_foreground([2.0], [1.0], Head(background=0), method="example").scale.tolist()
            [1.0, 2.0]
        """
        background = None if head is None else head.background
        scale, shift = np.broadcast_arrays(np.asarray(scale, np.float64), np.asarray(shift, np.float64))
        columns = len(scale) + (background is not None)
        full_scale, full_shift = np.ones(columns), np.zeros(columns)
        foreground = foreground_columns(columns, background)
        full_scale[foreground], full_shift[foreground] = scale, shift
        return cls(full_scale, full_shift, head, method, settings or {})

    @property
    def background(self) -> int | None:
        """Index of the background column: 0, -1, or None where there is none or nothing is known of it."""
        return None if self.head is None else self.head.background

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

    def with_head(self, head: Head | None) -> ClassAffine:
        """The same map with another record of what it was made for.

        Example:
            >>> ClassAffine.identity(2).with_head(Head(activation="softmax")).head.activation
            'softmax'
        """
        return replace(self, head=head)

    def check_fits(
        self, head: Head, whose: str = "the model", *, what: str = "`affine`", allow_mismatch: bool = False
    ) -> None:
        """Refuse to be used on logits of other columns, or of another model as far as both sides are known.

        Args:
            head: What is known of the logits.
            whose: What to call them in messages.
            what: What to call this map in messages.
            allow_mismatch: Only warn of other class names, another activation and other weights.

        Example:
            >>> ClassAffine.identity(3).check_fits(Head(4), "`head`")
            Traceback (most recent call last):
            ...
            logn.errors.InputError: The number of columns differs: 3 in `affine`, 4 in `head`.
        """
        mine = self.head or Head(self.num_columns, background=head.background)
        mine.check_fits(head, what, whose, allow_mismatch=allow_mismatch)

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
            _joined(self.head, other.head),
            method=" then ".join(name for name in (self.method, other.method) if name),
            settings={"first": dict(self.settings), "then": dict(other.settings)},
        )

    def inverse(self) -> ClassAffine:
        """The map that undoes this one."""
        return ClassAffine(
            1.0 / self.scale,
            -self.shift / self.scale,
            self.head,
            method=f"inverse of {self.method}" if self.method else "",
            settings=self.settings,
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
            "method": self.method,
            "settings": json.dumps(dict(self.settings), sort_keys=True),
            HEAD_KEY: "null" if self.head is None else self.head.to_json(),
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
                None if metadata[HEAD_KEY] == "null" else Head.from_json(metadata),
                metadata["method"],
                parse_json(metadata["settings"]),
            )
        except KeyError as error:
            raise InputError(f"`{path}` is not a valid map: {error} is missing.") from error
        except (TypeError, ValueError) as error:
            raise InputError(f"`{path}` is not a valid map: {error}") from error


def _joined(first: Head | None, then: Head | None) -> Head | None:
    """The head of a map that was composed of two; those of different models or classes are refused."""
    if first is None or then is None:
        return first or then
    for sentence in then.fits(first, "`other`", "this one"):
        raise InputError(f"{sentence}; take its head off with other.with_head(None) if they belong together.")
    known = {name: getattr(first, name) or getattr(then, name) for name in ("names", "activation", "source")}
    return replace(first, **known)


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
