"""Predicting: each image once, whatever stops the run and however many processes there are."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from logn.cli.main import execute
from logn.errors import InputError, LogNWarning
from logn.models.proposals import Proposals
from logn.predictions.predict import predict
from logn.predictions.store import Predictions

pytest.importorskip("torch")


class MadeData:
    def __init__(self, count: int = 11) -> None:
        self.image_ids = np.arange(count)[::-1] * 3 + 1
        self.class_names = ("ant", "bee")
        self.category_ids = np.array([4, 8])
        self.images_fingerprint: str | None = None

    def read_image(self, index: int) -> np.ndarray:
        return np.full((5 + index, 7, 3), index, np.uint8)


class MadeDetector:
    """Says of an image what its pixels say; may stop after some images, as a killed run does."""

    background, activation, num_classes = -1, "softmax", 2
    class_names: tuple[str, ...] | None = ("ant", "bee")

    def __init__(self, stop_after: int | None = None, fingerprint: str | None = None) -> None:
        self.fingerprint = fingerprint
        self.seen: list[int] = []
        self._stop_after = stop_after

    def propose(self, images):
        result = []
        for image in images:
            if self._stop_after is not None and len(self.seen) >= self._stop_after:
                raise KeyboardInterrupt
            value = round(float(image.max()) * 255)
            self.seen.append(value)
            rows = np.full((value % 4, 3), value, np.float32)
            result.append(Proposals(np.zeros((value % 4, 4)), rows, height=image.shape[1], width=image.shape[2]))
        return result

    def masks(self, image, boxes, classes, rows):
        raise AssertionError("masks come after decoding, not with the proposals")


def stop(path, data, after=2, fingerprint=None, **options):
    with pytest.raises(KeyboardInterrupt):
        predict(MadeDetector(after, fingerprint), data, path, batch=1, **options)


def assert_whole(path, data):
    store = Predictions(path)
    assert store.is_complete
    assert store.image_ids.tolist() == sorted(data.image_ids.tolist())
    for image_id, proposals in zip(store.image_ids.tolist(), store, strict=True):
        index = data.image_ids.tolist().index(image_id)
        assert proposals.height == 5 + index
        assert proposals.logits.shape == (index % 4, 3)
        assert (proposals.logits == index).all()


@pytest.mark.parametrize("batch", [1, 3, 50])
def test_all_images_once(tmp_path, batch):
    data, detector = MadeData(), MadeDetector()
    steps: list[int] = []
    assert predict(detector, data, tmp_path, batch=batch, progress=steps.append) == 11
    assert sorted(detector.seen) == list(range(11))
    assert sum(steps) == 11
    assert_whole(tmp_path, data)
    header = Predictions(tmp_path).header
    assert (header.head.class_names, header.category_ids, header.head.background) == (("ant", "bee"), (4, 8), -1)


def test_a_stopped_run_goes_on(tmp_path):
    data = MadeData()
    stop(tmp_path, data, after=5)
    assert len(Predictions(tmp_path)) == 5
    assert not Predictions(tmp_path).is_complete
    detector, steps = MadeDetector(), []
    assert predict(detector, data, tmp_path, batch=4, progress=steps.append) == 6
    assert sorted(detector.seen) == list(range(5, 11))
    assert sum(steps) == 11
    assert_whole(tmp_path, data)
    assert predict(MadeDetector(stop_after=0), data, tmp_path) == 0


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"fingerprint": "torch:1"}, {"fingerprint": "torch:2"}, "weights"),
        # Two data sets may number their images alike, so ids are not enough.
        ({"metadata": {"images": "test"}}, {"metadata": {"images": "dev"}}, "images"),
        ({}, {"dtype": "float32"}, "dtype"),
    ],
)
def test_other_weights_images_and_settings_are_refused(tmp_path, first, second, message):
    stop(tmp_path, MadeData(), **first)
    one, other = (MadeDetector(fingerprint=options.pop("fingerprint", None)) for options in (first, second))
    for _ in range(2):  # of a store that was stopped, and of one that is complete
        with pytest.raises(InputError, match=message):
            predict(other, MadeData(), tmp_path, **second)
        predict(one, MadeData(), tmp_path, **first)
    assert_whole(tmp_path, MadeData())


def test_images_of_another_data_set_are_refused(tmp_path):
    predict(MadeDetector(), MadeData(3), tmp_path)
    other = MadeData(3)
    other.image_ids = np.array([1, 7, 10])
    with pytest.raises(InputError, match="image 4"):
        predict(MadeDetector(), other, tmp_path)


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    more, detector, other = MadeData(), MadeDetector(), MadeDetector()
    more.category_ids, more.class_names = np.array([4, 8, 9]), ("ant", "bee", "cow")
    detector.class_names, other.class_names = None, ("cat", "cow")
    for source, data, options, message in (
        (detector, more, {}, "The detector has 2 classes without names, but the data set has 3"),
        (other, MadeData(), {}, "share no class name: the model has cat, cow, the labels have ant, bee"),
        (object(), MadeData(), {}, "`model`"),
        (MadeDetector(), MadeData(), {"batch": 0}, "Expected `batch`"),
    ):
        with pytest.raises(InputError, match=message):
            predict(source, data, tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


def test_the_store_has_the_classes_of_the_detector_whatever_the_labels_have(tmp_path):
    detector = MadeDetector()
    detector.class_names = ("Bee", "cow")
    predict(detector, MadeData(), tmp_path)
    header = Predictions(tmp_path).header
    assert (header.head.class_names, header.category_ids) == (("Bee", "cow"), None)
    detector.class_names = None
    words = "The labels have class names, .* are unknown: .* from 'ant' for the first class of the model to 'bee'"
    with pytest.warns(LogNWarning, match=words):
        predict(detector, MadeData(), tmp_path / "unnamed")
    header = Predictions(tmp_path / "unnamed").header
    assert (header.head.class_names, header.category_ids) == (("ant", "bee"), (4, 8))


MODEL = """
import torch
from torchvision.models.detection import ssdlite320_mobilenet_v3_large as build
import logn

