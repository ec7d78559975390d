"""DetectorTrainingConfig: everything that defines the training of a detector, as plain values."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

from logn.errors import InputError
from logn.labels.training_annotations import find_annotations as find_annotations
from logn_research.datasets.samplers import PAPER_THRESHOLD, SAMPLERS
from logn_research.datasets.transforms import Augmentation
from logn_research.losses.loss_factory import DEFAULT_LOSS, parse_loss
from logn_research.training.detectors.settings import LIGHT, ONE_STAGE, SMALL_MODELS, DetectorSettings, default_loss
from logn_research.training.engine.backbone_weights import installed_weights
from logn_research.training.engine.schedule import Preset, get_preset
from logn_research.training.engine.training_config import TrainingConfig

#: In place of a file with weights, for a light detector.
FROM_SCRATCH = "none"


@dataclass(frozen=True)
class DetectorTrainingConfig(TrainingConfig):
    """What to train, on what, for how long, and where to put it; the other arguments are those of `TrainingConfig`.

    Args:
        data: LVIS or COCO annotation file, or a folder that holds `train.json`.
        images: Folder that the image paths start from; by default that of the annotation file.
        model: `small`, `small-one-stage`, `light`, `mask-rcnn-r50`, `mask-rcnn-r101` or `cascade-r101`.
        sampler: `random`, `repeat-factor-ceil`, `repeat-factor-stochastic` or `class-balanced`.
        repeat_threshold: Share of the images below which the repeat-factor samplers repeat a class. The paper's 0.001
            fits the 100,000 images of LVIS; on 2,400 glyph scenes 0.04 repeats as much.
        weights: Local file with the weights of the backbone, for the paper's detectors and the light one. A light one
            without it looks into installed packages; `none` trains it from random weights.
        backbone: Network of the light detector; see `DetectorSettings`.
        image_size: Shorter side of the images, instead of the model's.
        loss: Name of the classification loss, with options: `seesaw`, `eql:threshold=0.005`. By default cross entropy,
            for the one-stage detector `focal`, the only one that it takes.
        only: Train a part and freeze the rest: `classifier`, `new-classifier` (from random weights), `scales` (one per
            class, of a linear classifier) or `heads` (classifier, boxes, proposals and masks); needs `start`.
        mask_classifier: Last layer of the paper's detectors' masks, `linear` or `cosine`; by default as `classifier`.
        batch_norm: Of the ResNet of the paper's detectors with `weights`: `affine` (the default) trains its scale and
            shift, as MMDetection does, `frozen` does not.
        feature_memory: Add regions of earlier iterations to each batch, those of weak classes first: the other half of
            LOCE, for `loss="loce"`. With `start`, a pass over the training images fills the memory first.

    Example:
        >>> DetectorTrainingConfig("data", "runs/a", model="cascade-r101").recipe.milestones
        (16, 22)
    """

    samplers = SAMPLERS
    small_models = SMALL_MODELS

    images: str | Path | None = None
    _: KW_ONLY
    repeat_threshold: float = PAPER_THRESHOLD
    loss: str | None = None
    feature_memory: bool = False
    backbone: str | None = None
    mask_classifier: str | None = None
    batch_norm: str | None = None

    def __post_init__(self) -> None:
        self.detector(1)  # refuses unknown models and classifiers now, not after the data is read
        _ = self.recipe
        super().__post_init__()
        self._require_positive("repeat_threshold")
        if self.feature_memory and parse_loss(self.loss_name)[0] != "loce":
            raise InputError(f"Expected `feature_memory` to be used with the loss `loce`, but got `{self.loss_name}`.")

    @property
    def loss_name(self) -> str:
        """The loss that was asked for, with its options, or the model's own."""
        return self.loss or default_loss(self.model)

    @property
    def preset_name(self) -> str:
        """The preset that was asked for, or the one that fits the model."""
        return self.preset or (LIGHT if self.model == LIGHT else super().preset_name)

    @property
    def pretrained(self) -> bool:
        """Whether the backbone has weights from elsewhere: a light detector unless it is to go without them."""
        return str(self.weights) != FROM_SCRATCH if self.model == LIGHT else self.weights is not None

    def backbone_file(self) -> Path | None:
        """The file to read the weights of the backbone from; None where they are random, or come from `start`."""
        if self.weights is not None:
            return Path(self.weights) if self.pretrained else None
        if self.model != LIGHT or self.start is not None:
            return None
        return installed_weights(str(self.detector(1).backbone))

    @property
    def has_masks(self) -> bool:
        """Whether the detector learns masks; the others need not decode them."""
        return self.model not in (ONE_STAGE, LIGHT)

    @property
    def fills_memory(self) -> bool:
        """Whether a pass over the images comes before the training; untrained weights would give useless features."""
        return self.feature_memory and self.start is not None

    @property
    def recipe(self) -> Preset:
        """The preset with the changes of this configuration."""
        preset = get_preset(self.preset_name)
        return replace(preset, checkpoint_every=self.checkpoint_every or preset.checkpoint_every)

    @property
    def augmentation(self) -> Augmentation:
        """What is done to the images, at the size that was asked for."""
        augmentation = self.recipe.augmentation
        if self.image_size is None or not augmentation.short_sides:
            return augmentation
        longest = round(self.image_size * augmentation.longest_side / augmentation.short_sides[-1])
        return replace(augmentation, short_sides=(self.image_size,), longest_side=longest)

    def detector(self, num_classes: int) -> DetectorSettings:
        """The settings of a detector of `num_classes` foreground classes."""
        return DetectorSettings(
            self.model,
            num_classes,
            classifier=self.class_layer,
            temperature=self.temperature,
            pretrained=self.pretrained,
            image_size=self.image_size,
            loss=parse_loss(self.loss_name)[0],
            backbone=self.backbone,
            mask_classifier=self.mask_classifier,
            batch_norm=self.batch_norm,
        )

    def run_settings(self, *, total: int, world_size: int) -> dict[str, Any]:
        """What must be the same for a resumed run to be the same run; paths may move, so they are not among it."""
        # Only where they are used, so that runs from before they existed can be resumed.
        special = {
            "loss": self.loss_name if self.loss_name != DEFAULT_LOSS else None,
            "only": self.only,
            "feature_memory": self.feature_memory or None,
            "repeat_threshold": self.repeat_threshold if self.repeat_threshold != PAPER_THRESHOLD else None,
        }
        return {
            **{name: value for name, value in special.items() if value is not None},
            **super().run_settings(total=total, world_size=world_size),
        }
