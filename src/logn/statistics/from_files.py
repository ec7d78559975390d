"""Collect statistics over shards of dumped logits: several threads, bounded memory, and the same bits every time.

Threads work on blocks of rows; the main thread merges their results in the order of the files. So the result depends
neither on the number of threads nor on where an earlier run was killed. A journal holds the statistics so far and
which rows of which files they are of. It is written in one atomic step: after a kill nothing is counted twice, and
only the last few seconds of work are lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from logn.base.files import read_safetensors, write_safetensors
from logn.data.logit_files import DEFAULT_BATCH_ROWS, LogitBlock, StoredArray, read_blocks
from logn.errors import InputError
from logn.statistics.head import HEAD_KEY
from logn.statistics.moments import ClassMoments
from logn.statistics.row_sample import Arrays

FILE_FORMAT = "logn.collect-journal"
FILE_SCHEMA = 3

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def collect_shards(
    shards: Sequence[StoredArray],
    moments: ClassMoments,
    *,
    batch_rows: int = DEFAULT_BATCH_ROWS,
    threads: int | None = None,
    journal: Path | None = None,
    journal_seconds: float = 5.0,
    progress: Callable[[int], object] = lambda count: None,
) -> ClassMoments:
    """Add all rows of all shards to empty `moments`, and return the result.

    Args:
        shards: What `logn.data.logit_files.open_shards` gave.
        moments: Statistics of nothing yet.
        batch_rows: Rows of a batch where the shards have two axes.
        threads: How many threads read and compute; by default one per core, at most eight.
        journal: Where to keep the progress, so that a killed run can be resumed. The caller deletes the file once the
            result is saved.
        journal_seconds: Least time between two writes of it.
        progress: Called with the number of rows that have been done.

    Example:
        >>> import tempfile, numpy as np
        >>> from logn.data.logit_files import open_shards
        >>> path = Path(tempfile.mkdtemp()) / "a.npy"
        >>> np.save(path, np.array([[2.0, 0.5], [0.0, 1.5]]))
        >>> collect_shards(open_shards([path]), ClassMoments(2)).mean.tolist()
        [1.0, 1.0]
    """
    if threads is not None and threads < 1:
        raise InputError(f"Expected `threads` to be at least 1, but got {threads}.")
    _refuse_maps(shards)
    settings = {
        "batch_rows": batch_rows,
        "nonfinite": moments.nonfinite,
        "sample_rows": moments.sample_rows,
        "mean_probability": moments.mean_probability is not None,
        HEAD_KEY: moments.head.to_json(),
    }
    progress_file = _Journal(journal, shards, settings, journal_seconds)
    arrays, done = progress_file.load()
    if done:
        moments = ClassMoments.from_arrays(arrays, moments.head, moments.nonfinite)
        progress(sum(done))
    blocks = _remaining_blocks(shards, done, batch_rows)
    # Closed here: an interrupt while Python clears it away would be printed with its traceback.
    with contextlib.closing(in_order(blocks, lambda item: _moments_of(item[1], moments), threads)) as results:
        for (index, block), part in results:
            moments.merge(part)
            done.extend([0] * (index + 1 - len(done)))
            done[index] = block.stop
            progress(block.stop - block.start)
            # Saved only here, where statistics and rows surely belong together.
            if progress_file.is_due():
                progress_file.save(moments.to_arrays(), done)
    return moments


def _moments_of(block: LogitBlock, total: ClassMoments) -> ClassMoments:
    part = total.new_part()
    for batch in block.read_batches():
        try:
            part.update(batch)
        except InputError as error:
            raise InputError(f"In `{block.shard.path}`, rows {block.start} to {block.stop}: {error}") from error
    return part


def _refuse_maps(shards: Sequence[StoredArray]) -> None:
    """Refuse maps of logits, whose classes may be on any axis: images, classes, height and width is usual."""
    for shard in shards:
        if len(shard.shape) > 3:
            raise InputError(
                f"`{shard.path}` has shape {shard.shape}, not (rows, classes) or (images, rows, classes). If its "
                f"second axis has the classes, save numpy.moveaxis(logits, 1, -1).reshape(-1, {shard.shape[1]}); if "
                f"its last, logits.reshape(-1, {shard.shape[-1]})."
            )


def in_order(
    items: Iterable[_Item], work: Callable[[_Item], _Result], threads: int | None = None
) -> Generator[tuple[_Item, _Result]]:
    """Do `work` on every item in a pool of threads and yield the results in the order of the items.

    Only a few items are under way at a time, so that memory stays bounded.

    Example:
        >>> list(in_order([1, 2, 3], lambda number: number * 10, threads=2))
        [(1, 10), (2, 20), (3, 30)]
    """
    workers = threads or min(8, os.cpu_count() or 1)
    waiting: deque[tuple[_Item, Future[_Result]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(work, item)))
                if len(waiting) > workers + 1:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def _remaining_blocks(
    shards: Sequence[StoredArray], done: Sequence[int], batch_rows: int
) -> Iterator[tuple[int, LogitBlock]]:
    before = list(done)
    for index, shard in enumerate(shards):
        first_row = before[index] if index < len(before) else 0
        if first_row < shard.rows:
            for block in read_blocks(shard, batch_rows=batch_rows, first_row=first_row):
                yield index, block


class _Journal:
    """The progress of one collection, in a file; without a path nothing is kept."""

    def __init__(
        self, path: Path | None, shards: Sequence[StoredArray], settings: Mapping[str, Any], seconds: float
    ) -> None:
        self._path = path
        # What shows that a shard is still the same.
        files = [(shard, shard.path.stat()) for shard in shards]
        self._shards = [[str(one.path.resolve()), one.name, at.st_size, at.st_mtime_ns] for one, at in files]
        self._settings = json.loads(json.dumps(settings))
        self._seconds = seconds
        self._last = time.monotonic()

    def load(self) -> tuple[Arrays, list[int]]:
        """What an interrupted collection of the same shards left: the statistics, and the rows done of each shard."""
        if self._path is None or not self._path.exists():
            return {}, []
        arrays, text = read_safetensors(self._path, expected_format=FILE_FORMAT, schema=FILE_SCHEMA)
        settings, shards, rows = (json.loads(text[name]) for name in ("settings", "shards", "rows"))
        self._check(settings, shards)
        return arrays, rows

    def is_due(self) -> bool:
        """Whether it is time to write again."""
        return self._path is not None and time.monotonic() - self._last >= self._seconds

    def save(self, arrays: Arrays, rows: Sequence[int]) -> None:
        """Write how far the collection has come."""
        if self._path is None:
            return
        metadata = {
            "format": FILE_FORMAT,
            "schema": str(FILE_SCHEMA),
            "settings": json.dumps(self._settings),
            "shards": json.dumps(self._shards[: len(rows)]),
            "rows": json.dumps(rows),
        }
        write_safetensors(self._path, arrays, metadata)
        self._last = time.monotonic()

    def _check(self, settings: Mapping[str, Any], shards: Sequence[Sequence[Any]]) -> None:
        again = f"delete `{self._path}` to start again"
        for name in sorted(settings.keys() | self._settings.keys()):
            before, now = settings.get(name), self._settings.get(name)
            if before != now:
                raise InputError(f"`{name}` was {before!r} in the interrupted run and is {now!r} now: {again}.")
        for index, shard in enumerate(shards):
            if index >= len(self._shards) or self._shards[index][0] != shard[0]:
                raise InputError(
                    f"`{shard[0]}` was file {index + 1} of the interrupted run, but is not file {index + 1} now: "
                    f"pass the same files, or {again}."
                )
            if self._shards[index] != list(shard):
                raise InputError(f"`{shard[0]}` has changed since the interrupted run: {again}.")
