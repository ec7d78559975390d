"""Adding up the state of a loss over all processes that train together."""

from __future__ import annotations

from torch import Tensor, distributed


def sum_across_processes(values: Tensor) -> Tensor:
    """The sum of `values` over all processes; `values` itself where there is only one. No gradient passes.

    Every process must call it the same number of times, whatever its batch holds.

    Example:
        >>> import torch
        >>> sum_across_processes(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """
    values = values.detach()
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return values
    total = values.clone()
    distributed.all_reduce(total)
    return total
