"""Training a detector: the same run whether it is killed and resumed or not."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from logn.classes.counts import ClassCounts
from logn.errors import LogNWarning
from logn.labels.dataset import DetectionDataset
from logn_research.datasets.samplers import make_sampler
from logn_research.losses.loss_factory import DEFAULT_LOSS, make_loss
from logn_research.training.detectors.config import DetectorTrainingConfig, find_annotations
from logn_research.training.detectors.feature_memory import FeatureMemory, load_memory, remove_memories, save_memory
from logn_research.training.detectors.models import Detector, build_detector
from logn_research.training.detectors.region_sampling import ClassificationLoss
from logn_research.training.detectors.two_stage import TwoStageDetector
from logn_research.training.engine.backbone_weights import read_backbone_weights
from logn_research.training.engine.batches import ImageStream, IterationBatches, SampleCache
from logn_research.training.engine.distributed import DistributedContext, run_distributed
from logn_research.training.engine.finetuning import start_from
from logn_research.training.engine.output_folder import output_folder
from logn_research.training.engine.schedule import Schedule
from logn_research.training.engine.trainer import Trainer, iteration_seed
from logn_research.training.engine.training_log import progress_bar

# Sets the random numbers of the pass before the training apart from those of the training.
FILLING = 1


class DetectorTrainer(Trainer):
    """Trains a detector in one process and keeps its state.

    Args:
        config: What to train.
        context: This process among the others.
        schedule: The learning rates.
        class_names: Of the foreground classes.
        classification_loss: In place of cross entropy.
    """

    def __init__(
        self,
        config: DetectorTrainingConfig,
        context: DistributedContext,
        schedule: Schedule,
        class_names: tuple[str, ...],
        classification_loss: ClassificationLoss | None = None,
    ) -> None:
        self.memory = FeatureMemory(len(class_names)) if config.feature_memory else None
        model = _detector(config, context, len(class_names), classification_loss, self.memory)
        super().__init__(config, context, schedule, model, class_names=class_names)

    def resume(self) -> int:
        """Load the checkpoint of the folder and the feature memory next to it, if there are any."""
        iteration = super().resume()
        if self.memory is not None and self.checkpoint_file.is_file():
            load_memory(self.memory, self.folder, iteration, self.context.rank)
        return iteration

    def save(self, iteration: int) -> None:
        """Write the feature memory of every process, then the checkpoint after `iteration` iterations."""
        if self.memory is not None:
            save_memory(self.memory, self.folder, iteration, self.context.rank)
            self.context.gather(None)  # all of them are there
        super().save(iteration)
        if self.memory is not None and self.context.is_leader:
            remove_memories(self.folder, but=iteration)

    def fill_memory(self, batches: IterationBatches, count: int, *, workers: int, progress: bool | None) -> None:
        """Show the detector `count` batches before it is trained, to fill its feature memory and the loss's scores."""
        assert isinstance(self.model, TwoStageDetector)  # noqa: S101 - the configuration refuses others
        with progress_bar(count, 0, shown=progress, title="Filling the memory") as report:
            for iteration, batch in enumerate(batches.iterate(0, count, workers=workers)):
                torch.manual_seed(iteration_seed(self.config.seed, iteration, self.context.rank, FILLING))
                moved = batch.to(self.context.device)
                with torch.autocast(self.context.device.type, enabled=self.amp):
                    self.model.learn_regions(moved.images, moved.targets)
                report(iteration + 1, "")
        self.save(0)


def _detector(
    config: DetectorTrainingConfig,
    context: DistributedContext,
    num_classes: int,
    loss: ClassificationLoss | None,
    memory: FeatureMemory | None,
) -> Detector:
    """The detector of `config`, ready to be trained."""
    file = config.backbone_file()
    weights = None if file is None else read_backbone_weights(file)
    model = build_detector(config.detector(num_classes), seed=config.seed, weights=weights)
    if loss is not None:
        model.use_loss(loss)
    model.to(context.device).train()
    if config.start is not None:
        start_from(model, config.start, only=config.only)
    if memory is not None and isinstance(model, TwoStageDetector):
        model.use_memory(memory)
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
        resume: Continue from the checkpoint in the folder of the run, if there is one; False starts over.
        processes: How many processes to start; leave it 1 under torchrun, which starts them itself.
        device: `auto`, `cpu` or `cuda`.
        workers: Processes that read images ahead; by default none on a CPU, whose cores are busy, else 4.
        classification_loss: Takes logits `(N, F + 1)` and class columns `(N,)` with background 0; by default the one
            that `config` names. A module's buffers are kept in the checkpoint.
        progress: Whether to draw a progress bar on stderr; None does so on a terminal.
    """
    work = partial(
        _train,
        config,
        resume=resume,
        workers=workers,
        classification_loss=classification_loss,
        progress=progress,
    )
    return run_distributed(work, processes=processes, device=device)


def _train(
    config: DetectorTrainingConfig,
    context: DistributedContext,
    *,
    resume: bool,
    workers: int | None,
    classification_loss: ClassificationLoss | None,
    progress: bool | None,
) -> TrainingResult:
    dataset = DetectionDataset(find_annotations(config.data), config.images)
    sampler = make_sampler(config.sampler, dataset, threshold=config.repeat_threshold)
    epoch = len(sampler.indices(0, config.seed))
    schedule = config.schedule(epoch)
    config.check_processes(context.world_size)
    stream = ImageStream(sampler, config.images_per_iteration, config.seed)
    masks = config.has_masks and dataset.has_masks
    if config.has_masks and not masks and context.is_leader:
        warnings.warn(
            f"`{dataset.annotation_file}` has boxes only, so the masks of `{config.model}` are not trained.",
            LogNWarning,
            stacklevel=2,
        )
    read = SampleCache(dataset, masks=masks).__getitem__
    batches = IterationBatches(
        stream, read, config.augmentation, rank=context.rank, world_size=context.world_size, masks=masks
    )
    ahead = context.readers(workers)
    shown = progress if context.is_leader else False
    with output_folder(Path(config.output)), torch.random.fork_rng(devices=context.cuda_devices):
        trainer = DetectorTrainer(
            config, context, schedule, dataset.class_names, classification_loss or _loss(config, dataset)
        )
        begun = resume and trainer.checkpoint_file.is_file()
        start = trainer.resume() if begun else 0
        if config.fills_memory and not begun:
            trainer.fill_memory(batches, math.ceil(epoch / config.images_per_iteration), workers=ahead, progress=shown)
        elapsed, losses = trainer.fit(batches, start, workers=ahead, progress=shown)
    return TrainingResult(
        Path(config.output),
        schedule.total,
        start,
        *elapsed,
        losses,
        dataset.num_classes,
        len(dataset),
        context.world_size,
    )


def _loss(config: DetectorTrainingConfig, dataset: DetectionDataset) -> ClassificationLoss | None:
    if config.loss_name == DEFAULT_LOSS:
        return None  # torch's own, without a module around it
    annotated = sum(len(labels) > 0 for labels in dataset.labels_per_image())
    counts = ClassCounts(
        dataset.image_counts.astype(np.float64),
        instance_counts=dataset.instance_counts.astype(np.float64),
        num_images=max(annotated, 1),
    )
    return make_loss(config.loss_name, counts, background=0)
