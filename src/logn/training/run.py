"""Run: the state of a training in one process, and one iteration of it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from logn.errors import InputError
from logn.files import write_safetensors
from logn.training.backbone_weights import read_backbone_weights
from logn.training.batches import Batch, IterationBatches
from logn.training.checkpoint import (
    FILE_NAME,
    Checkpoint,
    optimizer_momentum,
    restore_momentum,
    restore_weights,
)
from logn.training.detectors import Detector, build_detector
from logn.training.feature_memory import FeatureMemory
from logn.training.memory_files import load_memory, remove_memories, save_memory
from logn.training.plan import TrainingPlan
from logn.training.presets import Schedule
from logn.training.processes import Team
from logn.training.region_sampling import ClassificationLoss
from logn.training.trained_parts import start_from
from logn.training.training_log import TrainingLog, progress_bar
from logn.training.two_stage import TwoStageDetector

LOG_EVERY = 10
# Sets the random numbers of the pass before the training apart from those of the training.
FILLING = 1


class NonFiniteLossError(InputError):
    """The loss became infinite or not a number; the message names the images and the file with the batch."""


class Run:
    """The state of a run in one process: model, optimizer, files.

    Args:
        plan: What to train.
        team: This process among the others.
        schedule: The learning rates.
        class_names: Of the foreground classes.
        classification_loss: In place of cross entropy.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        team: Team,
        schedule: Schedule,
        class_names: tuple[str, ...],
        classification_loss: ClassificationLoss | None = None,
    ) -> None:
        self.plan, self.team, self.schedule, self.class_names = plan, team, schedule, class_names
        self.folder = Path(plan.output)
        weights = None if plan.weights is None else read_backbone_weights(plan.weights)
        self.model = build_detector(plan.detector(len(class_names)), seed=plan.seed, weights=weights)
        if classification_loss is not None:
            self.model.use_loss(classification_loss)
        self.model.to(team.device).train()
        if plan.start is not None:
            start_from(self.model, plan.start, only=plan.only)
        self.memory = FeatureMemory(len(class_names)) if plan.feature_memory else None
        if self.memory is not None and isinstance(self.model, TwoStageDetector):
            self.model.use_memory(self.memory)
        recipe = plan.recipe
        self.optimizer = torch.optim.SGD(
            [weight for weight in self.model.parameters() if weight.requires_grad],
            lr=schedule.peak,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        self.amp = team.device.type == "cuda"
        self.scaler = torch.amp.GradScaler(enabled=self.amp)
        self.settings = plan.run_settings(total=schedule.total, world=team.world)

    @property
    def checkpoint_file(self) -> Path:
        """Where the checkpoint lies."""
        return self.folder / FILE_NAME

    def resume(self) -> int:
        """Take up the checkpoint of the folder, if there is one, and say how many iterations it has done."""
        if not self.checkpoint_file.is_file():
            return 0
        checkpoint = Checkpoint.load(self.checkpoint_file)
        try:
            restore_weights(self.model, checkpoint)
        except InputError as error:
            raise InputError(f"{str(error)[:-1]} (`{self.checkpoint_file}`; `--fresh` replaces it).") from error
        for name, value in self.settings.items():
            if checkpoint.run.get(name) != value:
                raise InputError(
                    f"Expected `{name}` to be {checkpoint.run.get(name)!r} as in `{self.checkpoint_file}`, but got"
                    f" {value!r}; start anew (`--fresh`) to replace that run."
                )
        restore_momentum(self.model, self.optimizer, checkpoint.momentum)
        if self.amp and "scaler" in checkpoint.extra:
            self.scaler.load_state_dict(checkpoint.extra["scaler"])
        if self.memory is not None:
            load_memory(self.memory, self.folder, checkpoint.iteration, self.team.rank)
        return checkpoint.iteration

    def save(self, iteration: int) -> None:
        """Write the checkpoint after so many iterations, and before it the feature memory of every process."""
        if self.memory is not None:
            save_memory(self.memory, self.folder, iteration, self.team.rank)
            self.team.gather(None)  # all of them are there
        if not self.team.is_leader:
            return
        Checkpoint(
            self.model.settings,
            iteration,
            self.model.state_dict(),
            optimizer_momentum(self.model, self.optimizer),
            self.settings,
            self.class_names,
            {"scaler": self.scaler.state_dict()} if self.amp else {},
        ).save(self.checkpoint_file)
        if self.memory is not None:
            remove_memories(self.folder, but=iteration)

    def fill_memory(self, batches: IterationBatches, count: int, *, workers: int, progress: bool | None) -> None:
        """Show the detector so many batches before it is trained, to fill its feature memory and the loss's scores."""
        assert isinstance(self.model, TwoStageDetector)  # noqa: S101 - the plan refuses others
        with progress_bar(count, 0, shown=progress, title="Filling the memory") as report:
            for iteration, batch in enumerate(batches.iterate(0, count, workers=workers)):
                torch.manual_seed(_iteration_seed(self.plan.seed, iteration, self.team.rank, FILLING))
                moved = batch.to(self.team.device)
                with torch.autocast(self.team.device.type, enabled=self.amp):
                    self.model.learn_regions(moved.images, moved.targets)
                report(iteration + 1, "")
        self.save(0)

    def go(
        self, batches: IterationBatches, start: int, *, workers: int, progress: bool | None
    ) -> tuple[float, dict[str, float]]:
        """Do the iterations from `start` to the end; gives their time and the last mean losses."""
        total, every = self.schedule.total, self.plan.recipe.checkpoint_every
        model = _wrap(self.model, self.team)
        log = TrainingLog(self.folder, start) if self.team.is_leader else None
        losses: dict[str, float] = {}
        began = time.monotonic()
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
        return time.monotonic() - began, losses

    def step(self, model: nn.Module, batch: Batch, iteration: int) -> dict[str, float]:
        """One iteration of gradient descent; gives the losses, averaged over the processes."""
        torch.manual_seed(_iteration_seed(self.plan.seed, iteration, self.team.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate(iteration)
        moved = batch.to(self.team.device)
        with torch.autocast(self.team.device.type, enabled=self.amp):
            losses: dict[str, Tensor] = model(moved.images, moved.targets)
        means = self.team.mean(losses)
        if not all(math.isfinite(value) for value in means.values()):
            self.stop(batch, losses, iteration)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self.scaler.scale(torch.stack(list(losses.values())).sum()))
        limit = self.plan.recipe.gradient_norm
        if limit is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return means

    def stop(self, batch: Batch, losses: Mapping[str, Tensor], iteration: int) -> None:
        """Save the batch whose loss is not finite, and say so, in every process alike."""
        bad = {name: value.item() for name, value in losses.items() if not torch.isfinite(value)}
        path = self.folder / (
            f"nan_batch_{self.team.rank}.safetensors" if self.team.world > 1 else "nan_batch.safetensors"
        )
        if bad:
            save_batch(path, batch, iteration)
        reports = self.team.gather((str(path), batch.image_ids, bad))
        files = [path for path, _, bad in reports if bad]
        ids = [image for _, images, bad in reports if bad for image in images]
        what = next(f"{name} was {value}" for _, _, bad in reports for name, value in bad.items())
        raise NonFiniteLossError(
            f"Expected the loss to stay finite, but {what} at iteration {iteration} on images"
            f" {', '.join(map(str, ids))}; the batch is in {', '.join(files)}."
        )


def save_batch(path: Path, batch: Batch, iteration: int) -> None:
    """Write images and targets of a batch to a safetensors file, to look at."""
    arrays: dict[str, np.ndarray] = {}
    for place, (image, target) in enumerate(zip(batch.images, batch.targets, strict=True)):
        arrays[f"image_{place}"] = image.cpu().numpy()
        tensors = {name: value for name, value in target.items() if isinstance(value, Tensor)}
        arrays |= {f"{name}_{place}": value.cpu().numpy() for name, value in tensors.items()}
    ids = ",".join(map(str, batch.image_ids))
    metadata = {"format": "logn-batch", "schema": "1", "iteration": str(iteration), "image_ids": ids}
    write_safetensors(path, arrays, metadata)


def _iteration_seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def _wrap(model: Detector, team: Team) -> nn.Module:
    if team.world == 1:
        return model
    devices: list[Any] | None = [team.device] if team.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


def _short(name: str) -> str:
    return name.removeprefix("loss_").replace("_", " ")
