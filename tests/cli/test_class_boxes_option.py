"""`logn predict --class-boxes`: how many boxes of each class a store keeps, and what `logn evaluate` says of it."""

import json

import numpy as np
import pytest
from PIL import Image

from logn.errors import LogNWarning
from logn.evaluate.store.store import PredictionStore

pytest.importorskip("torch")

MODELS = """
import numpy as np
from logn.logits.proposals import Proposals

class Detector:
    background, activation, num_classes = -1, "softmax", 5
    class_names = ("a", "b", "c", "d", "e")

    def __init__(self, class_boxes):
        self.class_boxes = class_boxes

    def propose(self, images):
        rng = np.random.default_rng(0)
        corner = rng.uniform(0, 20, (30, 5, 2))
        boxes = np.concatenate([corner, corner + 10], axis=-1).astype(np.float32)
        logits = rng.normal(0, 2, (30, 6)).astype(np.float32)
        return [Proposals(boxes if self.class_boxes else boxes[:, 0], logits, 40, 40) for _ in images]

def build():
    return Detector(True)

def share():
    return Detector(False)
"""


@pytest.fixture
def options(tmp_path, monkeypatch):
    """What `logn predict` gets beside the model, in a folder that has models of which classes have or share boxes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "boxed_models.py").write_text(MODELS)
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save("1.png")
    content = {
        "images": [{"id": 1, "file_name": "1.png", "width": 40, "height": 40}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 2, "bbox": [3, 3, 10, 10], "area": 100, "iscrowd": 0}],
        "categories": [{"id": number, "name": name} for number, name in enumerate("abcde", 1)],
    }
    (tmp_path / "val.json").write_text(json.dumps(content))
    return ("--data", "val.json", "-o", "store")


def test_some_boxes_are_kept_and_what_they_lack_is_said(run, refused, options):
    assert run("predict", "boxed_models:build", *options, "--class-boxes", 1).code == 0
    assert PredictionStore("store").header.kept_class_boxes == 1
    sentence = refused("predict", "boxed_models:build", *options, "--class-boxes", 2)
    assert (
        "Expected `--class-boxes` to be 1, as in `store`, which is continued, but got 2; use a new folder." in sentence
    )
    with pytest.warns(
        LogNWarning, match=r"`store` keeps the boxes of some classes only \(`logn predict --class-boxes 1`"
    ):
        found = run("evaluate", "store", "-a", "val.json")
    assert found.code == 0
    assert "of its detections have the box of their proposal's strongest class" in " ".join(found.out.split())


def test_all_are_kept_unless_told_otherwise(run, options):
    assert run("predict", "boxed_models:build", *options).code == 0
    assert PredictionStore("store")[0].boxes.shape == (30, 5, 4)
    assert run("evaluate", "store", "-a", "val.json").code == 0  # without a warning, which would be an error here


@pytest.mark.parametrize("given", ["0", "-3", "few", "1.5"])
def test_what_is_no_number_of_boxes_is_refused(refused, options, given, tmp_path):
    sentence = refused("predict", "boxed_models:build", *options, f"--class-boxes={given}")
    assert f"Expected `--class-boxes` to be `all` or a number from 1, but got '{given}'." in sentence
    assert not (tmp_path / "store").exists()


def test_a_model_whose_classes_share_a_box_has_none_to_choose_from(refused, options, tmp_path):
    sentence = refused("predict", "boxed_models:share", *options, "--class-boxes", 2)
    assert "Expected `--class-boxes` only for a detector with a box for each class, but got 2" in sentence
    assert not (tmp_path / "store").exists()
