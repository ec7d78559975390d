"""Training a detector: the same run whether it is killed and resumed or not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from logn.classes.counts import ClassCounts
from logn.datasets.detection_dataset import DetectionDataset
from logn.datasets.samplers import make_sampler
from logn.training.detectors.feature_memory import FeatureMemory, load_memory, remove_memories, save_memory
from logn.training.detectors.models import Detector, build_detector
from logn.training.detectors.plan import TrainingPlan, find_annotations
from logn.training.detectors.region_sampling import ClassificationLoss
from logn.training.detectors.two_stage import TwoStageDetector
from logn.training.engine.backbone_weights import read_backbone_weights
from logn.training.engine.batches import ImageStream, IterationBatches, SampleCache
from logn.training.engine.finetuning import start_from
from logn.training.engine.processes import Team, run_together
from logn.training.engine.run import Run, iteration_seed
from logn.training.engine.run_folder import run_folder
from logn.training.engine.schedule import Schedule
from logn.training.engine.training_log import progress_bar
from logn.training.losses.loss_factory import DEFAULT_LOSS, make_loss

# Sets the random numbers of the pass before the training apart from those of the training.
FILLING = 1


class DetectorRun(Run):
    """The state of a detector's run in one process.

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
        self.memory = FeatureMemory(len(class_names)) if plan.feature_memory else None
        model = _detector(plan, team, len(class_names), classification_loss, self.memory)
        super().__init__(plan, team, schedule, model, class_names=class_names)

    def resume(self) -> int:
        """Take up the checkpoint of the folder and the feature memory beside it, if there are any."""
        iteration = super().resume()
        if self.memory is not None and self.checkpoint_file.is_file():
            load_memory(self.memory, self.folder, iteration, self.team.rank)
        return iteration

    def save(self, iteration: int) -> None:
        """Write the checkpoint after so many iterations, and before it the feature memory of every process."""
        if self.memory is not None:
            save_memory(self.memory, self.folder, iteration, self.team.rank)
            self.team.gather(None)  # all of them are there
        super().save(iteration)
        if self.memory is not None and self.team.is_leader:
            remove_memories(self.folder, but=iteration)

    def fill_memory(self, batches: IterationBatches, count: int, *, workers: int, progress: bool | None) -> None:
        """Show the detector so many batches before it is trained, to fill its feature memory and the loss's scores."""
        assert isinstance(self.model, TwoStageDetector)  # noqa: S101 - the plan refuses others
        with progress_bar(count, 0, shown=progress, title="Filling the memory") as report:
            for iteration, batch in enumerate(batches.iterate(0, count, workers=workers)):
                torch.manual_seed(iteration_seed(self.plan.seed, iteration, self.team.rank, FILLING))
                moved = batch.to(self.team.device)
                with torch.autocast(self.team.device.type, enabled=self.amp):
                    self.model.learn_regions(moved.images, moved.targets)
                report(iteration + 1, "")
        self.save(0)


def _detector(
    plan: TrainingPlan,
    team: Team,
    num_classes: int,
    loss: ClassificationLoss | None,
    memory: FeatureMemory | None,
) -> Detector:
    """The detector of the plan, ready to be trained."""
    file = plan.backbone_file()
    weights = None if file is None else read_backbone_weights(file)
    model = build_detector(plan.detector(num_classes), seed=plan.seed, weights=weights)
    if loss is not None:
        model.use_loss(loss)
    model.to(team.device).train()
    if plan.start is not None:
        start_from(model, plan.start, only=plan.only)
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


def train(
    plan: TrainingPlan,
    *,
    resume: bool = True,
    processes: int = 1,
    device: str = "auto",
    workers: int | None = None,
    classification_loss: ClassificationLoss | None = None,
    progress: bool | None = None,
) -> TrainingResult:
    """Train a detector, or go on with a run that was stopped.

    A resumed run does what the uninterrupted one would have done, to the bit on a CPU.

    Args:
        plan: What to train.
        resume: Go on from the checkpoint in the folder of the run, if there is one; False starts anew.
        processes: How many processes to start; leave it 1 under torchrun, which starts them itself.
        device: `auto`, `cpu` or `cuda`.
        workers: Processes that read images ahead; by default none on a CPU, whose cores are busy, else 4.
        classification_loss: Takes logits `(N, F + 1)` and class columns `(N,)` with background 0; by default the one
            that the plan names. A module's buffers are kept in the checkpoint.
        progress: Whether to draw a progress bar on stderr; None does so on a terminal.
    """
    work = partial(
        _train,
        plan,
        resume=resume,
        workers=workers,
        classification_loss=classification_loss,
        progress=progress,
    )
    return run_together(work, processes=processes, device=device)


def _train(
    plan: TrainingPlan,
    team: Team,
    *,
    resume: bool,
    workers: int | None,
    classification_loss: ClassificationLoss | None,
    progress: bool | None,
) -> TrainingResult:
    dataset = DetectionDataset(find_annotations(plan.data), plan.images)
    sampler = make_sampler(plan.sampler, dataset, threshold=plan.repeat_threshold)
    epoch = len(sampler.indices(0, plan.seed))
    schedule = plan.schedule(epoch)
    plan.check_processes(team.world)
    stream = ImageStream(sampler, plan.images_per_iteration, plan.seed)
    read = SampleCache(dataset, masks=plan.has_masks).__getitem__
    batches = IterationBatches(stream, read, plan.augmentation, rank=team.rank, world=team.world, masks=plan.has_masks)
    ahead = team.readers(workers)
    shown = progress if team.is_leader else False
    with run_folder(Path(plan.output)), torch.random.fork_rng(devices=team.cuda_devices):
        run = DetectorRun(plan, team, schedule, dataset.class_names, classification_loss or _loss(plan, dataset))
        begun = resume and run.checkpoint_file.is_file()
        start = run.resume() if begun else 0
        if plan.fills_memory and not begun:
            run.fill_memory(batches, math.ceil(epoch / plan.images_per_iteration), workers=ahead, progress=shown)
        elapsed, losses = run.go(batches, start, workers=ahead, progress=shown)
    return TrainingResult(
        Path(plan.output), schedule.total, start, *elapsed, losses, dataset.num_classes, len(dataset), team.world
    )


def _loss(plan: TrainingPlan, dataset: DetectionDataset) -> ClassificationLoss | None:
    if plan.loss_name == DEFAULT_LOSS:
        return None  # torch's own, without a module around it
    annotated = sum(len(labels) > 0 for labels in dataset.labels_per_image())
    counts = ClassCounts(
        dataset.image_counts.astype(np.float64),
        instance_counts=dataset.instance_counts.astype(np.float64),
        num_images=max(annotated, 1),
    )
    return make_loss(plan.loss_name, counts, background=0)
