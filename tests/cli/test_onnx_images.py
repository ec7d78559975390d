"""Which images `logn collect model.onnx` takes, and how they are prepared: what nobody says is assumed aloud."""

import json

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from PIL import Image

from logn.errors import LogNWarning
from logn.logits.images import Preprocessing
from logn.statistics.moments import ClassMoments
from logn.statistics.record_onnx import record_onnx


def write(path, text, **weights):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items())
    onnx.save_model(model, str(path))
    return path


@pytest.fixture
def classifier(tmp_path):
    """Any size; the logits of its three classes are twice the means of the colours."""
    text = (
        "g (float[1, 3, height, width] x) => (float[1, 3] y) { p = GlobalAveragePool(x) f = Flatten(p) y = Gemm(f, w) }"
    )
    return write(tmp_path / "model.onnx", text, w=2 * np.eye(3, dtype=np.float32))


@pytest.fixture
def images(tmp_path):
    """Three plain colours; annotations name two of them."""
    (tmp_path / "images").mkdir()
    for name, colour in (("red", (255, 0, 0)), ("green", (0, 255, 0)), ("blue", (0, 0, 255))):
        Image.new("RGB", (300, 200), colour).save(tmp_path / "images" / f"{name}.png")
    records = [
        {"id": number, "file_name": f"images/{name}.png", "width": 300, "height": 200}
        for number, name in enumerate(("red", "blue"), 1)
    ]
    content = {"images": records, "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "train.json").write_text(json.dumps(content))
    return tmp_path / "images"


def test_only_the_images_that_annotations_list_are_taken(run, tmp_path, classifier, images):
    stats = tmp_path / "stats.safetensors"
    done = run("collect", classifier, "--data", tmp_path / "train.json", "-o", stats, "--json")
    assert (done.code, done.json["images"]) == (0, 2)
    np.testing.assert_allclose(ClassMoments.load(stats).mean, [1, 0, 1], atol=1e-6)
    elsewhere = run("collect", classifier, "--data", tmp_path / "train.json", "--images", tmp_path, "-o", stats)
    assert elsewhere.code == 0
    one = run("collect", classifier, "-d", tmp_path / "train.json", "--max-images", 1, "-o", stats, "--json")
    np.testing.assert_allclose(ClassMoments.load(stats).mean, [2, 0, 0], atol=1e-6)
    assert one.json["images"] == 1


def test_a_listed_image_that_is_missing_is_named(refused, tmp_path, classifier, images):
    (images / "blue.png").unlink()
    told = refused("collect", classifier, "--data", tmp_path / "train.json", "-o", tmp_path / "s.safetensors")
    assert "blue.png" in told
    assert not (tmp_path / "s.safetensors").exists()


def test_what_nobody_says_of_the_images_is_assumed_aloud(run, tmp_path, classifier, images):
    collect = ("collect", classifier, "--images", images, "-o", tmp_path / "s.safetensors")
    told = run(*collect).err
    assert "does not say how its images were prepared in training; assumed: values from 0 to 1 without a mean " in told
    assert "RGB (`--channels`), stretched to 320 x 320 (`--resize`), 320 x 320, the nearest common size that" in told
    (sentence,) = run(*collect, "--json").json["assumed"]
    assert sentence in told
    said = ("--mean", "0.5", "--std", "0.5", "--channels", "RGB", "--resize", "stretch", "--size", "64")
    assert run(*collect, *said, "--json").json["assumed"] == []
    assert run(*collect, "--like", "imagenet", "--json").json["assumed"] == []
    (rest,) = run(*collect, *said[:4], "--size", "64", "--json").json["assumed"]
    assert "assumed: RGB (`--channels`), stretched to 64 x 64 (`--resize`)." in rest


def test_an_open_size_becomes_the_nearest_common_one_that_runs(tmp_path, images):
    """This one takes 416 alone: its reshape is of that size."""
    text = """g (float[1, 3, height, width] x) => (float[1, N, 3] y)
    { p = AveragePool <kernel_shape = [32, 32], strides = [32, 32]> (x) f = Reshape(p, shape)
    t = Transpose <perm = [0, 2, 1]> (f) y = MatMul(t, w) }"""
    path = write(tmp_path / "m.onnx", text, shape=np.array([1, 3, 169]), w=2 * np.eye(3, dtype=np.float32))
    with pytest.warns(LogNWarning, match=r"images are brought to 416 x 416, the nearest common size that it runs at"):
        moments = record_onnx(path, images)
    assert moments.count.tolist() == [3 * 169] * 3
    given = record_onnx(path, images, Preprocessing(size=(416, 416)))  # no warning: the user says it
    np.testing.assert_array_equal(given.mean, moments.mean)


def raw_detr(path):
    text = """g (float[1, 3, 32, 32] x) => (float[1, 16, 4] logits, float[1, 16, 4] pred_boxes)
    { p = AveragePool <kernel_shape = [8, 8], strides = [8, 8]> (x) f = Reshape(p, shape)
    t = Transpose <perm = [0, 2, 1]> (f) logits = MatMul(t, w) b = MatMul(t, v) pred_boxes = Sigmoid(b) }"""
    draw = np.random.default_rng(0).normal
    weights = {name: draw(size=(3, 4)).astype(np.float32) for name in "wv"}
    return write(path, text, shape=np.array([1, 3, 16]), **weights)


def test_a_preset_says_the_background_and_the_activation_too(run, tmp_path, images):
    """Otherwise `no object` would be taken for a class."""
    path, stats = raw_detr(tmp_path / "m.onnx"), tmp_path / "s.safetensors"
    done = run("collect", path, "--like", "detr", "--images", images, "-o", stats)
    assert "3 classes and a background (last)" in done.out
    found = ClassMoments.load(stats).metadata
    assert (found.layer, found.activation, found.background) == ("logits", "softmax", -1)
    assert run("collect", path, "--like", "rtdetr", "--images", images, "-o", stats).code == 0
    found = ClassMoments.load(stats).metadata
    assert (found.activation, found.background) == ("sigmoid", None)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("DetrImageProcessor", ("softmax", -1)),
        ("YolosImageProcessor", ("softmax", -1)),
        ("DeformableDetrImageProcessor", ("sigmoid", None)),
        ("RTDetrImageProcessor", ("sigmoid", None)),
        ("ViTImageProcessor", (None, None)),
    ],
)
def test_an_image_processor_tells_the_family(tmp_path, images, kind, expected):
    """Of those whose models have sigmoids none has a background; of one that is unknown nothing is assumed."""
    content = {"image_processor_type": kind, "size": {"shortest_edge": 32}, "do_normalize": False}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    found = record_onnx(raw_detr(tmp_path / "m.onnx"), images).metadata
    assert (found.activation, found.background) == expected


