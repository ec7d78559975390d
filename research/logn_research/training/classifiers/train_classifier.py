"""Training an image classifier: the same run whether it is killed and resumed or not."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import torch

from logn.classes.counts import ClassCounts
from logn.errors import InputError
from logn_research.datasets.labelled_images import LabelledImages, require_every_class
from logn_research.losses.loss_factory import make_loss
from logn_research.training.classifiers.config import ClassifierTrainingConfig
from logn_research.training.classifiers.images import ClassifierBatches
from logn_research.training.classifiers.models import Classifier, ClassifierSettings, build_classifier
from logn_research.training.classifiers.scaled_classifier import ScaledLinear
from logn_research.training.detectors.region_sampling import ClassificationLoss
from logn_research.training.detectors.train_detector import TrainingResult
from logn_research.training.engine.backbone_weights import read_backbone_weights
from logn_research.training.engine.batches import ImageStream
from logn_research.training.engine.checkpoint import FILE_NAME, read_checkpoint, restore_weights
from logn_research.training.engine.distributed import DistributedContext, run_distributed
from logn_research.training.engine.finetuning import start_from
from logn_research.training.engine.output_folder import output_folder
from logn_research.training.engine.trainer import Trainer


def load_classifier(path: str | os.PathLike[str], *, num_classes: int | None = None) -> Classifier:
    """Build the image classifier that a run trained, in evaluation mode.

    Scales that were learnt for the classes (LWS) are in the weights of its class layer, which is an ordinary one.

    Args:
        path: Folder of the run, or its checkpoint file.
        num_classes: How many classes the data has that the classifier is for; another number is refused.
    """
    checkpoint = read_checkpoint(path, ClassifierSettings, num_classes=num_classes)
    model = build_classifier(checkpoint.settings)
    restore_weights(model, checkpoint)
    if isinstance(model.cls_score, ScaledLinear):
        model.cls_score = model.cls_score.merged()
    model.class_names = checkpoint.class_names
    model.image_counts = tuple(checkpoint.extra["image_counts"])
    model.data_options = checkpoint.extra["data"]
    return model.eval()


def train_classifier(
    config: ClassifierTrainingConfig,
    *,
    images: LabelledImages | None = None,
    resume: bool = True,
    processes: int = 1,
    device: str = "auto",
    workers: int | None = None,
    classification_loss: ClassificationLoss | None = None,
    progress: bool | None = None,
) -> TrainingResult:
    """Train an image classifier, or resume a run that was stopped.

    A resumed run does what the uninterrupted one would have done, to the bit on a CPU.

    Args:
        config: What to train.
        images: The training images, in place of those that `config` names.
        resume: Continue from the checkpoint in the folder of the run, if there is one; False starts over.
        processes: How many processes to start; leave it 1 under torchrun, which starts them itself.
        device: `auto`, `cpu` or `cuda`.
        workers: Processes that read images ahead; by default none on a CPU, whose cores are busy, else 4.
        classification_loss: Takes logits `(N, C)` and labels `(N,)`; by default the one that `config` names. A
            module's buffers are kept in the checkpoint.
        progress: Whether to draw a progress bar on stderr; None does so on a terminal.
    """
    work = partial(
        _train,
        config,
        images=images,
        resume=resume,
        workers=workers,
        classification_loss=classification_loss,
        progress=progress,
    )
    return run_distributed(work, processes=processes, device=device)


def _train(
    config: ClassifierTrainingConfig,
    context: DistributedContext,
    *,
    images: LabelledImages | None,
    resume: bool,
    workers: int | None,
    classification_loss: ClassificationLoss | None,
    progress: bool | None,
) -> TrainingResult:
    images = config.training_images() if images is None else images
    require_every_class(images)
    if images.num_classes < 2:
        raise InputError(
            f"Expected `{images.source}` to hold images of at least 2 classes, but `{images.class_names[0]}` is the "
            "only one."
        )
    config.check_processes(context.world_size)
    sampler = config.make_sampler(images)
    schedule = config.schedule(len(images))
    model = _classifier(config, context, images, classification_loss)
    batches = ClassifierBatches(
        ImageStream(sampler, config.images_per_iteration, config.seed),
        images,
        config.augmentation,
        size=model.settings.image_size,
        resize=model.settings.resize,
        rank=context.rank,
        world_size=context.world_size,
    )
    facts = {"image_counts": images.image_counts.tolist(), "data": config.data_options()}
    ahead, shown = context.readers(workers), progress if context.is_leader else False
    with output_folder(Path(config.output)), torch.random.fork_rng(devices=context.cuda_devices):
        trainer = Trainer(config, context, schedule, model, class_names=images.class_names, facts=facts)
        start = trainer.resume() if resume else 0
        if start:
            _check_same_images(trainer.folder, images)
        elapsed, losses = trainer.fit(batches, start, workers=ahead, progress=shown)
    return TrainingResult(
        Path(config.output),
        schedule.total,
        start,
        *elapsed,
        losses,
        images.num_classes,
        len(images),
        context.world_size,
    )


def _classifier(
    config: ClassifierTrainingConfig,
    context: DistributedContext,
    images: LabelledImages,
    loss: ClassificationLoss | None,
) -> Classifier:
    """The classifier of `config`, ready to be trained."""
    weights = None if config.weights is None else read_backbone_weights(config.weights)
    model = build_classifier(config.settings(images.num_classes), seed=config.seed, weights=weights)
    counts = ClassCounts(images.image_counts.astype(np.float64), num_images=len(images))
    model.classification_loss = loss or make_loss(config.loss, counts, background=None)
    model.to(context.device).train()
    if config.start is not None:
        start_from(model, config.start, only=config.only, background=None)
    return model


def _check_same_images(folder: Path, images: LabelledImages) -> None:
    """Refuse to resume a run on other images, which their number per class shows."""
    before = np.asarray(read_checkpoint(folder / FILE_NAME, ClassifierSettings).extra["image_counts"])
    changed = np.flatnonzero(before != images.image_counts)
    if len(changed):
        label = int(changed[0])
        raise InputError(
            f"Expected the images of the run in `{folder}`, with {before[label]} of class {label}"
            f" (`{images.class_names[label]}`), but `{images.source}` has {images.image_counts[label]}; start over"
            " (`--fresh`) to replace that run."
        )
