"""An opened model: one object that runs over images, proposes boxes, and writes itself anew with a correction.

`correct`, `collect`, `predict`, `thresholds`, `fold` and `logn.ray` all go through it, so they give the same
statistics, proposals and files for the same model. `logn.models.open` is the door.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.images import ImageFiles, Images, as_tensor
from logn.models.layer import fingerprint
from logn.models.proposals import Postprocessing, Proposals, ProposingDetector
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments
from logn.statistics.row_sample import default_sample_rows

if TYPE_CHECKING:
    from logn.models.proof import Proof

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


class OpenedModel(Protocol):
    """A model that can be run over images, corrected and written.

    Attributes:
        name: What the user calls it.
        marks_itself: Whether a written file says itself that it holds a correction.
        scales_scores: Whether it can multiply the class scores at its output.
    """

    name: str
    marks_itself: bool
    scales_scores: bool

    @property
    def num_stages(self) -> int:
        """Sets of class logits, each with a map of its own."""

    @property
    def suffix(self) -> str:
        """Suffix of the corrected file; empty for a folder."""

    @property
    def traits(self) -> Traits:
        """Framework, preprocessing and kind of file; raises if the user must say how images are prepared."""

    @property
    def head(self) -> Head:
        """What its class logits are, as far as that is known without a run over images."""

    @property
    def detector(self) -> ProposingDetector:
        """The model as a source of proposals; raises for one without boxes."""

    def classify(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Logits:
        """Run a classifier over the images once: its class logits, a row per readable image; refuses other models."""

    def check(self) -> None:
        """Refuse what could not be corrected, before the pass over the images, which may take an hour."""

    def collect(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Stages:
        """Run the model over the images once: the statistics of its logits."""

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
        detector: With `propose`.
        traits: What is known of it.
    """

    name: str
    detector: ProposingDetector
    traits: Traits
    suffix = ""
    marks_itself = False
    scales_scores = False
    num_stages = 1

    @property
    def head(self) -> Head:
        """What it says of its class logits; how many columns they have, only a run tells."""
        return Head(background=self.detector.background, activation=self.detector.activation, layer="its logits")

    def classify(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Logits:
        """Refuse: it gives boxes."""
        raise InputError(f"`{self.name}` is a detector: {NEEDS_BOXES}.")

    def check(self) -> None:
        """Refuse: there is no layer to correct."""
        raise InputError(
            f"`{self.name}` gives {type(self.detector).__name__}, which has no torch model to correct. `logn collect` "
            "and `logn fit` give the correction of its logits."
        )

    def collect(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Stages:
        """Take the logits of what it proposes."""
        moments: ClassMoments | None = None
        for part in images.batches(batch or BATCH):
            for proposals in self.detector.propose(prepared(self.detector, part)):
                if moments is None:
                    head = head_of(self.detector, proposals)
                    moments = ClassMoments(head, sample_rows=default_sample_rows(head.width))
                moments.update(proposals.logits, counted_objectness(self.detector, proposals))
            progress(len(part))
        images.finish()
        if moments is None:
            raise InputError(f"`{self.name}` proposed no boxes on these images; use others.")
        return (moments,)

    def copy(self, output: Path) -> None:
        """Refuse, as `check` does."""
        self.check()

    def write(
        self,
        maps: Sequence[ClassAffine],
        output: Path,
        images: ImageFiles | None = None,
        class_factors: npt.NDArray[np.float64] | None = None,
    ) -> Proof:
        """Refuse, as `check` does."""
        self.check()
        raise NotImplementedError


def prepared(detector: ProposingDetector, images: Images) -> list[Any]:
    """RGB images as a detector takes them: by its own `prepare`, else as float tensors `(3, H, W)` in 0..1."""
    prepare = getattr(detector, "prepare", as_tensor)
    return [prepare(image) for image in images]


def network_of(adapter: Any) -> Any:
    """The torch module behind a detector, which may be itself; None if there is none."""
    network = adapter if hasattr(adapter, "state_dict") else getattr(adapter, "model", None)
    return network if hasattr(network, "state_dict") else None


def fingerprint_of(adapter: Any) -> str | None:
    """Digest of the weights behind a detector, by which statistics and predictions recognise each other.

    Example:
        >>> fingerprint_of(object()) is None
        True
    """
    if (own := getattr(adapter, "fingerprint", None)) is not None:
        return str(own)
    network = network_of(adapter)
    return None if network is None else fingerprint(network)


def head_of(source: Any, proposals: Proposals, class_names: Sequence[str] | None = None) -> Head:
    """The head of a detector, whose columns are those of its proposals.

    Args:
        source: A source of proposals.
        proposals: What it proposes on any image.
        class_names: Its foreground classes; by default its own `class_names`.
    """
    layer = getattr(source, "logit_layer", None)
    return Head.of_classes(
        class_names or getattr(source, "class_names", None),
        proposals.num_columns,
        source.background,
        getattr(source, "class_columns", None),
        activation=source.activation,
        objectness=proposals.objectness is not None,
        layer=None if layer is None else layer.name,
        population=getattr(source, "population", None),
        source=fingerprint_of(source),
    )


def counted_objectness(source: Any, proposals: Proposals) -> npt.NDArray[Any] | None:
    """The objectness of proposals if its sigmoid is a plain factor of their scores, as statistics take it."""
    kind = getattr(source, "postprocessing", None) or Postprocessing()
    return proposals.objectness if (kind.objectness, kind.score_power) == ("factor", 1.0) else None
