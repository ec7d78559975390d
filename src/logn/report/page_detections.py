"""What became of the detections: scores and thresholds, images with boxes before and after."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from logn.datasets.image_file import ImageArray, import_pillow
from logn.evaluate.comparison.report_details import GALLERY_THRESHOLD, ReportDetails
from logn.evaluate.detection.before_after import OperatingPoint, ScoreHistogram
from logn.evaluate.detection.gallery import ALARMS, FOUND, LOST, GalleryImage, Mark
from logn.report.svg_charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, step_path

LARGEST_SIDE = 560
HISTOGRAMS = {"all": "All detections", "rare": "Detections of rare classes"}
RULES = {
    FOUND: "most objects of rare classes that are found only after the correction",
    LOST: "most objects that are found only before it",
    ALARMS: "most false alarms more than before",
}


@dataclass(frozen=True)
class Histogram:
    """How many detections have which score: outlines before and after, and how many there are in all."""

    title: str
    x: Axis
    y: Axis
    before: str
    after: str
    totals: tuple[int, int]


@dataclass(frozen=True)
class Scores:
    """Scores move under a correction: how, and which thresholds stand in for the old ones.

    Args:
        histograms: Of all detections and of those of rare classes.
        points: Thresholds before and after.
        typical: The one of them to recommend in a sentence.
        images: How many were looked at.
        of_images: How many the run has.
    """

    template: ClassVar[str] = "scores.html.jinja"
    histograms: tuple[Histogram, ...]
    points: tuple[OperatingPoint, ...]
    typical: OperatingPoint
    images: int
    of_images: int


def score_changes(details: ReportDetails) -> Scores:
    """Draw histograms of the scores next to a table of thresholds."""
    histograms = (
        _histogram(title, details.histograms[name]) for name, title in HISTOGRAMS.items() if name in details.histograms
    )
    # The threshold of the gallery is the one of them to recommend in a sentence.
    typical = min(details.thresholds, key=lambda point: abs(point.old - GALLERY_THRESHOLD))
    return Scores(tuple(histograms), details.thresholds, typical, details.images, details.of_images)


def _histogram(title: str, counts: ScoreHistogram) -> Histogram:
    top = max(int(counts.before.max(initial=1)), int(counts.after.max(initial=1)), 10)
    x = Axis(float(counts.edges[0]), 1.0, LEFT, WIDTH - RIGHT, logarithmic=True)
    y = Axis(0.7, top * 1.3, HEIGHT - BOTTOM, TOP + 8, logarithmic=True)
    edges = counts.edges.tolist()
    before, after = (step_path(x, y, edges, side.tolist()) for side in (counts.before, counts.after))
    return Histogram(title, x, y, before, after, (int(counts.before.sum()), int(counts.after.sum())))


def data_uri(image: ImageArray, largest_side: int = LARGEST_SIDE) -> str:
    """A picture as JPEG inside an address, made smaller where it is large."""
    picture = import_pillow().fromarray(image)
    picture.thumbnail((largest_side, largest_side))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=82, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


@dataclass(frozen=True)
class Frame:
    """The box of a mark; `dashes` is empty for a whole line."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    stroke: float
    dashes: str


@dataclass(frozen=True)
class Badge:
    """A number that leads from a box to the caption."""

    kind: str
    number: int
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
    badges: tuple[Badge, ...]


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
    point: OperatingPoint
    parts: tuple[GalleryPart, ...]
    lacking: str = ""


def gallery(
    details: ReportDetails, pictures: Mapping[int, ImageArray], names: Sequence[str], lacking: str = ""
) -> Gallery:
    """Draw boxes on the pictures that are there, by the id of the image; `names` are those of the classes."""
    drawn = [
        (image.part, _picture(image, pictures[image.image_id], names))
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
    return Gallery(details.gallery_point, tuple(parts), lacking)


def _picture(image: GalleryImage, pixels: ImageArray, names: Sequence[str]) -> Picture:
    height, width = pixels.shape[:2]
    unit = max(width, height) / 170
    changed = [mark for mark in (*image.before, *image.after) if mark.changed and mark.kind != "missed"]
    numbers = {id(mark): place for place, mark in enumerate(changed, start=1)}
    gone = {id(mark) for mark in image.before}
    before, after = (
        _view(title, marks, (width, height), numbers, unit)
        for title, marks in (("Before", image.before), ("After", image.after))
    )
    keys = (_key(mark, numbers[id(mark)], names, is_gone=id(mark) in gone) for mark in changed)
    source = data_uri(pixels)
    return Picture(image.image_index, image.image_id, source, width, height, unit, (before, after), tuple(keys))


def _key(mark: Mark, number: int, names: Sequence[str], *, is_gone: bool) -> Key:
    what = "false alarm" if mark.kind == "alarm" else "lost" if is_gone else "found"
    return Key(mark.kind, number, what, names[mark.label], mark.score or 0.0)


def _view(title: str, marks: Sequence[Mark], size: tuple[int, int], numbers: Mapping[int, int], unit: float) -> View:
    order = {"unjudged": 0, "missed": 1, "alarm": 2, "hit": 3}
    ranked = sorted(marks, key=lambda mark: (order[mark.kind], mark.changed))
    badges = _badges([(mark, numbers[id(mark)]) for mark in ranked if id(mark) in numbers], unit, size)
    counts = {kind: sum(mark.kind == kind for mark in marks) for kind in ("hit", "alarm", "missed")}
    return View(title, counts, tuple(_frame(mark, unit) for mark in ranked), tuple(badges))


def _frame(mark: Mark, unit: float) -> Frame:
    left, top, right, bottom = mark.box
    stroke = unit * (2.0 if mark.changed else 0.6 if mark.kind == "unjudged" else 1.1)
    dash = 1.6 * unit
    dashes = {"alarm": f"{3 * dash:g} {1.5 * dash:g}", "missed": f"{dash:g} {dash:g}"}.get(mark.kind, "")
    return Frame(mark.kind, left, top, max(right - left, 0.0), max(bottom - top, 0.0), stroke, dashes)


def _badges(numbered: Sequence[tuple[Mark, int]], unit: float, size: tuple[int, int]) -> list[Badge]:
    """Put each number at a corner of its box, inside the picture and none on top of another."""
    height = 9.5 * unit
    placed: list[Badge] = []
    for mark, number in numbered:
        width = (6.5 + 4.5 * len(str(number))) * unit
        y = min(max(mark.box[1] - height, 0.0), size[1] - height)
        x = min(max(mark.box[0], 0.0), size[0] - width)
        while any(abs(x - b.x) < width and abs(y - b.y) < height for b in placed) and x < size[0] - width:
            x += width
        placed.append(Badge(mark.kind, number, x, y, width, height))
    return placed
