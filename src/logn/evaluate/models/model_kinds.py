"""What `correct` needs of a model, whatever kind of file it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from logn.calibrators.affine import ClassAffine
from logn.deploy.onnx_fold import Proof
from logn.errors import InputError
from logn.logits.images import Preprocessing, read_rgb
from logn.statistics.moments import ClassMoments

Advance = Callable[[int], object]
# A file, or a function that gives the image.
ImageItem = Path | Callable[[], npt.NDArray[np.uint8]]


@dataclass(frozen=True)
class Traits:
    """What is known of a model before it runs.

    Args:
        framework: Where it comes from and what it is, such as "transformers, RTDetrForObjectDetection".
        preprocessing: What is done to an image before the model, in words.
        suffix: How the name of the corrected model ends; empty for a folder.
    """

    framework: str
    preprocessing: str
    suffix: str


@dataclass
class ImageFiles:
    """The images that a model runs over; labels are never read.

    Args:
        items: Their files, or functions that give them.
        skip_unreadable: Leave out files that cannot be read and note them in `unreadable`, instead of refusing them.
        unreadable: What was left out, with the reason.
    """

    items: Sequence[ImageItem]
    skip_unreadable: bool = False
    unreadable: dict[Path, str] = field(default_factory=dict)

    def batches(self, size: int) -> Iterator[list[npt.NDArray[np.uint8]]]:
        """The images as RGB arrays, some at a time."""
        batch: list[npt.NDArray[np.uint8]] = []
        for item in self.items:
            if not isinstance(item, Path):
                batch.append(item())
            elif (image := self._read(item)) is not None:
                batch.append(image)
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch

    def _read(self, path: Path) -> npt.NDArray[np.uint8] | None:
        try:
            return read_rgb(path)
        except InputError as error:
            if not self.skip_unreadable:
                raise InputError(f"{str(error).rstrip('.')}; skip_unreadable=True leaves such images out.") from error
            self.unreadable[path] = str(error)
            return None

    @property
    def paths(self) -> list[Path]:
        """The files; images that are no files are refused."""
        found = [item for item in self.items if isinstance(item, Path)]
        if len(found) < len(self.items):
            raise InputError("Expected `images` to be files for an ONNX model, but got functions.")
        return found

    def few(self, count: int) -> ImageFiles:
        """The first images that can be read."""
        return ImageFiles([item for item in self.items if item not in self.unreadable][:count])

    def require_some(self) -> None:
        """Refuse images of which none could be read."""
        if len(self.unreadable) == len(self.items):
            reason = next(iter(self.unreadable.values()))
            raise InputError(f"Expected images that can be read, but none of {len(self.items):,} can: {reason}")


class Correctable(Protocol):
    """A model that can be run over images, corrected and written."""

    traits: Traits

    def check(self) -> None:
        """Refuse what could not be corrected before the pass over the images, which may take an hour."""

    def collect(
        self,
        images: ImageFiles,
        *,
        batch: int | None = None,
        sample_rows: int | None = None,
        progress: Advance = lambda count: None,
    ) -> tuple[ClassMoments, ...]:
        """The statistics of its logits; for a model with several stages those of each."""

    def write(self, maps: Sequence[ClassAffine], output: Path, images: ImageFiles) -> Proof:
        """Write the corrected model, read it back, run it on the images, and say how far it is off; raise if it is."""


def layer_in_words(paths: str | None) -> str:
    """The names of a layer, of which there may be many, shortened.

    Example:
        >>> layer_in_words("head.0, head.1, head.2")
        '`head.0` and 2 more'
    """
    first, *more = (paths or "").split(", ")
    return f"`{first}` and {len(more)} more" if more else f"`{first}`"


def preprocessing_in_words(preparing: Preprocessing) -> str:
    """What is done to an image.

    Example:
        >>> preprocessing_in_words(Preprocessing((416, 416), "letterbox", max_value=255.0, channels="BGR"))
        'letterbox to 416x416, BGR, 0 to 255'
    """
    size = (
        "in its own size"
        if preparing.size is None
        else f"{preparing.resize} to {preparing.size[0]}x{preparing.size[1]}"
    )
    words = [size, *(["BGR"] if preparing.channels == "BGR" else [])]
    words.append(f"0 to {preparing.max_value:g}")
    if any(preparing.mean) or set(preparing.std) != {1.0}:
        words.append("mean and std taken out")
    return ", ".join(words)


def beside(output: Path, what: str, stage: int | None = None, *, in_folder: bool) -> Path:
    """Where statistics or map of a corrected model lie.

    Example:
        >>> beside(Path("best.pt"), "statistics", in_folder=False).name
        'best.statistics.safetensors'
        >>> beside(Path("model"), "affine", 1, in_folder=True).as_posix()
        'model/logn-affine-2.safetensors'
    """
    part = what if stage is None else f"{what}-{stage + 1}"
    return output / f"logn-{part}.safetensors" if in_folder else output.with_name(f"{output.stem}.{part}.safetensors")
