"""Images with their boxes before and after: what was found, what was lost, and what is a false alarm."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from logn.evaluate.detection.gallery import ALARMS, FOUND, LOST, GalleryImage, Mark, ReportDetails
from logn.evaluate.detection.metrics import RecallAtCount
from logn.logits.images import ImageArray, import_pillow

LARGEST_SIDE = 560
RULES = {
    FOUND: "most objects of rare classes that are found only after the correction",
    LOST: "most objects that are found only before it",
    ALARMS: "most false alarms more than before",
}
# What is drawn over what: the last on top.
ORDER = ("unjudged", "missed", "alarm", "hit", "lost")
# Of a class name, in the picture; all of it stands below.
LONGEST_NAME = 14
# Sizes in units of the picture's line.
LETTER, LINE = 4.1, 9.0


def data_uri(image: ImageArray, largest_side: int = LARGEST_SIDE) -> str:
    """A picture as JPEG inside an address, made smaller where it is large."""
    picture = import_pillow().fromarray(image)
    picture.thumbnail((largest_side, largest_side))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=82, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


@dataclass(frozen=True)
class Frame:
    """The box of a mark; `dashes` is empty for a whole line, `title` is what a pointer on it shows."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    stroke: float
    dashes: str
    title: str


@dataclass(frozen=True)
class Label:
    """What stands at a box: the number that leads to the caption, the class and the score."""

    kind: str
    text: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class View:
    """The boxes of an image before or after."""

    title: str
    counts: Mapping[str, int]
    frames: tuple[Frame, ...]
    labels: tuple[Label, ...]


@dataclass(frozen=True)
class Key:
    """What a number in an image stands for."""

    kind: str
    number: int
    what: str
    name: str
    score: float


@dataclass(frozen=True)
class Picture:
    """An image with its views; `source` is an address that holds it, `unit` the thickness of a line."""

    index: int
    image_id: int
    source: str
    width: int
    height: int
    unit: float
    views: tuple[View, View]
    keys: tuple[Key, ...]


@dataclass(frozen=True)
class GalleryPart:
    """Images that were chosen by one rule; of the `chosen` ones those whose picture is there."""

    title: str
    rule: str
    pictures: tuple[Picture, ...]
    chosen: int = 0


@dataclass(frozen=True)
class Gallery:
    """All images by part, with the rule by which they were chosen.

    Args:
        point: The two thresholds.
        parts: The images.
        lacking: What to say of pictures that are not there; empty where all are.
    """

    template: ClassVar[str] = "gallery.html.jinja"
    point: RecallAtCount
    parts: tuple[GalleryPart, ...]
    lacking: str = ""


def gallery(
    details: ReportDetails,
    point: RecallAtCount,
    pictures: Mapping[int, ImageArray],
    names: Sequence[str],
    lacking: str = "",
) -> Gallery:
    """Draw boxes on the pictures that are there, by the id of the image; `names` are those of the classes."""

    def old_score(score: float) -> float:
        return max(details.histograms["all"].old_score(score), point.at)

    drawn = [
        (image.part, _picture(image, pictures[image.image_id], names, old_score))
        for image in details.gallery
        if image.image_id in pictures
    ]
    parts = (
        GalleryPart(
            title,
            rule,
            tuple(picture for part, picture in drawn if part == title),
            sum(image.part == title for image in details.gallery),
        )
        for title, rule in RULES.items()
    )
    return Gallery(point, tuple(parts), lacking)


@dataclass(frozen=True)
class _Drawn:
    """A mark as it is drawn: an object that is found before and not after is lost, on either side."""

    mark: Mark
    kind: str
    name: str
    score: float | None
    number: int | None

    @property
    def text(self) -> str:
        """What stands at the box."""
        name = self.name if len(self.name) <= LONGEST_NAME else f"{self.name[: LONGEST_NAME - 1]}…"
        words = ["" if self.number is None else str(self.number), name]
        return " ".join([*filter(None, words), *([] if self.score is None else [f"{self.score:.2f}"])])

    @property
    def title(self) -> str:
        """All of it."""
        told = {"hit": "right", "alarm": "false alarm", "unjudged": "not judged"}.get(self.kind, self.kind)
        return f"{told}: {self.name}" + ("" if self.score is None else f" {self.score:.2f}")


