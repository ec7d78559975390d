"""Collecting statistics of an ONNX model: equal to those of its logits by hand, whatever the batches."""

import hashlib

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from PIL import Image
from tests.conftest import moments_of
from tests.made.onnx_graphs import run_graph, write_graph

from logn.data.images import find_images, read_rgb
from logn.errors import InputError, LogNWarning
from logn.models.onnx.model import record_onnx
from logn.models.preprocessing import Preprocessing

PREPROCESSING = Preprocessing(size=(8, 8), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


def write(path, *, batch="N", body="z = Conv <strides = [4, 4]> (x, w, b) y = Sigmoid(z)", inputs="", kind="float"):
    generator = np.random.default_rng(1)
    shape = f"{batch}, " if batch else ""
    outputs = "float[A, B, C, D] y" if "Sigmoid" in body else "float[A, B] y"
    shapes = {"w": (5, 3, 4, 4), "b": 5, "v": (192, 5)}
    weights = {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return write_graph(path, body, outputs, inputs=f"{kind}[{shape}3, 8, 8] x{inputs}", **weights)


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    generator = np.random.default_rng(2)
    for index in range(5):
        pixels = generator.integers(0, 256, (9 + index, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    return folder


def by_hand(path, folder):
    """The logits of all images, (rows, classes)."""
    images = [PREPROCESSING.apply(read_rgb(image)) for image in find_images(folder)]
    logits = [run_graph(path, {"x": image[None]}, "z") for image in images]
    return np.moveaxis(np.concatenate(logits), 1, -1).reshape(-1, 5)


@pytest.mark.parametrize(("batch", "batch_size"), [("N", 1), ("N", 2), ("N", 5), ("1", 1), ("2", 1)])
def test_statistics_equal_those_of_the_logits_by_hand(tmp_path, images, batch, batch_size):
    source = write(tmp_path / "m.onnx", batch=batch)
    done, options = [], {"batch_size": batch_size, "background": -1}
    moments = record_onnx(source, images, PREPROCESSING, progress=done.append, **options)
    expected = moments_of(by_hand(write(tmp_path / "open.onnx"), images))
    assert sum(done) == 5
    assert moments.count.tolist() == [20.0] * 5
    np.testing.assert_allclose(moments.mean, expected.mean, atol=1e-5)
    np.testing.assert_allclose(moments.variance, expected.variance, rtol=1e-5)
    assert len(moments.sample) == 20
    assert (moments.head.layer, moments.head.activation) == ("z", "sigmoid")
    assert moments.head.background == -1
    assert moments.head.source == f"onnx:{hashlib.sha256(source.read_bytes()).hexdigest()}"


def test_a_part_of_the_images_is_spread_evenly(tmp_path, images):
    moments = record_onnx(write(tmp_path / "m.onnx"), images, PREPROCESSING, max_images=2)
    for name in ("1.png", "3.png", "4.png"):
        (images / name).unlink()
    expected = record_onnx(tmp_path / "m.onnx", images, PREPROCESSING)
    assert moments.count.tolist() == [8.0] * 5
    np.testing.assert_array_equal(moments.mean, expected.mean)


def test_a_fixed_batch_of_images_that_cannot_be_told_apart_is_refused(tmp_path, images):
    body = "c = Conv <strides = [4, 4]> (x, w, b) t = Transpose <perm = [1, 0, 2, 3]> (c) z = Flatten(t)"
    body += " p = Transpose <perm = [1, 0]> (z) y = Softmax(p)"
    source = write(tmp_path / "m.onnx", batch="2", body=body.replace("Sigmoid", ""))
    with pytest.raises(InputError, match=r"2 images at a time, .*: pass a multiple of 2 images"):
        record_onnx(source, images, PREPROCESSING)


def test_other_inputs_get_ones_of_the_shape_that_the_images_have(tmp_path, images):
    body = "k = Mul(x, mask) z = Conv <strides = [4, 4]> (k, w, b) y = Sigmoid(z)"
    plain = record_onnx(write(tmp_path / "plain.onnx"), images, PREPROCESSING, batch_size=2)
    masked = write(tmp_path / "m.onnx", body=body, inputs=", float[N, 1, 8, 8] mask, int64[N, 2] unused")
    moments = record_onnx(masked, images, PREPROCESSING, batch_size=2)
    np.testing.assert_allclose(moments.mean, plain.mean, atol=1e-6)


def test_class_names_come_from_a_list_or_a_file(tmp_path, images):
    source = write(tmp_path / "m.onnx")
    (tmp_path / "names.txt").write_text("a\nb\nc\nd\n")
    moments = record_onnx(source, images, PREPROCESSING, class_names=tmp_path / "names.txt", background=0)
    assert moments.head.names == ("background", "a", "b", "c", "d")
    with pytest.raises(InputError, match="`class_names`"):
        record_onnx(source, images, PREPROCESSING, class_names=["a", "b"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_images": 0}, "`max_images`"),
        ({"tensor": "logits"}, "has no tensor `logits`"),
        ({"activation": "tanh"}, "`activation` to be 'softmax' or 'sigmoid'"),
        ({"provider": "NoProvider"}, "`provider` to be one of"),
        ({"preprocessing": Preprocessing(size=(4, 4))}, r"`size` to be \(8, 8\), which `x` takes, but got \(4, 4\)"),
        ({"preprocessing": Preprocessing(dtype="uint8")}, "`dtype` to be float32"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(tmp_path, images, options, message):
    with pytest.raises(InputError, match=message):
        record_onnx(write(tmp_path / "m.onnx"), images, **{"preprocessing": PREPROCESSING, **options})


def test_unreadable_images_are_left_out_and_named(tmp_path, images):
    source = write(tmp_path / "m.onnx")
    expected = record_onnx(source, images, PREPROCESSING, batch_size=2)
    for name in ("00.png", "2b.jpg"):  # before the first, and in the middle
        (images / name).write_bytes(b"no image")
    with pytest.warns(LogNWarning, match=r"^2 of 7 images could not be read and were left out: `.*00.png`, `.*2b.jpg`"):
        moments = record_onnx(source, images, PREPROCESSING, batch_size=2)
    np.testing.assert_allclose(moments.mean, expected.mean, rtol=1e-12)
    assert moments.count.tolist() == expected.count.tolist()
    for path in images.iterdir():
        path.write_bytes(b"no image")
    with pytest.raises(InputError, match=r"None of the 7 images can be read: .*0\.png"):
        record_onnx(source, images, PREPROCESSING)


IMAGES = "float[N, 3, 8, 8] x"


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("g (float[N, 4] x) => (float[N, 4] y) { y = Softmax(x) }", "inputs are x"),
        (
            f"g ({IMAGES}) => (float[N, 1] y) {{ f = Flatten(x) z = Gemm(f, w) y = Sigmoid(z) }}",
            "gives a single logit",
        ),
    ],
)
def test_graphs_that_give_no_class_logits_of_images_are_refused(tmp_path, images, graph, message):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
    model.graph.initializer.append(numpy_helper.from_array(np.ones((192, 1), np.float32), "w"))
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    with pytest.raises(InputError, match=message):
        record_onnx(tmp_path / "m.onnx", images, PREPROCESSING)
