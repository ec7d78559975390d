"""`logn correct`: ONNX files, runs and functions in, corrected ones out; what is said, and what is refused."""

import json
import re

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
from logn_research.training.checkpoint import Checkpoint
from logn_research.training.classifiers import build_classifier
from logn_research.training.detectors import build_detector
from logn_research.training.settings import ClassifierSettings, DetectorSettings
from logn_research.training.train import load_classifier, load_detector
from onnx import numpy_helper
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from logn.calibrators.affine import ClassAffine
from logn.logits.images import read_rgb
from logn.logits.onnx.file import exposing
from logn.statistics.moments import ClassMoments

pytestmark = pytest.mark.usefixtures("one_thread")
CLASSES = 8
TAIL = np.linspace(-1.0, -9.0, CLASSES, dtype=np.float32)
SPREAD = np.linspace(1.5, 0.4, CLASSES, dtype=np.float32)


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    generator = np.random.default_rng(1)
    for index in range(12):
        pixels = generator.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:02}.png")
    return folder


def save_onnx(path, spread=SPREAD, means=TAIL):
    """A convolution with a sigmoid behind it: as many rows as pixels, classes with falling means and spreads."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, 16, 16] x) => (float[N, {CLASSES}, 16, 16] y)
    {{ z = Conv(x, w, b) y = Sigmoid(z) }}"""
    model = onnx.parser.parse_model(text)
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(CLASSES, 3, 1, 1)) * spread.reshape(-1, 1, 1, 1) * 3
    weight -= weight.mean(axis=1, keepdims=True)  # so that the mean is the bias
    for name, array in (("w", weight), ("b", means)):
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    onnx.save_model(model, str(path))
    return path


@pytest.fixture
def model(tmp_path):
    return save_onnx(tmp_path / "model.onnx")


def logits(path, pixels):
    session = onnxruntime.InferenceSession(exposing(onnx.load(str(path)), ["z"]).SerializeToString())
    return session.run(["z"], {"x": pixels})[0]


def left_in(folder):
    return {path.name for path in folder.iterdir()}


def test_an_onnx_file(run, tmp_path, model, images):
    out = tmp_path / "corrected.onnx"
    done = run("correct", model, "--images", images, "--mean", "0", "-o", out, "--threshold", "0.2", "--json")
    assert done.code == 0
    assert (done.json["num_classes"], done.json["activation"], done.json["layer"]) == (CLASSES, "sigmoid", "z")
    assert (done.json["method"], done.json["recommendation"]["method"]) == ("recommended", "recommended")
    assert (done.json["images"], done.json["rows"]) == (12, 12 * 256)
    names = {"corrected.onnx", "corrected.statistics.safetensors", "corrected.affine.safetensors"}
    assert left_in(tmp_path) == {"train", "model.onnx"} | names
    affine = ClassAffine.load(tmp_path / "corrected.affine.safetensors")
    pixels = np.random.default_rng(3).random((2, 3, 16, 16), np.float32)
    np.testing.assert_allclose(logits(out, pixels), affine(logits(model, pixels), axis=1), atol=1e-4)
    before, after = (onnx.load(str(path)).graph for path in (model, out))
    assert [node.op_type for node in before.node] == [node.op_type for node in after.node]
    for kind in ("input", "output"):
        assert [str(value) for value in getattr(before, kind)] == [str(value) for value in getattr(after, kind)]
    moments = ClassMoments.load(tmp_path / "corrected.statistics.safetensors")
    np.testing.assert_allclose(moments.mean, TAIL, atol=0.2)


def test_the_threshold_that_is_named_keeps_as_many_scores(run, tmp_path, model, images):
    out = tmp_path / "corrected.onnx"
    told = run("correct", model, "--images", images, "--max-value", "1", "-o", out, "--threshold", "0.2", "--json")
    change = told.json["change"]
    moments = ClassMoments.load(tmp_path / "corrected.statistics.safetensors")
    rows = moments.sample.astype(np.float64)
    affine = ClassAffine.load(tmp_path / "corrected.affine.safetensors")
    old, new = (1 / (1 + np.exp(-values)) for values in (rows, affine(rows)))
    # The sample is in half precision, and some of its scores are equal.
    assert (new > change["matching"]).sum() <= (old > 0.2).sum() <= (new >= change["matching"]).sum()
    assert (old > 0.2).sum() > 100
    assert change["before"] == pytest.approx((old > 0.2).sum() / len(rows) * 256)
    assert change["after"] == pytest.approx((new > 0.2).sum() / len(rows) * 256)


