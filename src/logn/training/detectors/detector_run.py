"""DetectorRun: the run of a detector, with the feature memory of its second stage."""

from __future__ import annotations

import torch

from logn.training.detectors.feature_memory import FeatureMemory
from logn.training.detectors.memory_files import load_memory, remove_memories, save_memory
from logn.training.detectors.models import Detector, build_detector
from logn.training.detectors.plan import TrainingPlan
from logn.training.detectors.region_sampling import ClassificationLoss
from logn.training.detectors.two_stage import TwoStageDetector
from logn.training.engine.backbone_weights import read_backbone_weights
from logn.training.engine.batches import IterationBatches
from logn.training.engine.finetuning import start_from
from logn.training.engine.processes import Team
from logn.training.engine.run import Run, iteration_seed
from logn.training.engine.schedule import Schedule
from logn.training.engine.training_log import progress_bar

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
