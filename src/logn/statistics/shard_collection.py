"""Collect statistics over shards of dumped logits: several threads, bounded memory, and the same bits every time.

Threads work on blocks of rows; the main thread merges their results in the order of the files. The result therefore
does not depend on the number of threads, nor on where an earlier run was killed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from logn.errors import InputError
from logn.logits.dumped import DEFAULT_BATCH_ROWS, LogitBlock, StoredArray, read_blocks
from logn.statistics.collect_journal import Arrays, CollectJournal, JournalEntry
from logn.statistics.file_format import StatisticsFile
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments, Nonfinite
from logn.statistics.row_sample import RowSample

DEFAULT_SAMPLE_ROWS = 4096

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class ShardStatistics(Protocol):
    """Statistics that are computed per block in any thread and merged in order by one."""

    def settings(self) -> dict[str, Any]:
        """What the result depends on besides the shards; anything JSON can hold."""

    def compute(self, block: LogitBlock) -> Any:
        """Work on a block; called in any thread."""

    def merge(self, result: Any) -> None:
        """Add what `compute` gave; called in the order of the blocks."""

    def arrays(self) -> Arrays:
        """The state, for the journal."""

    def restore(self, arrays: Arrays) -> None:
        """Go on from the state that `arrays` gave."""


class ExactStatistics:
    """Exact moments, and a sample of the rows.

    Args:
        num_classes: Columns of the logits, the background included.
        metadata: What the logits are.
        nonfinite: As in `ClassMoments`.
        sample_rows: As in `ClassMoments`.
        mean_probability: As in `ClassMoments`.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        metadata: StatisticsMetadata | None = None,
        nonfinite: Nonfinite = "error",
        sample_rows: int = DEFAULT_SAMPLE_ROWS,
        mean_probability: bool = False,
    ) -> None:
        if sample_rows < 0:
            raise InputError(f"Expected `sample_rows` to be at least 0, but got {sample_rows}.")
        # The sample is kept apart from the moments, so that blocks can skip rows that it would drop.
        self._options: dict[str, Any] = {"nonfinite": nonfinite, "mean_probability": mean_probability}
        self._moments = ClassMoments(num_classes, metadata=metadata, **self._options)
        self._threads = threading.local()
        self._sample = RowSample(num_classes, sample_rows) if sample_rows else None

    def settings(self) -> dict[str, Any]:
        """What the result depends on besides the shards."""
        rows = self._sample.capacity if self._sample else 0
        # Journals of earlier versions know of no mean probability; without one they can be gone on from.
        options = {name: value for name, value in self._options.items() if value is not False}
        return {**options, "sample_rows": rows} | self._moments.metadata.to_text()

    def compute(self, block: LogitBlock) -> tuple[ClassMoments, RowSample | None]:
        """Moments and sample of one block."""
        classes, limit = self._moments.num_columns, self._sample.limit if self._sample else None
        moments = self._moments_of_thread()
        sample = RowSample(classes, self._sample.capacity) if self._sample else None
        for batch in block.read_batches():
            moments.update(batch)
            if sample is not None:
                sample.update(batch, limit)
        return ClassMoments.from_file(moments.to_file()), sample

    def _moments_of_thread(self) -> ClassMoments:
        """Empty moments; each thread has its own and keeps their scratch memory from block to block."""
        moments: ClassMoments | None = getattr(self._threads, "moments", None)
        if moments is None:
            classes, metadata = self._moments.num_columns, self._moments.metadata
            moments = self._threads.moments = ClassMoments(classes, metadata=metadata, **self._options)
        moments.clear()
        return moments

    def merge(self, result: tuple[ClassMoments, RowSample | None]) -> None:
        """Add a block."""
        moments, sample = result
        self._moments.merge(moments)
        if self._sample is not None and sample is not None:
            self._sample.merge(sample)

    def arrays(self) -> Arrays:
        """The state, for the journal."""
        arrays = self._moments.to_file().arrays()
        if self._sample is not None:
            arrays |= {"sample_rows": self._sample.rows, "sample_keys": self._sample.keys}
        return arrays

    def restore(self, arrays: Arrays) -> None:
        """Go on from the state that `arrays` gave."""
        rows, keys = arrays.get("sample_rows"), arrays.get("sample_keys")
        own = {name: array for name, array in arrays.items() if not name.startswith("sample_")}
        self._moments = ClassMoments.from_file(StatisticsFile.from_arrays(own, self._moments.metadata))
        if self._sample is not None:
            self._sample = RowSample(self._moments.num_columns, self._sample.capacity, rows, keys)

    def moments(self) -> ClassMoments:
        """The result, sample included."""
        content = self._moments.to_file()
        if self._sample is not None:
            sample = self._sample
            content = replace(
                content, sample_capacity=sample.capacity, sample_rows=sample.rows, sample_keys=sample.keys
            )
        return ClassMoments.from_file(content)


