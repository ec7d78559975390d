"""Work shared among processes: a pool that needs no main guard, ends with its parent, and is prepared once."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import ModuleType
from typing import Any, TypeVar

from logn.errors import warn

# From a task to its result.
Worker = Callable[[Any], Any]
TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


def available_processors() -> int:
    """How many processors this process may use.

    Example:
        >>> available_processors() >= 1
        True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def work_in_order(
    prepare: Callable[[], Callable[[TaskT], ResultT]],
    tasks: Sequence[TaskT],
    *,
    processes: int = 1,
    threads: int | None = None,
    noun: str = "worker",
) -> Generator[ResultT]:
    """Do tasks in processes or threads and give the results in their order; not all at once, which would take memory.

    Where there can be no processes, and after one of them was killed, the work is done in this process.

    Args:
        prepare: Called once in each process; gives what does a task. Processes must be able to import it.
        tasks: What is to be done.
        processes: How many processes work; 1 for this one alone.
        threads: How many threads work where no processes do; None for as many as there are processors.
        noun: What the processes do, for the warning.

    Example:
        >>> list(work_in_order(lambda: abs, [-1, 2, -3]))
        [1, 2, 3]
    """
    done = 0
    with contextlib.ExitStack() as stack:
        pool = started_processes(stack, processes, prepare) if processes > 1 else None
        if pool is not None:
            try:
                for result in _results(pool, work_here, tasks, processes):
                    yield result
                    done += 1
            except BrokenProcessPool:
                warn(
                    f"One of the {processes} {noun} processes was killed, probably because memory ran out. The rest is "
                    "done in this process: slower, with the same result."
                )
            else:
                return
        number = threads or available_processors()
        pool = stack.enter_context(ThreadPoolExecutor(number))
        yield from _results(pool, prepare(), tasks[done:], number)


def _results(
    pool: Executor, work: Callable[[TaskT], ResultT], tasks: Sequence[TaskT], number: int
) -> Iterator[ResultT]:
    waiting: deque[Future[ResultT]] = deque()
    for task in tasks:
        waiting.append(pool.submit(work, task))
        if len(waiting) >= 2 * number:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def started_processes(stack: contextlib.ExitStack, number: int, prepare: Callable[[], Worker]) -> Executor | None:
    """Start processes that end with the stack; None where there can be none.

    Args:
        stack: Ends the processes.
        number: How many processes.
        prepare: Called first in each of them; gives what `work_here` does there with each task.
    """
    if multiprocessing.current_process().daemon:
        return None
    try:
        pool = stack.enter_context(FreshPool(number, prepare))
        pool.submit(os.getpid).result()
    except (BrokenProcessPool, OSError, ImportError, NotImplementedError):
        return None  # a system that cannot start them: one process does the same
    return pool


# What this process was prepared for, where it is one of a pool.
_worker: Worker | None = None


def work_here(task: Any) -> Any:
    """Do a task in a process that `started_processes` has prepared.

    Example:
        >>> work_here(3)
        Traceback (most recent call last):
        ...
        RuntimeError: This process was not prepared for any work.
    """
    if _worker is None:
        raise RuntimeError("This process was not prepared for any work.")
    return _worker(task)


class FreshPool(ProcessPoolExecutor):
    """A pool of processes that start afresh: a fork of a process with threads (torch, a progress bar) may hang.

    The processes do not run the main script a second time, so a user's script needs no `if __name__ == "__main__":`.
    What they work on must lie in modules.

    Args:
        number: How many processes.
        prepare: What each of them calls first.
    """

    def __init__(self, number: int, prepare: Callable[[], Worker]) -> None:
        super().__init__(
            number, mp_context=multiprocessing.get_context("spawn"), initializer=_first_steps, initargs=(prepare,)
        )

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Have `work` done, which may start a process."""
        with _without_main():
            return super().submit(work, *arguments, **options)

    def __exit__(self, *error: object) -> None:
        """Wait for the work that has begun; after an error the rest is not done."""
        self.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _first_steps(prepare: Callable[[], Worker]) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process hears the keyboard, and ends the others
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    _worker = prepare()


def _end_with_the_first() -> None:
    """End when the process that started this one has ended: nothing would give it work any more."""
    first = multiprocessing.parent_process()
    if first is not None:
        first.join()
        os._exit(1)
