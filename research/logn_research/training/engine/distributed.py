"""One or several processes that train together: alone, under torchrun, or started from here."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from logn.errors import InputError
from logn.evaluate.models.open import choose_device
from logn.processes import FreshContext

Result = TypeVar("Result")
WAIT = timedelta(minutes=30)


@dataclass(frozen=True)
class DistributedContext:
    """This process among those that train together."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def is_leader(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    @property
    def cuda_devices(self) -> list[torch.device]:
        """The device of this process, where it is one of CUDA."""
        return [self.device] if self.device.type == "cuda" else []

    def readers(self, wanted: int | None) -> int:
        """How many processes read images ahead; by default none on a CPU, whose cores are busy, else 4."""
        return wanted if wanted is not None else (0 if self.device.type == "cpu" else 4)

    def mean(self, values: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """The mean of each value over all processes.

        Example:
            >>> DistributedContext(torch.device("cpu")).mean({"loss": torch.tensor(0.5)})
            {'loss': 0.5}
        """
        joined = torch.stack([value.detach().float() for value in values.values()])
        if self.world_size > 1:
            dist.all_reduce(joined)
            joined /= self.world_size
        return dict(zip(values, joined.tolist(), strict=True))

    def gather(self, value: Any) -> list[Any]:
        """The value of every process, in the order of their numbers."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def run_distributed(
    work: Callable[[DistributedContext], Result], *, processes: int = 1, device: str = "auto"
) -> Result:
    """Run `work` in this process and in as many more as wanted, and return the result of this one.

    Under torchrun the processes are there already and `processes` must stay 1. On a CPU, two processes with one
    thread each train the small detector nearly twice as fast as one with two threads.

    Args:
        work: A function at the top level of a module (or a partial of one), since other processes must find it.
        processes: How many processes.
        device: `auto`, `cpu` or `cuda`.
    """
    if processes < 1:
        raise InputError(f"Expected `processes` to be at least 1, but got {processes}.")
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        if processes > 1:
            raise InputError(f"Expected `processes` to be 1 under torchrun, but got {processes}.")
        return _run_under_torchrun(work, device)
    if processes == 1:
        return work(DistributedContext(choose_device(device)))
    return _run_with_children(work, processes, device)


def _run_under_torchrun(work: Callable[[DistributedContext], Result], device: str) -> Result:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    chosen = choose_device(device)
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=WAIT)
    try:
        return work(DistributedContext(chosen, rank, world_size))
    finally:
        dist.destroy_process_group()


def _run_with_children(work: Callable[[DistributedContext], Result], processes: int, device: str) -> Result:
    chosen = choose_device(device)
    if chosen.type == "cuda" and processes > torch.cuda.device_count():
        raise InputError(
            f"Expected `processes` to be at most the {torch.cuda.device_count()} CUDA devices, but got {processes}."
        )
    fresh = FreshContext()
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "meeting"
        errors = fresh.SimpleQueue()
        try:
            for rank in range(1, processes):
                # No daemon, which could not start processes of its own that read images.
                fresh.Process(target=_child, args=(work, rank, processes, str(meeting), chosen.type, errors)).start()
            result = _join_group(work, 0, processes, str(meeting), chosen.type)
            for child in fresh.children:
                child.join(timeout=10)
            return result
        except RuntimeError as error:
            # When another process stops, this one only sees the connection break; what that one reported is the reason.
            if not errors.empty():
                raise InputError(errors.get()) from error
            raise
        finally:
            fresh.end()  # at once: only the leader has files to write


def _child(
    work: Callable[[DistributedContext], Any], rank: int, world_size: int, meeting: str, kind: str, errors: Any
) -> None:
    try:
        _join_group(partial(_report_errors, work, errors), rank, world_size, meeting, kind)
    except InputError as error:
        raise SystemExit(2) from error
    except (RuntimeError, KeyboardInterrupt) as error:
        # The leader stopped and says why itself.
        raise SystemExit(1) from error


def _report_errors(work: Callable[[DistributedContext], Any], errors: Any, context: DistributedContext) -> Any:
    """Do the work and report an error to the leader before the connection breaks, so that it need not wait."""
    try:
        return work(context)
    except InputError as error:
        errors.put(str(error))
        raise


def _join_group(
    work: Callable[[DistributedContext], Result], rank: int, world_size: int, meeting: str, kind: str
) -> Result:
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    with _share_of_threads(world_size), _local_network():
        dist.init_process_group(
            "nccl" if kind == "cuda" else "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=world_size,
            timeout=WAIT,
        )
        try:
            return work(DistributedContext(device, rank, world_size))
        finally:
            dist.destroy_process_group()


@contextlib.contextmanager
def _share_of_threads(world_size: int) -> Iterator[None]:
    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, cores // world_size))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _local_network() -> Iterator[None]:
    """Let gloo talk over the loopback device, where a host name that does not resolve cannot stop it."""
    name = "GLOO_SOCKET_IFNAME"
    if name in os.environ or not Path("/sys/class/net/lo").exists():
        yield
        return
    os.environ[name] = "lo"
    try:
        yield
    finally:
        del os.environ[name]
