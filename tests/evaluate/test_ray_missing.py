"""Without Ray: one sentence that says what to install, and the parts that need none of it."""

import sys

import numpy as np
import pytest

import logn
from logn.cli.main import execute
from logn.evaluate.ray_data.images import BlockImages

pytest.importorskip("torch")


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(logn.MissingExtraError, match=r'`ray` to be installed: run pip install "logn\[ray\]"'):
        logn.ray.collect([], lambda: None)
    with pytest.raises(logn.MissingExtraError, match="`ray` to be installed"):
        logn.ray.predict([], lambda: None, "store")


def test_a_model_in_the_place_of_a_function():
    import torch

    with pytest.raises(logn.InputError, match="function that makes the model on each worker, but got Linear"):
        logn.ray.collect([], torch.nn.Linear(2, 2))


@pytest.mark.parametrize("value", [np.zeros((4, 5), np.uint8), np.zeros((4, 5, 4), np.uint8)], ids=["grey", "alpha"])
def test_pixels_become_rgb(value):
    assert BlockImages({"image": [value]}).read(0).shape == (4, 5, 3)


def test_hugging_faces_images_and_other_values():
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.fromarray(np.full((4, 5, 3), 7, np.uint8)).save(file, "PNG")
    block = {"image": [{"bytes": file.getvalue(), "path": None}, np.zeros(3)], "image_id": [1, 2]}
    assert (BlockImages(block).read(0) == 7).all()
    with pytest.raises(logn.InputError, match=r"Expected `2` to be bytes of an image, its path, or .* float64 \(3,\)"):
        BlockImages(block).read(1)
    with pytest.raises(logn.InputError, match=r"to have height and width \(9, 5\) as its row says"):
        BlockImages({**block, "height": [9, 9], "width": [5, 5]}).read(0)


def test_workers_go_with_ray(tmp_path, capsys):
    labels = tmp_path / "a.json"
    labels.write_text('{"images": [], "categories": [], "annotations": []}')
    words = ["predict", "nothing:build", "--data", str(labels), "-o", str(tmp_path / "x"), "--workers", "2"]
    assert execute(words) == 2
    assert "Expected `--workers` with `--ray` only, but there is no `--ray`." in " ".join(
        capsys.readouterr().err.split()
    )
    assert not (tmp_path / "x").exists()
