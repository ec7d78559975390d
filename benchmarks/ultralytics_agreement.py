"""Ultralytics' own `val` against `logn evaluate --coco`, on the same model, images and labels.

A YOLO is trained for some epochs on drawn shapes, which are written as a YOLO folder; then both measure it there:

    python benchmarks/ultralytics_agreement.py --epochs 20

Prints AP, AP50 and AP75 (0 to 100) of both, and fails where AP differs by more than half a point.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SHAPES = ("disc", "square", "triangle")
SIDE = 128


def draw(seed: int) -> tuple[Image.Image, list[tuple[int, float, float, float, float]]]:
    """One to four shapes on noise, and their boxes as YOLO has them."""
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(60, 120, (SIDE, SIDE, 3), dtype=np.uint8))
    pen, boxes = ImageDraw.Draw(image), []
    for _ in range(rng.integers(1, 5)):
        label, size = int(rng.choice(3, p=[0.6, 0.3, 0.1])), int(rng.integers(18, 50))
        x, y = (int(place) for place in rng.integers(0, SIDE - size, 2))
        colour = tuple(int(value) for value in rng.integers(130, 255, 3))
        corners = [x, y, x + size, y + size]
        if label == 0:
            pen.ellipse(corners, fill=colour)
        elif label == 1:
            pen.rectangle(corners, fill=colour)
        else:
            pen.polygon([(x, y + size), (x + size, y + size), (x + size // 2, y)], fill=colour)
        boxes.append((label, (x + size / 2) / SIDE, (y + size / 2) / SIDE, size / SIDE, size / SIDE))
    return image, boxes


def write_folder(folder: Path, counts: dict[str, int]) -> Path:
    """A YOLO folder with `data.yaml`."""
    for number, (split, count) in enumerate(counts.items()):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True)
        for index in range(count):
            image, boxes = draw(number * 100_000 + index)
            image.save(folder / "images" / split / f"{index:05d}.png")
            lines = [f"{label} {' '.join(f'{value:.6f}' for value in box)}\n" for label, *box in boxes]
            (folder / "labels" / split / f"{index:05d}.txt").write_text("".join(lines))
    names = "".join(f"  {place}: {name}\n" for place, name in enumerate(SHAPES))
    data = folder / "data.yaml"
    data.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames:\n{names}")
    return data


def logn(*words: object) -> str:
    """Run the command line."""
    command = [sys.executable, "-m", "logn", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Train, measure twice, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="yolo11n.yaml")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int, default=160)
    arguments = parser.parse_args()
    os.environ.setdefault("YOLO_OFFLINE", "true")
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")
    folder = Path(tempfile.mkdtemp(prefix="logn-ultralytics-"))
    os.environ.setdefault("YOLO_CONFIG_DIR", str(folder / "settings"))
    from ultralytics import YOLO

    data = write_folder(folder / "shapes", {"train": arguments.images, "val": 60})
    settings = {"data": str(data), "imgsz": SIDE, "device": "cpu", "workers": 0, "verbose": False, "plots": False}
    yolo = YOLO(arguments.model)
    yolo.train(epochs=arguments.epochs, batch=16, project=str(folder), name="run", amp=False, **settings)
    weights = folder / "run" / "weights" / "best.pt"
    box = YOLO(weights).val(project=str(folder), name="val", **settings).box
    theirs = {"AP": 100 * box.map, "AP50": 100 * box.map50, "AP75": 100 * box.map75}
    logn("predict", weights, "--trust", "--data", data, "-o", folder / "store", "--dtype", "float32", "--no-progress")
    found = json.loads(logn("evaluate", folder / "store", "-a", f"{data}:val", "--coco", "--json", "--no-progress"))
    ours = {name: 100 * found["methods"][0]["metrics"][name] for name in theirs}
    for name, value in theirs.items():
        print(f"{name}: Ultralytics {value:.2f}, LogN {ours[name]:.2f}")
    if abs(ours["AP"] - theirs["AP"]) > 0.5:
        raise SystemExit("AP differs by more than half a point.")


if __name__ == "__main__":
    main()
