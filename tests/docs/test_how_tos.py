"""The how-to pages of models work by copy and paste: from the model to the corrected one, and to the report."""

import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from logn.evaluate.comparison.comparison import Comparison

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "how-to"
pytestmark = [
    pytest.mark.skipif(not PAGES.exists(), reason="the documentation is not beside the tests"),
    pytest.mark.usefixtures("one_thread"),
]
#: What a long tail leaves in the class layer of a model: means and spreads that fall from class to class.
TAIL = """
import torch
from logn.logits.layer import find_modules
from logn.logits.locate import locate_logits
def with_tail(model):
    with torch.no_grad():
        for module in find_modules(model, locate_logits(model)):
            falling = torch.linspace(1.5, 0.5, len(module.weight)).reshape(-1, *[1] * (module.weight.dim() - 1))
            module.weight.normal_().mul_(falling / module.weight[0].numel() ** 0.5)
            module.bias.copy_(torch.linspace(-1.0, -8.0, len(module.weight)))
    return model
"""


def blocks_of(page, language="console"):
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


@pytest.fixture
def labelled(workplace):
    """Training and validation images with labels, where the pages have them; gives the names of the classes."""
    for path in (workplace / "glyphs").iterdir():
        shutil.move(path, workplace / path.name)
    (workplace / "test.json").rename(workplace / "val.json")
    categories = json.loads((workplace / "val.json").read_text())["categories"]
    return [category["name"] for category in sorted(categories, key=lambda category: category["id"])]


def write_data_yaml(folder, names):
    """The images of both splits as Ultralytics lists them, with an object of each class in each image."""
    lines = [f"{number} {0.1 + 0.15 * number:.2f} 0.5 0.2 0.3\n" for number in range(len(names))]
    for path in (folder / "images").rglob("*.png"):
        label = folder / "labels" / path.relative_to(folder / "images").with_suffix(".txt")
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("".join(lines))
    (folder / "data.yaml").write_text(f"path: .\ntrain: images/train\nval: images/test\nnames: {names}\n")


def decoding(folder):
    """How the predictions of a comparison that was reported were decoded."""
    assert (folder / "comparison" / "report.html").is_file()
    comparison = Comparison.load(folder / "comparison")
    assert [row.name for row in comparison.rows] == ["none", "recommended", "logn"]
    return comparison.settings.decode


@pytest.fixture
def my_models(workplace, monkeypatch):
    """Write `my_models.py` with a function `build`."""

    def write(lines):
        (workplace / "my_models.py").write_text(f"{TAIL}import logn\ndef build():\n    torch.manual_seed(0)\n{lines}")
        monkeypatch.syspath_prepend(str(workplace))
        monkeypatch.delitem(sys.modules, "my_models", raising=False)

    return write


def test_pytorch_from_the_detector_to_the_report(labelled, workplace, my_models, run_logn):
    my_models(
        "    from torchvision.models.detection import ssdlite320_mobilenet_v3_large as made\n"
        f"    model = with_tail(made(weights=None, weights_backbone=None, num_classes={len(labelled) + 1}))\n"
        f"    return logn.detector(model, class_names={json.dumps(labelled)}, anchors_per_level=20)\n"
    )
    correct, measure = blocks_of("pytorch.md")
    run_logn(correct, shorter={"train/": "images --max-images 6 --method logn"})
    assert (workplace / "corrected.safetensors").is_file()
    run_logn(measure)
    decode = decoding(workplace)
    assert (decode.nms_iou, decode.score_threshold, decode.max_detections) == (0.55, 0, 300)


def test_pytorch_from_a_classifier_to_the_corrected_weights(labelled, workplace, my_models, run_logn):
    from safetensors.torch import load_file

    layers = "torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 8)"
    my_models(f"    return with_tail(torch.nn.Sequential({layers}))\n")
    run_logn(blocks_of("pytorch.md")[0], shorter={"train/": "images --like imagenet"})
    assert set(load_file(workplace / "corrected.safetensors")) == {"2.weight", "2.bias"}