@pytest.mark.parametrize("width", [60, 100])
def test_what_is_said_fits_the_terminal(run, tmp_path, model, images, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    done = run("correct", model, "--images", images, "--like", "rtdetr", "-o", tmp_path / "corrected.onnx")
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines if line[0] != " "] == [
        "Found",
        "Ran",
        "Finding",
        "Did",
        "Change",
        "Proof",
        "Wrote",
    ]
    # What has no space to break at, such as a path, may stand out.
    assert all(len(line) <= width or len(line[9:].split()) == 1 for line in lines)
    text = " ".join(done.out.split())
    assert f"Found ONNX: {CLASSES} classes at `z`, before sigmoid, no background." in text
    assert "Ran 12 images, stretch to 16x16, 0 to 1 (--like rtdetr); 3,072 rows of logits." in text
    assert "Finding Long-tailed: of" in text
    assert "Did what LogN recommends, half of the prior." in text
    assert "the largest difference from scale x logit + shift is" in text
    assert f"logn predict {model} --data val.json" in done.err


def test_a_dry_run_writes_nothing(run, tmp_path, model, images):
    done = run("correct", model, "--images", images, "--like", "rtdetr", "--dry-run")
    assert done.code == 0
    assert "Wrote    nothing (--dry-run)." in done.out
    assert "Proof" in done.out
    assert left_in(tmp_path) == {"train", "model.onnx"}


def test_nothing_to_correct_is_said_and_is_no_error(run, tmp_path, images):
    level = save_onnx(tmp_path / "level.onnx", np.full(CLASSES, 1.0), np.full(CLASSES, -3.0))
    # Weights of equal spread: the same row, turned around the axis of equal channels.
    file = onnx.load(str(level))
    angle = np.arange(CLASSES) * 0.7
    one, two = np.array([1, -1, 0]) / 2**0.5, np.array([1, 1, -2]) / 6**0.5
    weight = np.cos(angle)[:, None] * one + np.sin(angle)[:, None] * two
    file.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight.reshape(-1, 3, 1, 1).astype(np.float32), "w"))
    onnx.save_model(file, str(level))
    common = ("correct", level, "--images", images, "--like", "rtdetr", "-o", tmp_path / "out.onnx")
    done = run(*common)
    assert done.code == 0
    assert "nothing, and wrote nothing: use the model as it is" in " ".join(done.out.split())
    assert "little to correct" in " ".join(done.out.split())
    assert left_in(tmp_path) == {"train", "level.onnx"}
    forced = run(*common, "--method", "logn", "--json")
    assert (forced.code, forced.json["method"], forced.json["recommendation"]["method"]) == (0, "logn", "none")
    assert (tmp_path / "out.onnx").exists()


def test_images_that_labels_list(run, tmp_path, model, images):
    listed = [{"id": number, "file_name": f"{number:02}.png", "height": 48, "width": 64} for number in range(3)]
    content = {"images": listed, "annotations": [], "categories": [{"id": 1, "name": "cup"}]}
    (tmp_path / "labels.json").write_text(json.dumps(content))
    done = run(
        "correct",
        model,
        "--data",
        tmp_path / "labels.json",
        "--images",
        images,
        "--like",
        "rtdetr",
        "--dry-run",
        "--json",
    )
    assert (done.code, done.json["images"]) == (0, 3)


def test_unreadable_images(run, refused, tmp_path, model, images):
    (images / "00.png").write_bytes(b"no picture")
    common = ("correct", model, "--images", images, "--like", "rtdetr", "-o", tmp_path / "out.onnx")
    assert "`--skip-unreadable` leaves such images out" in refused(*common)
    assert left_in(tmp_path) == {"train", "model.onnx"}
    done = run(*common, "--skip-unreadable", "--json")
    assert (done.code, done.json["images"]) == (0, 11)
    assert done.json["unreadable"] == [str(images / "00.png")]
    assert "1 of 12 images could not be read and were left out" in done.json["warnings"][0]


@pytest.fixture
def run_folder(tmp_path):
    """A detector and a classifier with a tail, as runs."""

    def make(kind):
        torch.manual_seed(0)
        if kind == "detector":
            settings = DetectorSettings("small", 5)
            network, extra = build_detector(settings), {}
        else:
            settings = ClassifierSettings("small", 5)
            network, extra = build_classifier(settings), {"image_counts": [5, 4, 3, 2, 1], "data": {}}
        layer = network.logit_layer
        module = network.get_submodule(layer.paths[0])
        with torch.no_grad():
            columns = len(module.weight)
            module.weight.copy_(torch.randn(module.weight.shape) * torch.linspace(0.3, 0.1, columns)[:, None])
            module.bias.copy_(torch.linspace(0, -8, columns))
        names = ("cup", "fork", "bed", "cat", "dog")
        (tmp_path / "run").mkdir()
        checkpoint = Checkpoint(settings, 3, network.state_dict(), class_names=names, extra=extra)
        checkpoint.save(tmp_path / "run" / "checkpoint.safetensors")
        return tmp_path / "run"

    return make


