"""Every command prints the same threshold after a correction, or says why another one does not hold."""

import json
import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.made.onnx_graphs import write_graph
from tests.models.onnx.test_onnx_detector import CLASSES, SIZE, detr, pictures, with_tail, yolov8, yolox

from logn.cli.verbs.demo import _print_meaning
from logn.measure.comparison import Comparison
from logn.methods.recommend import CLASSIFIER_STRENGTH, share_of_prior
from logn.statistics.moments import ClassMoments

KEEPS = "keeps the number of detections on images with the class mix of training"
ASSUMES = "if your images have the class mix of these training images"
WHY = "the class mix of the labelled images differs from that of training"


def softmax_detector(path):
    """With a tail, and a background that most boxes are."""
    model = onnx.load(str(detr(path)))
    for tensor in model.graph.initializer:
        if tensor.name == "class_embed_bias":
            bias = np.append(-0.7 * np.arange(CLASSES), 1.0).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(bias, tensor.name))
    onnx.save_model(model, str(path))
    return path


def classifier(path):
    weights = np.random.default_rng(0).normal(0, 6, (3, CLASSES)).astype(np.float32)
    body = "p = GlobalAveragePool(x) f = Flatten(p) z = MatMul(f, w) y = Add(z, b)"
    bias = (-1.5 * np.arange(CLASSES)).astype(np.float32)
    shape = f"float[N, 3, {SIZE}, {SIZE}] x"
    return write_graph(path, body, f"float[N, {CLASSES}] y", inputs=shape, w=weights, b=bias)


HEADS = {
    "softmax detector": (softmax_detector, "detr", ASSUMES),
    "sigmoid": (lambda path: with_tail(yolov8(path)), "ultralytics", KEEPS),
    "objectness": (lambda path: with_tail(yolox(path)), "yolox", KEEPS),
}


def labels_of(folder, images):
    """One box on each image, of any class."""
    listed = sorted(images.iterdir())
    content = {
        "images": [
            {"id": n + 1, "file_name": path.name, "height": SIZE, "width": SIZE} for n, path in enumerate(listed)
        ],
        "annotations": [
            {"id": n + 1, "image_id": n + 1, "category_id": n % CLASSES + 1, "bbox": [8, 8, 40, 40], "area": 1600}
            | {"iscrowd": 0}
            for n in range(len(listed))
        ],
        "categories": [{"id": c + 1, "name": f"class {c}"} for c in range(CLASSES)],
    }
    (folder / "labels.json").write_text(json.dumps(content))
    (folder / "counts.json").write_text(json.dumps([500, 300, 40, 30, 5, 2]))
    (folder / "names.txt").write_text("".join(f"class {c}\n" for c in range(CLASSES)))
    return folder / "labels.json"


def sentence(text):
    """The sentence about the threshold, on one line."""
    found = re.search(r"(Use about|Keep using|0\.25 keeps)[^|]*?(?=\.(\s|$|<))", " ".join(text.split()))
    assert found is not None, text
    return found[0]


