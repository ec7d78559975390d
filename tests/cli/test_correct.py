"""`logn correct`: ONNX files and functions in, corrected ones out; what is printed, and what is refused."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file
from tests.made.onnx_graphs import run_graph

import logn
from logn.errors import LogNWarning
from logn.methods.affine import ClassAffine
from logn.statistics.moments import ClassMoments

pytestmark = pytest.mark.usefixtures("one_thread")
CLASSES = 8
TAIL = np.linspace(-1.0, -9.0, CLASSES, dtype=np.float32)
SPREAD = np.linspace(1.5, 0.4, CLASSES, dtype=np.float32)


@pytest.fixture
def images(draw_images, tmp_path):
    return draw_images(tmp_path / "train", 12, (48, 64))


TEXT = f"(float[N, 3, 16, 16] x) => (float[N, {CLASSES}, 16, 16] y) {{ z = Conv(x, w, b) y = Sigmoid(z) }}"


@pytest.fixture
def model(save_onnx, tmp_path):
    """A convolution with a sigmoid behind it: as many rows as pixels, classes with falling means and spreads."""
    weight = np.random.default_rng(0).normal(size=(CLASSES, 3, 1, 1)) * SPREAD.reshape(-1, 1, 1, 1) * 3
    weight -= weight.mean(axis=1, keepdims=True)  # so that the mean is the bias
    return save_onnx(tmp_path / "model.onnx", TEXT, w=weight, b=TAIL)


def logits(path, pixels):
    return run_graph(path, {"x": pixels}, "z")


def left_in(folder):
    return {path.name for path in folder.iterdir()}


def test_an_onnx_file(run, tmp_path, model, images):
    out = tmp_path / "corrected.onnx"
    done = run("correct", model, "--images", images, "--like", "rtdetr", "-o", out, "--at", "0.2", "--json")
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
    for kind in ("input", "output"):
        assert [str(value) for value in getattr(before, kind)] == [str(value) for value in getattr(after, kind)]
    moments = ClassMoments.load(tmp_path / "corrected.statistics.safetensors")
    np.testing.assert_allclose(moments.mean, TAIL, atol=0.2)
    # The threshold that is named keeps as many scores; the sample is in half precision, and some scores are equal.
    rows, change = moments.sample.astype(np.float64), done.json["change"]
    old, new = (1 / (1 + np.exp(-values)) for values in (rows, affine(rows)))
    assert (change["threshold"]["at"], change["threshold"]["basis"]) == (0.2, "training")
    use = change["threshold"]["use"]
    assert (new > use).sum() <= (old > 0.2).sum() <= (new >= use).sum()
    assert (old > 0.2).sum() > 100


@pytest.mark.parametrize("width", [60, 100])
def test_what_is_printed_fits_the_terminal(run, tmp_path, model, images, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    correct = ("correct", model, "--images", images, "--like", "rtdetr")
    done = run(*correct, "-o", tmp_path / "corrected.onnx")
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines if line[0] != " "] == ["Model", "Ran", "Did", "Scores", "Wrote"]
    # What has no space to break at, such as a path, may stand out.
    assert all(len(line) <= width or len(line[8:].split()) <= 2 for line in lines)
    assert "Did half of the prior, as recommended." in " ".join(done.out.split())
    printed = done.err.splitlines()
    assert [line.split(": ")[0] for line in printed] == ["Does it help? With labels", "Then"]
    assert f"logn predict {model} --data val.json -o predictions --like rtdetr" in printed[0]
    if width == 100:
        assert len(lines) + len(printed) <= 10
    verbose = run(*correct, "-o", tmp_path / "again.onnx", "--verbose").out
    assert "before sigmoid, no background." in verbose
    assert "largest difference" in verbose


def test_without_an_output_nothing_is_written(run, tmp_path, model, images):
    done = run("correct", model, "--images", images, "--like", "rtdetr")
    assert "Wrote   nothing without -o; the correction is proven on" in done.out
    assert done.err == f"To write it: logn correct {model} --images {images} --like rtdetr -o corrected.onnx\n"
    assert left_in(tmp_path) == {"train", "model.onnx"}


@pytest.fixture
def save_level(save_onnx):
    """Write a model with nothing to correct: weights of equal spread, one row turned around the grey axis."""
    angle = np.arange(CLASSES)[:, None] * 0.7
    weight = np.cos(angle) * np.array([1, -1, 0]) / 2**0.5 + np.sin(angle) * np.array([1, 1, -2]) / 6**0.5
    weights = {"w": weight.reshape(-1, 3, 1, 1), "b": np.full(CLASSES, -3.0)}
    return lambda path, **stored: save_onnx(path, TEXT, stored.items(), **weights)


def test_nothing_to_correct_is_a_copy(run, save_level, tmp_path, images):
    level, out = save_level(tmp_path / "level.onnx"), tmp_path / "out.onnx"
    common = ("correct", level, "--images", images, "--like", "rtdetr", "-o", out)
    done = run(*common)
    assert done.code == 0
    printed = " ".join(done.out.split())
    assert "there is little to correct." in printed
    assert "Did nothing: use the model as it is." in printed
    assert f"Wrote {out}, a copy of {level}, byte for byte." in printed
    assert done.err.startswith("To correct it anyway: logn correct ")
    assert done.err.rstrip().endswith(f"-o {tmp_path / 'out-2.onnx'} --method recommended:force=true")  # which is free
    assert out.read_bytes() == level.read_bytes()
    out.write_text("mine")
    assert "exists already" in run(*common).err
    assert out.read_text() == "mine"
    for spec in ("recommended", "recommended:strength=0.25"):
        plain = run(*common, "--method", spec, "--json", "--overwrite").json
        assert (plain["method"], plain["output"], plain["files"]) == (None, str(out), [str(out)])
        assert out.read_bytes() == level.read_bytes()
    without = run(*common[:-2], "--json").json
    assert (without["method"], without["output"], without["files"]) == (None, None, [])
    assert left_in(tmp_path) == {"train", "level.onnx", "out.onnx"}
    for spec in ("logn", "recommended:force=true"):
        forced = run(*common, "--method", spec, "--json", "--overwrite")
        assert (forced.code, forced.json["method"], forced.json["recommendation"]["method"]) == (0, spec, "none")
        assert (tmp_path / "out.onnx").exists()


def test_a_copy_has_the_weights_beside_it_and_nothing_of_an_earlier_correction(
    run, save_level, model, tmp_path, images
):
    stored = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    level, folder = save_level(tmp_path / "level.onnx", **stored), tmp_path / "shipped"
    folder.mkdir()
    options = ("--images", images, "--like", "rtdetr", "-o", folder / "out.onnx")
    assert run("correct", model, *options).json is None
    assert left_in(folder) == {"out.onnx", "out.statistics.safetensors", "out.affine.safetensors"}
    assert run("correct", level, *options, "--overwrite").code == 0
    assert left_in(folder) == {"out.onnx", "weights.bin"}
    pixels = np.random.default_rng(3).random((2, 3, 16, 16), np.float32)
    np.testing.assert_array_equal(logits(folder / "out.onnx", pixels), logits(level, pixels))
    assert run("correct", level, *options[:-1], tmp_path / "beside.onnx").code == 0  # shares the weights
    np.testing.assert_array_equal(logits(tmp_path / "beside.onnx", pixels), logits(level, pixels))


def test_a_correction_in_a_file(run, tmp_path, model, images):
    affine = ClassAffine(np.ones(CLASSES), np.arange(CLASSES, dtype=float))
    affine.save(tmp_path / "mine.safetensors")
    options = ("--images", images, "--like", "rtdetr", "--method", tmp_path / "mine.safetensors")
    assert run("correct", model, *options, "-o", tmp_path / "out.onnx").code == 0
    pixels = np.random.default_rng(3).random((2, 3, 16, 16), np.float32)
    expected = affine(logits(model, pixels), axis=1)
    np.testing.assert_allclose(logits(tmp_path / "out.onnx", pixels), expected, atol=1e-4)


def test_images_that_cannot_be_read_are_left_out_with_a_warning(run, tmp_path, model, images):
    (images / "0.png").write_bytes(b"no picture")
    with pytest.warns(LogNWarning, match="1 of 12 images could not be read and were left out: `.*0.png`"):
        done = run("correct", model, "--images", images, "--like", "rtdetr", "-o", tmp_path / "out.onnx", "--json")
    assert (done.code, done.json["images"]) == (0, 11)
    assert done.json["unreadable"] == [str(images / "0.png")]


FUNCTION = """
import torch
from torch import nn
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool, self.fc = nn.AdaptiveAvgPool2d(2), nn.Linear(12, 6)
    def forward(self, x):
        return self.fc(self.pool(x).flatten(1)).softmax(1)

