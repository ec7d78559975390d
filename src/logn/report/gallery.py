"""Images with their boxes before and after: what was found, what was lost, and what is a false alarm."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from logn.data.images import ImageArray, import_pillow, read_rgb
from logn.errors import InputError
from logn.measure.detection.example_images import ALARMS, FOUND, LOST, RARE, SAME, GalleryImage, Mark
from logn.report.view import View

LARGEST_SIDE = 560
RULES = {
    RARE: "The images with the most objects of rare classes that are found only after the correction.",
    FOUND: "The images with the most objects that are found only after the correction.",
    LOST: "The images with the most objects that are found only before it.",
    ALARMS: "The images with the most added false alarms.",
    SAME: "At these thresholds the same objects are found before and after, with the same false alarms.",
}
# What is drawn over what: the last on top.
ORDER = ("unjudged", "missed", "alarm", "hit", "lost")
MEANINGS = {
    "hit": "right",
    "lost": "lost: right before, not found after",
    "alarm": "false alarm",
    "missed": "missed object",
    "unjudged": "not judged (class not verified in this image)",
}
# Of a class name in the picture; the caption has all of it.
LONGEST_NAME = 14
# Sizes in units of the picture's line.
LETTER, LINE = 4.1, 9.0

Box = tuple[float, float, float, float]


def gallery(view: View) -> dict[str, Any]:
    """The chosen images by part, and what pictures are lacking, empty if none are.

    An image without its picture is drawn as boxes on an empty ground, where its size is known.
    """
    before, after, details = view.before.thresholds, view.focus.thresholds, view.focus.details
    if details is None or not details.gallery or before is None or after is None:
        raise InputError(
            "The comparison has no images to show. Compare again (in Python with `report_images` above 0)."
        )
    root = view.images or (Path(view.inputs.image_root) if view.inputs.image_root else None)
    names = [entry.name for entry in view.comparison.classes]
    parts: dict[str, list[dict[str, Any]]] = {}
    reasons = []
    for image in details.gallery:
        source, size = "", image.size
        try:
            pixels = read_picture(image, root)
            source, size = data_uri(pixels), (pixels.shape[0], pixels.shape[1])
        except InputError as error:
            reasons.append(str(error))
        if size is not None:
            parts.setdefault(image.part, []).append(draw_image(image, source, size, names))
    lacking = ""
    if reasons:
        lacking = f"{len(reasons):,} of {len(details.gallery):,} pictures are missing. {reasons[0]}"
    if not parts:
        raise InputError(lacking)
    return {
        "thresholds": (before.at, after.use),
        "parts": [(part, RULES[part], pictures) for part, pictures in parts.items()],
        "lacking": lacking,
        "legend": MEANINGS,
    }


def read_picture(image: GalleryImage, root: Path | None) -> ImageArray:
    """Read the picture of an image; raise InputError if its size is not that of the annotations."""
    if root is None:
        raise InputError("Pass the folder of the images, `images`.")
    paths = [root / name for name in image.names]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        tried = " or ".join(f"`{path}`" for path in paths) or f"`{root}`"
        raise InputError(f"Image {image.image_id} is not at {tried}. Pass the folder of the images, `images`.")
    pixels = read_rgb(path)
    if image.size is not None and pixels.shape[:2] != image.size:
        raise InputError(
            f"`{path}` has height and width {pixels.shape[:2]}, but the annotations say {image.size}. Pass the folder "
            "of the images that were predicted, `images`."
        )
    return pixels


def data_uri(pixels: ImageArray, largest_side: int = LARGEST_SIDE) -> str:
    """A picture as JPEG inside an address, made smaller where it is large."""
    picture = import_pillow().fromarray(pixels)
    picture.thumbnail((largest_side, largest_side))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=82, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def draw_image(image: GalleryImage, source: str, size: tuple[int, int], names: Sequence[str]) -> dict[str, Any]:
    """Both views of an image, and its caption; `size` is height and width, `source` empty without a picture."""
    height, width = size
    unit = max(width, height) / 170
    sides = [("Before", image.before), ("After", image.after)]
    changed: dict[str, list[str]] = {}
    for title, marks in sides:
        for mark in marks:
            if mark.changed and mark.score is not None:
                changed.setdefault(_kind(mark, title), []).append(f"{names[mark.label]} {mark.score:.2f}")
    words = {"hit": "found", "lost": "lost", "alarm": "false alarm"}
    return {
        "index": image.image_index,
        "id": image.image_id,
        "source": source,
        "size": (width, height),
        "unit": unit,
        "views": [_view(title, marks, names, (width, height), unit) for title, marks in sides],
        "captions": [(kind, word, ", ".join(changed[kind])) for kind, word in words.items() if kind in changed],
    }


def _kind(mark: Mark, title: str) -> str:
    """How a mark is drawn: an object that is found before and not after is lost, on either side."""
    is_lost = mark.changed and mark.kind == ("hit" if title == "Before" else "missed")
    return "lost" if is_lost else mark.kind


def _view(
    title: str, marks: Sequence[Mark], names: Sequence[str], size: tuple[int, int], unit: float
) -> dict[str, Any]:
    drawn = sorted(
        ((_kind(mark, title), mark) for mark in marks), key=lambda pair: (ORDER.index(pair[0]), pair[1].changed)
    )
    frames = [_frame(kind, mark, names, unit) for kind, mark in drawn]
    counts = {kind: sum(mark.kind == kind for mark in marks) for kind in ("hit", "alarm", "missed")}
    spoken = f"{title}: {counts['hit']} right, {counts['alarm']} false alarms, {counts['missed']} missed"
    return {"title": title, "spoken": spoken, "frames": frames, "labels": place_labels(drawn, names, size, unit)}


def _frame(kind: str, mark: Mark, names: Sequence[str], unit: float) -> dict[str, Any]:
    left, top, right, bottom = mark.box
    dash = 1.6 * unit
    score = "" if mark.score is None else f" {mark.score:.2f}"
    return {
        "kind": kind,
        "box": (left, top, max(right - left, 0.0), max(bottom - top, 0.0)),
        "stroke": unit * (2.0 if mark.changed else 0.6 if kind == "unjudged" else 1.1),
        "dashes": {"alarm": f"{3 * dash:g} {1.5 * dash:g}", "missed": f"{dash:g} {dash:g}"}.get(mark.kind, ""),
        "outline": mark.outline,
        "title": f"{MEANINGS[kind].partition(':')[0]}: {names[mark.label]}{score}",
    }


class Label(NamedTuple):
    """Class and score on their ground, `box` from its corner with width and height."""

    kind: str
    text: str
    box: Box


def place_labels(
    drawn: Sequence[tuple[str, Mark]], names: Sequence[str], size: tuple[int, int], unit: float
) -> list[Label]:
    """Put class and score at each detection, and at what was lost: what changed comes first, none hides another."""
    height = LINE * unit
    placed: list[Label] = []
    for kind, mark in sorted(drawn, key=lambda pair: not pair[1].changed):
        if kind in ("unjudged", "missed"):
            continue
        name = names[mark.label]
        name = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
        text = name if mark.score is None else f"{name} {mark.score:.2f}"
        width = (LETTER * len(text) + 3.0) * unit
        corner = _free_corner(mark.box, (width, height), size, [other.box for other in placed])
        if corner is not None:
            placed.append(Label(kind, text, (*corner, width, height)))
    return placed


def _free_corner(
    box: Box, label: tuple[float, float], size: tuple[int, int], placed: Sequence[Box]
) -> tuple[float, float] | None:
    """Above the box, below it, or inside its top: the first corner inside the picture that hides no other label."""
    left, top, _, bottom = box
    width, height = label
    x = min(max(left, 0.0), size[0] - width)
    for y in (top - height, bottom, top):
        hides = any(x < x2 + w and x2 < x + width and y < y2 + h and y2 < y + height for x2, y2, w, h in placed)
        if x >= 0 and 0 <= y <= size[1] - height and not hides:
            return x, y
    return None