@pytest.mark.parametrize("kind", ["detector", "classifier"])
def test_a_run(run, tmp_path, images, run_folder, kind):
    source, out = run_folder(kind), tmp_path / "corrected"
    done = run("correct", source, "--images", images, "-o", out, "--method", "recommended", "--json")
    assert done.code == 0
    assert (done.json["num_classes"], done.json["images"]) == (5, 12)
    assert done.json["class_names"] == ["cup", "fork", "bed", "cat", "dog"]
    assert left_in(out) == {"checkpoint.safetensors", "logn-statistics.safetensors", "logn-affine.safetensors"}
    affine = ClassAffine.load(out / "logn-affine.safetensors")
    if kind == "detector":
        picture = torch.from_numpy(read_rgb(images / "00.png").copy()).permute(2, 0, 1).float() / 255
        before, after = (load_detector(path).propose([picture])[0].logits for path in (source, out))
    else:
        picture = torch.rand(3, 3, 32, 32)
        with torch.inference_mode():
            before, after = (load_classifier(path)(picture) for path in (source, out))
    np.testing.assert_allclose(np.asarray(after), affine(np.asarray(before, np.float64)), atol=1e-3)


FUNCTION = """
import torch
from torch import nn
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

class Net(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.pool, self.fc = nn.AdaptiveAvgPool2d(2), nn.Linear(12, 6, bias=bias)
    def forward(self, x):
        return self.fc(self.pool(x).flatten(1)).softmax(1)

def classifier(bias=True):
    torch.manual_seed(0)
    net = Net(bias)
    with torch.no_grad():
        net.fc.weight.mul_(torch.linspace(3, 1, 6)[:, None])
        if bias:
            net.fc.bias.copy_(torch.linspace(0, -5, 6))
    return net

def without_bias():
    return classifier(False)

def detector():
    torch.manual_seed(0)
    return ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=6)

class Reader(Net):
    def forward(self, x):
        features = self.pool(x).flatten(1)
        logits = self.fc(features)
        return {"logits": logits.softmax(1), "similarity": nn.functional.linear(features, self.fc.weight * 2)}

def read_twice():
    net = Reader()
    net.load_state_dict(classifier().state_dict())
    return net

def nothing():
    return {}
"""


