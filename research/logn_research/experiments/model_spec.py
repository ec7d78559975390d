"""ModelSpec: what the cache of an experiment must know of a model, whatever kind of model it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from logn.statistics.moments import ClassMoments
from logn_research.losses.loss_factory import DEFAULT_LOSS
from logn_research.training.checkpoint import FILE_NAME as CHECKPOINT

# A step of the work: given its name and the amount of work, a context that yields the function to report progress.
Step = Callable[[str, float | None], AbstractContextManager[Callable[[float], None]]]
Data = TypeVar("Data", covariant=True)

STATISTICS = "statistics.safetensors"


@dataclass(frozen=True)
class Folders:
    """Where a model has its things.

    Args:
        data: What it is trained on and tried on.
        run: Its weights, its log, and all that is made with them.
        start: The run whose weights it begins with; None for a first stage.
    """

    data: Path
    run: Path
    start: Path | None = None


class ModelSpec(ABC, Generic[Data]):
    """A model of an experiment, and how everything that is kept of it is made.

    Attributes:
        noun: What it is, for messages.
        runs: The folder of the cache that holds the runs of such models.
    """

    noun: ClassVar[str]
    runs: ClassVar[str]

    @property
    @abstractmethod
    def name(self) -> str:
        """Folder of the run; it says what the model is."""

    @property
    @abstractmethod
    def start(self) -> Self | None:
        """The model that a second stage begins with."""

    @abstractmethod
    def data_folder(self, root: Path) -> Path:
        """Where the data is, given the folder of the cache."""

    @abstractmethod
    def draw(self, folder: Path, *, workers: int, step: Step) -> None:
        """Draw the data, if it is drawn and not there yet."""

    @abstractmethod
    def dataset(self, folder: Path, split: str) -> Data:
        """A split of the data."""

    @abstractmethod
    def train(self, folders: Folders) -> None:
        """Train the model in this process, or resume a run that was stopped."""

    @abstractmethod
    def is_trained(self, folders: Folders) -> bool:
        """Whether the run is there and went to its end."""

    @abstractmethod
    def load(self, folders: Folders) -> Any:
        """The trained model, in evaluation mode."""

    @abstractmethod
    def statistics(self, folders: Folders, step: Step) -> ClassMoments:
        """Statistics of the logits on training images, without their labels; those of other weights don't count."""

    @abstractmethod
    def predictions(self, folders: Folders, split: str, step: Step) -> Path:
        """Where the run keeps what the model says of a split; that of other weights does not count."""

    @abstractmethod
    def class_layer(self, folders: Folders) -> tuple[Any, Any]:
        """Weight and bias of the layer that gives the logits, as NumPy arrays."""


def loss_in_name(loss: str) -> str:
    """A loss as it stands in the name of a folder.

    Example:
        >>> loss_in_name("cross-entropy"), loss_in_name("eql:threshold=0.024")
        ('ce', 'eql-threshold0.024')
    """
    return "ce" if loss == DEFAULT_LOSS else loss.replace(":", "-").replace("=", "").replace(",", "-")


def is_current(path: Path, folders: Folders) -> bool:
    """Whether a file that names no weights is there, and not older than those that it must be made with."""
    return path.is_file() and path.stat().st_mtime_ns >= (folders.run / CHECKPOINT).stat().st_mtime_ns
