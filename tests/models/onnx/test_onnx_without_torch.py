"""A self-describing ONNX detector with rows of one image `(N, C)` goes from file to proposals without torch."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from tests.made.onnx_graphs import write_graph

from logn.errors import InputError
from logn.models.hints import Hints
from logn.models.onnx.model import record_onnx
from logn.models.open import detector as open_detector
from logn.models.open import open_model
from logn.models.preprocessing import Preprocessing, preset_named

CLASSES = 5
NAMES = [f"class {number}" for number in range(CLASSES)]
PREPROCESSING = {"size": [64, 64], "resize": "stretch", "mean": [0.25], "max_value": 1.0}


def detector(path, batch="1", **metadata):
    """Boxes `(N, 4)` and scores `(N, C)` of the places of one image."""
    body = """c = Conv <strides = [8, 8]> (x, cw, cb) ct = Transpose <perm = [0, 2, 3, 1]> (c) logits = Reshape(ct, cs)
        b = Conv <strides = [8, 8]> (x, bw) bt = Transpose <perm = [0, 2, 3, 1]> (b) br = Reshape(bt, bs)
        scores = Sigmoid(logits) near, far = Split <axis = 1> (br) size = Abs(far) end = Add(near, size)
        boxes = Concat <axis = 1> (near, end)"""
    draw = np.random.default_rng(0).normal
    weights = {
        "cw": draw(0, 0.1, (CLASSES, 3, 8, 8)),
        "cb": np.linspace(-3, 0, CLASSES),
        "bw": draw(0, 1, (4, 3, 8, 8)),
    }
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    arrays |= {"cs": np.array([-1, CLASSES]), "bs": np.array([-1, 4])}
    metadata = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    outputs = f"float[N, 4] boxes, float[N, {CLASSES}] scores"
    return write_graph(path, body, outputs, inputs=f"float[{batch}, 3, height, width] x", metadata=metadata, **arrays)


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (48, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize("batch", ["1", "batch"])
def test_rows_without_an_image_axis_are_those_of_one_image(tmp_path, images, batch):
    path = detector(tmp_path / "d.onnx", batch, class_names=NAMES, preprocessing=PREPROCESSING)
    model = open_detector(path)
    assert (model.num_classes, model.head.activation, list(model.class_names)) == (CLASSES, "sigmoid", NAMES)
    pictures = [np.asarray(Image.open(file)) for file in sorted(images.iterdir())]
    proposals = model.propose(pictures)
    assert [(item.boxes.shape, item.logits.shape) for item in proposals] == [((64, 4), (64, CLASSES))] * 3
    moments = record_onnx(path, images)
    rows = np.concatenate([item.logits for item in proposals])
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), atol=1e-5)
    assert moments.count.tolist() == [3 * 64] * CLASSES


@pytest.mark.parametrize(
    ("metadata", "size", "names"),
    [
        ({"class_names": NAMES, "preprocessing": PREPROCESSING}, (64, 64), NAMES),
        ({"names": {str(i): name for i, name in enumerate(NAMES)}, "preprocessing": PREPROCESSING}, (64, 64), NAMES),
        ({"names": str(dict(enumerate(NAMES))), "preprocessing": {"mean": 0.25}, "imgsz": [32, 48]}, (32, 48), NAMES),
        ({"preprocessing": {"mean": [0.25]}, "size": 96}, (96, 96), None),
    ],
)
def test_metadata_of_any_exporter_say_names_size_and_preprocessing(tmp_path, metadata, size, names):
    model = open_model(detector(tmp_path / "d.onnx", **metadata))
    preprocessing = model.detector.preprocessing
    assert (preprocessing.size, preprocessing.mean) == (size, (0.25,))
    assert model.head.names == (None if names is None else tuple(names))
    assert "its metadata" in model.traits.preprocessing


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"preprocessing": {"means": [0.0]}}, "`means`"),
        ({"preprocessing": "{"}, "preprocessing"),
        ({"preprocessing": {"resize": "squeeze"}}, "`resize`"),
        ({"preprocessing": {}, "activation": "tanh"}, "activation 'tanh' .* write softmax or sigmoid"),
        ({"preprocessing": {}, "background": "1"}, "background '1'; .* first, last or none"),
    ],
)
def test_metadata_that_cannot_be_are_refused(tmp_path, metadata, sentence):
    with pytest.raises(InputError, match=sentence):
        open_detector(detector(tmp_path / "d.onnx", **metadata))


def test_preprocessing_of_a_file_is_that_of_its_fields(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**PREPROCESSING, "channels": "BGR"}))
    assert preset_named(path).preprocessing == Preprocessing((64, 64), "stretch", mean=(0.25,), channels="BGR")
    settled = open_model(detector(tmp_path / "d.onnx"), Hints(like=str(path))).detector.preprocessing
    assert (settled.mean, settled.size, settled.channels) == ((0.25,), (64, 64), "BGR")
    path.write_text(json.dumps({"mean": ["red"]}))
    for wrong, message in ((path, r"mine\.json`"), (tmp_path / "no.json", r"no\.json")):
        with pytest.raises(InputError, match=message):
            preset_named(wrong)


def test_none_of_it_needs_torch(tmp_path, images):
    path = detector(tmp_path / "d.onnx", class_names=NAMES, preprocessing=PREPROCESSING)
    code = f"""
import sys
sys.modules["torch"] = None
import logn
from logn.models.open import detector as open_detector
moments = logn.record_onnx({str(path)!r}, {str(images)!r})
logn.fold_onnx({str(path)!r}, logn.logit_normalization(moments), {str(tmp_path / "out.onnx")!r})
print(open_detector({str(tmp_path / "out.onnx")!r}).num_classes)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(CLASSES)], done.stderr
