"""Images that show what a correction changes: objects found, objects lost, false alarms added.

The rule that chooses them is stated, and does not only flatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.boxes import box_iou
from logn.data.masks import outline_of
from logn.matching.ground_truth import GroundTruth, Groups
from logn.matching.outcomes import Index, Marks, Outcomes

# Title of each part of the gallery; the images of a part are those with the most of what it counts.
RARE, FOUND, LOST, ALARMS = "Rare objects found", "Objects found", "Objects lost", "False alarms added"
SAME = "Nothing changed here"


@dataclass(frozen=True)
class Mark:
    """A box to draw: `kind` is "hit", "alarm", "unjudged" or "missed"; `changed` marks what is new in this view.

    `outline` is the edge of its mask as an SVG path, empty without masks.
    """

    kind: str
    box: tuple[float, float, float, float]
    label: int
    score: float | None = None
    changed: bool = False
    outline: str = ""


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
class ShownDetections:
    """Detections above a threshold, of the images that the report looks at; arrays are in the order of the outcomes.

    Args:
        outcomes: What became of each.
        boxes: `(D, 4)` corners in pixels.
        masks: `(D,)` run-length encoded mask of each; None without masks.
        images: The images that have any detection.
    """

    outcomes: Outcomes
    boxes: npt.NDArray[np.float32]
    masks: npt.NDArray[np.object_] | None
    images: Index

    @classmethod
    def of(
        cls,
        outcomes: Outcomes,
        boxes: npt.NDArray[np.float32],
        threshold: float,
        masks: npt.NDArray[np.object_] | None = None,
    ) -> ShownDetections:
        """Keep those above a threshold; stronger detections choose first, so weaker ones change nothing."""
        kept = outcomes.score > threshold
        masks = None if masks is None else masks[kept]
        return cls(outcomes.take(kept), boxes[kept], masks, np.unique(outcomes.image).astype(np.intp))

    def found(self, num_objects: int) -> Marks:
        """`(G,)` which annotated objects were found."""
        mask = np.zeros(num_objects, bool)
        mask[self.outcomes.object[self.outcomes.object >= 0]] = True
        return mask


def rare_classes(truth: GroundTruth, groups: Groups | None) -> Marks:
    """`(F,)` the rare classes; all of them where the groups are unknown or none is rare."""
    if groups is None or not (groups == "r").any():
        return np.ones(truth.num_classes, bool)
    rare: Marks = groups == "r"
    return rare


def choose_images(
    truth: GroundTruth,
    before: ShownDetections,
    after: ShownDetections,
    rare: Marks,
    *,
    each: int = 4,
) -> tuple[GalleryImage, ...]:
    """Choose for each part the images with the most of what it counts; ties: lowest id; none twice.

    Objects that are not rare stand in where no rare one is found only after the correction; where nothing changed at
    all, the images with the most objects found are chosen, so that there is always something to see.

    Args:
        truth: The ground truth.
        before: Of the uncorrected model, on the images to choose from.
        after: Of the corrected one.
        rare: `(F,)` which classes are rare; all of them where that is unknown.
        each: Images per part.
    """
    sides = before, after
    looked_at = np.union1d(before.images, after.images)
    chosen: list[GalleryImage] = []
    for part, amounts in _amounts(truth, sides, rare).items():
        used = {image.image_index for image in chosen}
        least = 0 if part == SAME else 1
        ranked = looked_at[np.lexsort((truth.image_ids[looked_at], -amounts[looked_at]))]
        best = [int(index) for index in ranked if amounts[index] >= least and int(index) not in used]
        if part != SAME or not chosen:
            chosen += [_image(truth, sides, part, index, int(amounts[index])) for index in best[:each]]
    return tuple(chosen)


def _amounts(truth: GroundTruth, sides: Sequence[ShownDetections], rare: Marks) -> dict[str, npt.NDArray[np.int64]]:
    """Per image: objects found only after, objects found only before, added false alarms, and all objects found."""
    before, after = (side.found(len(truth.labels)) for side in sides)
    gained = after & ~before
    gained_rare = gained & rare[truth.labels]
    part = FOUND if rare.all() or not gained_rare.any() else RARE

    def count(indices: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return np.bincount(indices, minlength=truth.num_images)

    alarms = [count(side.outcomes.image[side.outcomes.alarms]) for side in sides]
    return {
        part: count(truth.image_index[gained_rare if part == RARE else gained]),
        LOST: count(truth.image_index[before & ~after]),
        ALARMS: alarms[1] - alarms[0],
        SAME: count(truth.image_index[after]),
    }


def _image(truth: GroundTruth, sides: Sequence[ShownDetections], part: str, index: int, amount: int) -> GalleryImage:
    found = [side.found(len(truth.labels)) for side in sides]
    views = [_marks(truth, sides[side], index, found[side], found[1 - side]) for side in (0, 1)]
    # A false alarm is new where the other view has none of that class at nearly the same place.
    before, after = views[0], tuple(_with_change(mark, views[0]) for mark in views[1])
    image = truth.images[index]
    size = None if image.height is None or image.width is None else (image.height, image.width)
    return GalleryImage(part, amount, index, image.id, before, after, image.names, size)


def _marks(
    truth: GroundTruth, side: ShownDetections, index: int, is_found: Marks, is_found_by_other: Marks
) -> tuple[Mark, ...]:
    marks = []
    for row in np.flatnonzero((truth.image_index == index) & ~truth.crowd & ~is_found):
        x, y, width, height = truth.boxes[row].tolist()
        corners = (x, y, x + width, y + height)
        outline = "" if side.masks is None else outline_of(truth.masks[row])
        changed = bool(is_found_by_other[row])
        marks.append(Mark("missed", corners, int(truth.labels[row]), changed=changed, outline=outline))
    outcomes, alarms = side.outcomes, side.outcomes.alarms
    for row in np.flatnonzero(outcomes.image == index):
        hit = outcomes.object[row] >= 0
        kind = "hit" if hit else "alarm" if alarms[row] else "unjudged"
        left, top, right, bottom = side.boxes[row].tolist()
        changed = bool(hit and not is_found_by_other[outcomes.object[row]])
        outline = "" if side.masks is None else outline_of(side.masks[row])
        label, score = int(outcomes.label[row]), float(outcomes.score[row])
        marks.append(Mark(kind, (left, top, right, bottom), label, score, changed=changed, outline=outline))
    return tuple(marks)


def _with_change(mark: Mark, before: Sequence[Mark]) -> Mark:
    if mark.kind != "alarm":
        return mark
    rivals = [other.box for other in before if other.kind == "alarm" and other.label == mark.label]
    was_there = bool(rivals) and bool((box_iou(np.array(rivals), np.array(mark.box)) >= 0.5).any())
    return replace(mark, changed=not was_there)
