"""The training loop: one or several processes, with checkpoints, a log and a progress bar."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from logn.base.files import write_text
from logn.errors import InputError
from logn.models.hints import choose_device
from logn_research.training.batches import Batch, DetectorBatches
from logn_research.training.checkpoint import FILE_NAME, Checkpoint, read_checkpoint
from logn_research.training.recipes import DetectorTrainingConfig, Schedule

LOG, LOG_EVERY = "log.jsonl", 10
WAIT = timedelta(minutes=30)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Process:
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

    def mean(self, values: Mapping[str, Tensor]) -> dict[str, float]:
        """The mean of each value over all processes.

        Example:
            >>> Process(torch.device("cpu")).mean({"loss": torch.tensor(0.5)})
            {'loss': 0.5}
        """
        joined = torch.stack([value.detach().float() for value in values.values()])
        if self.world_size > 1:
            dist.all_reduce(joined)
            joined /= self.world_size
        return dict(zip(values, joined.tolist(), strict=True))


def run_distributed(work: Callable[[Process], Result], *, processes: int = 1, device: str = "auto") -> Result:
    """Run `work` in this process and in as many more as wanted, and return the result of this one.

    Under torchrun the processes are there already and `processes` must stay 1. On a CPU, two processes with one
    thread each train the small detector nearly twice as fast as one with two threads.

    Args:
        work: A function at the top level of a module (or a partial of one), since other processes must find it.
        processes: How many processes.
        device: `auto`, `cpu` or `cuda`.
    """
    under_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if processes < 1 or (under_torchrun and processes > 1):
        wanted = "1 under torchrun" if under_torchrun else "at least 1"
        raise InputError(f"Expected `processes` to be {wanted}, but got {processes}.")
    chosen = choose_device(device)
    if under_torchrun:
        rank, size, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        return _join_group(work, rank, size, "env://", chosen.type, local)
    if processes == 1:
        return work(Process(chosen))
    if chosen.type == "cuda" and processes > torch.cuda.device_count():
        raise InputError(
            f"Expected `processes` to be at most the {torch.cuda.device_count()} CUDA devices, but got {processes}."
        )
    return _run_with_children(work, processes, chosen.type)


def _run_with_children(work: Callable[[Process], Result], processes: int, kind: str) -> Result:
    spawn, before = multiprocessing.get_context("spawn"), torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        meeting, errors = f"file://{folder}/meeting", spawn.SimpleQueue()
        # No daemons, which could not start processes of their own that read images.
        children = [
            spawn.Process(target=_child, args=(work, rank, processes, meeting, kind, errors))
            for rank in range(1, processes)
        ]
        try:
            for child in children:
                child.start()
            torch.set_num_threads(_share_of_threads(processes))
            result = _join_group(work, 0, processes, meeting, kind)
            for child in children:
                child.join(timeout=10)
            return result
        except RuntimeError as error:
            # When another process stops, this one only sees the connection break; what that one reported is the reason.
            if not errors.empty():
                raise InputError(errors.get()) from error
            raise
        finally:
            torch.set_num_threads(before)
            for child in children:
                child.kill()  # at once: only the leader has files to write
                child.join()


def _child(work: Callable[[Process], Any], rank: int, size: int, meeting: str, kind: str, errors: Any) -> None:
    torch.set_num_threads(_share_of_threads(size))
    try:
        _join_group(partial(_report_errors, work, errors), rank, size, meeting, kind)
    except (InputError, RuntimeError, KeyboardInterrupt) as error:
        raise SystemExit(1) from error  # the leader says why


def _report_errors(work: Callable[[Process], Any], errors: Any, process: Process) -> Any:
    """Do the work and report an error to the leader before the connection breaks, so that it need not wait."""
    try:
        return work(process)
    except InputError as error:
        errors.put(str(error))
        raise


def _share_of_threads(processes: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)


def _join_group(
    work: Callable[[Process], Result], rank: int, size: int, meeting: str, kind: str, local: int | None = None
) -> Result:
    device = torch.device(kind)
    if kind == "cuda":
        device = torch.device(kind, rank if local is None else local)
        torch.cuda.set_device(device)
    elif local is None and Path("/sys/class/net/lo").exists():
        # Over the loopback device, where a host name that does not resolve cannot stop gloo.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size, timeout=WAIT)
    try:
        return work(Process(device, rank, size))
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def output_folder(path: Path) -> Iterator[None]:
    """Make a folder for the block; if the block fails and leaves it empty, every folder made here is removed.

    Example:
        >>> folder = Path(tempfile.mkdtemp()) / "runs" / "a"
        >>> with output_folder(folder):
        ...     raise OSError("no such image")
        Traceback (most recent call last):
        ...
        OSError: no such image
        >>> folder.parent.exists()
        False
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # something is in it, or another process was quicker
            for folder in missing:  # the innermost first
                folder.rmdir()
        raise


