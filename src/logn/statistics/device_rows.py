"""Logits of a model on a GPU, taken to the processor without a wait for each batch.

The model runs ahead of the program: asking for the numbers of a batch at once would stop the program until the GPU has
come that far, in every batch. So a copy is ordered, and looked at when it has arrived, some batches later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["DeviceRows"]

# Batches that may be on the way; each holds its memory until it has arrived.
_ON_THE_WAY = 8


class _Arrival(Protocol):
    """When a copy has arrived; an event of CUDA."""

    def query(self) -> bool:
        """Whether it has."""

    def synchronize(self) -> None:
        """Wait until it has."""


class DeviceRows:
    """Gives batches to `use` in their order: those of a GPU when they have arrived, all others at once.

    Args:
        use: Called with each batch, on the processor.

    Example:
        >>> seen = []
        >>> rows = DeviceRows(seen.append)
        >>> rows.add([1.0, 2.0])
        >>> seen
        [[1.0, 2.0]]
    """

    def __init__(self, use: Callable[[Any], object]) -> None:
        self._use = use
        self._waiting: deque[tuple[Any, _Arrival]] = deque()

    def add(self, rows: Any) -> None:
        """Take a batch; what is not used yet is used when `finish` is called, at the latest."""
        if not _is_on_gpu(rows):
            self.finish()
            self._use(rows)
            return
        self._waiting.append(_ordered_copy(rows))
        while self._waiting and (len(self._waiting) > _ON_THE_WAY or self._waiting[0][1].query()):
            self._use_first()

    def finish(self) -> None:
        """Use what is still on the way."""
        while self._waiting:
            self._use_first()

    def _use_first(self) -> None:
        rows, arrival = self._waiting.popleft()
        arrival.synchronize()
        self._use(rows)


def _is_on_gpu(rows: Any) -> bool:
    return bool(getattr(rows, "is_cuda", False))


def _ordered_copy(rows: Any) -> tuple[Any, _Arrival]:
    """Memory of the processor that will hold the rows, and when it does."""
    import torch

    with torch.cuda.device(rows.device):
        host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        host.copy_(rows.detach(), non_blocking=True)
        arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrival.record()
    return host, arrival
