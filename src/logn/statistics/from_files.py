"""Collect statistics over shards of dumped logits: several threads, bounded memory, and the same bits every time.

Threads work on blocks of rows; the main thread merges their results in the order of the files, so that the result does
not depend on the number of threads.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, TypeVar

from logn.base.checks import Whole, checked
from logn.data.logit_files import DEFAULT_BATCH_ROWS, LogitBlock, StoredArray, read_blocks
from logn.errors import InputError
from logn.statistics.moments import ClassMoments

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@checked
def collect_shards(
    shards: Sequence[StoredArray],
    moments: ClassMoments,
    *,
    batch_rows: int = DEFAULT_BATCH_ROWS,
    threads: Annotated[int, Whole(1)] | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> ClassMoments:
    """Add all rows of all shards to empty `moments`, and return the result.

    Args:
        shards: What `logn.data.logit_files.open_shards` gave.
        moments: Statistics of nothing yet.
        batch_rows: Rows of a batch where the shards have two axes.
        threads: How many threads read and compute; by default one per core, at most eight.
        progress: Called with the number of rows that have been done.

    Example:
        >>> import tempfile, numpy as np
        >>> from pathlib import Path
        >>> from logn.data.logit_files import open_shards
        >>> path = Path(tempfile.mkdtemp()) / "a.npy"
        >>> np.save(path, np.array([[2.0, 0.5], [0.0, 1.5]]))
        >>> collect_shards(open_shards([path]), ClassMoments(2)).mean.tolist()
        [1.0, 1.0]
    """
    _refuse_maps(shards)
    blocks = (block for shard in shards for block in read_blocks(shard, batch_rows=batch_rows))
    # Closed here: an interrupt while Python clears it away would be printed with its traceback.
    with contextlib.closing(in_order(blocks, lambda block: _moments_of(block, moments), threads)) as results:
        for block, part in results:
            moments.merge(part)
            progress(block.stop - block.start)
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
