"""Which images the report shows: by a rule that is stated, and not only those that flatter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.report.before_after import BeforeAfter, OperatingPoint
from logn.report.outcomes import Outcomes

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
    """

    part: str
    amount: int
    image_index: int
    image_id: int
    before: tuple[Mark, ...]
    after: tuple[Mark, ...]


def choose_images(pair: BeforeAfter, point: OperatingPoint, *, each: int = 4) -> list[GalleryImage]:
    """Choose for each part the images with the most of what it counts; of equal ones the lower id; none twice.

    Args:
        pair: Detections before and after.
        point: The two thresholds, which keep as many detections in all.
        each: Images per part.
    """
    fates = [fate.above(limit) for fate, limit in zip(pair.fates, (point.old, point.new), strict=True)]
    chosen: list[GalleryImage] = []
    for part, amounts in _amounts(pair, fates).items():
        used = {image.image_index for image in chosen}
        ranked = np.lexsort((pair.truth.image_ids, -amounts))
        best = [int(index) for index in ranked if amounts[index] > 0 and int(index) not in used]
        chosen += [_image(pair, fates, part, index, int(amounts[index])) for index in best[:each]]
    return chosen


def _amounts(pair: BeforeAfter, fates: Sequence[Outcomes]) -> dict[str, npt.NDArray[np.int64]]:
    """Per image: rare objects found only after, objects found only before, false alarms after less before."""
    truth = pair.truth
    before, after = (fate.found(len(truth.labels)) for fate in fates)
    alarms = [_per_image(fate.detections.image_index[fate.is_false_alarm], truth.num_images) for fate in fates]
    gained = after & ~before & pair.rare[truth.labels]
    return {
        FOUND: _per_image(truth.image_index[gained], truth.num_images),
        LOST: _per_image(truth.image_index[before & ~after], truth.num_images),
        ALARMS: alarms[1] - alarms[0],
    }


def _per_image(indices: npt.NDArray[Any], num_images: int) -> npt.NDArray[np.int64]:
    return np.bincount(indices, minlength=num_images).astype(np.int64)


def _image(pair: BeforeAfter, fates: Sequence[Outcomes], part: str, index: int, amount: int) -> GalleryImage:
    found = [fate.found(len(pair.truth.labels)) for fate in fates]
    views = [_marks(pair, fates[side], index, found[side], found[1 - side]) for side in (0, 1)]
    # A false alarm is new where the other view has none of that class at nearly the same place.
    before, after = views[0], tuple(_with_change(mark, views[0]) for mark in views[1])
    return GalleryImage(part, amount, index, int(pair.truth.image_ids[index]), before, after)


def _marks(
    pair: BeforeAfter,
    fate: Outcomes,
    index: int,
    found: npt.NDArray[np.bool_],
    found_by_other: npt.NDArray[np.bool_],
) -> tuple[Mark, ...]:
    truth, marks = pair.truth, []
    for box in np.flatnonzero((truth.image_index == index) & ~truth.crowd & ~found):
        x, y, width, height = truth.boxes[box].tolist()
        corners = (x, y, x + width, y + height)
        marks.append(Mark("missed", corners, int(truth.labels[box]), changed=bool(found_by_other[box])))
    for row in np.flatnonzero(fate.detections.image_index == index):
        hit = fate.box[row] >= 0
        kind = "hit" if hit else "alarm" if fate.judged[row] else "unjudged"
        left, top, right, bottom = fate.detections.boxes[row].tolist()
        marks.append(
            Mark(
                kind,
                (left, top, right, bottom),
                int(fate.detections.labels[row]),
                float(fate.detections.scores[row]),
                changed=bool(hit and not found_by_other[fate.box[row]]),
            )
        )
    return tuple(marks)


def _with_change(mark: Mark, before: Sequence[Mark]) -> Mark:
    if mark.kind != "alarm":
        return mark
    known = any(other.kind == "alarm" and other.label == mark.label and _close(other, mark) for other in before)
    return Mark(mark.kind, mark.box, mark.label, mark.score, changed=not known)


def _close(one: Mark, two: Mark) -> bool:
    low = np.maximum(one.box[:2], two.box[:2])
    high = np.minimum(one.box[2:], two.box[2:])
    shared = float(np.maximum(high - low, 0).prod())
    areas = [(mark.box[2] - mark.box[0]) * (mark.box[3] - mark.box[1]) for mark in (one, two)]
    return shared >= 0.5 * (sum(areas) - shared)
