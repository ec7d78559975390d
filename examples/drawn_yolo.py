"""Draw street scenes with a long tail of classes and train a tiny YOLO on them: half a minute on one processor.

    python examples/drawn_yolo.py street

writes `street/best.pt` and `street/data.yaml` with its images and labels: what docs/how-to/thresholds.md starts from.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from ultralytics import __version__
from ultralytics.cfg import get_cfg
from ultralytics.nn.tasks import DetectionModel

NAMES = ("car", "person", "bus", "bike", "sign")
SHARES = (0.66, 0.22, 0.06, 0.04, 0.02)
SIZE = 96
# Strides 8 and 16; what YOLOv8 has, but with few channels.
LAYERS = {
    "nc": len(NAMES),
    "backbone": [
        [-1, 1, "Conv", [16, 3, 2]],
        [-1, 1, "Conv", [32, 3, 2]],
        [-1, 1, "C2f", [32, True]],
        [-1, 1, "Conv", [64, 3, 2]],
        [-1, 1, "C2f", [64, True]],
        [-1, 1, "Conv", [96, 3, 2]],
        [-1, 1, "C2f", [96, True]],
    ],
    "head": [
        [-1, 1, "nn.Upsample", [None, 2, "nearest"]],
        [[-1, 4], 1, "Concat", [1]],
        [-1, 1, "C2f", [64]],
        [[9, 6], 1, "Detect", ["nc"]],
    ],
}


def draw_scene(rng: np.random.Generator) -> tuple[Image.Image, list[tuple[int, float, float, float, float]]]:
    """An image, and class and corners of each object."""
    ground = np.linspace(rng.integers(200, 240), rng.integers(160, 210), SIZE)[:, None, None]
    pixels = np.clip(ground + rng.normal(0, 8, (SIZE, SIZE, 3)), 0, 255)
    image = Image.fromarray(pixels.astype(np.uint8))
    draw, objects = ImageDraw.Draw(image), []
    for label in rng.choice(len(NAMES), rng.integers(2, 5), p=SHARES).tolist():
        unit = rng.uniform(0.8, 1.3)
        width, height = (unit * side for side in ((24, 13), (9, 24), (32, 18), (26, 16), (16, 18))[label])
        left, top = rng.uniform(0, SIZE - width), rng.uniform(0, SIZE - height)
        box = (left, top, left + width, top + height)
        if any(box[0] < x2 and x1 < box[2] and box[1] < y2 and y1 < box[3] for _, x1, y1, x2, y2 in objects):
            continue
        colour = tuple(rng.integers(0, 256, 3).tolist())
        _draw_object(draw, NAMES[label], box, colour)
        objects.append((label, *box))
    return image, objects


def _draw_object(draw: ImageDraw.ImageDraw, name: str, box: tuple[float, ...], colour: tuple[int, ...]) -> None:
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    wheel, dark, glass = 0.16 * width, (20, 20, 20), (220, 235, 245)
    if name in ("car", "bus"):
        roof = top + (0.35 if name == "car" else 0.0) * height
        draw.rectangle((left, roof, right, bottom - wheel / 2), fill=colour)
        if name == "car":
            draw.rectangle((left + 0.2 * width, top, right - 0.25 * width, roof + 1), fill=colour)
        for place in (0.3, 0.5, 0.7) if name == "bus" else (0.4, 0.6):
            x = left + place * width
            draw.rectangle((x - 0.07 * width, top + 2, x + 0.07 * width, top + 0.4 * height), fill=glass)
        for place in (0.25, 0.75):
            x = left + place * width
            draw.ellipse((x - wheel / 2, bottom - wheel, x + wheel / 2, bottom), fill=dark)
    elif name == "person":
        draw.ellipse((left + 0.2 * width, top, right - 0.2 * width, top + 0.28 * height), fill=(225, 180, 150))
        draw.rectangle((left, top + 0.28 * height, right, top + 0.65 * height), fill=colour)
        for place in (0.1, 0.6):
            x = left + place * width
            draw.rectangle((x, top + 0.65 * height, x + 0.3 * width, bottom), fill=dark)
    elif name == "bike":
        for x in (left, right - 0.45 * width):
            draw.ellipse((x, bottom - 0.45 * width, x + 0.45 * width, bottom), outline=dark, width=2)
        hub, saddle = bottom - 0.22 * width, (left + 0.45 * width, top)
        draw.line([(left + 0.22 * width, hub), saddle, (right - 0.22 * width, hub)], fill=colour, width=2)
    else:
        draw.polygon([(left, bottom), (right, bottom), ((left + right) / 2, top)], fill=(250, 240, 90), outline=colour)


def write_split(folder: Path, split: str, count: int, seed: int) -> list[tuple[Image.Image, list]]:
    """Draw the images of a split and write them with their labels in YOLO's form."""
    rng = np.random.default_rng(seed)
    scenes = [draw_scene(rng) for _ in range(count)]
    for part in ("images", "labels"):
        (folder / part / split).mkdir(parents=True, exist_ok=True)
    for number, (image, objects) in enumerate(scenes):
        image.save(folder / "images" / split / f"{number:04}.png")
        lines = [
            f"{label} {(x1 + x2) / 2 / SIZE:.5f} {(y1 + y2) / 2 / SIZE:.5f} {(x2 - x1) / SIZE:.5f} "
            f"{(y2 - y1) / SIZE:.5f}\n"
            for label, x1, y1, x2, y2 in objects
        ]
        (folder / "labels" / split / f"{number:04}.txt").write_text("".join(lines))
    return scenes


