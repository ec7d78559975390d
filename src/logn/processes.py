"""Processes beside this one: only the first hears the keyboard, and it ends the others."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any


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
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class FreshProcess(SpawnProcess):
    """A process that starts anew, and leaves the keyboard to the one that started it."""

    def start(self) -> None:
        """Start it."""
        with keyboard_to_this_process():
            super().start()


class FreshContext(SpawnContext):
    """Makes processes that start anew: a fork of a process with threads (torch, a progress bar) may hang."""

    def __init__(self) -> None:
        super().__init__()
        self.children: list[FreshProcess] = []

    def Process(self, *arguments: Any, **options: Any) -> FreshProcess:  # type: ignore[override]  # noqa: N802
        """A process that is not started yet, as `multiprocessing.Process` makes it."""
        child = FreshProcess(*arguments, **options)
        self.children.append(child)
        return child

    def end(self) -> None:
        """End the processes that run, whatever they are at, and wait until they are gone."""
        running = [child for child in self.children if child.is_alive()]
        for child in running:
            child.terminate()
        for child in running:
            child.join()