def classifier():
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        net.fc.weight.mul_(torch.linspace(3, 1, 6)[:, None])
        net.fc.bias.copy_(torch.linspace(0, -5, 6))
    return net

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
    options = ("--images", images, "--max-images", "3", "--method", "logn", "-o", out, "--json")
    done = run("correct", f"{functions}:detector", *options)
    assert (done.code, done.json["framework"], done.json["background"]) == (0, "torchvision, SSD", 0)
    assert done.json["num_classes"] == 5
    __import__(functions).detector().load_state_dict(load_file(out))


def write_counts(path, classes):
    rows = [f"class {column},{count}" for column, count in enumerate(np.geomspace(900, 4, classes).round())]
    path.write_text("\n".join(["name,image_count", *rows]))
    return path


def test_counts_for_the_methods_that_need_them(run, tmp_path, images, functions):
    counts, names = write_counts(tmp_path / "counts.csv", 6), tmp_path / "names.txt"
    names.write_text("\n".join(f"class {column}" for column in range(6)))
    given = ("--images", images, "--like", "imagenet", "--size", "32", "--class-names", names)
    options = ("--method", "norcal:gamma=0.6", "--counts", counts, "-o", tmp_path / "corrected.safetensors")
    assert run("correct", f"{functions}:classifier", *given, *options).code == 0
    moments = ClassMoments.load(tmp_path / "corrected.statistics.safetensors")
    expected = logn.methods.fit("norcal:gamma=0.6", moments, logn.ClassCounts.load(counts))
    assert ClassAffine.load(tmp_path / "corrected.affine.safetensors") == expected
    in_python = logn.correct(
        __import__(functions).classifier(), images, method="loga", counts=[9, 8, 7, 6, 5, 4], like="imagenet"
    )
    np.testing.assert_allclose(in_python.maps[0].shift, -np.log([9, 8, 7, 6, 5, 4]), atol=5)
    np.testing.assert_allclose(np.diff(in_python.maps[0].shift), -np.diff(np.log([9, 8, 7, 6, 5, 4])))


