"""What every framework's test does with a model: record, attach and fold against the model's own logits."""

from __future__ import annotations

import copy
import json
import os
import re
import runpy
import shlex
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from logn.cli.main import execute
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.layer import count_columns, find_modules
from logn.models.locate import locate_logits
from logn.models.torch.attach import attach
from logn.models.torch.fold import fold
from logn.models.torch.record import record
from logn.predictions.decoder import DecodeSettings, decode
from logn.predictions.store import Predictions, PredictionWriter, StoreHeader
from logn.statistics.head import Head

# No framework may look for files or updates on a network, or write outside the tests' own folders.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("YOLO_OFFLINE", "true")
os.environ.setdefault("YOLO_AUTOINSTALL", "false")
os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp(prefix="yolo-settings-"))


def random_map(columns, background=None, seed=0):
    generator = np.random.default_rng(seed)
    return ClassAffine(
        generator.uniform(0.5, 2.0, columns), generator.normal(size=columns), head=Head(background=background)
    )


def spread_out(model, layer):
    """Larger weights than the initial ones, so that classes, anchors and queries give clearly different logits."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for module in find_modules(model, layer):
            fan_in = module.weight[0].numel()
            module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * 3 / fan_in**0.5)
            if module.bias is not None:
                module.bias.copy_(torch.randn(module.bias.shape, generator=generator))


@pytest.fixture
def spread():
    return spread_out


@pytest.fixture
def class_map():
    return random_map


@pytest.fixture
def agreement():
    """Check a model: `own_logits(model)` runs it and gives each stage's logits (rows, columns) by its own means."""

    def check(model, own_logits, *, fold_refused=None, rtol=1e-5):
        layer = locate_logits(model)
        columns = count_columns(model, layer)
        weights = copy.deepcopy(model.state_dict())
        with torch.inference_mode():
            plain = [np.asarray(rows, dtype=np.float64) for rows in own_logits(model)]
            with record(model, layer) as moments:
                own_logits(model)
        moments = moments if layer.stages else (moments,)
        assert len(moments) == layer.num_stages == len(plain)
        for recorded, rows in zip(moments, plain, strict=True):
            assert rows.std() > 0.1
            assert recorded.count.tolist() == [len(rows)] * columns
            np.testing.assert_allclose(recorded.mean, rows.mean(axis=0), rtol=rtol, atol=rtol / 10)
            np.testing.assert_allclose(recorded.variance, rows.var(axis=0, ddof=1), rtol=10 * rtol, atol=1e-9)
            assert recorded.head.background == layer.background
            assert recorded.head.activation == layer.activation
            assert recorded.head.population == layer.population

        maps = [random_map(columns, layer.background, seed) for seed in range(layer.num_stages)]
        affine = maps if layer.stages else maps[0]
        expected = [affine_of(rows) for affine_of, rows in zip(maps, plain, strict=True)]
        with torch.inference_mode():
            with attach(model, layer, affine):
                attached = own_logits(model)
            after = own_logits(model)
        assert all(torch.equal(tensor, weights[key]) for key, tensor in model.state_dict().items())
        for rows, mapped, again, wanted in zip(plain, attached, after, expected, strict=True):
            np.testing.assert_allclose(mapped, wanted, atol=1e-4, rtol=0)
            np.testing.assert_array_equal(again, rows)

        folded = copy.deepcopy(model)
        if fold_refused is not None:
            with pytest.raises(InputError, match=fold_refused):
                fold(folded, layer, affine)
            return layer, None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* was tied to ")
            fold(folded, layer, affine)
        assert folded.state_dict().keys() == weights.keys()
        with torch.inference_mode():
            for mapped, wanted in zip(own_logits(folded), expected, strict=True):
                np.testing.assert_allclose(mapped, wanted, atol=1e-4, rtol=0)
        with pytest.raises(InputError, match="folded"):
            fold(folded, layer, affine)
        return layer, folded

    return check


def rename(model, layer, new_name):
    """Move the class layer to another attribute, as in a fork that we cannot know."""
    for path in layer.paths:
        parent_path, _, name = path.rpartition(".")
        parent = model.get_submodule(parent_path)
        module = parent._modules.pop(name)
        parent.add_module(new_name, module)


@pytest.fixture
def refusal():
    """The message for a model whose class layer was renamed."""

    def check(model, columns):
        layer = locate_logits(model)
        path = layer.paths[0]
        renamed = f"{path.rpartition('.')[0]}.labels".lstrip(".")
        rename(model, layer, "labels")
        with pytest.raises(InputError) as caught:
            locate_logits(model, num_columns=columns)
        assert f'logn.LogitLayer("{renamed}"' in str(caught.value)

    return check


def decoded_as_the_framework_does(detector, images, folder, **changes):
    """The detections of each image, decoded from stored proposals with the settings that the adapter names."""
    found = [detector.propose([image])[0] for image in images]  # as there: a batch is computed in another order
    header = StoreHeader(
        detector.head_of(found[0]),
        class_boxes=found[0].boxes.ndim == 3,
        dtype="float32",
        postprocessing=detector.postprocessing,
    )
    assert header.head.num_classes == detector.num_classes
    with PredictionWriter(folder, header) as writer:
        for image_id, proposals in enumerate(found):
            assert (proposals.height, proposals.width) == tuple(images[image_id].shape[-2:])
            writer.append(image_id, proposals)
    settings = DecodeSettings.of_framework(replace(detector.postprocessing, **changes))
    detections = decode(Predictions(folder), settings=settings)
    return [detections.take(detections.image_index == index) for index in range(len(images))]


