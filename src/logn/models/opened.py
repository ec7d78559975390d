"""An opened model: one object that runs over images, proposes boxes, and may write itself anew with a correction.

`correct`, `collect`, `predict`, `thresholds`, `fold` and `logn.ray` all go through it, so they give the same
statistics, proposals and files for the same model. `logn.models.open` is the door.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.detector import Detector
from logn.models.images import ImageFiles
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments
from logn.statistics.row_sample import default_sample_rows

if TYPE_CHECKING:
    from logn.models.write import Proof

Advance = Callable[[int], object]
# One per stage of a cascade; else one.
Stages = tuple[ClassMoments, ...]
BATCH = 8
Logits = npt.NDArray[np.float32]
# For whoever gives labels of the other kind.
NEEDS_BOXES = "pass labels with boxes as `data`: LVIS, COCO or YOLO"
NEEDS_CLASSES = "pass a folder per class, or a list of paths and labels, as `data`"


def ignore(count: int) -> None:
    """No progress bar."""


@dataclass(frozen=True)
class Traits:
    """What is known of a model before it runs.

    Args:
        framework: Where it comes from and what it is, such as "transformers, RTDetrForObjectDetection".
        preprocessing: What happens to an image before the model, in words.
        suffix: Suffix of the corrected file; empty for a folder.
    """

    framework: str
    preprocessing: str
    suffix: str


class Model(Protocol):
    """A model that can be run over images: a classifier gives rows of logits, a detector rows and proposals.

    Attributes:
        name: What the user calls it.
    """

    name: str

    @property
    def num_stages(self) -> int:
        """Sets of class logits, each with a map of its own."""

    @property
    def traits(self) -> Traits:
        """Framework, preprocessing and kind of file; raises if the user must say how images are prepared."""

    @property
    def head(self) -> Head:
        """What its class logits are, as far as that is known without a run over images."""

    @property
    def detector(self) -> Detector:
        """The model as a source of proposals; raises for one without boxes."""

    def classify(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Logits:
        """Run a classifier over the images once: its class logits, a row per readable image; refuses other models."""

    def collect(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Stages:
        """Run the model over the images once: the statistics of its logits."""


class CorrectableModel(Model, Protocol):
    """A model that can be written anew with a correction.

    Attributes:
        marks_itself: Whether a written file says itself that it holds a correction.
        scales_scores: Whether it can multiply the class scores at its output.
    """

    marks_itself: bool
    scales_scores: bool

    @property
    def suffix(self) -> str:
        """Suffix of the corrected file; empty for a folder."""

    @property
    def data_files(self) -> Sequence[Path]:
        """Files beside it that hold its weights."""

    def check(self) -> None:
        """Refuse what could not be corrected, before the pass over the images, which may take an hour."""

    def copy(self, output: Path) -> None:
        """Write the model as it is: its file or folder byte for byte, a model without one as a state dict."""

    def write(
        self,
        maps: Sequence[ClassAffine],
        output: Path,
        images: ImageFiles | None = None,
        class_factors: npt.NDArray[np.float64] | None = None,
    ) -> Proof:
        """Write the corrected model, read it back and prove it; raise if the proof fails.

        Args:
            maps: One per stage.
            output: Where to write.
            images: What to prove it on; by default noise.
            class_factors: Factors of the class scores at the output, for thresholds beside an objectness.
        """


def beside(output: Path, what: str, stage: int | None = None, *, in_folder: bool) -> Path:
    """Path of the statistics or the map of a corrected model.

    Example:
        >>> beside(Path("best.pt"), "statistics", in_folder=False).name
        'best.statistics.safetensors'
        >>> beside(Path("model"), "affine", 1, in_folder=True).as_posix()
        'model/logn-affine-2.safetensors'
    """
    part = what if stage is None else f"{what}-{stage + 1}"
    return output / f"logn-{part}.safetensors" if in_folder else output.with_name(f"{output.stem}.{part}.safetensors")


@dataclass
class ProposalModel:
    """A source of proposals without a torch module: its logits can be read, but not corrected.

    Args:
        name: What the user calls it.
        detector: The source.
    """

    name: str
    detector: Detector
    num_stages = 1

    @property
    def traits(self) -> Traits:
        """The name of its class is all that is known."""
        return Traits(self.detector.name, "its own", "")

    @property
    def head(self) -> Head:
        """What it says of its class logits; how many columns they have, only a run tells."""
        return replace(self.detector.head, layer="its logits")

    def classify(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Logits:
        """Refuse: it gives boxes."""
        raise InputError(f"`{self.name}` is a detector: {NEEDS_BOXES}.")

    def collect(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Stages:
        """Take the logits of what it proposes."""
        moments: ClassMoments | None = None
        for part in images.batches(batch or BATCH):
            for proposals in self.detector.propose([self.detector.prepare(image) for image in part]):
                objectness = self.detector.factor_of(proposals)
                if moments is None:
                    head = replace(self.detector.head_of(proposals), objectness=objectness is not None)
                    moments = ClassMoments(head, sample_rows=default_sample_rows(head.width))
                moments.update(proposals.logits, objectness)
            progress(len(part))
        images.finish()
        if moments is None:
            raise InputError(f"`{self.name}` proposed no boxes on these images; use others.")
        return (moments,)
