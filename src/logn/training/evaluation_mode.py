"""Evaluation mode for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation for a block, since a request for proposals must not move running statistics.

    Example:
        >>> model = nn.Linear(1, 1)
        >>> with evaluation_mode(model):
        ...     model.training
        False
        >>> model.training
        True
    """
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