@pytest.fixture
def own_decode():
    return decoded_as_the_framework_does


@pytest.fixture
def same_detections(tmp_path):
    """Check an adapter: `own(image)` gives boxes, scores and labels by the framework's own post-processing."""

    def check(detector, images, own, *, atol=1e-4, rtol=0, decimals=9, **changes):
        decoded = decoded_as_the_framework_does(detector, images, tmp_path / "store", **changes)
        for image, found in zip(images, decoded, strict=True):
            boxes, scores, labels = (np.asarray(values) for values in own(image))
            assert len(found) == len(scores) >= 1
            np.testing.assert_allclose(found.scores, np.sort(scores)[::-1], atol=1e-5, rtol=0)
            # By class and place, since scores that are almost equal may stand in either order.
            here, there = (
                np.lexsort((*rows[0].round(decimals).T[::-1], rows[1]))
                for rows in ((found.boxes, found.labels), (boxes, labels))
            )
            np.testing.assert_array_equal(found.labels[here], labels[there])
            np.testing.assert_allclose(found.boxes[here], boxes[there], atol=atol, rtol=rtol)
            np.testing.assert_allclose(found.scores[here], scores[there], atol=1e-4, rtol=0)
        return decoded

    return check


@pytest.fixture
def pictures():
    """Images of several sizes, as `logn.predict` reads them: 8-bit colours between 0 and 1."""
    generator = torch.Generator().manual_seed(5)
    sizes = ((48, 80), (90, 60), (64, 64), (48, 80))
    return [torch.randint(0, 256, (3, *size), generator=generator).float() / 255 for size in sizes]


def draw_labelled(name, names, images, rng):
    """A folder of noise and a COCO file beside it, with three boxes on every image."""
    Path(name).mkdir()
    categories = [{"id": 3 * place, "name": label} for place, label in enumerate(names, 1)]
    content = {"categories": categories, "images": [], "annotations": []}
    for number in range(1, images + 1):
        height, width = (int(side) for side in rng.integers(50, 90, 2))
        file = f"{name}/{number}.png"
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file)
        content["images"].append({"id": number, "file_name": file, "height": height, "width": width})
        for _ in range(3):
            box = [float(value) for value in (*rng.uniform(0, 30, 2), *rng.uniform(10, 20, 2))]
            entry = {"id": len(content["annotations"]) + 1, "image_id": number, "bbox": box, "area": box[2] * box[3]}
            category = int(rng.choice([category["id"] for category in categories]))
            content["annotations"].append({**entry, "category_id": category, "iscrowd": 0})
    Path(f"{name}.json").write_text(json.dumps(content))


@pytest.fixture
def run_page(tmp_path, monkeypatch):
    """Run the commands of a how-to page in a new folder with `train/`, `train.json`, `val/` and `val.json`.

    Call it with the names of the classes to draw them, then with a page and the verbs that start its blocks.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "my_detector", raising=False)

    def draw(names):
        rng = np.random.default_rng(1)
        draw_labelled("train", names, 12, rng)
        draw_labelled("val", names, 4, rng)

        def run(page, *verbs):
            text = (Path(__file__).parents[3] / "docs/how-to" / page).read_text(encoding="utf-8")
            blocks = [re.search(rf"```console\n(\$ logn {verb} .*?)```", text, re.DOTALL)[1] for verb in verbs]
            commands = [shlex.split(line)[2:] for line in "".join(blocks).splitlines()]
            for words in commands:
                # Random weights have no tail that asks for a correction.
                assert execute([*words, *(["--method", "logn"] if words[0] == "correct" else [])]) == 0
            return [words[0] for words in commands]

        return run

    yield draw
    sys.modules.pop("my_detector", None)


@pytest.fixture
def noise(tmp_path):
    """A folder of six images of noise."""
    (tmp_path / "train").mkdir()
    generator = np.random.default_rng(1)
    for index in range(6):
        pixels = generator.integers(0, 256, (64, 96, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "train" / f"{index}.png")
    return tmp_path / "train"


@pytest.fixture
def ultralytics_file(tmp_path):
    """Write a `.pt` file as Ultralytics' trainer writes it: in half precision."""

    def save(model, names):
        model.names = dict(enumerate(names))
        content = {"epoch": -1, "ema": model.half(), "model": None, "train_args": {"imgsz": 64}}
        torch.save(content, tmp_path / "best.pt")
        return tmp_path / "best.pt"

    return save


def write_yolo(folder, names, images, labels_of):
    """Write images, and as YOLO labels the classes and boxes (corners) that `labels_of(number, image)` gives."""
    for part in ("images", "labels"):
        (folder / part / "val").mkdir(parents=True)
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / "images" / "val" / f"{number}.png")
        size = np.array(image.shape[1::-1] * 2)
        lines = {}
        for label, (left, top, right, bottom) in zip(*labels_of(number, image), strict=True):
            box = np.array([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]) / size
            lines[f"{label} {' '.join(map(str, box.tolist()))}\n"] = None
        (folder / "labels" / "val" / f"{number}.txt").write_text("".join(lines))
    listed = "".join(f"  {place}: {name}\n" for place, name in enumerate(names))
    data = folder / "data.yaml"
    data.write_text(f"path: {folder}\ntrain: images/val\nval: images/val\nnames:\n{listed}")
    return data


@pytest.fixture
def yolo_folder():
    return write_yolo


@pytest.fixture(scope="session")
def models_of():
    """What another test file of this folder defines, such as its small models."""
    return lambda file: runpy.run_path(str(Path(__file__).with_name(file)))
