"""The journal of a collection: the statistics so far and which rows of which files they hold.

It is written in one atomic step, so that statistics and rows always belong together: after a kill, nothing is
counted twice and nothing is lost but the last few seconds of work.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from logn.errors import InputError
from logn.files import read_safetensors, remove_leftovers, write_safetensors
from logn.logits.dumped import StoredArray

FILE_FORMAT = "logn.collect-journal"
FILE_SCHEMA = 1

Arrays = dict[str, npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class JournalEntry:
    """How far a collection has come: the arrays of its state, and how many rows of each shard they hold."""

    arrays: Arrays
    rows: tuple[int, ...]


class CollectJournal:
    """Keeps the progress of one collection in a file.

    Args:
        path: The file; None keeps nothing.
        shards: All shards of the collection, in their order.
        settings: What the result depends on apart from the shards; anything JSON can hold.
        seconds: Least time between two writes.
    """

    def __init__(
        self, path: Path | None, shards: Sequence[StoredArray], settings: Mapping[str, Any], seconds: float = 5.0
    ) -> None:
        self._path = path
        self._shards = [_identity(shard) for shard in shards]
        self._settings = json.loads(json.dumps(settings))
        self._seconds = seconds
        self._last = time.monotonic()

    def load(self) -> JournalEntry | None:
        """Read what an interrupted collection of the same shards left; None when there is nothing."""
        if self._path is None or not self._path.exists():
            return None
        arrays, text = read_safetensors(self._path, expected_format=FILE_FORMAT, schema=FILE_SCHEMA)
        settings, shards, rows = (json.loads(text[name]) for name in ("settings", "shards", "rows"))
        self._check(settings, shards)
        return JournalEntry(arrays, tuple(rows))

    def due(self) -> bool:
        """Whether it is time to write again."""
        return self._path is not None and time.monotonic() - self._last >= self._seconds

    def save(self, entry: JournalEntry) -> None:
        """Write how far the collection has come."""
        if self._path is None:
            return
        metadata = {
            "format": FILE_FORMAT,
            "schema": str(FILE_SCHEMA),
            "settings": json.dumps(self._settings),
            "shards": json.dumps(self._shards[: len(entry.rows)]),
            "rows": json.dumps(entry.rows),
        }
        write_safetensors(self._path, entry.arrays, metadata)
        self._last = time.monotonic()

    def remove(self) -> None:
        """Delete the file, once the result is written."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            remove_leftovers(self._path)

    def _check(self, settings: Mapping[str, Any], shards: Sequence[Sequence[Any]]) -> None:
        again = f"delete `{self._path}` to start again"
        for name in sorted(settings.keys() | self._settings.keys()):
            before, now = settings.get(name), self._settings.get(name)
            if before != now:
                raise InputError(
                    f"Expected `{name}` to be {before!r} as in the interrupted run, but got {now!r}; {again}."
                )
        for index, shard in enumerate(shards):
            if index >= len(self._shards) or self._shards[index][0] != shard[0]:
                raise InputError(
                    f"Expected `{shard[0]}` to be file {index + 1} of the input as in the interrupted run, "
                    f"but it is not; {again}."
                )
            if self._shards[index] != list(shard):
                raise InputError(f"Expected `{shard[0]}` to be as in the interrupted run, but it has changed; {again}.")


def _identity(shard: StoredArray) -> list[Any]:
    """What shows that a shard is still the same."""
    return [str(shard.path.resolve()), shard.name, shard.size, shard.mtime_ns]
