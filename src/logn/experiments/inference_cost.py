"""What a detector costs at test time, relative to the plain one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

ROUNDS, BATCH = 5, 8


def relative_cost(detector: Any, plain: Any, images: Sequence[Any], *, rounds: int = ROUNDS) -> float:
    """Time of `propose` over that of the plain detector, on the same images.

    Processor time on one thread, so that other work on the machine hardly matters; the two take turns, and the quickest
    of each counts.

    Args:
        detector: A detector with `propose`.
        plain: The detector to compare with.
        images: Float tensors `(3, H, W)`.
        rounds: How many turns each has.

    Example:
        >>> class Sleepy:
        ...     def propose(self, images):
        ...         return [sum(range(20000)) for _ in images]
        >>> relative_cost(Sleepy(), Sleepy(), [torch.zeros(3, 8, 8)] * 4) > 0
        True
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = [(_seconds(detector, images), _seconds(plain, images)) for _ in range(rounds)]
    finally:
        torch.set_num_threads(threads)
    return min(own for own, _ in times) / min(other for _, other in times)


def _seconds(detector: Any, images: Sequence[Any]) -> float:
    began = time.process_time()
    for start in range(0, len(images), BATCH):
        detector.propose(list(images[start : start + BATCH]))
    return time.process_time() - began
