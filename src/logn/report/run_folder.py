"""Where the pieces of a run are, which of them are there, and what to say of those that are not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from logn.classes.counts import ClassCounts
from logn.errors import InputError
from logn.evaluate.comparison.comparison import Comparison
from logn.evaluate.detection.gallery import GalleryImage
from logn.evaluate.store.store import PredictionStore
from logn.labels.dataset import DetectionDataset
from logn.labels.sources import find_labels, with_split
from logn.logits.images import ImageArray, read_rgb
from logn.statistics.moments import ClassMoments


@dataclass(frozen=True)
class Piece:
    """One thing that a run may have: where it is looked for, and what makes it."""

    places: tuple[str, ...]
    maker: str


PIECES: Mapping[str, Piece] = {
    "comparison": Piece(("comparison.json",), "`logn compare -o` writes"),
    "statistics": Piece(("statistics.safetensors",), "`logn collect` writes"),
    "predictions": Piece(("predictions",), "`logn predict` writes"),
    "annotations": Piece(("data/test.json", "annotations.json"), "the ground truth of the predicted images is"),
    "counts": Piece(("data/train.json", "counts.csv", "counts.json"), "training annotations or class counts are"),
}
WITHOUT_OPTION = ("comparison",)


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder and the places of its pieces; what is read is read once, when it is first asked for.

    Args:
        folder: The folder.
        paths: Place of each piece that is there, by its name in `PIECES`.
        images: Folder that the image paths of the annotations start from; by default the folder of the annotations.
    """

    folder: Path
    paths: Mapping[str, Path] = field(default_factory=dict)
    images: Path | None = None

    def has(self, *pieces: str) -> bool:
        """Whether all these pieces are there."""
        return all(piece in self.paths for piece in pieces)

    def path(self, piece: str) -> Path:
        """The place of a piece, or an error that says what is missing and what makes it."""
        if piece not in self.paths:
            raise InputError(self.missing(piece))
        return self.paths[piece]

    def missing(self, piece: str) -> str:
        """The sentence for a piece that is not there."""
        wanted = PIECES[piece]
        places = " or ".join(f"`{place}`" for place in wanted.places)
        option = "" if piece in WITHOUT_OPTION else f", or `--{piece}` to name it"
        return f"Expected `{self.folder}` to hold {places}, which {wanted.maker}{option}, but there is none."

    @cached_property
    def comparison(self) -> Comparison:
        """What `logn compare` found."""
        return Comparison.load(self.path("comparison").parent)

    @cached_property
    def moments(self) -> ClassMoments:
        """Statistics of the logits."""
        return ClassMoments.load(self.path("statistics"))

    @cached_property
    def counts(self) -> ClassCounts:
        """Training counts; a class without a training image counts as 1, since it has no logarithm."""
        return ClassCounts.load(self.path("counts")).at_least(1)

    @cached_property
    def store(self) -> PredictionStore:
        """All proposals."""
        return PredictionStore(self.path("predictions"))

    @cached_property
    def training_data(self) -> DetectionDataset:
        """The training annotations; class counts alone are refused, since samplers need to know each image."""
        path = self.path("counts")
        try:
            return DetectionDataset(with_split(path, "train"))
        except (InputError, ValueError) as error:
            raise InputError(
                f"Expected `{path}` to be training annotations, since a sampler looks at each image, "
                f"but it cannot be read as such ({error})"
            ) from error

    def read_picture(self, image: GalleryImage) -> ImageArray:
        """The picture of an image, from `images`, from next to the annotations, or from where the comparison saw it."""
        root = self.images
        if root is None and self.has("annotations"):
            root = find_labels(self.path("annotations")).root
        if root is None and (recorded := self.comparison.provenance.inputs.get("image_root")):
            root = Path(recorded)
        if root is None:
            raise InputError("Expected `--images` to be the folder of the images, but got none.")
        places = [root / name for name in image.names]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            tried = " or ".join(f"`{place}`" for place in places) or f"`{root}`"
            raise InputError(
                f"Expected image {image.image_id} at {tried} (`--images` names another folder), but it is not there."
            )
        pixels = read_rgb(path)
        if image.size is not None and pixels.shape[:2] != image.size:
            raise InputError(
                f"Expected `{path}` to have height and width {image.size} as the annotations say, but it has "
                f"{pixels.shape[:2]}."
            )
        return pixels

    def image_counts(self, names: tuple[str, ...] | None) -> np.ndarray:
        """Training images of each foreground class, in the order of `names` where the counts have names."""
        counts: np.ndarray = self.counts.aligned_to(names).image_counts
        return counts


def open_run(
    folder: str | os.PathLike[str], *, images: Path | None = None, places: Mapping[str, Path | None] | None = None
) -> Run:
    """Look for the pieces of a run; `places` names those that are elsewhere.

    Example:
        >>> import tempfile
        >>> run = open_run(tempfile.mkdtemp())
        >>> run.has("comparison")
        False
    """
    root = Path(folder)
    if not root.is_dir():
        got = "it is a file" if root.is_file() else "there is none"
        raise InputError(f"Expected `{folder}` to be the folder of a run, but {got}.")
    given = {piece: path for piece, path in (places or {}).items() if path is not None}
    for piece, path in given.items():
        if not find_labels(path).path.exists():
            raise InputError(f"Expected `--{piece}` to be a file or folder, but there is no `{path}`.")
    found = {
        piece: root / place
        for piece, wanted in PIECES.items()
        for place in reversed(wanted.places)  # of several, the first one stays
        if (root / place).exists()
    }
    return Run(root, {**found, **given}, images)