def read_log(folder: str | Path) -> list[dict[str, Any]]:
    """Read the log of a run; a last line that a kill cut short is left out."""
    path = Path(folder) / LOG
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return entries


@contextlib.contextmanager
def progress_bar(
    total: int, start: int, *, shown: bool | None, title: str = "Training"
) -> Iterator[Callable[[int, str], None]]:
    """Draw a bar with the losses and the time left on stderr; yields what to call with (iterations done, losses).

    Args:
        total: Iterations of the run.
        start: Iterations done before.
        shown: True or False; None shows it when stderr is a terminal.
        title: What is being done.
    """
    if shown is False or (shown is None and not sys.stderr.isatty()):
        yield lambda done, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, completed=start)
        yield lambda done, text: bar.update(task, completed=done, description=text)


class Trainer:
    """Trains a model in one process and keeps its state: model, optimizer, files.

    Args:
        config: What to train.
        process: This process among the others.
        schedule: The learning rates.
        model: With `settings`, in training mode, on the device of `process`; called with images and targets it gives
            its losses by name.
        class_names: Of the foreground classes.
    """

    def __init__(
        self,
        config: DetectorTrainingConfig,
        process: Process,
        schedule: Schedule,
        model: nn.Module,
        *,
        class_names: tuple[str, ...],
    ) -> None:
        self.config, self.process, self.schedule, self.class_names = config, process, schedule, class_names
        self.model, self.folder = model, Path(config.output)
        self.file = self.folder / FILE_NAME
        recipe = config.recipe
        self.optimizer = torch.optim.SGD(
            [weight for weight in self.model.parameters() if weight.requires_grad],
            lr=schedule.peak,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        self.amp = config.mixed_precision(process.device.type)
        # float16 underflows without it; the bfloat16 of a CPU has the range of float32.
        self.scaler = torch.amp.GradScaler(enabled=self.amp and process.device.type == "cuda")
        self.plan = {**config.plan(), "iterations": schedule.total, "processes": process.world_size}

    def resume(self) -> int:
        """Load the checkpoint of the folder; returns how many iterations it has done."""
        settings: Any = self.model.settings
        checkpoint = read_checkpoint(self.file)
        for name, now in (settings.as_dict() | self.plan).items():
            before = (checkpoint.settings.as_dict() | dict(checkpoint.run)).get(name)
            if before != now:
                raise InputError(
                    f"`{self.file}` is of a run with `{name}` {before!r}, but now it is {now!r}: choose another "
                    "folder, or start over (`--fresh`) to replace that run."
                )
        checkpoint.restore_weights(self.model)
        checkpoint.restore_momentum(self.model, self.optimizer)
        if self.scaler.is_enabled() and "scaler" in checkpoint.extra:
            self.scaler.load_state_dict(checkpoint.extra["scaler"])
        return checkpoint.iteration

    def save(self, iteration: int) -> None:
        """Write the checkpoint after `iteration` iterations."""
        if not self.process.is_leader:
            return
        settings: Any = self.model.settings
        buffers = {name: self.optimizer.state[weight] for name, weight in self.model.named_parameters()}
        Checkpoint(
            settings,
            iteration,
            self.model.state_dict(),
            {
                name: state["momentum_buffer"]
                for name, state in buffers.items()
                if state.get("momentum_buffer") is not None
            },
            self.plan,
            self.class_names,
            {"scaler": self.scaler.state_dict()} if self.scaler.is_enabled() else {},
        ).save(self.file)

    def fit(
        self, batches: DetectorBatches, start: int, *, workers: int, progress: bool | None
    ) -> tuple[float, float, dict[str, float]]:
        """Train from iteration `start` to the end; returns seconds, processor seconds and the last mean losses.

        Each line of `log.jsonl` has `iteration` (done so far), `loss`, `losses` (means since the line before),
        `learning_rate` and `seconds` of training so far.
        """
        total, every = self.schedule.total, self.config.checkpoint_every or self.config.recipe.checkpoint_every
        model = self.model
        if self.process.world_size > 1:
            model = DistributedDataParallel(
                model, device_ids=self.process.cuda_devices or None, gradient_as_bucket_view=True
            )
        # Lines after the last checkpoint, of a run that was killed, are taken away.
        kept = [line for line in read_log(self.folder) if line["iteration"] <= start] if start else []
        if self.process.is_leader and (self.folder / LOG).exists():
            write_text(self.folder / LOG, "".join(json.dumps(line) + "\n" for line in kept))
        seconds_before = float(kept[-1]["seconds"]) if kept else 0.0
        means, since = dict[str, float](), list[dict[str, float]]()
        began, processor_began = time.monotonic(), time.process_time()
        with progress_bar(total, start, shown=progress) as report:
            for iteration, batch in enumerate(batches.iterate(start, total, workers=workers), start):
                since.append(self.step(model, batch, iteration))
                done = iteration + 1
                is_due = done % every == 0 or done == total
                if self.process.is_leader and (done % LOG_EVERY == 0 or is_due):
                    means = {name: sum(losses[name] for losses in since) / len(since) for name in since[0]}
                    line = {
                        "iteration": done,
                        "loss": sum(means.values()),
                        "losses": means,
                        "learning_rate": self.schedule.learning_rate(iteration),
                        "seconds": round(seconds_before + time.monotonic() - began, 3),
                    }
                    with (self.folder / LOG).open("a", encoding="utf-8", newline="") as file:
                        file.write(json.dumps(line) + "\n")
                    since = []
                report(done, " ".join(f"{name.removeprefix('loss_')} {value:.2f}" for name, value in means.items()))
                if is_due:
                    self.save(done)
        return time.monotonic() - began, time.process_time() - processor_began, means

    def step(self, model: nn.Module, batch: Batch, iteration: int) -> dict[str, float]:
        """One iteration of gradient descent; returns the losses, averaged over the processes."""
        torch.manual_seed(iteration_seed(self.config.seed, iteration, self.process.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate(iteration)
        moved = batch.to(self.process.device)
        with torch.autocast(self.process.device.type, enabled=self.amp):
            losses: dict[str, Tensor] = model(moved.images, moved.targets)
        means = self.process.mean(losses)
        bad = [f"{name} was {value}" for name, value in means.items() if not math.isfinite(value)]
        if bad:
            raise InputError(
                f"The training diverged: {bad[0]} at iteration {iteration}, on images "
                f"{', '.join(map(str, batch.image_ids))} of process {self.process.rank}. Lower the learning rate."
            )
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self.scaler.scale(torch.stack(list(losses.values())).sum()))
        limit = self.config.recipe.gradient_norm
        if limit is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return means


def iteration_seed(*numbers: int) -> int:
    """One seed for torch from the seed of the run, an iteration and a process.

    Example:
        >>> iteration_seed(0, 1, 0) != iteration_seed(0, 0, 1)
        True
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1
