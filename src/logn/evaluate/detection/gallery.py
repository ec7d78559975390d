"""What the report shows of one method next to the uncorrected model: scores, kinds of error, and some images.

The images are chosen by a rule that is stated, and not only those that flatter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.decode.detections import Detections
from logn.evaluate.decode.nms import box_iou
from logn.evaluate.detection.ground_truth import GroundTruth, Groups
from logn.evaluate.detection.matching import Marks, MatchedDetections
from logn.evaluate.detection.metrics import RecallAtCount
from logn.evaluate.detection.tide import ErrorTypes
from logn.labels.annotations import image_names

# Title of each part of the gallery; the images of a part are those with the most of what it counts.
FOUND, LOST, ALARMS = "Rare objects found", "Objects lost", "False alarms added"


@dataclass(frozen=True)
class Mark:
    """A box to draw: `kind` is "hit", "alarm", "unjudged" or "missed"; `changed` marks what is new in this view."""

    kind: str
    box: tuple[float, float, float, float]
    label: int
    score: float | None = None
    changed: bool = False


@dataclass(frozen=True)
class GalleryImage:
    """One image with its boxes before and after.

    Args:
        part: The part of the gallery that it is in.
        amount: How many there are of what that part counts.
        image_index: Position in the looked-at images.
        image_id: Its id in the annotations.
        before: Boxes of the uncorrected model.
        after: Boxes of the corrected model.
        names: Paths under which the picture may lie, from the folder of the images; empty where nothing names it.
        size: Height and width by the annotations; None where they do not say.
    """

    part: str
    amount: int
    image_index: int
    image_id: int
    before: tuple[Mark, ...]
    after: tuple[Mark, ...]
    names: tuple[str, ...] = ()
    size: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class ScoreHistogram:
    """How many detections have which score, before and after; the bins are evenly spaced in the logarithm."""

    edges: npt.NDArray[np.float64]
    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]

    def old_score(self, score: float) -> float:
        """The score that as many detections reached before as reach `score` after; between the bins interpolated.

        Example:
            >>> edges = np.array([0.01, 0.1, 0.5, 1.0])
            >>> counts = ScoreHistogram(edges, np.array([0, 4, 4]), np.array([4, 4, 0]))
            >>> round(counts.old_score(0.1), 3), round(counts.old_score(0.5), 3)
            (0.5, 1.0)
        """
        places = np.log(self.edges)
        before, after = (np.append(np.cumsum(side[::-1])[::-1], 0) for side in (self.before, self.after))
        reached = np.interp(np.log(np.clip(score, self.edges[0], 1.0)), places, after)
        # Where no detection lies between two edges the lower one is as good, and claims less.
        counts, first = np.unique(before, return_index=True)
        return float(np.exp(np.interp(reached, counts, places[first])))


def score_histogram(
    before: npt.ArrayLike, after: npt.ArrayLike, *, lowest: float = 1e-4, bins: int = 32
) -> ScoreHistogram:
    """Count scores in bins from `lowest` to 1; lower ones go to the first bin.

    Example:
        >>> counts = score_histogram([0.005, 0.5, 0.9], [0.05, 0.06], lowest=1e-2, bins=2)
        >>> counts.edges.round(2).tolist(), counts.before.tolist(), counts.after.tolist()
        ([0.01, 0.1, 1.0], [1, 2], [2, 0])
    """
    edges = np.geomspace(lowest, 1.0, bins + 1)
    edges[-1] = 1.0
    counted = [
        np.histogram(np.clip(np.asarray(scores, np.float64), lowest, 1.0), edges)[0] for scores in (before, after)
    ]
    return ScoreHistogram(edges, counted[0].astype(np.int64), counted[1].astype(np.int64))


@dataclass(frozen=True, eq=False)
class ReportDetails:
    """Scores, pictures and kinds of error of some images, before and after a correction.

    Args:
        images: How many images were looked at.
        of_images: Of how many evaluated ones.
        histograms: Scores of "all" detections and, where some classes are rare, of the "rare" ones.
        gallery: The images to show, with their boxes.
        errors: Kinds of error over these images; None where they were found over all of them.
    """

    images: int
    of_images: int
    histograms: Mapping[str, ScoreHistogram]
    gallery: tuple[GalleryImage, ...]
    errors: ErrorTypes | None = None


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Detections with what became of each at an overlap of one half; all arrays are in their order.

    Args:
        detections: The detections, best first within each image.
        box: `(D,)` the annotated box that it found, or -1.
        judged: `(D,)` False where it is neither right nor wrong: its class was not verified in the image, or the
            objects of the class are not all annotated there.
    """

    detections: Detections
    box: npt.NDArray[np.intp]
    judged: Marks

    @classmethod
    def of(cls, detections: Detections, matched: MatchedDetections) -> Outcomes:
        """What the matching says of each detection."""
        box, judged = np.full(len(detections), -1), np.zeros(len(detections), bool)
        box[matched.rows], judged[matched.rows] = matched.box, matched.counted[0]
        return cls(detections, box, judged)

    @property
    def is_false_alarm(self) -> Marks:
        """`(D,)` whether it is wrong."""
        return (self.box < 0) & self.judged

    def take(self, kept: Marks) -> Outcomes:
        """Keep those that the mask names; stronger detections choose first, so weaker ones change nothing."""
        return Outcomes(self.detections.take(kept), self.box[kept], self.judged[kept])

    def found(self, num_boxes: int) -> Marks:
        """`(G,)` which annotated boxes were found."""
        found = np.zeros(num_boxes, bool)
        found[self.box[self.box >= 0]] = True
        return found


