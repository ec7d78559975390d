"""A set in LVIS v1's layout and with its 1,203 classes, but a handful of small drawn images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 1203
SIZE = 96


def write_tiny_lvis(root: Path, *, train: int = 4, val: int = 1) -> Path:
    """Write `annotations/lvis_v1_{train,val}.json` and the images below `root`, and return it.

    Args:
        root: The folder that stands for `data/lvis_v1`.
        train: How many training images.
        val: How many images to test on.
    """
    random = np.random.default_rng(0)
    (root / "annotations").mkdir(parents=True)
    for split, count in (("train", train), ("val", val)):
        (root / f"{split}2017").mkdir()
        images, objects = [], []
        for number in range(1, count + 1):
            name = f"{split}2017/{number:012}.jpg"
            pixels = random.integers(0, 60, (SIZE, SIZE, 3), dtype=np.uint8)
            # The first classes are in every image, the others in one each.
            for category in (1, 2, 3, 10 * number):
                left, top = random.integers(0, SIZE - 48, 2).tolist()
                width, height = random.integers(24, 48, 2).tolist()
                pixels[top : top + height, left : left + width] = random.integers(60, 255, 3)
                corners = [left, top, left + width, top, left + width, top + height, left, top + height]
                objects.append(
                    {
                        "id": len(objects) + 1,
                        "image_id": number,
                        "category_id": category,
                        "bbox": [left, top, width, height],
                        "area": width * height,
                        "segmentation": [corners],
                    }
                )
            Image.fromarray(pixels).save(root / name)
            images.append(
                {
                    "id": number,
                    "width": SIZE,
                    "height": SIZE,
                    "coco_url": f"http://images.cocodataset.org/{name}",
                    "neg_category_ids": [4, 5],
                    "not_exhaustive_category_ids": [],
                }
            )
        categories = [
            {
                "id": number,
                "name": f"class_{number}",
                "frequency": "f" if number < 4 else "c" if number < 100 else "r",
                "image_count": len({item["image_id"] for item in objects if item["category_id"] == number}),
                "instance_count": sum(item["category_id"] == number for item in objects),
            }
            for number in range(1, CLASSES + 1)
        ]
        content = {"images": images, "annotations": objects, "categories": categories}
        (root / f"annotations/lvis_v1_{split}.json").write_text(json.dumps(content), encoding="utf-8")
    return root
