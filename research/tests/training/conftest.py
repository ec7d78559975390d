"""Tiny data sets, written in a moment, and what several tests do with models and runs."""

import json

import numpy as np
import pytest
import torch
from logn_research.training.checkpoint import read_checkpoint
from PIL import Image
from torch import nn


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


@pytest.fixture(scope="session")
def stop_at_call():
    """Make a loss that ends the process's work in the middle of a run, as a kill does, after so many calls."""

    def stopping(calls, loss=None):
        left = iter(range(calls))

        def count(*_):
            if next(left, None) is None:
                raise KeyboardInterrupt

        def cross_entropy(logits, labels):
            count()
            return nn.functional.cross_entropy(logits, labels)

        if loss is None:
            return cross_entropy
        loss.register_forward_pre_hook(count)
        return loss

    return stopping


@pytest.fixture(scope="session")
def assert_same_run():
    """Check that two runs ended with the same weights and momentum, to the bit."""

    def check(first, second):
        a, b = (read_checkpoint(folder) for folder in (first, second))
        assert set(a.model) == set(b.model)
        assert set(a.momentum) == set(b.momentum) != set()
        assert all(torch.equal(a.model[name], b.model[name]) for name in a.model)
        assert all(torch.equal(a.momentum[name], b.momentum[name]) for name in a.momentum)

    return check


@pytest.fixture(scope="session")
def learn_by_heart():
    """Train a detector on the same images over and over; gives its losses of every step."""

    def learn(model, scenes, *, steps, rate, longest_gradient=float("inf")):
        images, targets = zip(*scenes, strict=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        history = []
        for _ in range(steps):
            losses = model(list(images), list(targets))
            optimizer.zero_grad()
            sum(losses.values()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), longest_gradient)
            optimizer.step()
            history.append({name: loss.item() for name, loss in losses.items()})
        return history

    return learn
