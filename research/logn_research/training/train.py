"""Training a detector: the same run whether it is killed and resumed or not."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from logn.base.files import write_text
from logn.data.class_counts import ClassCounts
from logn.errors import LogNWarning
from logn_research.datasets.sample_dataset import SampleDataset, find_annotations
from logn_research.datasets.samplers import make_sampler
from logn_research.losses.loss_factory import DEFAULT_LOSS, make_loss
from logn_research.training.backbones import read_backbone_weights
from logn_research.training.batches import DetectorBatches, ImageStream, SampleCache
from logn_research.training.checkpoint import read_checkpoint, start_from
from logn_research.training.detectors import TwoStageDetector, build_detector
from logn_research.training.feature_memory import FeatureMemory, load_memory, remove_memories, save_memory
from logn_research.training.recipes import DetectorTrainingConfig
from logn_research.training.regions import ClassificationLoss
from logn_research.training.trainer import (
    Process,
    Trainer,
    iteration_seed,
    output_folder,
    progress_bar,
    run_distributed,
)

# Sets the random numbers of the pass before the training apart from those of the training.
FILLING = 1
#: What `logn train` leaves beside the checkpoint, so that every verb of `logn` opens the run by `RUN/model.py:load`.
MODEL_FILE = "model.py"
_MODEL_CODE = '''"""The detector of this run, for the verbs of `logn`: `logn predict RUN/model.py:load ...`."""

from pathlib import Path

from logn_research.training.train import load_detector


def load():
    """The detector, in evaluation mode."""
    return load_detector(Path(__file__).parent)
'''


def load_detector(path: str | os.PathLike[str], *, num_classes: int | None = None) -> TwoStageDetector:
    """Build the detector that a run trained, in evaluation mode.

    Args:
        path: Folder of the run, or its checkpoint file.
        num_classes: How many foreground classes the data has that the detector is for; another number is refused.
    """
    checkpoint = read_checkpoint(path, num_classes=num_classes)
    model = build_detector(checkpoint.settings)
    checkpoint.restore_weights(model)
    model.class_names = checkpoint.class_names
    model.eval()
    return model


@dataclass(frozen=True)
class TrainingResult:
    """What a run did.

    Args:
        output: Folder of the run.
        iterations: How many iterations the model has been trained.
        resumed_from: How many of them were done before this call.
        seconds: Time of the iterations of this call.
        processor_seconds: Processor time of them, in this process.
        losses: Means of the last few iterations; empty when there was nothing left to do.
        num_classes: Foreground classes.
        num_images: Images of the training data.
        processes: How many processes trained together.
    """

    output: Path
    iterations: int
    resumed_from: int
    seconds: float
    processor_seconds: float
    losses: Mapping[str, float]
    num_classes: int
    num_images: int
    processes: int

    @property
    def seconds_per_iteration(self) -> float:
        """Mean time of an iteration of this call; NaN when there was none."""
        done = self.iterations - self.resumed_from
        return self.seconds / done if done else math.nan


def train_detector(
    config: DetectorTrainingConfig,
    *,
    resume: bool = True,
    processes: int = 1,
    device: str = "auto",
    workers: int | None = None,
    classification_loss: ClassificationLoss | None = None,
    progress: bool | None = None,
) -> TrainingResult:
    """Train a detector, or resume a run that was stopped.

    A resumed run does what the uninterrupted one would have done, to the bit on a CPU.

    Args:
        config: What to train.
        resume: Continue from the checkpoint in the folder of the run; False starts over.
        processes: How many to start; leave it 1 under torchrun.
        device: `auto`, `cpu` or `cuda`.
        workers: Processes that read images ahead; by default none on a CPU, else 4.
        classification_loss: Takes logits `(N, F + 1)` and class columns `(N,)` with background 0; by default the one
            that `config` names. A module's buffers are kept in the checkpoint.
        progress: Whether to draw a bar on stderr; None does so on a terminal.
    """
    work = partial(
        _train, config, resume=resume, workers=workers, classification_loss=classification_loss, progress=progress
    )
    result: TrainingResult = run_distributed(work, processes=processes, device=device)
    return result


class DetectorTrainer(Trainer):
    """Trains a detector; keeps LOCE's memory of features, where there is one, beside the checkpoint."""

    memory: FeatureMemory | None = None

    def resume(self) -> int:
        """Load the checkpoint of the folder and the feature memory next to it."""
        iteration = super().resume()
        if self.memory is not None:
            load_memory(self.memory, self.folder, iteration, self.process.rank)
        return iteration

    def save(self, iteration: int) -> None:
        """Write the feature memory of every process, then the checkpoint after `iteration` iterations."""
        if self.memory is not None:
            save_memory(self.memory, self.folder, iteration, self.process.rank)
            if self.process.world_size > 1:
                dist.barrier()  # all of them are there
        super().save(iteration)
        if self.memory is not None and self.process.is_leader:
            remove_memories(self.folder, but=iteration)

    def fill_memory(self, batches: DetectorBatches, count: int, *, workers: int, progress: bool | None) -> None:
        """Show the detector `count` batches before it is trained, to fill its feature memory and the loss's scores."""
        model: Any = self.model
        with progress_bar(count, 0, shown=progress, title="Filling the memory") as report:
            for iteration, batch in enumerate(batches.iterate(0, count, workers=workers)):
                torch.manual_seed(iteration_seed(self.config.seed, iteration, self.process.rank, FILLING))
                moved = batch.to(self.process.device)
                with torch.autocast(self.process.device.type, enabled=self.amp):
                    model.learn_regions(moved.images, moved.targets)
                report(iteration + 1, "")
        self.save(0)


