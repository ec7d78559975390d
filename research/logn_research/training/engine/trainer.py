"""Trainer: the training loop of one process, for any model, with checkpoints, log and progress bar."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from logn.errors import InputError
from logn.files import remove_leftovers, write_safetensors
from logn_research.training.engine.batches import TrainingBatches
from logn_research.training.engine.checkpoint import (
    FILE_NAME,
    Checkpoint,
    optimizer_momentum,
    read_checkpoint,
    restore_momentum,
    restore_weights,
    settings_of,
)
from logn_research.training.engine.distributed import DistributedContext
from logn_research.training.engine.schedule import Schedule
from logn_research.training.engine.training_config import TrainingConfig
from logn_research.training.engine.training_log import TrainingLog, progress_bar

LOG_EVERY = 10


class NonFiniteLossError(InputError):
    """The loss became infinite or not a number; the message names the images and the file with the batch."""


class TrainingBatch(Protocol):
    """What a model is called with in one iteration."""

    @property
    def images(self) -> Any:
        """What the model sees."""

    @property
    def targets(self) -> Any:
        """What it should say."""

    @property
    def image_ids(self) -> list[int]:
        """Which images these are."""

    def to(self, device: torch.device) -> TrainingBatch:
        """The same batch on a device."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Images and targets under a name each, for a file."""


class Elapsed(NamedTuple):
    """Seconds that passed, and those that this process computed."""

    wall: float
    processor: float


