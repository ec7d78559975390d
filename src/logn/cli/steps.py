"""The steps of a long command on stderr: what is being done, how far it is, how long it took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from logn.cli.console import print_note, progress

Step = Callable[[str, float | None], contextlib.AbstractContextManager[Callable[[float], None]]]


def step_reporter(shown: bool | None) -> Step:
    """Say on stderr what is being done and how long it took; with a bar where it is counted.

    Args:
        shown: True or False; None shows bars only when stderr is a terminal.

    Example:
        >>> with step_reporter(False)("Reading", 2) as advance:
        ...     advance(1)
    """

    @contextlib.contextmanager
    def step(name: str, total: float | None) -> Iterator[Callable[[float], None]]:
        print_note(f"{name} …")
        start = time.perf_counter()
        bar = progress(name, total, shown=shown) if total else contextlib.nullcontext(lambda amount: None)
        with bar as advance:
            yield advance
        print_note(f"{name}: {time.perf_counter() - start:.0f} s")

    return step
