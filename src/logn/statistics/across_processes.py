"""Exact statistics of all processes of torch.distributed, on every one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from logn.statistics.moments import ClassMoments

if TYPE_CHECKING:
    import torch


def process_count() -> int:
    """How many processes torch.distributed runs; 1 when it does not.

    Example:
        >>> process_count()
        1
    """
    try:
        from torch import distributed
    except ImportError:
        return 1
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1
    return int(distributed.get_world_size())


def merge_across_processes(moments: Sequence[ClassMoments]) -> None:
    """Give every process, in place, the statistics of all processes; each process must call it.

    All merge in the order of their ranks, so that the results are the same to the last bit. A process may have seen
    nothing. The row sample, the mean probabilities, the skipped values and the variances within batches are merged
    too; statistics of different things (another class list, other weights) are refused on every process.
    """
    if process_count() == 1:
        return
    for mine in moments:
        total = ClassMoments(
            mine.num_columns,
            nonfinite=mine._nonfinite,
            sample_rows=mine.sample_rows,
            mean_probability=mine._probabilities is not None,
            metadata=mine.metadata,
        )
        parts = [ClassMoments.from_bytes(payload) for payload in _exchange(mine.to_bytes())]
        share_activation((total, *parts))
        for part in parts:
            total.merge(part)
        # The object that the caller holds becomes the total.
        vars(mine).update(vars(total))


def share_activation(parts: Sequence[ClassMoments]) -> None:
    """Give processes that saw no image, and so no activation, the activation that the others saw."""
    seen = {part.metadata.activation for part in parts} - {None}
    if len(seen) == 1:
        for part in parts:
            part.metadata = part.metadata.with_changes(activation=next(iter(seen)))


def _exchange(payload: bytes) -> list[bytes]:
    """The payload of every process, in the order of the ranks. Bytes arrive as they were, whatever the backend."""
    import torch
    from torch import distributed

    device = _device_of_backend()
    size = torch.tensor([len(payload)], dtype=torch.int64, device=device)
    sizes = [torch.zeros_like(size) for _ in range(distributed.get_world_size())]
    distributed.all_gather(sizes, size)
    payloads = []
    # One sender at a time: the samples are of different sizes, and padding them all at once would take more memory.
    for sender, length in enumerate(sizes):
        if sender == distributed.get_rank():
            block = torch.frombuffer(bytearray(payload), dtype=torch.uint8).to(device)
        else:
            block = torch.empty(int(length), dtype=torch.uint8, device=device)
        distributed.broadcast(block, src=sender)
        payloads.append(block.cpu().numpy().tobytes())
    return payloads


def _device_of_backend() -> torch.device:
    """NCCL moves tensors of the GPU only; Gloo and MPI those of the CPU."""
    import torch
    from torch import distributed

    backend = str(distributed.get_backend())
    for name, device in (("gloo", "cpu"), ("mpi", "cpu"), ("nccl", "cuda"), ("xccl", "xpu"), ("hccl", "npu")):
        if name in backend:
            return torch.device(device)
    return torch.device("cpu")