@pytest.fixture
def functions(tmp_path, monkeypatch):
    (tmp_path / "my_models_for_correct.py").write_text(FUNCTION)
    (tmp_path / "half_written_models.py").write_text("def classifier(\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "my_models_for_correct"


def test_a_function_that_returns_a_classifier(run, tmp_path, images, functions):
    out = tmp_path / "corrected.safetensors"
    arguments = ("correct", f"{functions}:classifier", "--images", images, "--like", "imagenet", "--size", "32")
    done = run(*arguments, "-o", out, "--method", "recommended", "--json")
    assert (done.code, done.json["activation"], done.json["num_classes"]) == (0, "softmax", 6)
    module = __import__(functions)
    plain, corrected = module.classifier(), module.Net()
    corrected.load_state_dict(load_file(out))
    affine = ClassAffine.load(tmp_path / "corrected.affine.safetensors")
    features = torch.rand(4, 12)
    with torch.inference_mode():
        np.testing.assert_allclose(corrected.fc(features), affine(plain.fc(features).double().numpy()), atol=1e-4)


def test_a_function_that_returns_a_detector_of_a_known_framework(run, tmp_path, images, functions):
    out = tmp_path / "corrected.safetensors"
    arguments = (
        "correct",
        f"{functions}:detector",
        "--images",
        images,
        "--max-images",
        "3",
        "--method",
        "recommended",
    )
    done = run(*arguments, "-o", out, "--json")
    assert (done.code, done.json["framework"], done.json["background"]) == (0, "torchvision, SSD", 0)
    assert done.json["num_classes"] == 5
    module = __import__(functions)
    model: nn.Module = module.detector()
    model.load_state_dict(load_file(out))


def test_bad_input_is_one_sentence_and_nothing_is_written(refused, tmp_path, model, images, functions, run_folder):
    out = tmp_path / "out.onnx"
    before = left_in(tmp_path)
    (tmp_path / "empty").mkdir()
    source = run_folder("detector")
    given = ("--images", images, "--like", "rtdetr")
    cases = {
        "which does not say how its images are prepared: one of yolov5, yolox": (model, "--images", images, "-o", out),
        "Expected `--images`, a folder of training images, or `--data`, but got neither": (model, "-o", out),
        "Expected `--output`, where to write the corrected model, but got none": (model, *given),
        "to hold images (.jpg": (model, "--images", tmp_path / "empty", "-o", out),
        "to be a folder of images, but there is none": (model, "--images", tmp_path / "nowhere", "-o", out),
        "Expected `--output` to be another file than the model": (model, *given, "-o", model),
        "not to exist yet, but it does": (model, *given, "-o", tmp_path / "my_models_for_correct.py"),
        "Expected `--output` to end in .onnx": (model, *given, "-o", tmp_path / "out.pt"),
        "Expected `--output` to be a folder": (source, "--images", images, "-o", tmp_path / "x.safetensors"),
        "Expected the folder of": (model, *given, "-o", tmp_path / "nowhere" / "out.onnx"),
        "to be an `.onnx` file, a Hugging Face folder": (tmp_path / "gone", "--images", images, "-o", out),
        "but it is none of these": (tmp_path / "empty", "--images", images, "-o", tmp_path / "x"),
        "weights without a model": (tmp_path / "run" / ".." / "w.safetensors", "--images", images, "-o", out),
        "Expected no `--like` for the run": (source, *given, "-o", tmp_path / "x"),
        "Expected `--tensor` only with an ONNX file": (
            source,
            "--images",
            images,
            "--tensor",
            "z",
            "-o",
            tmp_path / "x",
        ),
        "Expected `--method` to be one of": (model, *given, "--method", "logm", "-o", out),
        "be a function that can be imported": (f"{functions}:gone", *given, "-o", tmp_path / "x.safetensors"),
        "but it cannot: '(' was never closed (half_written_models.py, line 1).": (
            "half_written_models:classifier",
            *given,
            "-o",
            tmp_path / "x.safetensors",
        ),
        "to return a torch module, but got dict": (f"{functions}:nothing", *given, "-o", tmp_path / "x.safetensors"),
        "how its images are prepared: imagenet is for most image classifiers": (
            f"{functions}:classifier",
            "--images",
            images,
            "-o",
            tmp_path / "x.safetensors",
        ),
        "to have a bias, where the correction goes": (
            f"{functions}:without_bias",
            *given,
            "-o",
            tmp_path / "x.safetensors",
        ),
        "but the output `similarity` changes too": (
            f"{functions}:read_twice",
            *given,
            "--method",
            "logn",
            "-o",
            tmp_path / "x.safetensors",
        ),
    }
    (tmp_path / "w.safetensors").write_bytes(b"")
    for sentence, arguments in cases.items():
        assert sentence in refused("correct", *arguments), sentence
    assert left_in(tmp_path) == before | {"empty", "run", "w.safetensors"} | (left_in(tmp_path) & {"__pycache__"})


def test_a_file_that_onnxruntime_cannot_run(refused, tmp_path, images):
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    given = ("--images", images, "--like", "rtdetr", "-o", tmp_path / "out.onnx")
    assert "broken.onnx" in refused("correct", tmp_path / "broken.onnx", *given)
    assert not (tmp_path / "out.onnx").exists()


def test_a_model_is_not_corrected_twice(run, refused, tmp_path, model, images):
    given = ("--images", images, "--like", "rtdetr")
    assert run("correct", model, *given, "-o", tmp_path / "once.onnx").code == 0
    assert "once.onnx" in refused("correct", tmp_path / "once.onnx", *given, "-o", tmp_path / "twice.onnx")
    assert not (tmp_path / "twice.onnx").exists()


def test_collecting_from_a_pickle_says_what_to_type(refused, tmp_path):
    (tmp_path / "best.pt").write_bytes(b"")
    told = refused("collect", tmp_path / "best.pt", "--images", tmp_path, "-o", tmp_path / "stats.safetensors")
    assert "Expected `--trust`" in told


def test_only_options_that_there_are_are_advised(refused, tmp_path, model, images):
    file = onnx.load(str(model))
    file.graph.node.insert(0, onnx.helper.make_node("Log", ["x"], ["low"]))
    file.graph.node[1].input[0] = "low"
    onnx.save_model(file, str(model))
    Image.new("RGB", (64, 48)).save(images / "black.png")
    common = (model, "--images", images, "--like", "rtdetr", "-o")
    finite = r"Expected `logits` to be finite, but got -?(inf|nan) for class \d"
    assert re.fullmatch(finite + r"\.", refused("correct", *common, tmp_path / "out.onnx"))
    sentence = refused("collect", *common, tmp_path / "stats.safetensors")
    assert re.fullmatch(finite + r"; `--nonfinite skip` leaves such values out and counts them\.", sentence)