def train(scenes: list[tuple[Image.Image, list]], steps: int, batch: int = 16, seed: int = 0) -> DetectionModel:
    """Train with Ultralytics' own loss."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = DetectionModel(LAYERS, verbose=False)
    model.args = get_cfg()
    model.names = dict(enumerate(NAMES))
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 0.1  # of few steps
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image, _ in scenes])).permute(0, 3, 1, 2) / 255
    labels = [torch.tensor([entry[0] for entry in objects]).view(-1, 1).float() for _, objects in scenes]
    corners = [torch.tensor([entry[1:] for entry in objects]).view(-1, 4) / SIZE for _, objects in scenes]
    boxes = [torch.cat([(part[:, :2] + part[:, 2:]) / 2, part[:, 2:] - part[:, :2]], dim=1) for part in corners]
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.006, total_steps=steps)
    model.train()
    for _ in range(steps):
        chosen = rng.choice(len(scenes), batch, replace=False).tolist()
        targets = {
            "img": pixels[chosen],
            "cls": torch.cat([labels[place] for place in chosen]),
            "bboxes": torch.cat([boxes[place] for place in chosen]).float(),
            "batch_idx": torch.cat([torch.full((len(labels[place]),), at) for at, place in enumerate(chosen)]).float(),
        }
        optimizer.zero_grad()
        model(targets)[0].sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10)
        optimizer.step()
        schedule.step()
    return model.eval()


def make(folder: Path, *, images: int = 300, steps: int = 110) -> None:
    """Draw, train and write everything."""
    scenes = write_split(folder, "train", images, seed=0)
    write_split(folder, "val", 160, seed=1)
    names = "".join(f"  {place}: {name}\n" for place, name in enumerate(NAMES))
    (folder / "data.yaml").write_text(f"train: images/train\nval: images/val\nnames:\n{names}")
    model = train(scenes, steps)
    model.args, model.criterion = {"imgsz": SIZE}, None
    checkpoint = {"epoch": -1, "model": model.half(), "ema": None, "train_args": model.args, "version": __version__}
    torch.save(checkpoint, folder / "best.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    torch.set_num_threads(1)  # sums in one order: the same weights with any number of processors
    make(parser.parse_args().folder)