def score_histograms(before: Detections, after: Detections, rare: Marks) -> dict[str, ScoreHistogram]:
    """Histograms of all detections ("all") and, where some classes are rare and others are not, of those ("rare")."""
    lowest = float(min(before.scores.min(initial=1), after.scores.min(initial=1)))
    lowest = min(max(lowest, 1e-4), 0.1)
    found = {"all": score_histogram(before.scores, after.scores, lowest=lowest)}
    if not rare.all():
        found["rare"] = score_histogram(
            before.scores[rare[before.labels]], after.scores[rare[after.labels]], lowest=lowest
        )
    return found


def rare_classes(truth: GroundTruth, groups: Groups | None) -> Marks:
    """`(F,)` the rare classes; all of them where the groups are unknown or none is rare."""
    if groups is None or not (groups == "r").any():
        return np.ones(truth.num_classes, bool)
    rare: Marks = groups == "r"
    return rare


def choose_images(
    truth: GroundTruth, before: Outcomes, after: Outcomes, point: RecallAtCount, rare: Marks, *, each: int = 4
) -> tuple[GalleryImage, ...]:
    """Choose for each part the images with the most of what it counts; ties: lowest id; none twice.

    Args:
        truth: The ground truth.
        before: Of the uncorrected model, on the images to choose from.
        after: Of the corrected one.
        point: The two thresholds, which keep as many detections in all.
        rare: `(F,)` the classes whose objects count as found.
        each: Images per part.
    """
    sides = (
        before.take(before.detections.scores > point.at),
        after.take(after.detections.scores > point.threshold),
    )
    chosen: list[GalleryImage] = []
    for part, amounts in _amounts(truth, sides, rare).items():
        used = {image.image_index for image in chosen}
        ranked = np.lexsort((truth.image_ids, -amounts))
        best = [int(index) for index in ranked if amounts[index] > 0 and int(index) not in used]
        chosen += [_image(truth, sides, part, index, int(amounts[index])) for index in best[:each]]
    return tuple(chosen)


def _amounts(truth: GroundTruth, sides: Sequence[Outcomes], rare: Marks) -> dict[str, npt.NDArray[np.int64]]:
    """Per image: rare objects found only after, objects found only before, false alarms after less before."""
    before, after = (side.found(len(truth.labels)) for side in sides)
    alarms = [side.detections.image_index[side.is_false_alarm] for side in sides]
    indices: dict[str, npt.NDArray[Any]] = {
        FOUND: truth.image_index[after & ~before & rare[truth.labels]],
        LOST: truth.image_index[before & ~after],
        ALARMS: alarms[1],
    }
    amounts = {part: np.bincount(of_part, minlength=truth.num_images) for part, of_part in indices.items()}
    return amounts | {ALARMS: amounts[ALARMS] - np.bincount(alarms[0], minlength=truth.num_images)}


def _image(truth: GroundTruth, sides: Sequence[Outcomes], part: str, index: int, amount: int) -> GalleryImage:
    found = [side.found(len(truth.labels)) for side in sides]
    views = [_marks(truth, sides[side], index, found[side], found[1 - side]) for side in (0, 1)]
    # A false alarm is new where the other view has none of that class at nearly the same place.
    before, after = views[0], tuple(_with_change(mark, views[0]) for mark in views[1])
    entry = truth.dataset["images"][index]
    known = all(isinstance(entry.get(side), int) for side in ("height", "width"))
    size = (entry["height"], entry["width"]) if known else None
    return GalleryImage(part, amount, index, int(truth.image_ids[index]), before, after, image_names(entry), size)


def _marks(truth: GroundTruth, side: Outcomes, index: int, found: Marks, found_by_other: Marks) -> tuple[Mark, ...]:
    marks = []
    for box in np.flatnonzero((truth.image_index == index) & ~truth.crowd & ~found):
        x, y, width, height = truth.boxes[box].tolist()
        corners = (x, y, x + width, y + height)
        marks.append(Mark("missed", corners, int(truth.labels[box]), changed=bool(found_by_other[box])))
    for row in np.flatnonzero(side.detections.image_index == index):
        hit = side.box[row] >= 0
        kind = "hit" if hit else "alarm" if side.judged[row] else "unjudged"
        left, top, right, bottom = side.detections.boxes[row].tolist()
        label, score = int(side.detections.labels[row]), float(side.detections.scores[row])
        changed = bool(hit and not found_by_other[side.box[row]])
        marks.append(Mark(kind, (left, top, right, bottom), label, score, changed=changed))
    return tuple(marks)


def _with_change(mark: Mark, before: Sequence[Mark]) -> Mark:
    if mark.kind != "alarm":
        return mark
    rivals = [other.box for other in before if other.kind == "alarm" and other.label == mark.label]
    known = bool(rivals) and bool((box_iou(np.array(rivals), np.array(mark.box)) >= 0.5).any())
    return Mark(mark.kind, mark.box, mark.label, mark.score, changed=not known)
