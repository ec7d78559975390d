"""TrainingConfig: what the training of a detector and that of an image classifier have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

from logn.errors import InputError
from logn_research.training.engine.finetuning import check_part
from logn_research.training.engine.schedule import Recipe, Schedule, check_milestones, make_schedule

PRECISIONS = ("auto", "full", "mixed")


@dataclass(frozen=True)
class TrainingConfig(ABC):
    """Which model to train, on what, for how long, and where to put it; each kind of model adds its own arguments.

    Args:
        data: What to train on.
        output: Folder of the run: `checkpoint.safetensors`, `log.jsonl`.
        model: Name of the model.
        classifier: `linear` or `cosine`.
        temperature: Of the cosine classifier.
        preset: Name of the recipe; None takes the one that fits the model: `small` for small ones, else `paper`.
        sampler: Which images are shown how often.
        iterations: Length of the run, instead of the preset's.
        epochs: Length of the run in epochs, instead of the preset's.
        milestones: Epochs of this run after which the learning rate drops to a tenth, instead of the preset's.
        batch: Images per iteration, all processes together.
        learning_rate: For this batch; by default the preset's, scaled with the batch.
        seed: Of weights, order, augmentation and all else that is random.
        weights: Local file with the weights of a residual network.
        image_size: Size of the images, instead of the model's or the preset's.
        checkpoint_every: Iterations between checkpoints, instead of the preset's.
        start: Folder of a run, or checkpoint file, of the same model: its weights are the first ones.
        only: Train a part of the model at `start` and freeze the rest.
        precision: `full` (float32), `mixed` (half precision where it is safe: float16 on CUDA, bfloat16 on a CPU) or
            `auto`: mixed on CUDA, full on a CPU.

    Attributes:
        samplers: Names that `sampler` may have.
        small_models: Models that train on a CPU.
    """

    samplers: ClassVar[tuple[str, ...]]
    small_models: ClassVar[tuple[str, ...]]

    data: str | Path
    output: str | Path
    _: KW_ONLY
    model: str = "small"
    classifier: str = "linear"
    temperature: float = 20.0
    preset: str | None = None
    sampler: str = "random"
    iterations: int | None = None
    epochs: float | None = None
    milestones: tuple[float, ...] | None = None
    batch: int | None = None
    learning_rate: float | None = None
    seed: int = 0
    weights: str | Path | None = None
    image_size: int | None = None
    checkpoint_every: int | None = None
    start: str | Path | None = None
    only: str | None = None
    precision: str = "auto"

    def __post_init__(self) -> None:
        check_part(self.only, started=self.start is not None)
        if self.classifier not in ("linear", "cosine") or (self.only == "scales" and self.classifier != "linear"):
            allowed = "linear to train its scales" if self.only == "scales" else "linear or cosine"
            raise InputError(f"Expected `classifier` to be {allowed}, but got {self.classifier!r}.")
        if self.sampler not in self.samplers:
            raise InputError(f"Expected `sampler` to be one of {self.samplers}, but got {self.sampler!r}.")
        self._require_positive("iterations", "epochs", "batch", "learning_rate", "checkpoint_every")
        if self.precision not in PRECISIONS:
            raise InputError(f"Expected `precision` to be one of {PRECISIONS}, but got {self.precision!r}.")
        check_milestones(self.recipe, self.milestones)
        if self.seed < 0:
            raise InputError(f"Expected `seed` to be 0 or more, but got {self.seed}.")
        if self.iterations is not None and self.epochs is not None:
            raise InputError("Expected one of `iterations` and `epochs`, but got both.")

    def _require_positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"Expected `{name}` to be above 0, but got {value}.")

    @property
    @abstractmethod
    def recipe(self) -> Recipe:
        """The preset with the changes of this configuration."""

    @property
    def preset_name(self) -> str:
        """The preset that was asked for, or the one that fits the model."""
        return self.preset or ("small" if self.model in self.small_models else "paper")

    @property
    def images_per_iteration(self) -> int:
        """The batch, all processes together."""
        return self.batch or self.recipe.batch

    @property
    def class_layer(self) -> str:
        """The classifier as it is built: one of which only the scales are trained is a kind of its own."""
        return "scaled" if self.only == "scales" else self.classifier

    def mixed_precision(self, device: str) -> bool:
        """Whether the forward pass runs in half precision where that is safe, on a device of this type."""
        return self.precision == "mixed" or (self.precision == "auto" and device == "cuda")

    def schedule(self, images_per_epoch: int) -> Schedule:
        """The learning rate of every iteration, for epochs of `images_per_epoch` images, repeats included."""
        return make_schedule(
            self.recipe,
            images_per_epoch=images_per_epoch,
            batch=self.images_per_iteration,
            iterations=self.iterations,
            epochs=self.epochs,
            milestones=self.milestones,
            learning_rate=self.learning_rate,
        )

    def check_processes(self, world_size: int) -> None:
        """Refuse a batch that is too small to give every process an image."""
        if self.images_per_iteration < world_size:
            raise InputError(
                f"Expected `batch` to be at least the {world_size} processes, but got {self.images_per_iteration}."
            )

    def run_settings(self, *, total: int, world_size: int) -> dict[str, Any]:
        """What must be the same for a resumed run to be the same run; paths may move, so they are not among it."""
        # Only where they were asked for, so that runs from before they existed can be resumed.
        special: dict[str, Any] = {"precision": self.precision} if self.precision != "auto" else {}
        if self.milestones is not None:
            special["milestones"] = list(self.milestones)
        return {
            **special,
            "preset": self.preset_name,
            "sampler": self.sampler,
            "iterations": total,
            "batch": self.images_per_iteration,
            "learning_rate": self.learning_rate,
            "seed": self.seed,
            "processes": world_size,
        }