def two_stages(path):
    """Sigmoids choose the places that a softmax then tells the class of; suppression ends it."""
    text = """g (float[1, 3, 32, 32] x) => (int64[N, 3] kept)
    { p = AveragePool <kernel_shape = [8, 8], strides = [8, 8]> (x) o = Conv(p, ow) r = Reshape(o, row) s = Sigmoid(r)
    best, at = TopK(s, five) f = Reshape(p, shape) t = Transpose <perm = [1, 0]> (f) i = Squeeze(at, first)
    c = Gather <axis = 0> (t, i) z = MatMul(c, w) y = Softmax <axis = 1> (z) yt = Transpose <perm = [1, 0]> (y)
    u = Unsqueeze(yt, first) b = MatMul(c, v) ub = Unsqueeze(b, first)
    kept = NonMaxSuppression(ub, u, most, overlap, lowest) }"""
    draw = np.random.default_rng(0).normal
    weights = {
        name: draw(size=shape).astype(np.float32)
        for name, shape in (("ow", (1, 3, 1, 1)), ("w", (3, 4)), ("v", (3, 4)))
    }
    whole = {"row": [1, 16], "five": [5], "shape": [3, 16], "first": [0], "most": [5]}
    fractions = {"overlap": np.array([0.5], np.float32), "lowest": np.array([0.0], np.float32)}
    return write(path, text, **weights, **fractions, **{name: np.array(value) for name, value in whole.items()})


def test_the_classes_of_a_second_stage_are_found_and_its_background_is_asked_for(run, tmp_path, images):
    path, stats = two_stages(tmp_path / "m.onnx"), tmp_path / "s.safetensors"
    done = run("collect", path, "--images", images, "-o", stats)
    assert "Read at `z`, before softmax." in done.out
    assert "collect anew with `--background first` or `last`" in done.err
    said = run("collect", path, "--images", images, "--background", "first", "-o", stats)
    assert "such detectors have a background" not in said.err


def test_why_two_stages_cannot_be_stored(refused, tmp_path, images):
    told = refused(
        "predict",
        two_stages(tmp_path / "m.onnx"),
        "--like",
        "rtdetr",
        "-d",
        tmp_path / "train.json",
        "-o",
        tmp_path / "p",
    )
    assert "it chooses among them inside (NonMaxSuppression)" in told
    assert not (tmp_path / "p").exists()
