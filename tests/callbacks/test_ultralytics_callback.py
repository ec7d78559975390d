"""The callback in a real training of Ultralytics: `best-corrected.pt` is the map of `best.pt`, both are logged."""

from __future__ import annotations

import logging
import os
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from logn.callbacks.ultralytics import LogNCallback, training_images
from logn.errors import InputError, LogNWarning
from logn.methods.affine import ClassAffine
from logn.models.layer import find_modules
from logn.models.locate import locate_logits

# Nothing may be looked for on a network, or written outside the tests' own folders.
os.environ.setdefault("YOLO_OFFLINE", "true")
os.environ.setdefault("YOLO_AUTOINSTALL", "false")
os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp(prefix="yolo-settings-"))
ultralytics = pytest.importorskip("ultralytics", reason="the extra `frameworks` is not installed")


def draw(folder, count, seed):
    rng = np.random.default_rng(seed)
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True)
    for index in range(count):
        image = rng.integers(0, 80, (64, 64, 3), dtype=np.uint8)
        image[16:48, 16:48] = rng.integers(100, 256, 3)
        Image.fromarray(image).save(folder / "images" / f"{index}.png")
        (folder / "labels" / f"{index}.txt").write_text(f"{index % 3} 0.5 0.5 0.5 0.5\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("yolo")
    draw(root / "train", 6, 0)
    draw(root / "val", 3, 1)
    (root / "data.yaml").write_text(f"path: {root}\ntrain: train/images\nval: val/images\nnames: [cup, fork, bed]\n")
    return root / "data.yaml"


def train(data, name, callback):
    """One epoch on six images with the callback: the folder of the weights."""
    yolo = ultralytics.YOLO("yolov8n.yaml")
    yolo.add_callback("on_train_end", callback)
    options = {"imgsz": 64, "batch": 3, "workers": 0, "device": "cpu", "plots": False, "verbose": False}
    yolo.train(data=str(data), epochs=1, project=str(data.parent), name=name, amp=False, **options)
    return data.parent / name / "weights"


@pytest.fixture(scope="module")
def trained(data):
    """What was logged comes along."""
    said = []
    keep = logging.Handler()
    keep.emit = lambda record: said.append(record.getMessage())
    callback = LogNCallback(method="logn", max_images=4)
    logger = logging.getLogger("ultralytics")
    logger.addHandler(keep)
    try:
        folder = train(data, "run", callback)
    finally:
        logger.removeHandler(keep)
    return SimpleNamespace(folder=folder, callback=callback, said=said)


def class_layers(path):
    network = ultralytics.YOLO(path).model.eval()
    return find_modules(network, locate_logits(network))


def test_the_corrected_checkpoint_is_the_map_of_the_best(trained):
    assert trained.callback.correction.output == trained.folder / "best-corrected.pt"
    affine = ClassAffine.load(trained.folder / "best-corrected.affine.safetensors")
    assert affine.num_columns == 3
    before, after = (class_layers(trained.folder / name) for name in ("best.pt", "best-corrected.pt"))
    rows = torch.rand(1, before[0].in_channels, 2, 2)
    old, new = (layers[0](rows).detach().double().numpy() for layers in (before, after))
    np.testing.assert_allclose(new, affine(old, axis=1), atol=1e-4)
    assert np.abs(affine(old, axis=1) - old).max() > 1e-3  # so that the old weights would not pass


def test_metrics_before_and_after_are_logged_by_ultralytics(trained):
    assert trained.callback.correction.images == 4
    name = "metrics/mAP50-95(B)"
    before, after = trained.callback.before[name], trained.callback.after[name]
    (line,) = [text for text in trained.said if "best.pt -> best-corrected.pt" in text]
    assert f"{name} {before:.4g} -> {after:.4g}" in line
    assert any("LogN: logn over 4 training images" in text for text in trained.said)


def test_a_training_whose_checkpoint_cannot_be_corrected_warns_and_ends_normally(data):
    """Here a method that needs counts, which the callback does not have."""
    callback = LogNCallback(method="norcal")
    with pytest.warns(LogNWarning, match="norcal"):
        folder = train(data, "refused", callback)
    assert (callback.correction, callback.after) == (None, {})
    assert callback.before["metrics/mAP50-95(B)"] >= 0
    assert {file.name for file in folder.iterdir()} == {"best.pt", "last.pt"}


def stand_in(folder, **more):
    args = SimpleNamespace(exist_ok=False)
    return SimpleNamespace(metrics={}, best=folder / "best.pt", args=args, device=torch.device("cpu"), **more)


def test_a_training_without_a_checkpoint_is_told_not_lost(tmp_path):
    callback = LogNCallback()
    with pytest.warns(LogNWarning, match=r"best\.pt`"):
        callback(stand_in(tmp_path))
    assert callback.correction is None


def test_files_of_an_earlier_training_are_not_overwritten_unless_it_is_allowed(tmp_path):
    (tmp_path / "best.pt").write_bytes(b"")
    (tmp_path / "best-corrected.pt").write_text("mine")
    loader = SimpleNamespace(dataset=SimpleNamespace(im_files=["a.png"]))
    with pytest.warns(LogNWarning, match=r"best-corrected\.pt`"):
        LogNCallback()(stand_in(tmp_path, train_loader=loader))
    assert (tmp_path / "best-corrected.pt").read_text() == "mine"


def test_the_images_of_a_classifier_are_its_samples():
    dataset = SimpleNamespace(samples=[["a.png", 0], ["b.png", 1]])
    trainer = SimpleNamespace(train_loader=SimpleNamespace(dataset=dataset))
    assert [path.name for path in training_images(trainer)] == ["a.png", "b.png"]
    trainer.train_loader.dataset = [1, 2]
    with pytest.raises(InputError, match="im_files"):
        training_images(trainer)
