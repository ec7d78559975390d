"""The blocks of the home page, of "Is it worth it?" and of the FAQ run, on the detector that comes with LogN."""

import re
import shutil
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "README.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")


@pytest.fixture
def detector(tmp_path, monkeypatch):
    """A folder with `best.onnx` and `train/`."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("PIL")
    from logn.demo.problem import draw_problem

    monkeypatch.chdir(tmp_path)
    shutil.copy(str(files("logn.demo") / "glyphs.onnx"), "best.onnx")
    draw_problem(tmp_path / "data", train=12, test=1)
    (tmp_path / "data" / "images" / "train").rename("train")
    return tmp_path


@pytest.mark.usefixtures("one_thread")
def test_a_model_file(detector, blocks, run_logn):
    correct, _ = blocks("console")
    printed = run_logn(correct)
    assert "Long-tailed: of 100 classes" in " ".join(printed.split())
    assert {"corrected.onnx", "corrected.statistics.safetensors"} <= {path.name for path in detector.iterdir()}


@pytest.mark.usefixtures("one_thread")
def test_the_commands_of_worth_it_and_of_the_faq(detector, run_logn):
    for half in ("first-half", "second-half"):
        shutil.copytree("train", half)
    shutil.copy("best.onnx", "model.onnx")
    for page in ("worth-it.md", "faq.md"):
        for block in re.findall(r"^```console\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S):
            assert "Long-tailed" in run_logn(block)


def test_a_pytorch_model(tmp_path, monkeypatch, blocks, run_python):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6))
    with torch.no_grad():
        model[0].bias.copy_(torch.linspace(2.0, -6.0, 6))  # a long tail
    before = model[0].bias.detach().clone()
    call, _ = blocks("python")
    run_python(call, {"model": model, "loader": [torch.rand(50, 4) for _ in range(3)]})
    assert not model[0].bias.equal(before)
    assert Path("affine.safetensors").is_file()


def test_arrays_of_logits(blocks, run_python):
    rows = np.random.default_rng(0).normal(np.linspace(2, -6, 6), 1.0, (500, 6))
    _, arrays = blocks("python")
    corrected = run_python(arrays, {"train_logits": rows, "test_logits": rows})["corrected"]
    assert np.ptp(corrected.mean(0)) < np.ptp(rows.mean(0))


def test_thresholds_go_into_a_yolo(tmp_path, monkeypatch, blocks, run_logn):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    import onnx.helper
    import onnx.parser

    monkeypatch.chdir(tmp_path)
    graph = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, 8, 8] x) => (float[N, 2] scores)
        <float[2, 3] w = {1.0, 0.5, 0.2, -0.3, 0.4, 0.9}, float[2] b = {0.1, -0.2}>
        { p = GlobalAveragePool(x) f = Flatten(p) l = Gemm<transB = 1>(f, w, b) scores = Sigmoid(l) }"""
    model = onnx.parser.parse_model(graph)
    onnx.helper.set_model_props(model, {"names": "{0: 'car', 1: 'person'}"})
    onnx.save_model(model, "best.onnx")
    _, thresholds = blocks("console")
    _, fold = thresholds.splitlines()  # the first line is run by the test of the page on Ultralytics
    assert "Keep using 0.25" in run_logn(fold)