@pytest.mark.parametrize(
    ("options", "metadata"),
    [
        ((), ("softmax", None, "images")),
        (("--background", "last"), ("softmax", -1, None)),
    ],
)
def test_a_layer_that_is_named(run, images, functions, options, metadata):
    given = ("--images", images, "--like", "imagenet", "--size", "32", "--json")
    done = run("correct", f"{functions}:classifier", *given, "--layer", "fc", *options)
    assert (done.code, done.json["layer"]) == (0, "fc")
    assert (done.json["activation"], done.json["background"], done.json["population"]) == metadata


@pytest.fixture
def checkpoints(tmp_path, functions):
    """Files of torch.save: weights alone, weights among other things, a whole model, one whose code is elsewhere."""
    network = __import__(functions).classifier()
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    torch.save({"epoch": 3, "state_dict": network.state_dict()}, tmp_path / "checkpoint.pt")
    torch.save(network, tmp_path / "whole.pt")
    torch.save(network, tmp_path / "whole.pth")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "weights.pth --trust",
            "is a state dict, weights without a model: write a function that builds the model, calls "
            'model.load_state_dict(torch.load("weights.pth")) and returns it',
        ),
        ("checkpoint.pt --trust", """load_state_dict(torch.load("checkpoint.pt")['state_dict']) and returns it"""),
        ("weights.pth", "`weights.pth` is a pickle: opening it runs whatever code its author put there."),
        ("checkpoint.pt", "`checkpoint.pt` is a pickle: opening it runs whatever code its author put there."),
        ("whole.pt --trust", "`whole.pt` (Net) does not say how its images are prepared"),
    ],
)
def test_checkpoints_that_are_refused(refused, monkeypatch, checkpoints, images, words, sentence):
    monkeypatch.chdir(checkpoints)
    assert sentence in refused("correct", *words.split(), "--images", "train", "-o", "new.safetensors")
    assert not (checkpoints / "new.safetensors").exists()