def test_ultralytics_from_the_model_to_the_report_and_to_thresholds(
    labelled, workplace, run_logn, monkeypatch, tmp_path_factory
):
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path_factory.mktemp("settings")))
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    monkeypatch.setenv("YOLO_AUTOINSTALL", "false")
    ultralytics = pytest.importorskip("ultralytics", reason="the extra `frameworks` is not installed")
    yolo = ultralytics.YOLO("yolov8n.yaml")
    yolo.model = type(yolo.model)("yolov8n.yaml", nc=len(labelled), verbose=False)
    made = {}
    exec(TAIL, made)  # noqa: S102 - our own
    made["with_tail"](yolo.model)
    yolo.model.names = dict(enumerate(labelled))
    yolo.save(workplace / "best.pt")
    correct, thresholds, measure = blocks_of("ultralytics.md")
    small = {"best.pt": "best.pt --size 64"}
    run_logn(correct, shorter={**small, "train/": "images --max-images 6"})
    assert ultralytics.YOLO(workplace / "corrected.pt").names == dict(enumerate(labelled))
    run_logn(measure, shorter={**small, "data.yaml": "val.json"})
    decode = decoding(workplace)
    assert (decode.nms, decode.nms_iou, decode.multi_label) == ("class-wise", 0.7, True)
    write_data_yaml(workplace, labelled)
    run_logn(thresholds, shorter={**small, "f1": "f1 --max-images 6"})
    assert (workplace / "shipped.pt").is_file()


@pytest.fixture(scope="module")
def onnx_example():
    pytest.importorskip("onnxruntime")
    return runpy.run_path(str(ROOT / "examples" / "onnx_classifier.py"))


def test_onnx_commands_give_what_the_example_gives(onnx_example, monkeypatch, run_logn):
    folder, accuracy = onnx_example["folder"], onnx_example["accuracy"]
    before, after = (dict(re.findall(r"(\w+) (\S+)", onnx_example[name])) for name in ("before", "after"))
    assert float(after["rare"]) > float(before["rare"])
    assert float(after["all"]) > float(before["all"])
    monkeypatch.chdir(folder)
    (folder / "corrected.onnx").unlink()
    (folder / "mine.json").write_text(blocks_of("onnx.md", "json")[0])
    correct, steps = blocks_of("onnx.md")
    run_logn(correct)
    run_logn(steps)
    assert accuracy(folder / "corrected.onnx") == accuracy(folder / "folded.onnx") == onnx_example["after"]


def test_the_table_of_engines_is_what_was_measured():
    rows = json.loads((ROOT / "docs" / "results" / "engines.json").read_text(encoding="utf-8"))["rows"]

    def cell(engine, precision, correction):
        (row,) = [
            row
            for row in rows
            if (row["engine"], row["precision"], row["correction"]) == (engine, precision, correction)
            and row["folded"] != "after"
        ]
        return f"{row['top-1']:.1f} / {row['few']:.1f}"

    text = (PAGES / "onnx.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| (OpenVINO|LiteRT|onnxruntime|all three) \| (\w+) \| (.*) \| (.*) \|$", text, flags=re.M)
    assert len(shown) == 4
    for engines, precision, *cells in shown:
        for engine in ("OpenVINO", "LiteRT", "onnxruntime") if engines == "all three" else (engines,):
            assert cells == [cell(engine, precision, correction) for correction in ("none", "p2p")]


def test_the_numbers_of_the_classifier_are_near_those_of_the_page(tmp_path, monkeypatch):
    """Other versions of scikit-learn may round otherwise; a page that is plainly out of date fails."""
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(ROOT / "examples" / "classification.py"))
    assert example["comparison"]["recommended"].differences["few"].low > 0
    (text,) = blocks_of("pytorch.md", "text")
    for line in text.splitlines():
        name, before, _, after = line.split()
        assert 100 * example["before"][name] == pytest.approx(float(before), abs=2.0)
        assert 100 * example["after"][name] == pytest.approx(float(after), abs=2.0)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("best.pt", "(`--trust`) for `best.pt`, which is a pickle"),
        ("nothing.pt", "there is no such file or folder"),
        ("my_models:nothing", "a function that can be imported, but it cannot"),
        ("my_models:names", "a function that returns a model, but got list"),
    ],
)
def test_a_model_that_cannot_be_opened_is_one_sentence(labelled, workplace, my_models, capsys, model, sentence):
    from logn.cli.main import execute

    (workplace / "best.pt").write_bytes(b"a pickle")
    my_models("    return None\nnames = ['cat']\n")
    assert execute(["predict", model, "--data", "val.json", "-o", "out"]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed.replace("\n", " ")
    assert printed.count("\n") == 1
    assert not (workplace / "out").exists()
