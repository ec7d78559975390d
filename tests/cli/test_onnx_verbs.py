"""`logn collect`, `logn predict` and `logn fold` of ONNX files: what they write, print and refuse."""

import json

import numpy as np
import onnx
import pytest

from logn.methods.affine import ClassAffine
from logn.predictions.store import Predictions
from logn.statistics.moments import ClassMoments

NAMES = ("cat", "dog", "cow")


@pytest.fixture
def model(save_onnx, tmp_path):
    """A classifier of four classes over images of 8 x 8."""
    draw = np.random.default_rng(0).normal
    text = "(float[N, 3, 8, 8] x) => (float[N, 4] y) { f = Flatten(x) z = Gemm(f, w, b) y = Softmax(z) }"
    return save_onnx(tmp_path / "model.onnx", text, w=draw(size=(192, 4)), b=draw(size=4))


@pytest.fixture
def images(draw_images, tmp_path):
    """Six images; annotations name two of them."""
    draw_images(tmp_path / "images", 6, (8, 8))
    records = [{"id": 1 + index, "file_name": f"images/{index}.png", "width": 8, "height": 8} for index in (0, 3)]
    content = {"images": records, "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "train.json").write_text(json.dumps(content))
    return tmp_path / "images"


@pytest.fixture
def affine(tmp_path):
    ClassAffine([1.0, 2.0, 3.0, 0.5], [0.0, 1.0, -1.0, 2.0], method="example").save(tmp_path / "affine.safetensors")
    return tmp_path / "affine.safetensors"


def test_from_images_to_a_corrected_file(run, refused, tmp_path, model, images):
    stats, affine, output = (tmp_path / name for name in ("stats.safetensors", "affine.safetensors", "out.onnx"))
    collect = ("--images", images, "--like", "imagenet", "-o", stats, "--json", "--overwrite")
    collected = run("collect", model, *collect)
    assert (collected.code, collected.json["rows"], collected.json["num_columns"]) == (0, 6, 4)
    assert (collected.json["layer"], collected.json["activation"]) == ("z", "softmax")
    assert run("fit", stats, "--method", "logn", "-o", affine).code == 0
    folded = run("fold", model, affine, "-o", output)
    assert "two nodes behind `z`" in folded.out
    assert "Proven on 1 row of logits at `z`" in folded.out
    with pytest.MonkeyPatch.context() as terminal:
        terminal.setenv("COLUMNS", "80")
        narrow = run("fold", model, affine, "-o", output, "--overwrite").out
    assert " ".join(narrow.split()) == " ".join(folded.out.split())
    assert all(len(line) <= 80 for line in narrow.splitlines() if " " in line)
    again = run("fold", model, affine, "-o", output, "--overwrite", "--json").json
    assert again["tensors"] == ["z"]
    assert again["largest_difference"] < 1e-4
    assert run("collect", output, *collect, "--tensor", "y").code == 0
    moments = ClassMoments.load(stats)
    np.testing.assert_allclose(moments.mean, 0, atol=1e-4)
    np.testing.assert_allclose(moments.variance, 1, rtol=1e-4)
    assert "has a map folded into it already" in refused("fold", output, affine, "-o", tmp_path / "2.onnx")
    assert not (tmp_path / "2.onnx").exists()


def test_only_the_images_that_annotations_list_are_taken(run, refused, tmp_path, model, images):
    collect = ("collect", model, "--like", "imagenet", "--overwrite", "-o", tmp_path / "stats.safetensors")
    assert run(*collect, "--data", tmp_path / "train.json", "--json").json["images"] == 2
    assert run(*collect, "-a", tmp_path / "train.json", "--images", tmp_path, "--json").json["images"] == 2
    assert run(*collect, "-d", tmp_path / "train.json", "--max-images", 1, "--json").json["images"] == 1
    (images / "3.png").unlink()
    assert "3.png" in refused(*collect, "--data", tmp_path / "train.json")


def test_a_preset_says_the_background_and_the_activation_too(run, save_onnx, tmp_path, images):
    """Otherwise `no object` would be taken for a class."""
    text = """(float[1, 3, 32, 32] x) => (float[1, 16, 4] logits, float[1, 16, 4] pred_boxes)
    { p = AveragePool <kernel_shape = [8, 8], strides = [8, 8]> (x) f = Reshape(p, shape)
    t = Transpose <perm = [0, 2, 1]> (f) logits = MatMul(t, w) b = MatMul(t, v) pred_boxes = Sigmoid(b) }"""
    draw = np.random.default_rng(0).normal
    weights = {"w": draw(size=(3, 4)), "v": draw(size=(3, 4)), "shape": [1, 3, 16]}
    path, stats = save_onnx(tmp_path / "m.onnx", text, **weights), tmp_path / "s.safetensors"
    done = run("collect", path, "--like", "detr", "--images", images, "-o", stats)
    assert "3 classes and a background (last)" in done.out
    assert "Read at `logits`, before softmax." in done.out
    assert run("collect", path, "--like", "rtdetr", "--images", images, "-o", stats, "--overwrite").code == 0
    metadata = ClassMoments.load(stats).head
    assert (metadata.activation, metadata.background) == ("sigmoid", None)


def test_a_fold_is_proven_at_the_size_that_is_given(run, save_onnx, tmp_path, affine):
    text = "(float[1, 3, h, w] x) => (float[1, 4, a, b] y) { z = Conv(x, k, b) y = Sigmoid(z) }"
    draw = np.random.default_rng(0).normal
    path = save_onnx(tmp_path / "open.onnx", text, k=draw(size=(4, 3, 1, 1)), b=draw(size=4))
    assert "Proven on 48 rows" in run("fold", path, affine, "-o", tmp_path / "out.onnx", "--size", "6x8").out


TWO_HEADS = """(float[N, 3, 8, 8] x) => (float[N, 4] y, float[N, 4] u)
    { f = Flatten(x) z = Gemm(f, w) y = Softmax(z) v = Gemm(f, t) u = Softmax(v) }"""


@pytest.fixture
def labels(save_yolox, draw_images, tmp_path):
    """The detector `m.onnx`, and labels of two images with two of its classes."""
    save_yolox(tmp_path / "m.onnx")
    draw_images(tmp_path, 3, (20, 40))
    categories = [{"id": place + 1, "name": name} for place, name in enumerate(("dog", "cat"))]
    images = [{"id": number, "file_name": f"{number}.png", "width": 40, "height": 20} for number in (1, 2)]
    box = {"category_id": 1, "bbox": [2, 3, 20, 10], "area": 200, "iscrowd": 0}
    content = {"images": images, "categories": categories}
    content["annotations"] = [box | {"id": number, "image_id": number} for number in (1, 2)]
    (tmp_path / "val.json").write_text(json.dumps(content))
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    (tmp_path / "other.txt").write_text("horse\nsheep\nbird")
    return tmp_path / "val.json"


def test_a_detector_in_an_onnx_file_is_stored_and_measured(run, tmp_path, labels):
    store = tmp_path / "store"
    names = ("--class-names", tmp_path / "names.txt")
    done = run("predict", tmp_path / "m.onnx", "--like", "yolox", *names, "-d", labels, "-o", store)
    assert (done.code, "2 of 2 images" in done.out) == (0, True)
    header = Predictions(store).header
    assert (header.head.class_names, header.head.objectness, header.postprocessing.nms_iou) == (NAMES, True, 0.65)
    assert Predictions(store).num_proposals == 2 * (16 + 4 + 1)
    measured = run("compare", store, "-d", labels, "--json").json
    assert 0 <= measured["rows"][0]["values"]["AP"] <= 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("fold model.onnx wide.safetensors", "no class logits of 9 columns"),
        ("fold broken.onnx affine.safetensors", "cannot be read as an ONNX model"),
        ("fold two.onnx affine.safetensors", "`tensor`"),
        ("fold two.onnx affine.safetensors --tensor nobody", "has no tensor `nobody`"),
        ("fold model.pt affine.safetensors", "fold a PyTorch model in Python with logn.fold(model, layer, affine)"),
        ("fold model.engine affine.safetensors", "is not an ONNX file: it is an engine of TensorRT"),
        ("fold model.onnx affine.safetensors --size large", "like 480x640 or 640"),
        ("fold model.onnx affine.safetensors --size 9", "`size`"),
        ("collect model.onnx --images images", "`like`"),
        ("collect model.onnx --images images --like yolo", "`like`"),
        ("collect model.onnx --images empty --like imagenet", "holds no images"),
        ("collect best.pt --images images", "`best.pt` is a pickle"),
        ("predict m.onnx", "`like`"),
        ("predict m.onnx --like yolo", "`like`"),
        ("predict m.onnx --like yolox --size 64", "`size`"),
        ("predict m.onnx --like yolox --class-names other.txt", "horse"),
        ("predict m.onnx --like yolox --class-names names.txt", "1.png"),
        ("predict bad.onnx --like yolox", "does not load in onnxruntime"),
        ("predict nowhere", "There is no file or folder `nowhere`"),
        ("predict gone.onnx --like yolox", "gone.onnx"),
        ("predict os:getcwd --like yolox", "is not a model"),
        ("predict os:name", "`os:name` is of type str; name a function that returns a model"),
        ("predict os:nothing", "`os:nothing` cannot be imported: "),
        ("predict best.pt", "`best.pt` is a pickle"),
    ],
)
def test_bad_input_is_one_sentence_and_no_file(
    refused, save_onnx, tmp_path, monkeypatch, model, images, affine, labels, words, sentence
):
    monkeypatch.chdir(tmp_path)
    ClassAffine.identity(9).save(tmp_path / "wide.safetensors")
    (tmp_path / "broken.onnx").write_bytes(model.read_bytes()[:200])
    (tmp_path / "best.pt").write_bytes(b"a pickle")
    (tmp_path / "empty").mkdir()
    save_onnx(tmp_path / "two.onnx", TWO_HEADS, w=np.ones((192, 4)), t=np.ones((192, 4)))
    unknown = onnx.load("m.onnx")
    unknown.graph.node[0].op_type = "NoSuchOperator"
    onnx.save_model(unknown, "bad.onnx")
    if sentence == "1.png":
        (tmp_path / sentence).unlink()
    verb, *arguments = words.split()
    output = {"fold": "out.onnx", "collect": "stats.safetensors", "predict": "store"}[verb]
    data = ("-d", labels) if verb == "predict" else ()
    assert sentence in refused(verb, *arguments, *data, "-o", output)
    assert not (tmp_path / output).exists()
