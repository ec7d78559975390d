"""Predicting over a real local Ray of two workers writes the store that one process writes, whoever dies."""

import json
import os
import signal
import sys

import numpy as np
import pytest

import logn
from logn.evaluate.ray_data import predict as module
from logn.evaluate.store.store import PredictionStore
from logn.labels.dataset import DetectionDataset

ray = pytest.importorskip("ray", reason="needs Ray: make test-ray")
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Detector:
    """Says of an image what its pixels say, in whole numbers, which float16 holds."""

    background, activation, num_classes, class_names = -1, "softmax", 2, ("ant", "bee")
    population, logit_layer, fingerprint = "test proposals", logn.LogitLayer("head"), "made"

    def __init__(self, kill=None):
        self.kill, self.calls = kill, 0

    def prepare(self, image):
        return image

    def propose(self, images):
        self.calls += 1
        if self.kill is not None and self.calls == 2 and not os.path.exists(self.kill):
            with open(self.kill, "w"):
                os.kill(os.getpid(), signal.SIGKILL)
        rows = [image.reshape(-1, 3)[:4].astype(np.float32) for image in images]
        return [logn.Proposals(np.zeros((4, 4)), logits, height=6, width=8) for logits in rows]


@pytest.fixture
def dataset(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_IMAGES", 5)
    images = [
        {"id": number + 1, "file_name": path.name, "height": 6, "width": 8}
        for number, path in enumerate(sorted(pictures.iterdir()))
    ]
    categories = [{"id": 4, "name": "ant"}, {"id": 8, "name": "bee"}]
    (tmp_path / "val.json").write_text(json.dumps({"images": images, "categories": categories, "annotations": []}))
    return DetectionDataset(tmp_path / "val.json", pictures)


def assert_same(found, expected):
    found.verify()
    assert found.is_complete
    np.testing.assert_array_equal(found.image_ids, expected.image_ids)
    assert (found.header.class_names, found.header.category_ids) == (("ant", "bee"), (4, 8))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.logits, theirs.logits)


def test_a_killed_worker_changes_nothing_and_a_second_run_has_nothing_to_do(cluster, dataset, tmp_path):
    logn.predict(Detector(), dataset, tmp_path / "alone")
    alone, mark = PredictionStore(tmp_path / "alone"), str(tmp_path / "killed")
    steps = []
    options = {"workers": 2, "batch": 2}
    logn.ray.predict(dataset, lambda: Detector(mark), tmp_path / "store", **options, progress=steps.append)
    assert os.path.exists(mark)
    assert sum(steps) == 30
    assert_same(PredictionStore(tmp_path / "store"), alone)
    assert logn.ray.predict(dataset, Detector, tmp_path / "store", **options) == 0


def test_images_without_a_number_are_refused(cluster, pictures, tmp_path):
    rows = ray.data.from_items([{"path": str(path)} for path in pictures.iterdir()])
    with pytest.raises(logn.InputError, match=r"to have the column `image_id`.* but it has path"):
        logn.ray.predict(rows, Detector, tmp_path / "store", workers=1)
