"""Decoding on all processors: in processes of their own where there is enough to do, else in threads.

Between its long steps decoding takes many short ones, for which threads of one process wait for each other: two are
hardly faster than one. Processes are, and the store, which all of them map, is in memory once.
"""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import partial
from itertools import chain

from logn.errors import InputError, LogNWarning
from logn.evaluate.decode.image_decoder import Decoded, ImageDecoder, ImageTask, Method
from logn.evaluate.decode.settings import DecodeSettings
from logn.evaluate.store.store import PredictionStore
from logn.processes import fresh_processes

_Found = list[list[Decoded]]
# Tasks that were taken, with their results to come; None for one that could not be given away.
_Waiting = deque[tuple[ImageTask, Future[_Found] | None]]
# Logits to be mapped and activated, over all methods, from which starting processes pays: some seconds of work.
_ENOUGH_LOGITS = 2_000_000_000
# The decoder of this process, where it is one that only decodes.
_own_decoder: ImageDecoder | None = None


def available_processors() -> int:
    """How many processors this process may use.

    Example:
        >>> available_processors() >= 1
        True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def decode_tasks(
    decoder: ImageDecoder, tasks: Iterator[ImageTask], *, threads: int | None, processes: int | None
) -> Generator[tuple[ImageTask, _Found]]:
    """Decode tasks on several processors, and give what was found in their order.

    Args:
        decoder: What decodes them.
        tasks: Taken a few ahead of those that are done.
        threads: How many threads of this process decode; None to use processes where that is faster.
        processes: How many processes decode; None for as many as there are processors, where there is enough to do.
    """
    if threads is not None and processes is not None:
        raise InputError("Expected `threads` or `processes`, but got both.")
    for name, number in (("threads", threads), ("processes", processes)):
        if number is not None and number < 1:
            raise InputError(f"Expected `{name}` to be at least 1, but got {number}.")
    number = processes if processes is not None else 1 if threads is not None else worthwhile_processes(decoder)
    with ExitStack() as stack:
        if number > 1 and (pool := _process_pool(stack, decoder, number)) is not None:
            yield from _in_processes(pool, decoder, tasks, number)
        else:
            number = threads or (1 if processes else available_processors())
            pool = stack.enter_context(ThreadPoolExecutor(number))
            yield from _in_order(pool, decoder.decode, tasks, deque(), number)


def _in_order(
    pool: Executor, work: Callable[[ImageTask], _Found], tasks: Iterator[ImageTask], waiting: _Waiting, number: int
) -> Iterator[tuple[ImageTask, _Found]]:
    """Have tasks worked on and give the results in order; `waiting` are always those that are not given yet."""
    while True:
        # Not all at once: results that have not been consumed yet would fill the memory.
        while len(waiting) < 2 * number and (task := next(tasks, None)) is not None:
            waiting.append((task, None))
            waiting[-1] = (task, pool.submit(work, task))
        if not waiting:
            return
        task, future = waiting[0]
        found = future.result() if future is not None else work(task)
        waiting.popleft()
        yield task, found


def _in_processes(
    pool: Executor, decoder: ImageDecoder, tasks: Iterator[ImageTask], number: int
) -> Iterator[tuple[ImageTask, _Found]]:
    waiting: _Waiting = deque()
    try:
        yield from _in_order(pool, _decode_here, tasks, waiting, number)
    except BrokenProcessPool:
        warnings.warn(
            f"One of the {number} processes that decode was ended from outside, as a machine without free memory does; "
            "the rest is decoded in this process alone, which takes longer and gives the same.",
            LogNWarning,
            stacklevel=2,
        )
        for task in chain((task for task, _ in waiting), tasks):
            yield task, decoder.decode(task)


def worthwhile_processes(decoder: ImageDecoder) -> int:
    """As many processes as there are processors, or one where starting them would take longer than it spares."""
    store = decoder.store
    logits = store.num_proposals * store.num_columns * len(decoder.transforms)
    return available_processors() if logits >= _ENOUGH_LOGITS else 1


def _process_pool(stack: ExitStack, decoder: ImageDecoder, number: int) -> Executor | None:
    """Processes that decode; None where there can be none: the caller's own maps stay in his process."""
    known = all(transform is None or type(transform).__module__.startswith("logn.") for transform in decoder.transforms)
    if not known:
        return None
    return started_processes(stack, number, partial(_prepare, decoder.store, decoder.transforms, decoder.purposes))


def started_processes(stack: ExitStack, number: int, prepare: Callable[[], object]) -> Executor | None:
    """Processes that end with the stack and call `prepare` first; None where there can be none."""
    if multiprocessing.current_process().daemon:
        return None
    try:
        pool = stack.enter_context(fresh_processes(number, prepare=prepare, finish=False, import_main=False))
        pool.submit(os.getpid).result()
    except (BrokenProcessPool, OSError, ImportError, NotImplementedError):
        return None  # a system that cannot start them: one process does the same
    return pool


def _prepare(store: PredictionStore, transforms: Sequence[Method], purposes: Sequence[DecodeSettings]) -> None:
    global _own_decoder
    _own_decoder = ImageDecoder(store, transforms, purposes)


def _decode_here(task: ImageTask) -> _Found:
    if _own_decoder is None:
        raise RuntimeError("This process was not prepared for decoding.")
    return _own_decoder.decode(task)