def _train(
    config: DetectorTrainingConfig,
    process: Process,
    *,
    resume: bool,
    workers: int | None,
    classification_loss: ClassificationLoss | None,
    progress: bool | None,
) -> TrainingResult:
    dataset = SampleDataset(find_annotations(config.data), config.images)
    sampler = make_sampler(config.sampler, dataset, threshold=config.repeat_threshold)
    epoch = len(sampler.indices(0, config.seed))
    schedule = config.schedule(epoch, process.world_size)
    masks = dataset.has_masks
    if not masks and process.is_leader:
        warnings.warn(
            f"`{dataset.annotation_file}` has boxes only, so the masks of `{config.model}` are not trained.",
            LogNWarning,
            stacklevel=2,
        )
    batches = DetectorBatches(
        ImageStream(sampler, config.images_per_iteration, config.seed),
        SampleCache(dataset, masks=masks).__getitem__,
        config.augmentation,
        rank=process.rank,
        world_size=process.world_size,
        masks=masks,
    )
    ahead, shown = process.readers(workers), progress if process.is_leader else False
    with output_folder(Path(config.output)), torch.random.fork_rng(devices=process.cuda_devices):
        model = _detector(config, process, dataset, classification_loss)
        trainer = DetectorTrainer(config, process, schedule, model, class_names=dataset.class_names)
        trainer.memory = model.roi_heads.feature_memory
        begun = resume and trainer.file.is_file()
        start = trainer.resume() if begun else 0
        if trainer.memory is not None and config.start is not None and not begun:
            count = math.ceil(epoch / config.images_per_iteration)
            trainer.fill_memory(batches, count, workers=ahead, progress=shown)
        seconds, processor, losses = trainer.fit(batches, start, workers=ahead, progress=shown)
        if process.is_leader:
            write_text(trainer.folder / MODEL_FILE, _MODEL_CODE)
    return TrainingResult(
        output=trainer.folder,
        iterations=schedule.total,
        resumed_from=start,
        seconds=seconds,
        processor_seconds=processor,
        losses=losses,
        num_classes=dataset.num_classes,
        num_images=len(dataset),
        processes=process.world_size,
    )


def _detector(
    config: DetectorTrainingConfig, process: Process, dataset: SampleDataset, loss: ClassificationLoss | None
) -> TwoStageDetector:
    """The detector of `config`, ready to be trained."""
    weights = None if config.weights is None else read_backbone_weights(config.weights)
    model = build_detector(config.settings(dataset.num_classes), seed=config.seed, weights=weights)
    if loss is None and config.loss != DEFAULT_LOSS:  # which is torch's own, without a module around it
        annotated = sum(len(labels) > 0 for labels in dataset.labels_per_image())
        images, objects = (counts.astype(np.float64) for counts in (dataset.image_counts, dataset.instance_counts))
        loss = make_loss(config.loss, ClassCounts(images, objects, num_images=max(annotated, 1)), background=0)
    if loss is not None:
        model.use_loss(loss)
    model.to(process.device).train()
    if config.start is not None:
        start_from(model, config.start, only=config.only)
    if config.feature_memory:
        model.use_memory(FeatureMemory(dataset.num_classes))
    return model
