"""Draw what a model finds at 0.25 before and after thresholds: `python docs/make_thresholds_picture.py street`.

The folder is what `python examples/drawn_yolo.py street` wrote, with `shipped.pt` made there by the first command of
docs/how-to/thresholds.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from make_pictures import IMAGES, save_small
from PIL import Image, ImageDraw, ImageFont
from ultralytics import YOLO

SCALE, GAP, TITLE, SCENES = 2, 10, 26, 5
FOUND, WRONG, MISSED = (0, 130, 60), (225, 105, 0), (90, 90, 90)


def read_objects(path: Path, size: int) -> list[tuple[int, np.ndarray]]:
    """Class and corners of the objects of an image."""
    rows = [line.split() for line in path.read_text().splitlines()]
    boxes = [np.array(row[1:], float) * size for row in rows]
    return [
        (int(row[0]), np.concatenate([box[:2] - box[2:] / 2, box[:2] + box[2:] / 2]))
        for row, box in zip(rows, boxes, strict=True)
    ]


def overlap(first: np.ndarray, second: np.ndarray) -> float:
    """Intersection over union."""
    sides = np.minimum(first[2:], second[2:]) - np.maximum(first[:2], second[:2])
    common = float(np.prod(np.maximum(sides, 0)))
    return common / (sum(float(np.prod(box[2:] - box[:2])) for box in (first, second)) - common)


def marked(image: Path, result: object, objects: list[tuple[int, np.ndarray]]) -> tuple[Image.Image, set[int]]:
    """The image with found objects, false alarms and missed objects, and which objects were found."""
    picture = Image.open(image).convert("RGB")
    picture = picture.resize((picture.width * SCALE, picture.height * SCALE), Image.Resampling.BICUBIC)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(12)
    found: set[int] = set()

    def box_of(corners: np.ndarray, colour: tuple[int, int, int], text: str) -> None:
        left, top, right, bottom = (float(value) for value in corners * SCALE)
        draw.rectangle((left, top, right, bottom), outline=colour, width=2)
        above = min(bottom, picture.height - 14) if colour == MISSED else max(top - 14, 0)
        length = draw.textlength(text, font) + 4
        left = min(left, picture.width - length)
        draw.rectangle((left, above, left + length, above + 14), fill=colour)
        draw.text((left + 2, above), text, fill="white", font=font)

    for corners, label in zip(result.boxes.xyxy.numpy(), result.boxes.cls.int().tolist(), strict=True):
        right = [
            place
            for place, (name, box) in enumerate(objects)
            if place not in found and name == label and overlap(box, corners) >= 0.5
        ]
        found |= set(right[:1])
        box_of(corners, FOUND if right else WRONG, result.names[label])
    for place, (label, box) in enumerate(objects):
        if place not in found:
            box_of(box, MISSED, result.names[label])
    return picture, found


def main() -> None:
    """Draw the scenes in which most is gained and lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    images = sorted((folder / "images" / "val").iterdir())
    size = Image.open(images[0]).width
    truth = [read_objects(folder / "labels" / "val" / f"{image.stem}.txt", size) for image in images]
    sides = []
    for name in ("best.pt", "shipped.pt"):
        results = YOLO(folder / name).predict([str(image) for image in images], conf=0.25, imgsz=size, verbose=False)
        sides.append([marked(*scene) for scene in zip(images, results, truth, strict=True)])
        found, kept = sum(len(found) for _, found in sides[-1]), sum(len(result.boxes) for result in results)
        print(f"{name}: {found} of {sum(map(len, truth))} objects found, {kept - found} false alarms")
    rarity = 1 / np.bincount([label for objects in truth for label, _ in objects])
    gains = [
        sum(rarity[objects[place][0]] * (1 if place in after[1] else -1) for place in before[1] ^ after[1])
        for objects, before, after in zip(truth, *sides, strict=True)
    ]
    order = np.argsort(gains, kind="stable")
    chosen = sorted([*order[::-1][: SCENES - 1].tolist(), int(order[0])])  # and the scene that loses most
    side = size * SCALE
    sheet = Image.new("RGB", (SCENES * (side + GAP) - GAP, 2 * (side + TITLE)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    for row, (title, scenes) in enumerate(zip(("best.pt at 0.25", "shipped.pt at 0.25"), sides, strict=True)):
        top = row * (side + TITLE)
        draw.text((0, top + 4), title, fill="black", font=font)
        for column, scene in enumerate(chosen):
            sheet.paste(scenes[scene][0], (column * (side + GAP), top + TITLE))
    left = sheet.width
    for text, colour in (("missed", MISSED), ("false alarm", WRONG), ("found", FOUND)):
        left -= int(draw.textlength(text, font)) + 14
        draw.text((left, 4), text, fill=colour, font=font)
    save_small(sheet, IMAGES / "thresholds.png")


if __name__ == "__main__":
    main()
