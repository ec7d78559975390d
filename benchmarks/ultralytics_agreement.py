"""Ultralytics' own `val` and our `evaluate` on the same folder: trains a YOLO on drawn shapes and compares AP.

    python benchmarks/ultralytics_agreement.py --folder runs/shapes --epochs 20

Shapes of four classes, of which two are rare, on photographs of noise; labels in YOLO's form.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ("disc", "square", "ring", "cross")
SHARES = (0.55, 0.3, 0.1, 0.05)


def draw(folder: Path, *, train: int, val: int, size: int = 192) -> Path:
    """Images with one to five shapes each, and the labels beside them."""
    from PIL import Image, ImageDraw

    generator = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            height, width = size, int(generator.integers(size // 2, size + 1))
            noise = generator.normal(120, 30, (height, width, 3)).clip(0, 255)
            image = Image.fromarray(noise.astype(np.uint8))
            canvas, lines = ImageDraw.Draw(image), []
            for _ in range(int(generator.integers(1, 6))):
                label = int(generator.choice(4, p=SHARES))
                side = int(generator.integers(16, 56))
                x, y = int(generator.integers(0, width - side + 1)), int(generator.integers(0, height - side + 1))
                _shape(canvas, label, (x, y, x + side - 1, y + side - 1), generator)
                numbers = ((x + side / 2) / width, (y + side / 2) / height, side / width, side / height)
                lines.append(f"{label} " + " ".join(f"{value:.6f}" for value in numbers))
            image.save(folder / "images" / split / f"{number:05d}.png")
            (folder / "labels" / split / f"{number:05d}.txt").write_text("\n".join(lines) + "\n")
    names = "\n".join(f"  {place}: {name}" for place, name in enumerate(NAMES))
    (folder / "data.yaml").write_text(
        f"path: {folder.resolve()}\ntrain: images/train\nval: images/val\nnames:\n{names}\n"
    )
    return folder / "data.yaml"


def _shape(canvas: Any, label: int, box: tuple[int, int, int, int], generator: np.random.Generator) -> None:
    colour = tuple(int(value) for value in generator.integers(0, 256, 3))
    left, top, right, bottom = box
    if label == 0:
        canvas.ellipse(box, fill=colour)
    elif label == 1:
        canvas.rectangle(box, fill=colour)
    elif label == 2:
        canvas.ellipse(box, outline=colour, width=4)
    else:
        middle = ((left + right) // 2, (top + bottom) // 2)
        canvas.line((left, middle[1], right, middle[1]), fill=colour, width=6)
        canvas.line((middle[0], top, middle[0], bottom), fill=colour, width=6)


def run(*words: object) -> str:
    command = [sys.executable, "-m", "logn", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/shapes"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int, default=600, help="training images; a third as many to measure on")
    parser.add_argument("--model", default="yolov8n.yaml")
    arguments = parser.parse_args()
    from ultralytics import YOLO

    folder = arguments.folder
    data = folder / "data.yaml"
    if not data.exists():
        draw(folder, train=arguments.images, val=arguments.images // 3)
    best = folder / "run" / "weights" / "best.pt"
    if not best.exists():
        model = YOLO(arguments.model)
        model.train(
            data=str(data),
            epochs=arguments.epochs,
            imgsz=192,
            batch=16,
            device="cpu",
            workers=0,
            project=str(folder.resolve()),
            name="run",
            exist_ok=True,
            plots=False,
            val=False,
            verbose=False,
            amp=False,
            close_mosaic=arguments.epochs // 2,
        )
    own = YOLO(best).val(data=str(data), imgsz=192, device="cpu", workers=0, plots=False, verbose=False, rect=False)
    store = folder / "predictions"
    run("predict", best, "--trust", "--image-size", 192, "--data", data, "-o", store)
    ours = json.loads(run("evaluate", store, "-a", data, "--json"))
    print(json.dumps({"val": own.results_dict, "evaluate": ours}, indent=1, default=float))


if __name__ == "__main__":
    main()
