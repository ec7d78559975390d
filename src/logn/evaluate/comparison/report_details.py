"""What the report shows of one method in addition to its metrics, computed while the detections are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.detection.before_after import (
    BeforeAfter,
    ScoreHistogram,
    score_histograms,
)
from logn.evaluate.detection.gallery import GalleryImage, choose_images, gallery_arrays, gallery_from_arrays
from logn.evaluate.detection.recall_at_count import RecallAtCount
from logn.evaluate.detection.tide import ErrorTypes

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class ReportDetails:
    """Scores, pictures and kinds of error of some images, before and after a correction.

    Args:
        images: How many images were looked at.
        of_images: Of how many evaluated ones.
        histograms: Scores of "all" detections and, where some classes are rare, of the "rare" ones.
        gallery: The images to show, with their boxes.
        errors: Kinds of error over these images; None where they were found over all of them, or not asked for.
    """

    images: int
    of_images: int
    histograms: Mapping[str, ScoreHistogram]
    gallery: tuple[GalleryImage, ...]
    errors: ErrorTypes | None = None

    @classmethod
    def of(cls, pair: BeforeAfter, of_images: int, errors: ErrorTypes | None, point: RecallAtCount) -> ReportDetails:
        """Compare the detections of a method with those of the uncorrected model; the gallery is at `point`."""
        return cls(
            images=pair.truth.num_images,
            of_images=of_images,
            histograms=score_histograms(pair),
            gallery=tuple(choose_images(pair, point)),
            errors=errors,
        )

    def to_dict(self) -> dict[str, Any]:
        """Give everything but the arrays as plain values, for JSON."""
        return {
            "images": self.images,
            "of_images": self.of_images,
            "gallery": [image.to_dict() for image in self.gallery],
            "errors": None if self.errors is None else self.errors.to_dict(),
        }

    def arrays(self) -> Arrays:
        """The histograms and the boxes of the gallery."""
        named: Arrays = {f"gallery.{name}": array for name, array in gallery_arrays(self.gallery).items()}
        for name, histogram in self.histograms.items():
            named |= {f"scores.{name}.{side}": getattr(histogram, side) for side in ("edges", "before", "after")}
        return named

    @classmethod
    def from_parts(cls, content: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> ReportDetails:
        """Read what `to_dict` and `arrays` gave."""
        boxes = {name.removeprefix("gallery."): array for name, array in arrays.items() if name.startswith("gallery.")}
        errors = content["errors"]
        return cls(
            images=int(content["images"]),
            of_images=int(content["of_images"]),
            histograms={
                name: ScoreHistogram(*(arrays[f"scores.{name}.{side}"] for side in ("edges", "before", "after")))
                for name in ("all", "rare")
                if f"scores.{name}.edges" in arrays
            },
            gallery=tuple(gallery_from_arrays(content["gallery"], boxes)),
            errors=None if errors is None else ErrorTypes.from_dict(errors),
        )


def evenly_spaced(units: npt.NDArray[np.bool_], max_units: int) -> npt.NDArray[np.bool_]:
    """At most `max_units` of the units that the mask names, evenly spaced among them.

    Example:
        >>> np.flatnonzero(evenly_spaced(np.ones(12, bool), 3)).tolist()
        [0, 6, 11]
    """
    places = np.flatnonzero(units)
    if len(places) > max_units:
        places = places[np.linspace(0, len(places) - 1, max_units).round().astype(np.intp)]
    chosen = np.zeros(len(units), bool)
    chosen[places] = True
    return chosen