class Trainer:
    """Trains a model in one process and keeps its state: model, optimizer, files.

    Args:
        config: What to train.
        context: This process among the others.
        schedule: The learning rates.
        model: With `settings`, in training mode, on the device of `context`; called with images and targets it gives
            its losses by name.
        class_names: Of the foreground classes.
        facts: What else to keep in the checkpoint.
    """

    def __init__(
        self,
        config: TrainingConfig,
        context: DistributedContext,
        schedule: Schedule,
        model: nn.Module,
        *,
        class_names: tuple[str, ...],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.config, self.context, self.schedule, self.class_names = config, context, schedule, class_names
        self.model, self.facts, self.folder = model, dict(facts or {}), Path(config.output)
        recipe = config.recipe
        self.optimizer = torch.optim.SGD(
            [weight for weight in self.model.parameters() if weight.requires_grad],
            lr=schedule.peak,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        self.amp = config.mixed_precision(context.device.type)
        # float16 underflows without it; the bfloat16 of a CPU has the range of float32.
        self.scaler = torch.amp.GradScaler(enabled=self.amp and context.device.type == "cuda")
        self.settings = config.run_settings(total=schedule.total, world_size=context.world_size)

    @property
    def checkpoint_file(self) -> Path:
        """Where the checkpoint lies."""
        return self.folder / FILE_NAME

    def resume(self) -> int:
        """Load the checkpoint of the folder, if there is one; returns how many iterations it has done."""
        if not self.checkpoint_file.is_file():
            return 0
        checkpoint = read_checkpoint(self.checkpoint_file, type(settings_of(self.model)))
        try:
            restore_weights(self.model, checkpoint)
        except InputError as error:
            raise InputError(f"{str(error)[:-1]} (`{self.checkpoint_file}`; `--fresh` replaces it).") from error
        # What has its default is not written down, so either side may lack a name.
        for name in dict.fromkeys((*self.settings, *checkpoint.run)):
            before, now = checkpoint.run.get(name), self.settings.get(name)
            if before != now:
                raise InputError(
                    f"Expected `{name}` to be {before!r} as in `{self.checkpoint_file}`, but got"
                    f" {now!r}; start over (`--fresh`) to replace that run."
                )
        restore_momentum(self.model, self.optimizer, checkpoint.momentum)
        if self.scaler.is_enabled() and "scaler" in checkpoint.extra:
            self.scaler.load_state_dict(checkpoint.extra["scaler"])
        return checkpoint.iteration

    def save(self, iteration: int) -> None:
        """Write the checkpoint after `iteration` iterations."""
        if not self.context.is_leader:
            return
        Checkpoint(
            settings_of(self.model),
            iteration,
            self.model.state_dict(),
            optimizer_momentum(self.model, self.optimizer),
            self.settings,
            self.class_names,
            self.facts | ({"scaler": self.scaler.state_dict()} if self.scaler.is_enabled() else {}),
        ).save(self.checkpoint_file)
        remove_leftovers(self.checkpoint_file)  # of a process that was ended while it wrote

    def fit(
        self, batches: TrainingBatches, start: int, *, workers: int, progress: bool | None
    ) -> tuple[Elapsed, dict[str, float]]:
        """Train from iteration `start` to the end; returns the time it took and the last mean losses."""
        total, every = self.schedule.total, self.config.recipe.checkpoint_every
        model = _wrap(self.model, self.context)
        log = TrainingLog(self.folder, start) if self.context.is_leader else None
        losses: dict[str, float] = {}
        began, processor_began = time.monotonic(), time.process_time()
        with progress_bar(total, start, shown=progress) as report:
            for iteration, batch in enumerate(batches.iterate(start, total, workers=workers), start):
                step_losses = self.step(model, batch, iteration)
                done = iteration + 1
                checkpoint_due = done % every == 0 or done == total
                if log is not None:
                    log.add(step_losses)
                    if done % LOG_EVERY == 0 or checkpoint_due:
                        rate = self.schedule.learning_rate(iteration)
                        losses = log.write(done, learning_rate=rate, seconds=time.monotonic() - began)
                    report(done, " ".join(f"{_short(name)} {value:.2f}" for name, value in losses.items()))
                if checkpoint_due:
                    self.save(done)
        return Elapsed(time.monotonic() - began, time.process_time() - processor_began), losses

    def step(self, model: nn.Module, batch: TrainingBatch, iteration: int) -> dict[str, float]:
        """One iteration of gradient descent; returns the losses, averaged over the processes."""
        torch.manual_seed(iteration_seed(self.config.seed, iteration, self.context.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate(iteration)
        moved = batch.to(self.context.device)
        with torch.autocast(self.context.device.type, enabled=self.amp):
            losses: dict[str, Tensor] = model(moved.images, moved.targets)
        means = self.context.mean(losses)
        if not all(math.isfinite(value) for value in means.values()):
            self.raise_non_finite(batch, losses, iteration)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self.scaler.scale(torch.stack(list(losses.values())).sum()))
        limit = self.config.recipe.gradient_norm
        if limit is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return means

    def raise_non_finite(self, batch: TrainingBatch, losses: Mapping[str, Tensor], iteration: int) -> None:
        """Save the batch whose loss is not finite, and raise the same error in every process."""
        bad = {name: value.item() for name, value in losses.items() if not torch.isfinite(value)}
        path = self.folder / (
            f"nan_batch_{self.context.rank}.safetensors" if self.context.world_size > 1 else "nan_batch.safetensors"
        )
        if bad:
            save_batch(path, batch, iteration)
        reports = self.context.gather((str(path), batch.image_ids, bad))
        files = [path for path, _, bad in reports if bad]
        ids = [image for _, images, bad in reports if bad for image in images]
        what = next(f"{name} was {value}" for _, _, bad in reports for name, value in bad.items())
        raise NonFiniteLossError(
            f"Expected the loss to stay finite, but {what} at iteration {iteration} on images"
            f" {', '.join(map(str, ids))}; the batch is in {', '.join(files)}."
        )


def save_batch(path: Path, batch: TrainingBatch, iteration: int) -> None:
    """Write images and targets of a batch to a safetensors file, to look at."""
    ids = ",".join(map(str, batch.image_ids))
    metadata = {"format": "logn-batch", "schema": "1", "iteration": str(iteration), "image_ids": ids}
    write_safetensors(path, batch.arrays(), metadata)


def iteration_seed(*numbers: int) -> int:
    """One seed for torch from the seed of the run, an iteration and a process.

    Example:
        >>> iteration_seed(0, 1, 0) != iteration_seed(0, 0, 1)
        True
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1


def _wrap(model: nn.Module, context: DistributedContext) -> nn.Module:
    if context.world_size == 1:
        return model
    return DistributedDataParallel(model, device_ids=context.cuda_devices or None, gradient_as_bucket_view=True)


def _short(name: str) -> str:
    return name.removeprefix("loss_").replace("_", " ")
