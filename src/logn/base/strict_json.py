"""JSON that every reader takes, and reading what others wrote."""

from __future__ import annotations

import json
import math
import mmap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from logn.errors import InputError

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview | mmap.mmap
_PLAIN = (str, int, bool, type(None))
Decoders = Mapping[str, Callable[[Any], Any]]


def parse_json(data: bytes | str, **options: Any) -> Any:
    """Parse JSON that somebody else wrote, with or without a byte order mark; `options` go to `json.loads`.

    Raises:
        json.JSONDecodeError: For all that is wrong with the text: also where it is nested too deep, is no UTF-8, or has
            a number of thousands of digits, for which Python has other errors, and where an object has a key twice, of
            which Python takes the last.

    Example:
        >>> parse_json(b"[1, 2]")
        [1, 2]
        >>> parse_json("[" * 100_000)
        Traceback (most recent call last):
        ...
        json.decoder.JSONDecodeError: maximum recursion depth exceeded ...
        >>> parse_json('{"cat": 1, "cat": 2}')
        Traceback (most recent call last):
        ...
        json.decoder.JSONDecodeError: the key 'cat' comes twice: line 1 column 1 (char 0)
    """
    options = {"object_pairs_hook": unique_keys, **options}
    try:
        return json.loads(data.removeprefix("\ufeff") if isinstance(data, str) else data, **options)
    except json.JSONDecodeError:
        raise
    except (RecursionError, ValueError) as error:
        raise json.JSONDecodeError(str(error), "", 0) from error


def parse_typed(content: Buffer, kind: type[T], name: str) -> T:
    """Parse JSON into a type, such as a `msgspec.Struct` or a dataclass; fields that the type lacks are passed over.

    Args:
        content: The text, as bytes.
        kind: What it must be.
        name: What to call it in messages.

    Example:
        >>> parse_typed(b'{"cup": 60, "spoon": 20}', dict[str, int], "counts.json")
        {'cup': 60, 'spoon': 20}
        >>> parse_typed(b'{"cup": "60"}', dict[str, int], "counts.json")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: `counts.json` is not as it must be: Expected `int`, got `str` - at `$[...]`.
    """
    try:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Python's parser is slower, but reads NaN (as null) and other encodings, and names the line of a fault.
            return msgspec.json.decode(msgspec.json.encode(parse_json(bytes(content))), type=kind)
    except msgspec.ValidationError as error:
        raise InputError(f"`{name}` is not as it must be: {error}.") from error
    except ValueError as error:
        raise InputError(f"`{name}` is not valid JSON: {error}.") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dict of a JSON object; a key that comes twice raises ValueError.

    Example:
        >>> unique_keys([("cat", 1), ("dog", 2)])
        {'cat': 1, 'dog': 2}
    """
    entry = dict(pairs)
    if len(entry) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} comes twice")
    return entry


def plain_values(value: Any) -> Any:
    """Dataclasses become dicts, arrays lists and paths text, in one pass.

    What is not a finite number becomes None, since strict readers refuse NaN.

    Example:
        >>> plain_values({"AP": (0.5, float("nan")), "file": Path("x.npy")})
        {'AP': [0.5, None], 'file': 'x.npy'}
    """
    if type(value) in _PLAIN:
        return value
    if hasattr(value, "tolist"):  # NumPy arrays and scalars, without importing NumPy here
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        if all(type(item) is float for item in value):  # the columns of a table: no call for each number
            return [item if math.isfinite(item) else None for item in value]
        return [item if type(item) in _PLAIN else plain_values(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def typed_values(hint: Any, value: Any, decoders: Decoders | None = None) -> Any:
    """The opposite of `plain_values`: dataclasses, tuples and arrays from what JSON holds, as a type hint asks.

    A value of another type raises TypeError or ValueError.

    Args:
        hint: A type, such as a dataclass.
        value: What `plain_values` gave, as JSON has it.
        decoders: What makes the fields of these names.

    Example:
        >>> typed_values(tuple[float, ...], [0.5, None])
        (0.5, nan)
        >>> typed_values(tuple[float, ...], ["x"])
        Traceback (most recent call last):
        ...
        msgspec.ValidationError: Expected `float`, got `str`
    """
    import numpy as np  # most readers of JSON need no arrays
    import numpy.typing as npt

    origin, arguments = get_origin(hint), get_args(hint)
    if hint is float and value is None:
        return math.nan
    if origin in (Union, types.UnionType):
        other = next(member for member in arguments if member is not type(None))
        return None if value is None and type(None) in arguments else typed_values(other, value, decoders)
    if isinstance(hint, type) and is_dataclass(hint):
        hints, makers, values = get_type_hints(hint), decoders or {}, msgspec.convert(value, dict[str, Any])
        make = {name: makers.get(name, partial(typed_values, hints[name], decoders=decoders)) for name in values}
        return hint(**{name: make[name](item) for name, item in values.items()})
    if origin is tuple:
        items = msgspec.convert(value, list)
        members = [arguments[0]] * len(items) if Ellipsis in arguments else arguments
        return tuple(typed_values(member, item, decoders) for member, item in zip(members, items, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        keys = {key: float(key) if arguments[0] is float else key for key in msgspec.convert(value, dict)}
        return {keys[key]: typed_values(arguments[1], item, decoders) for key, item in value.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return [typed_values(arguments[0], item, decoders) for item in msgspec.convert(value, list)]
    if hint in (float, int, bool, str):
        return msgspec.convert(value, hint)
    if origin is np.ndarray:
        return np.array(value, get_args(arguments[1])[0])
    if origin is npt.NDArray:  # an alias of its own from Python 3.12 on
        return np.array(value, arguments[0])
    return value
