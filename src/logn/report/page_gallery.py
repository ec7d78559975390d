"""Images with boxes before and after; each picture is in the page once, both views draw on it."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence

from logn.datasets.image_file import ImageArray, import_pillow
from logn.evaluate.ground_truth import GroundTruth
from logn.report.before_after import OperatingPoint
from logn.report.gallery_data import ALARMS, FOUND, LOST, GalleryImage, Mark
from logn.report.markup import Markup, join, tag
from logn.report.page_parts import legend, section

LARGEST_SIDE = 560
RULES = {
    FOUND: "most objects of rare classes that are found only after the correction",
    LOST: "most objects that are found only before it",
    ALARMS: "most false alarms more than before",
}


def data_uri(image: ImageArray, largest_side: int = LARGEST_SIDE) -> str:
    """A picture as JPEG inside an address, made smaller where it is large."""
    picture = import_pillow().fromarray(image)
    picture.thumbnail((largest_side, largest_side))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=82, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def gallery_section(
    images: Sequence[GalleryImage], pictures: Sequence[ImageArray], truth: GroundTruth, point: OperatingPoint
) -> Markup:
    """All images by part, with the rule by which they were chosen."""
    parts = []
    for part, rule in RULES.items():
        chosen = [(image, picture) for image, picture in zip(images, pictures, strict=True) if image.part == part]
        if chosen:
            figures = [_figure(image, picture, truth) for image, picture in chosen]
            parts.append(join([tag("h3", part), tag("p", f"The images with the {rule}.", class_="lead")]))
            parts.append(tag("div", *figures, class_="gallery"))
        else:
            parts.append(join([tag("h3", part), tag("p", "No image has any.", class_="lead")]))
    return section(
        "gallery",
        "Look at it",
        f"Left before, right after. Shown are detections with a score of at least {point.old:g} before and "
        f"{point.new:.3g} after, so that both keep as many in all. Images were chosen by counting, not by eye; of "
        "equal ones the lower id; none twice. Numbers mark where the two views differ.",
        legend(*_legend()),
        *parts,
    )


def _legend() -> list[tuple[Markup, str]]:
    meanings = {
        "hit": "right",
        "alarm": "false alarm",
        "missed": "missed object",
        "unjudged": "not judged (class not verified in this image)",
    }
    entries = []
    for kind, text in meanings.items():
        frame = {"x": 2, "y": 2, "width": 10, "height": 10}
        under = tag("rect", **frame, class_=f"{kind} under", stroke_width=4) if kind == "missed" else None
        box = tag("rect", **frame, class_=kind, stroke_width=2, stroke_dasharray=_dashes(kind, 2.2))
        entries.append((join([under, box]), text))
    return entries


def _dashes(kind: str, unit: float) -> str | None:
    return {"alarm": f"{3 * unit:g} {1.5 * unit:g}", "missed": f"{unit:g} {unit:g}"}.get(kind)


def _figure(image: GalleryImage, picture: ImageArray, truth: GroundTruth) -> Markup:
    height, width = picture.shape[:2]
    key = f"picture-{image.image_index}"
    frame = tag("image", id=key, href=data_uri(picture), width=width, height=height)
    changed = [mark for mark in (*image.before, *image.after) if mark.changed and mark.kind != "missed"]
    numbers = {id(mark): place for place, mark in enumerate(changed, start=1)}
    views = [
        _view(title, base, marks, (width, height), numbers)
        for title, base, marks in (("Before", frame, image.before), ("After", tag("use", href=f"#{key}"), image.after))
    ]
    gone = {id(mark) for mark in image.before}
    keys = [_key(mark, numbers[id(mark)], truth.class_names, is_gone=id(mark) in gone) for mark in changed]
    caption = tag("figcaption", f"Image {image.image_id}", tag("ul", *keys, class_="keys"))
    return tag("figure", tag("div", *views, class_="pair"), caption)


def _key(mark: Mark, number: int, names: Sequence[str], *, is_gone: bool) -> Markup:
    what = "false alarm" if mark.kind == "alarm" else "lost" if is_gone else "found"
    return tag("li", tag("i", number, class_=f"key-{mark.kind}"), f"{what}: {names[mark.label]} {mark.score or 0:.2f}")


def _view(title: str, base: Markup, marks: Sequence[Mark], size: tuple[int, int], numbers: Mapping[int, int]) -> Markup:
    width, height = size
    unit = max(width, height) / 170
    order = {"unjudged": 0, "missed": 1, "alarm": 2, "hit": 3}
    ranked = sorted(marks, key=lambda mark: (order[mark.kind], mark.changed))
    boxes = [_box(mark, unit) for mark in ranked]
    badges = _badges([(mark, numbers[id(mark)]) for mark in ranked if id(mark) in numbers], unit, size)
    counts = ", ".join(f"{sum(mark.kind == kind for mark in marks)} {kind}" for kind in ("hit", "alarm", "missed"))
    svg = tag(
        "svg", base, *boxes, *badges, viewBox=f"0 0 {width} {height}", role="img", aria_label=f"{title}: {counts}"
    )
    return tag("div", svg, tag("span", title))


def _box(mark: Mark, unit: float) -> Markup:
    left, top, right, bottom = mark.box
    stroke = unit * (2.0 if mark.changed else 0.6 if mark.kind == "unjudged" else 1.1)
    frame = {"x": left, "y": top, "width": max(right - left, 0.0), "height": max(bottom - top, 0.0)}
    under = None
    if mark.kind != "unjudged":
        under = tag("rect", **frame, class_=f"{mark.kind} under", stroke_width=stroke * 1.9)
    box = tag("rect", **frame, class_=mark.kind, stroke_width=stroke, stroke_dasharray=_dashes(mark.kind, 1.6 * unit))
    return join([under, box])


def _badges(numbered: Sequence[tuple[Mark, int]], unit: float, size: tuple[int, int]) -> list[Markup]:
    """Numbers that lead to the caption, at a corner of each box, inside the picture and none upon another."""
    height = 9.5 * unit
    taken: list[tuple[float, float]] = []
    drawn: list[Markup] = []
    for mark, number in numbered:
        width = (6.5 + 4.5 * len(str(number))) * unit
        y = min(max(mark.box[1] - height, 0.0), size[1] - height)
        x = min(max(mark.box[0], 0.0), size[0] - width)
        while any(abs(x - left) < width and abs(y - top) < height for left, top in taken) and x < size[0] - width:
            x += width
        taken.append((x, y))
        drawn.append(tag("rect", x=x, y=y, width=width, height=height, rx=1.5 * unit, class_=f"badge-{mark.kind}"))
        font = f"font-size:{0.82 * height:.1f}px"
        drawn.append(tag("text", number, x=x + width / 2, y=y + 0.8 * height, text_anchor="middle", style=font))
    return drawn