def test_a_pickled_model_finds_the_modules_of_the_current_folder(checkpoints, images):
    """As a user types it: another process, in which nothing is imported yet."""
    words = ("--images", images, "--like", "imagenet", "--trust", "-o", "new.safetensors", "--method", "logn")
    command = [sys.executable, "-m", "logn", "correct", *map(str, words)]
    for name in ("whole.pt", "whole.pth"):
        done = subprocess.run([*command, name, "--overwrite"], cwd=checkpoints, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "6 classes at `fc`" in done.stdout
    elsewhere = checkpoints / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run([*command, checkpoints / "whole.pt"], cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 2
    assert "is a pickled model whose code is not found: No module named 'my_models_for_correct'" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "model.onnx --images train -o out.onnx",
            "`like`",
        ),
        ("model.onnx -o out.onnx", "Pass training images: --images FOLDER or --data FILE."),
        ("model.onnx --images empty -o out.onnx", "holds no images (.jpg"),
        ("model.onnx --images nowhere -o out.onnx", "There is no folder of images"),
        ("model.onnx {given} -o model.onnx", "`output`"),
        ("model.onnx {given} -o my_models_for_correct.py", "exists already"),
        ("model.onnx {given} -o out.pt", "what is made of `model.onnx` ends in .onnx"),
        ("model.onnx {given} -o nowhere/out.onnx", "The folder of the output, `nowhere`, does not exist"),
        ("model.onnx {given} --method logm -o out.onnx", "to be one of none, recommended"),
        ("broken.onnx {given} -o out.onnx", "broken.onnx"),
        ("gone --images train -o out.onnx", "no file or folder `gone`. A model is an `.onnx` file, a Hugging Face fol"),
        ("empty --images train -o x", "`empty` is not a model. A model is an `.onnx` file"),
        ("w.safetensors --images train -o out.onnx", "weights without a model"),
        ("{functions}:detector --images train --tensor z -o x.safetensors", "`tensor`"),
        ("{functions}:gone {given} -o x.safetensors", ":gone` cannot be imported: "),
        ("half_written_models:classifier {given} -o x.safetensors", "'(' was never closed (half_written_models.py"),
        ("{functions}:nothing {given} -o x.safetensors", "gives dict where a torch module is needed"),
        ("{functions}:classifier --images train -o x.safetensors", "`like`"),
        ("model.onnx {given} --method norcl -o out.onnx", "but got 'norcl'; did you mean `norcal`?"),
        ("model.onnx {given} --method norcal:gama=1 -o out.onnx", "but got `gama`; did you mean `gamma`?"),
        ("model.onnx {given} --method logn:margin=men -o out.onnx", "but got 'men'; did you mean `mean`?"),
        ("model.onnx --images train --like yolx -o out.onnx", "but got 'yolx'; did you mean `yolox`?"),
        (
            "model.onnx {given} --method norcal -o out.onnx",
            "`counts`",
        ),
        (
            "model.onnx {given} --counts counts.csv -o out.onnx",
            "`counts`",
        ),
        ("model.onnx {given} --method norcal --counts few.csv -o out.onnx", "to have 8 foreground classes, but got 2"),
        ("model.onnx {given} --method tau-norm:tau=1 -o out.onnx", "needs `weight`, which is not read here: make the"),
        ("model.onnx {given} --layer z -o out.onnx", "`layer`"),
        (
            "{functions}:detector --images train --layer x -o x.safetensors",
            "`layer`",
        ),
        ("{functions}:classifier {given} --layer cf -o x.safetensors", "has no module `cf`; the closest are fc"),
        ("{functions}:classifier {given} --layer pool -o x.safetensors", "Softmax or sigmoid? `pool` does not tell"),
        ("{functions}:read_twice {given} --method logn -o x.safetensors", "would change the output `similarity` too"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    refused, tmp_path, monkeypatch, model, images, functions, words, sentence
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "w.safetensors").write_bytes(b"")
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    write_counts(tmp_path / "counts.csv", CLASSES)
    write_counts(tmp_path / "few.csv", 2)
    before = left_in(tmp_path)
    line = words.format(functions=functions, given="--images train --like rtdetr")
    assert sentence in refused("correct", *line.split())
    assert left_in(tmp_path) - {"__pycache__"} == before


def test_a_model_is_not_corrected_twice(run, refused, tmp_path, model, images):
    given = ("--images", images, "--like", "rtdetr")
    assert run("correct", model, *given, "-o", tmp_path / "once.onnx").code == 0
    assert "once.onnx" in refused("correct", tmp_path / "once.onnx", *given, "-o", tmp_path / "twice.onnx")
    assert not (tmp_path / "twice.onnx").exists()
