"""Evaluation mode for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation for a block, since a request for proposals must not move running statistics.

    Every module goes back to its own mode afterwards: those that are frozen stay so.

    Example:
        >>> model = nn.Sequential(nn.BatchNorm1d(1).eval(), nn.Linear(1, 1))
        >>> with evaluation_mode(model):
        ...     [module.training for module in model]
        [False, False]
        >>> [module.training for module in model]
        [False, True]
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
