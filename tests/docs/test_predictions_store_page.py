"""The page on the prediction store: every block of Python runs, on detectors of three kinds."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "predictions-store.md"
pytestmark = [
    pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture
def python(blocks):
    """The blocks of Python by what they are about."""
    names = ("torchvision", "own detector", "own loop", "reading", "thresholds")
    return dict(zip(names, blocks("python"), strict=True))


@pytest.fixture
def lvis_classes(tmp_path, monkeypatch):
    """Two images of 1,203 classes, and what a model would say of one."""
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    categories = [{"id": 2 * number, "name": f"class {number}"} for number in range(1, 1204)]
    images = [{"id": number, "file_name": f"{number}.png", "height": 40, "width": 50} for number in (7, 9)]
    for one in images:
        image.new("RGB", (50, 40)).save(one["file_name"])
    Path("val.json").write_text(json.dumps({"images": images, "annotations": [], "categories": categories}))
    random = np.random.default_rng(0)
    boxes = np.tile([1.0, 2.0, 30.0, 35.0], (5, 1))
    return SimpleNamespace(boxes=boxes, logits=random.standard_normal((5, 1204)), height=40, width=50)


def test_the_commands_and_the_reading_of_a_store(workplace, python, blocks, run_logn, run_python):
    for block in blocks("bash"):
        run_logn("\n".join(line for line in block.splitlines() if not line.startswith("torchrun")))
    assert json.loads((workplace / "comparison" / "comparison.json").read_text())
    run_logn("logn fit statistics.safetensors -o affine.safetensors")
    names = run_python(python["reading"])
    assert len(names["store"]) == len(names["store"].image_ids) == 8
    names = run_python(python["thresholds"], names)
    plain, corrected, threshold = (names[name] for name in ("plain", "corrected", "threshold"))
    assert (np.argsort(names["scores"], kind="stable") == np.argsort(corrected.scores, kind="stable")).all()
    assert (corrected.scores > threshold).sum() == (plain.scores > 0.5).sum()


def test_a_torchvision_model_fills_a_store(workplace, python, run_python):
    from logn.evaluate.store.store import PredictionStore

    detection = pytest.importorskip("torchvision").models.detection
    model = detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=7, min_size=64
    )
    (workplace / "glyphs" / "test.json").rename(workplace / "val.json")
    (workplace / "images").mkdir()  # the folder that the names of the images start from
    (workplace / "glyphs" / "images").rename(workplace / "images" / "images")
    categories = json.loads((workplace / "val.json").read_text())["categories"]
    names = [category["name"] for category in categories]
    run_python(python["torchvision"], {"model": model.eval(), "names": names})
    assert len(PredictionStore(workplace / "predictions")) == 8


def test_an_object_with_the_methods_of_the_page_fills_a_store(lvis_classes, python, run_python):
    from logn.evaluate.store.predict import predict
    from logn.evaluate.store.store import PredictionStore
    from logn.labels.dataset import DetectionDataset

    pytest.importorskip("torch")

    def my_model(images):
        assert all(tuple(one.shape) == (3, 40, 50) and one.min() >= 0 and one.max() <= 1 for one in images)
        return [lvis_classes for _ in images]

    def my_masks(images, boxes, labels):
        return [np.ones((len(of_image), 28, 28)) for of_image in boxes]

    known = {"my_model": my_model, "my_masks": my_masks, "names": [f"class {number}" for number in range(1, 1204)]}
    detector = run_python(python["own detector"], known)["MyDetector"]()
    assert predict(detector, DetectionDataset("val.json"), "predictions") == 2
    assert PredictionStore("predictions")[1].logits.shape == (5, 1204)
    assert detector.predict_masks([None], [lvis_classes.boxes], [np.arange(5)])[0].shape == (5, 28, 28)


def test_a_loop_of_ones_own_fills_a_store_and_goes_on(lvis_classes, python, run_python):
    from logn.evaluate.store.store import PredictionStore
    from logn.labels.dataset import DetectionDataset

    dataset, seen = DetectionDataset("val.json"), []

    def my_loop():
        for number in (7, 9):
            seen.append(number)
            yield number, lvis_classes.boxes, lvis_classes.logits, 40, 50

    names = {"ids": dataset.category_ids, "names": dataset.class_names, "my_loop": my_loop}
    for _ in range(2):
        run_python(python["own loop"], dict(names))
    assert seen == [7, 9, 7, 9]
    store = PredictionStore("predictions")
    assert list(store.image_ids) == [7, 9]
    np.testing.assert_allclose(store[0].logits, lvis_classes.logits, rtol=1e-3, atol=1e-3)
