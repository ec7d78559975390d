"""JSON that every reader takes, and reading what others wrote."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

_PLAIN = (str, int, bool, type(None))


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


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a JSON document with a CRC-32 of all of it, which finds damage, not tampering.

    Example:
        >>> document = with_checksum({"overlap": 0.5})
        >>> document
        {'overlap': 0.5, 'checksum': 'crc32:c20b3daf'}
        >>> take_checksum(document), document
        (True, {'overlap': 0.5})
        >>> take_checksum({"overlap": 0.7, "checksum": "crc32:c20b3daf"})
        False
    """
    return {**content, "checksum": _checksum(json.loads(json.dumps(content)))}


def take_checksum(document: dict[str, Any]) -> bool:
    """Take the checksum out of a document that was read; whether it is that of the rest."""
    return bool(document.pop("checksum", None) == _checksum(document))


def _checksum(content: Any) -> str:
    return f"crc32:{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


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