@pytest.mark.parametrize("head", HEADS)
def test_all_commands_agree_or_say_why(run, tmp_path, head, capsys):
    build, like, basis = HEADS[head]
    model, train = build(tmp_path / "model.onnx"), pictures(tmp_path / "train", 24)
    names = ("--class-names", tmp_path / "names.txt")
    labels = labels_of(tmp_path, train)
    done = run("correct", model, "--images", train, "--like", like, *names, "-o", tmp_path / "new.onnx")
    assert done.code == 0, done.err
    printed, statistics = sentence(done.out), tmp_path / "new.statistics.safetensors"
    assert basis in printed
    assert sentence(run("inspect", statistics).out) == printed
    assert sentence(run("fit", statistics, "-o", tmp_path / "affine.safetensors").out) == printed

    # On the deployment images, here the same, the shift and the threshold need no assumption.
    deployed = run("correct", model, "--images", train, "--like", like, *names, "--deployment", train)
    expected = sentence(deployed.out)
    assert expected.endswith("it keeps the number of detections on the deployment images")
    assert expected.split(":")[0] == (printed.split(",")[0] if basis == ASSUMES else "Keep using 0.25")
    for verb in (("inspect", statistics), ("fit", statistics, "-o", tmp_path / "second.safetensors")):
        assert sentence(run(*verb, "--deployment", statistics).out) == expected

    predictions, comparison = tmp_path / "predictions", tmp_path / "comparison"
    predicted = run("predict", model, "-d", labels, "--images", train, "--like", like, *names, "-o", predictions)
    assert predicted.code == 0, predicted.err
    inputs = ("-d", labels, "-s", statistics, "--counts", tmp_path / "counts.json")
    compared = run("compare", predictions, *inputs, "--bootstrap", "0", "-o", comparison)
    assert compared.code == 0, compared.err
    measured, result = sentence(compared.out), Comparison.load(comparison)
    assert "found" in measured
    told = float(re.search(r"(?:Use about|Keep using) ([\d.]+)", measured)[1])
    # What `correct` printed: the number to use, or the one that stays.
    corrected = float(re.search(r"[\d.]+", printed)[0])
    assert (WHY in " ".join(compared.out.split())) == (abs(told - corrected) > 0.05 * max(told, corrected))
    assert run("report", comparison, "-o", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text().replace("-&gt;", "->")
    assert measured in " ".join(page.split())
    _print_meaning(result, tmp_path)
    assert sentence(capsys.readouterr().out) == measured


def test_a_classifier_has_no_threshold_but_a_trade(run, tmp_path):
    model, train = classifier(tmp_path / "model.onnx"), pictures(tmp_path / "train", 250)
    done = run("correct", model, "--images", train, "--like", "imagenet", "-o", tmp_path / "new.onnx")
    assert done.code == 0, done.err
    shown = run("inspect", tmp_path / "new.statistics.safetensors")
    fitted = run("fit", tmp_path / "new.statistics.safetensors", "-o", tmp_path / "affine.safetensors")
    for text in (done.out, shown.out, fitted.out):
        assert "where you used" not in text
        assert "Keep using" not in text
    for text in (done.out, shown.out):
        assert f"{share_of_prior(CLASSIFIER_STRENGTH)} changes the accuracy by" in " ".join(text.split())


@pytest.mark.filterwarnings("ignore:12 of 31 images could not be read")
def test_deployment_images_that_are_of_no_use_are_refused(run, tmp_path):
    model, train = with_tail(yolov8(tmp_path / "model.onnx")), pictures(tmp_path / "train", 24)
    few, broken = pictures(tmp_path / "few", 19), tmp_path / "broken"
    broken.mkdir()
    for number in range(30):
        (broken / f"{number}.png").write_bytes(b"no image")
    for number in range(12):  # 12 that cannot be read leave 12
        (few / f"more{number}.png").write_bytes(b"no image")
    correct = ("correct", model, "--images", train, "--like", "ultralytics", "-o", tmp_path / "new.onnx")
    cases = {
        few: "`deployment`",
        broken: "None of the 30 images can be read",
        tmp_path / "missing": "missing",
    }
    for folder, words in cases.items():
        refused = run(*correct, "--deployment", folder)
        assert (refused.code, refused.out) == (2, "")
        assert words in " ".join(refused.err.split())
        assert not (tmp_path / "new.onnx").exists()
    with_both = run(*correct, "--deployment", train, "--thresholds", '{"0": 0.3}')
    assert with_both.code == 2
    assert "`thresholds`" in with_both.err


def test_deployment_statistics_of_another_model_are_refused(run, tmp_path):
    rows = np.random.default_rng(0).normal(-3, 1, (400, 3)) - np.arange(3)

    def saved(name, columns=3, **metadata):
        from logn.statistics.head import Head

        known = {"activation": "sigmoid", "source": "onnx:1", "names": tuple("abc"[:columns])} | metadata
        moments = ClassMoments(Head(columns, **known), sample_rows=500)
        moments.update(rows[:, :columns])
        moments.save(tmp_path / name)
        return tmp_path / name

    train = saved("train.safetensors")
    others = {
        saved("a.safetensors", source="onnx:2"): "are of another model",
        saved("b.safetensors", names=("a", "b", "d")): "differ in `class_names`",
        saved("c.safetensors", columns=2): "have 2 columns, but those of training 3",
    }
    for path, words in others.items():
        for verb in (("inspect", train), ("fit", train, "-o", tmp_path / "x.safetensors")):
            refused = run(*verb, "--deployment", path)
            assert refused.code == 2
            assert words in " ".join(refused.err.split())
    assert not (tmp_path / "x.safetensors").exists()
    alone = run("fit", "--method", "temperature:value=2", "-o", tmp_path / "x.safetensors", "--deployment", train)
    assert alone.code == 2