def _picture(
    image: GalleryImage, pixels: ImageArray, names: Sequence[str], old_score: Callable[[float], float]
) -> Picture:
    height, width = pixels.shape[:2]
    unit = max(width, height) / 170
    changed = [mark for mark in (*image.before, *image.after) if mark.changed and mark.kind != "missed"]
    numbers = {id(mark): place for place, mark in enumerate(changed, start=1)}

    def drawn(mark: Mark, *, is_before: bool) -> _Drawn:
        is_lost = mark.changed and mark.kind == ("hit" if is_before else "missed")
        score = mark.score if is_before or mark.score is None else old_score(mark.score)
        return _Drawn(mark, "lost" if is_lost else mark.kind, names[mark.label], score, numbers.get(id(mark)))

    sides = [[drawn(mark, is_before=True) for mark in image.before]]
    sides.append([drawn(mark, is_before=False) for mark in image.after])
    before, after = (
        _view(title, marks, (width, height), unit) for title, marks in zip(("Before", "After"), sides, strict=True)
    )
    keys = sorted(
        (_key(mark) for side in sides for mark in side if mark.number is not None), key=lambda key: key.number
    )
    source = data_uri(pixels)
    return Picture(image.image_index, image.image_id, source, width, height, unit, (before, after), tuple(keys))


def _key(mark: _Drawn) -> Key:
    what = {"alarm": "false alarm", "hit": "found"}.get(mark.kind, mark.kind)
    return Key(mark.kind, mark.number or 0, what, mark.name, mark.score or 0.0)


def _view(title: str, marks: Sequence[_Drawn], size: tuple[int, int], unit: float) -> View:
    ranked = sorted(marks, key=lambda drawn: (ORDER.index(drawn.kind), drawn.mark.changed))
    counts = {kind: sum(drawn.mark.kind == kind for drawn in marks) for kind in ("hit", "alarm", "missed")}
    return View(title, counts, tuple(_frame(drawn, unit) for drawn in ranked), tuple(_labels(ranked, unit, size)))


def _frame(drawn: _Drawn, unit: float) -> Frame:
    mark = drawn.mark
    left, top, right, bottom = mark.box
    stroke = unit * (2.0 if mark.changed else 0.6 if mark.kind == "unjudged" else 1.1)
    dash = 1.6 * unit
    dashes = {"alarm": f"{3 * dash:g} {1.5 * dash:g}", "missed": f"{dash:g} {dash:g}"}.get(mark.kind, "")
    size = max(right - left, 0.0), max(bottom - top, 0.0)
    return Frame(drawn.kind, left, top, *size, stroke, dashes, drawn.title)


def _labels(ranked: Sequence[_Drawn], unit: float, size: tuple[int, int]) -> list[Label]:
    """Put a label at each detection, and at what was lost: those that lead to the caption first, none over another."""
    height = LINE * unit
    placed: list[Label] = []
    for drawn in sorted(ranked, key=lambda drawn: drawn.number is None):
        if drawn.kind in ("unjudged", "missed"):
            continue
        for text in dict.fromkeys((drawn.text, "" if drawn.number is None else str(drawn.number))):
            width = (LETTER * len(text) + 3.0) * unit
            place = _free_place(drawn.mark.box, (width, height), size, placed)
            if text and place is not None:
                placed.append(Label(drawn.kind, text, *place, width, height))
                break
    return placed


def _free_place(
    box: tuple[float, float, float, float], label: tuple[float, float], size: tuple[int, int], placed: Sequence[Label]
) -> tuple[float, float] | None:
    """Above the box, below it, or inside its top: the first place inside the picture that hides no other label."""
    left, top, _, bottom = box
    width, height = label
    x = min(max(left, 0.0), size[0] - width)
    for y in (top - height, bottom, top):
        hides = any(
            x < other.x + other.width and other.x < x + width and y < other.y + other.height and other.y < y + height
            for other in placed
        )
        if x >= 0 and 0 <= y <= size[1] - height and not hides:
            return x, y
    return None
