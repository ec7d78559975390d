"""`--ray` as a user types it, with a Ray of its own: the files of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import logn
from logn.evaluate.store.store import PredictionStore

pytest.importorskip("ray", reason="needs Ray: make test-ray")

MODEL = """
import numpy as np
import logn

class Detector:
    background, activation, num_classes, class_names = -1, "softmax", 2, ("ant", "bee")
    population, logit_layer, fingerprint = "test proposals", logn.LogitLayer("head"), "made"

    def propose(self, images):
        rows = [np.asarray(image).reshape(3, -1).T[:4] for image in images]
        return [logn.Proposals(np.zeros((4, 4)), logits, height=6, width=8) for logits in rows]

def build():
    return Detector()
"""


@pytest.fixture
def folder(pictures, tmp_path):
    (tmp_path / "my_models.py").write_text(MODEL)
    images = [
        {"id": number + 1, "file_name": path.name, "height": 6, "width": 8}
        for number, path in enumerate(sorted(pictures.iterdir()))
    ]
    categories = [{"id": 4, "name": "ant"}, {"id": 8, "name": "bee"}]
    content = {"images": images, "categories": categories, "annotations": []}
    (tmp_path / "images.json").write_text(json.dumps(content))
    return tmp_path


def logn_command(verb, pictures, folder, *options):
    words = [sys.executable, "-m", "logn", verb, "my_models:build", "--data", "images.json", "--images", str(pictures)]
    source = str(Path(logn.__file__).parents[1])  # also where it is not installed
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [*words, *options, "--json"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "RAY_worker_niceness": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_collect(pictures, folder):
    over_ray = logn_command("collect", pictures, folder, "--ray", "--workers", "2", "-o", "ray.safetensors")
    alone = logn_command("collect", pictures, folder, "-o", "alone.safetensors")
    found, expected = (logn.ClassMoments.load(folder / f"{name}.safetensors") for name in ("ray", "alone"))
    assert over_ray | {"output": ""} == alone | {"output": ""}
    assert found.metadata == expected.metadata
    np.testing.assert_array_equal(found.count, expected.count)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-12)
    np.testing.assert_array_equal(found.sample, expected.sample)


def test_predict(pictures, folder):
    over_ray = logn_command("predict", pictures, folder, "--ray", "-o", "ray")
    alone = logn_command("predict", pictures, folder, "-o", "alone")
    assert over_ray | {"predictions": "", "bytes": 0} == alone | {"predictions": "", "bytes": 0}
    found, expected = PredictionStore(folder / "ray"), PredictionStore(folder / "alone")
    assert found.header == expected.header
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.logits, theirs.logits)
