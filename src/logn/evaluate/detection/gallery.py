"""Which images the report shows: by a rule that is stated, and not only those that flatter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.evaluate.detection.before_after import BeforeAfter
from logn.evaluate.detection.outcomes import DetectionMatches
from logn.evaluate.detection.recall_at_count import RecallAtCount
from logn.labels.annotation_columns import image_names

# Title of each part of the gallery; the images of a part are those with the most of what it counts.
FOUND, LOST, ALARMS = "Rare objects found", "Objects lost", "False alarms added"
KINDS = ("hit", "alarm", "unjudged", "missed")


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

    def to_dict(self) -> dict[str, Any]:
        """Give everything but the boxes as plain values, for JSON."""
        return {
            "part": self.part,
            "amount": self.amount,
            "image_index": self.image_index,
            "image_id": self.image_id,
            "boxes": [len(self.before), len(self.after)],
            "names": list(self.names),
            "size": None if self.size is None else list(self.size),
        }


Arrays = dict[str, npt.NDArray[Any]]


def gallery_arrays(images: Sequence[GalleryImage]) -> Arrays:
    """The boxes of all images one after another, before and after, as arrays."""
    marks = [mark for image in images for mark in (*image.before, *image.after)]
    return {
        "boxes": np.array([mark.box for mark in marks], np.float64).reshape(-1, 4),
        "labels": np.array([mark.label for mark in marks], np.int64),
        "scores": np.array([np.nan if mark.score is None else mark.score for mark in marks], np.float64),
        "kinds": np.array([KINDS.index(mark.kind) for mark in marks], np.uint8),
        "changed": np.array([mark.changed for mark in marks], np.uint8),
    }


def gallery_from_arrays(
    listed: Sequence[Mapping[str, Any]], arrays: Mapping[str, npt.NDArray[Any]]
) -> list[GalleryImage]:
    """Read the images that `GalleryImage.to_dict` and `gallery_arrays` gave."""
    columns = [arrays[name].tolist() for name in ("kinds", "boxes", "labels", "scores", "changed")]
    marks = iter(
        [
            Mark(KINDS[kind], tuple(box), label, None if np.isnan(score) else score, bool(changed))
            for kind, box, label, score, changed in zip(*columns, strict=True)
        ]
    )
    return [
        GalleryImage(
            part=str(entry["part"]),
            amount=int(entry["amount"]),
            image_index=int(entry["image_index"]),
            image_id=int(entry["image_id"]),
            before=tuple(islice(marks, int(entry["boxes"][0]))),
            after=tuple(islice(marks, int(entry["boxes"][1]))),
            names=tuple(map(str, entry["names"])),
            size=None if entry["size"] is None else (int(entry["size"][0]), int(entry["size"][1])),
        )
        for entry in listed
    ]


def choose_images(pair: BeforeAfter, point: RecallAtCount, *, each: int = 4) -> list[GalleryImage]:
    """Choose for each part the images with the most of what it counts; of equal ones the lower id; none twice.

    Args:
        pair: Detections before and after.
        point: The two thresholds, which keep as many detections in all.
        each: Images per part.
    """
    matches = [pair.before.above(point.at), pair.after.above(point.threshold)]
    chosen: list[GalleryImage] = []
    for part, amounts in _amounts(pair, matches).items():
        used = {image.image_index for image in chosen}
        ranked = np.lexsort((pair.truth.image_ids, -amounts))
        best = [int(index) for index in ranked if amounts[index] > 0 and int(index) not in used]
        chosen += [_image(pair, matches, part, index, int(amounts[index])) for index in best[:each]]
    return chosen


def _amounts(pair: BeforeAfter, matches: Sequence[DetectionMatches]) -> dict[str, npt.NDArray[np.int64]]:
    """Per image: rare objects found only after, objects found only before, false alarms after less before."""
    truth = pair.truth
    before, after = (side.found(len(truth.labels)) for side in matches)
    alarms = [_per_image(side.detections.image_index[side.is_false_alarm], truth.num_images) for side in matches]
    gained = after & ~before & pair.rare[truth.labels]
    return {
        FOUND: _per_image(truth.image_index[gained], truth.num_images),
        LOST: _per_image(truth.image_index[before & ~after], truth.num_images),
        ALARMS: alarms[1] - alarms[0],
    }


def _per_image(indices: npt.NDArray[Any], num_images: int) -> npt.NDArray[np.int64]:
    return np.bincount(indices, minlength=num_images).astype(np.int64)


def _image(pair: BeforeAfter, matches: Sequence[DetectionMatches], part: str, index: int, amount: int) -> GalleryImage:
    found = [side.found(len(pair.truth.labels)) for side in matches]
    views = [_marks(pair, matches[side], index, found[side], found[1 - side]) for side in (0, 1)]
    # A false alarm is new where the other view has none of that class at nearly the same place.
    before, after = views[0], tuple(_with_change(mark, views[0]) for mark in views[1])
    entry = pair.truth.dataset["images"][index]
    known = all(isinstance(entry.get(side), int) for side in ("height", "width"))
    return GalleryImage(
        part,
        amount,
        index,
        int(pair.truth.image_ids[index]),
        before,
        after,
        image_names(entry),
        (entry["height"], entry["width"]) if known else None,
    )


def _marks(
    pair: BeforeAfter,
    side: DetectionMatches,
    index: int,
    found: npt.NDArray[np.bool_],
    found_by_other: npt.NDArray[np.bool_],
) -> tuple[Mark, ...]:
    truth, marks = pair.truth, []
    for box in np.flatnonzero((truth.image_index == index) & ~truth.crowd & ~found):
        x, y, width, height = truth.boxes[box].tolist()
        corners = (x, y, x + width, y + height)
        marks.append(Mark("missed", corners, int(truth.labels[box]), changed=bool(found_by_other[box])))
    for row in np.flatnonzero(side.detections.image_index == index):
        hit = side.box[row] >= 0
        kind = "hit" if hit else "alarm" if side.judged[row] else "unjudged"
        left, top, right, bottom = side.detections.boxes[row].tolist()
        marks.append(
            Mark(
                kind,
                (left, top, right, bottom),
                int(side.detections.labels[row]),
                float(side.detections.scores[row]),
                changed=bool(hit and not found_by_other[side.box[row]]),
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