def make():
    torch.manual_seed(0)
    return logn.detector(build(weights=None, weights_backbone=None, num_classes=3), class_names=["ant", "bee"])
"""


def test_paths_of_a_model_and_of_annotations(tmp_path, capsys):
    """In Python and on the command line: three images, then none, then images of another data set; a folder is none."""
    pytest.importorskip("torchvision")
    images = [{"id": number, "file_name": f"{number}.png", "height": 40, "width": 50} for number in (3, 1, 2)]
    for image in images:
        noise = np.random.default_rng(image["id"]).integers(0, 255, (40, 50, 3))
        Image.fromarray(noise.astype(np.uint8)).save(tmp_path / image["file_name"])
    content = {"images": images, "categories": [{"id": 4, "name": "ant"}, {"id": 8, "name": "bee"}], "annotations": []}
    (tmp_path / "test.json").write_text(json.dumps(content))
    others = [{**image, "file_name": f"other/{image['file_name']}"} for image in images]
    (tmp_path / "dev.json").write_text(json.dumps({**content, "images": others}))
    (tmp_path / "model.py").write_text(MODEL)
    model, store = f"{tmp_path / 'model.py'}:make", tmp_path / "store"
    for expected in (3, 0):
        assert predict(model, tmp_path / "test.json", store) == expected
    header = Predictions(store).header
    assert (header.head.class_names, header.class_boxes) == (("ant", "bee"), False)
    with pytest.raises(InputError, match="with other images"):
        predict(model, tmp_path / "dev.json", store)

    def run(data):
        code = execute(["predict", model, "-d", str(tmp_path / data), "-o", str(tmp_path / "again"), "--json"])
        return code, json.loads(capsys.readouterr().out)

    for expected in (3, 0):
        code, result = run("test.json")
        assert (code, result["images"], result["of"], result["run_now"]) == (0, 3, 3, expected)
    code, result = run("dev.json")
    assert (code, "with other images" in result["error"]) == (2, True)
    code, result = run("")
    assert (code, "outside of class folders" in result["error"]) == (2, True)


def test_boxes_of_the_top_classes(tmp_path):
    """A model with more classes than boxes are kept of each proposal: announced once, and the same when it goes on."""

    class ManyClasses(MadeDetector):
        def propose(self, images):
            found = super().propose(images)
            return [replace(one, boxes=np.zeros((len(one.logits), 2, 4))) for one in found]

    data = MadeData()
    with pytest.warns(LogNWarning, match="1 top-scoring classes of 2"):
        predict(ManyClasses(), data, tmp_path, boxes_per_proposal=1)
    assert Predictions(tmp_path)[3].boxes.shape[1:] == (1, 4)
    assert predict(ManyClasses(), data, tmp_path, boxes_per_proposal=1) == 0
    with pytest.raises(InputError, match="boxes_per_proposal"):
        predict(ManyClasses(), data, tmp_path)
