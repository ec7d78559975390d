"""Ultralytics' own `val` and our `evaluate` on the same folder: trains a YOLO on drawn shapes and compares AP.

    python benchmarks/ultralytics_agreement.py --folder runs/shapes --epochs 20

Shapes of four classes, of which two are rare, on images of noise; labels in YOLO's form. Two things of `val` are its
own: it pads images to a square or to the shapes of a batch (`rect`), where `predict` and our detector pad each to the
next multiple of the stride, and it matches boxes as they come out of the head, which may reach beyond the image. So it
is run with both paddings and with clipped boxes, on images of many shapes (`val`) and on square ones (`test`), where
there is nothing to pad; the boxes of our store are also averaged by Ultralytics' own functions.
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
    for split, count in (("train", train), ("val", val), ("test", val)):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            height, width = size, size if split == "test" else int(generator.integers(size // 2, size + 1))
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
        f"path: {folder.resolve()}\ntrain: images/train\nval: images/val\ntest: images/test\nnames:\n{names}\n"
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


def clipping_validator() -> Any:
    """Ultralytics' validator, with boxes that end at the image, as in everything else that it writes."""
    from ultralytics.models.yolo.detect.val import DetectionValidator

    class Clipping(DetectionValidator):
        def _process_batch(self, preds: dict[str, Any], batch: dict[str, Any]) -> dict[str, Any]:
            (gain, *_), (left, top) = batch["ratio_pad"]
            height, width = batch["ori_shape"]
            boxes = preds["bboxes"].clone()
            boxes[:, 0::2] = boxes[:, 0::2].clamp(left, left + width * gain)
            boxes[:, 1::2] = boxes[:, 1::2].clamp(top, top + height * gain)
            found: dict[str, Any] = super()._process_batch({**preds, "bboxes": boxes}, batch)
            return found

    return Clipping


def by_their_formula(store: Path, data: str) -> float:
    """AP of the boxes in our store, matched and averaged by Ultralytics' own functions."""
    import torch
    from ultralytics.models.yolo.detect.val import DetectionValidator
    from ultralytics.utils.metrics import ap_per_class, box_iou

    from logn.evaluate.comparison.settings import CompareSettings
    from logn.evaluate.decode.decoder import DecodeSettings, decode
    from logn.evaluate.detection.task import read_truth
    from logn.evaluate.store.prediction_store import PredictionStore

    proposals = PredictionStore(store)
    found = decode(proposals, settings=DecodeSettings(score_threshold=0.001, max_detections=300))
    truth = read_truth(proposals, data, CompareSettings(style="coco"), masks=False).dataset
    places = {category["id"]: place for place, category in enumerate(truth["categories"])}
    objects: dict[int, list[list[float]]] = {image: [] for image in proposals.image_ids.tolist()}
    for item in truth["annotations"]:
        left, top, width, height = item["bbox"]
        objects[item["image_id"]].append([left, top, left + width, top + height, places[item["category_id"]]])
    validator, hits, order = DetectionValidator(), [], []
    for index, image in enumerate(proposals.image_ids.tolist()):
        of_image = np.flatnonzero(found.image_index == index)
        of_image = of_image[np.argsort(-found.scores[of_image], kind="stable")]
        wanted = torch.tensor(objects[image]).reshape(-1, 5)
        overlaps = box_iou(wanted[:, :4], torch.from_numpy(found.boxes[of_image]))
        classes = torch.from_numpy(found.labels[of_image].astype(np.float32))
        hits.append(validator.match_predictions(classes, wanted[:, 4], overlaps).numpy())
        order.append(of_image)
    kept = np.concatenate(order)
    wanted_classes = np.array([box[4] for boxes in objects.values() for box in boxes])
    per_class = ap_per_class(np.concatenate(hits), found.scores[kept], found.labels[kept], wanted_classes)[5]
    return float(np.mean(per_class))


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
    settings = {"data": str(data), "imgsz": 192, "device": "cpu", "workers": 0, "plots": False}
    ways = {
        "val": {"rect": True},
        "val, padded to a square": {"rect": False},
        "val, padded to a square, boxes clipped": {"rect": False, "validator": clipping_validator()},
    }
    found: dict[str, dict[str, float]] = {}
    for split in ("val", "test"):
        found[split] = {
            name: YOLO(best).val(split=split, verbose=False, **settings, **way).box.map for name, way in ways.items()
        }
        store, labels = folder / f"predictions-{split}", f"{data}:{split}"
        if not store.exists():
            run("predict", best, "--trust", "--image-size", 192, "--data", labels, "-o", store)
        found[split]["boxes of our store, formula of val"] = by_their_formula(store, labels)
        found[split]["evaluate"] = json.loads(run("evaluate", store, "-a", labels, "--json"))["methods"][0]["metrics"][
            "AP"
        ]
    print(json.dumps(found, indent=1, default=float))


if __name__ == "__main__":
    main()
