"""Processes that share the work on one machine."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from types import ModuleType
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class FreshPool(ProcessPoolExecutor):
    """A pool of processes that start afresh: a fork of a process with threads (torch, a progress bar) may hang.

    The processes do not run the main script a second time, so a user's script needs no `if __name__ == "__main__":`.
    What they work on must lie in modules.

    Args:
        number: How many processes.
        prepare: What each of them calls first.
    """

    def __init__(self, number: int, prepare: Callable[[], object]) -> None:
        super().__init__(number, mp_context=get_context("spawn"), initializer=_first_steps, initargs=(prepare,))

    def submit(self, work: Callable[..., _Result], /, *arguments: Any, **options: Any) -> Future[_Result]:
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


def _first_steps(prepare: Callable[[], object]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process hears the keyboard, and ends the others
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    prepare()


def _end_with_the_first() -> None:
    """End when the process that started this one has ended: nothing would give it work any more."""
    first = parent_process()
    if first is not None:
        first.join()
        os._exit(1)
