"""A tiny data set in LVIS's format, written in a moment."""

import json

import numpy as np
import pytest
from PIL import Image

from logn.datasets.labelled_images import array_images


def write_lvis_folder(folder, *, images=10, size=64, classes=4, objects=3, seed=0):
    """Coloured rectangles on noise, one colour per class, with polygons; returns the annotation file."""
    generator = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    colours = generator.integers(0, 256, (classes, 3))
    entries = {"images": [], "annotations": [], "categories": []}
    for image_id in range(1, images + 1):
        pixels = generator.integers(0, 256, (size, size, 3), dtype=np.uint8)
        name = f"images/{image_id}.png"
        for _ in range(objects):
            label = int(generator.integers(classes))
            width, height = (int(side) for side in generator.integers(16, 32, 2))
            x, y = int(generator.integers(size - width)), int(generator.integers(size - height))
            pixels[y : y + height, x : x + width] = colours[label]
            entries["annotations"].append(
                {
                    "id": len(entries["annotations"]) + 1,
                    "image_id": image_id,
                    "category_id": label + 1,
                    "bbox": [x, y, width, height],
                    "area": width * height,
                    "segmentation": [[x, y, x + width, y, x + width, y + height, x, y + height]],
                }
            )
        Image.fromarray(pixels).save(folder / name)
        entries["images"].append({"id": image_id, "file_name": name, "height": size, "width": size})
    entries["categories"] = [
        {"id": number + 1, "name": f"class {number}", "frequency": "f"} for number in range(classes)
    ]
    path = folder / "train.json"
    path.write_text(json.dumps(entries))
    return path


@pytest.fixture(scope="session")
def lvis_folder(tmp_path_factory):
    """A folder with ten images of four classes."""
    folder = tmp_path_factory.mktemp("lvis")
    write_lvis_folder(folder)
    return folder


@pytest.fixture
def make_lvis_folder():
    """The function that writes such a folder."""
    return write_lvis_folder


def striped_images(counts=(24, 12, 6, 3), *, size=32, seed=0):
    """Images of classes that differ in colour and in the direction of their stripes, as many of each as asked for."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    colours = np.random.default_rng(7).integers(60, 256, (len(counts), 3))
    pixels = generator.integers(0, 60, (len(labels), size, size, 3))
    for image, label in zip(pixels, labels, strict=True):
        lines = image if label % 2 else image.transpose(1, 0, 2)
        lines[int(generator.integers(4)) :: 4] = colours[label]
    return array_images(pixels.astype(np.uint8), labels, [f"class {number}" for number in range(len(counts))])


@pytest.fixture
def make_striped_images():
    """The function that makes labelled images."""
    return striped_images


@pytest.fixture(scope="session")
def striped():
    """45 images of four classes."""
    return striped_images()
