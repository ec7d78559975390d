"""How long each step of a comparison took."""

from __future__ import annotations

import time


class StepClock:
    """Seconds by step, each counted from the end of the one before.

    Example:
        >>> clock = StepClock()
        >>> clock.lap("fit")
        >>> list(clock.seconds)
        ['fit']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, step: str) -> None:
        """Count the time since the last step as this one's."""
        now = time.perf_counter()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - self._last
        self._last = now