def collect_shards(
    shards: Sequence[StoredArray],
    statistics: ShardStatistics,
    *,
    batch_rows: int = DEFAULT_BATCH_ROWS,
    threads: int | None = None,
    journal: Path | None = None,
    journal_seconds: float = 5.0,
    progress: Callable[[int], object] = lambda count: None,
) -> CollectJournal:
    """Run all blocks of all shards through `statistics`; returns the journal, to remove once the result is saved.

    Args:
        shards: What `logn.logits.dumped.open_shards` gave.
        statistics: What to compute.
        batch_rows: Rows of a batch where the shards have two axes.
        threads: How many threads read and compute; by default one per core, at most eight.
        journal: Where to keep the progress, so that a killed run can be resumed.
        journal_seconds: Least time between two writes of it.
        progress: Called with the number of rows that have been done.

    Example:
        >>> import tempfile, numpy as np
        >>> from logn.logits.dumped import open_shards
        >>> path = Path(tempfile.mkdtemp()) / "a.npy"
        >>> np.save(path, np.array([[2.0, 0.5], [0.0, 1.5]]))
        >>> statistics = ExactStatistics(2)
        >>> _ = collect_shards(open_shards([path]), statistics)
        >>> statistics.moments().mean.tolist()
        [1.0, 1.0]
    """
    if threads is not None and threads < 1:
        raise InputError(f"Expected `threads` to be at least 1, but got {threads}.")
    _refuse_maps(shards)
    settings = {"batch_rows": batch_rows} | statistics.settings()
    book = CollectJournal(journal, shards, settings, journal_seconds)
    earlier = book.load()
    done = list(earlier.rows) if earlier else []
    if earlier:
        statistics.restore(earlier.arrays)
        progress(sum(done))
    blocks = _remaining_blocks(shards, done, batch_rows)
    # Closed here, since an interrupt while Python clears it away would be printed with its traceback.
    with contextlib.closing(in_order(blocks, lambda item: _compute(statistics, item[1]), threads)) as results:
        for (index, block), result in results:
            statistics.merge(result)
            done.extend([0] * (index + 1 - len(done)))
            done[index] = block.stop
            progress(block.stop - block.start)
            # Only here do statistics and rows surely belong together: an interrupt saves nothing by itself.
            if book.due():
                book.save(JournalEntry(statistics.arrays(), tuple(done)))
    return book


def _refuse_maps(shards: Sequence[StoredArray]) -> None:
    """Refuse maps of logits, whose classes may be on any axis: images, classes, height and width is usual."""
    for shard in shards:
        if len(shard.shape) > 3:
            raise InputError(
                f"Expected `{shard.path}` to have the shape (rows, classes) or (images, rows, classes), but got "
                f"{shard.shape}: which axis has the classes? Save numpy.moveaxis(logits, 1, -1).reshape(-1, "
                f"{shard.shape[1]}) where it is the second, logits.reshape(-1, {shard.shape[-1]}) where it is the last."
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


def _compute(statistics: ShardStatistics, block: LogitBlock) -> Any:
    try:
        return statistics.compute(block)
    except InputError as error:
        message = str(error)
        if str(block.shard.path) in message:
            raise
        raise InputError(f"In `{block.shard.path}`, rows {block.start} to {block.stop}: {message}") from error
