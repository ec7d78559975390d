"""One small data set in two forms: made once as COCO content, written as a YOLO tree by hand."""

from dataclasses import dataclass

import numpy as np

NAMES = ("cat", "dog", "traffic light")


@dataclass(frozen=True)
class Thing:
    """One object: class, corners in whole pixels, and whether it is a crowd."""

    label: int
    left: int
    top: int
    right: int
    bottom: int
    crowd: bool = False


def write_images(folder, sizes):
    from PIL import Image  # also read where there is no Pillow

    folder.mkdir(parents=True, exist_ok=True)
    for number, (stem, (width, height)) in enumerate(sizes.items()):
        pixels = np.random.default_rng(number).integers(0, 255, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{stem}.png")


def coco_content(sizes, things, names=NAMES):
    """The same as a COCO file; `things` by the stem of their image."""
    images, annotations = [], []
    for number, stem in enumerate(sorted(sizes), start=1):
        images.append({"id": number, "file_name": f"{stem}.png", "width": sizes[stem][0], "height": sizes[stem][1]})
        for thing in things.get(stem, ()):
            width, height = thing.right - thing.left, thing.bottom - thing.top
            box = {"bbox": [thing.left, thing.top, width, height], "area": width * height}
            place = {"id": len(annotations) + 1, "image_id": number, "category_id": thing.label + 1}
            annotations.append({**place, **box, "iscrowd": int(thing.crowd)})
    categories = [{"id": number, "name": name} for number, name in enumerate(names, start=1)]
    return {"images": images, "categories": categories, "annotations": annotations}


def yolo_line(thing, size):
    across, down = (thing.left + thing.right) / 2, (thing.top + thing.bottom) / 2
    numbers = across, down, thing.right - thing.left, thing.bottom - thing.top
    shares = [repr(number / side) for number, side in zip(numbers, (*size, *size), strict=True)]
    return " ".join([str(thing.label), *shares])


def write_yolo(root, sizes, things, names=NAMES):
    """A tree as Ultralytics makes it; an image without objects has no text file."""
    write_images(root / "images" / "val", sizes)
    labels = root / "labels" / "val"
    labels.mkdir(parents=True, exist_ok=True)
    for stem, found in things.items():
        (labels / f"{stem}.txt").write_text("".join(f"{yolo_line(thing, sizes[stem])}\n" for thing in found))
    lines = [f"  {number}: {name}" for number, name in enumerate(names)]
    head = [f"path: {root}", "train: images/val", "val: images/val", "names:"]
    (root / "data.yaml").write_text("\n".join([*head, *lines, ""]))
    return root / "data.yaml"


SIZES = {"a": (60, 40), "b": (32, 64), "empty": (20, 20)}
THINGS = {
    "a": (Thing(0, 2, 3, 30, 20), Thing(2, 10, 10, 58, 39), Thing(0, 0, 0, 12, 9)),
    "b": (Thing(1, 1, 30, 31, 60), Thing(2, 0, 0, 32, 64)),
}
