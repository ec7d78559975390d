"""Processes that this one starts: only the first hears the keyboard, and it ends the others."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any, TypeVar

__all__ = ["FreshContext", "fresh_processes", "keyboard_to_this_process"]

_Result = TypeVar("_Result")


@contextlib.contextmanager
def keyboard_to_this_process() -> Iterator[None]:
    """Start processes in this block that never hear an interruption from the keyboard.

    They inherit that interrupts are held back, from their first instruction: one that is still loading would else print
    a traceback of its own. This process loses none: what comes inside the block is heard at its end.

    Example:
        >>> import subprocess, sys
        >>> interrupt_itself = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
        >>> with keyboard_to_this_process():
        ...     subprocess.run([sys.executable, "-c", interrupt_itself]).returncode
        0
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    # The tracker of shared resources starts with the first process, and lets interrupts through again after that.
    resource_tracker.ensure_running()
    with _noted_interrupts():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _noted_interrupts() -> Iterator[None]:
    """Hold back interrupts that reach this process through another thread, which does not block them."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    noted: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if noted:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _main_left_alone() -> Iterator[None]:
    """Start processes in this block that do not run the main script a second time, as a fresh one else does.

    So a script of the user's needs no `if __name__ == "__main__":`. What the process works on must lie in modules.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class FreshProcess(SpawnProcess):
    """A process that starts afresh, and leaves the keyboard to the one that started it."""

    import_main = True

    def start(self) -> None:
        """Start it."""
        with keyboard_to_this_process(), contextlib.nullcontext() if self.import_main else _main_left_alone():
            super().start()


class FreshContext(SpawnContext):
    """Makes processes that start afresh: a fork of a process with threads (torch, a progress bar) may hang."""

    def __init__(self, *, import_main: bool = True) -> None:
        super().__init__()
        self._import_main = import_main
        self.children: list[FreshProcess] = []

    def Process(self, *arguments: Any, **options: Any) -> FreshProcess:  # type: ignore[override]  # noqa: N802
        """A process that is not started yet, as `multiprocessing.Process` makes it."""
        child = FreshProcess(*arguments, **options)
        child.import_main = self._import_main
        self.children.append(child)
        return child

    def end(self) -> None:
        """End the processes that run, whatever they are at, and wait until they are gone."""
        running = [child for child in self.children if child.is_alive()]
        for child in running:
            child.terminate()
        for child in running:
            child.join()


class FreshPool(ProcessPoolExecutor):
    """A pool of fresh processes that an interruption never finds with one that it does not know of yet."""

    def submit(self, work: Callable[..., _Result], /, *arguments: Any, **options: Any) -> Future[_Result]:
        """Have `work` done, which may start a process; an interruption waits until that is noted."""
        with keyboard_to_this_process():
            return super().submit(work, *arguments, **options)


@contextlib.contextmanager
def fresh_processes(
    number: int, *, prepare: Callable[[], object] | None = None, finish: bool = True, import_main: bool = True
) -> Iterator[FreshPool]:
    """A pool of fresh processes, none of which outlives the block.

    Args:
        number: How many.
        prepare: What each of them calls first.
        finish: Whether work that has begun is finished when the block ends by an error; else it ends at once.
        import_main: Whether they import the main script, which then needs `if __name__ == "__main__":`; without it,
            what they work on must lie in modules.
    """
    context = FreshContext(import_main=import_main)
    with FreshPool(number, mp_context=context, initializer=_first_steps, initargs=(prepare,)) as pool:
        try:
            yield pool
        except BaseException:
            if not finish:
                context.end()
            pool.shutdown(cancel_futures=True)
            raise


def _first_steps(prepare: Callable[[], object] | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for systems where this cannot be inherited
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    if prepare is not None:
        prepare()


def _end_with_the_first() -> None:
    """End when the process that started this one has ended, however: nobody would give it work any more."""
    first = parent_process()
    if first is not None:
        first.join()
        os._exit(1)
