"""The pages of torchvision, Ultralytics and classifiers: from the model to the corrected one, and to the report."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
pytestmark = [
    pytest.mark.skipif(not PAGES.exists(), reason="the documentation is not beside the tests"),
    pytest.mark.usefixtures("one_thread"),
]


def commands(page, verb="predict"):
    """The block of the page that begins with this verb."""
    text = (PAGES / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", text, flags=re.M | re.S)
    (block,) = (block for block in blocks if block.startswith(f"logn {verb} "))
    return block


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


@pytest.fixture
def labelled(workplace):
    """Training and validation images with labels, where the pages have them; gives the names of the classes."""
    for path in (workplace / "glyphs").iterdir():
        shutil.move(path, workplace / path.name)
    (workplace / "test.json").rename(workplace / "val.json")
    categories = json.loads((workplace / "val.json").read_text())["categories"]
    return [category["name"] for category in sorted(categories, key=lambda category: category["id"])]


def assert_measured(folder):
    found = json.loads((folder / "comparison" / "comparison.json").read_text())
    assert [row["method"] for row in found["methods"]] == ["none", "recommended", "logn"]
    assert list(folder.glob("comparison/*.html"))
    return found["settings"]["decode"]


@pytest.fixture
def my_models(labelled, workplace, monkeypatch):
    names = json.dumps(labelled)
    (workplace / "my_models.py").write_text(
        TAIL + "from torchvision.models.detection import ssdlite320_mobilenet_v3_large\n"
        "import logn, torch\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        f"    settings = dict(weights=None, weights_backbone=None, num_classes={len(labelled) + 1})\n"
        "    model = with_tail(ssdlite320_mobilenet_v3_large(**settings))\n"
        f"    return logn.detector(model, class_names={names}, anchors_per_level=20)\n"
    )
    monkeypatch.syspath_prepend(str(workplace))
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    return workplace


def test_torchvision_from_the_model_to_the_report(my_models, run_logn):
    run_logn(commands("torchvision.md", "correct"), shorter={"train/": "images --max-images 6 --method logn"})
    assert load_file(my_models / "corrected.safetensors")
    run_logn(commands("torchvision.md"))
    decode = assert_measured(my_models)
    assert (decode["nms_iou"], decode["score_threshold"], decode["max_detections"]) == (0.55, 0, 300)


def test_ultralytics_from_the_model_to_the_report(labelled, workplace, run_logn, monkeypatch, tmp_path_factory):
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
    correct = commands("ultralytics.md", "correct")
    run_logn(correct, shorter={"best.pt": "best.pt --size 64", "train/": "images --max-images 6 --method logn"})
    assert ultralytics.YOLO(workplace / "corrected.pt").names == dict(enumerate(labelled))
    run_logn(commands("ultralytics.md"), shorter={"best.pt": "best.pt --size 64"})
    decode = assert_measured(workplace)
    assert (decode["nms"], decode["nms_iou"], decode["multi_label"]) == ("class-wise", 0.7, True)


def test_a_classifier_of_a_function_of_ones_own(labelled, workplace, run_logn, monkeypatch):
    layers = "torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 8)"
    (workplace / "my_models.py").write_text(
        f"{TAIL}def build():\n    return with_tail(torch.nn.Sequential({layers}))\n"
    )
    monkeypatch.syspath_prepend(str(workplace))
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    run_logn(commands("classifiers.md", "correct"), shorter={"train/": "images --method logn"})
    assert set(load_file(workplace / "corrected.safetensors")) == {"2.weight", "2.bias"}


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("best.pt", "(`--trust`) for `best.pt`, which is a pickle"),
        ("nothing.pt", "there is no such file or folder"),
        ("my_models:nothing", "a function that can be imported, but it cannot"),
        ("my_models:names", "a function that returns a model, but got list"),
    ],
)
def test_a_model_that_cannot_be_opened_is_one_sentence(my_models, capsys, model, sentence):
    from logn.cli.main import execute

    (my_models / "best.pt").write_bytes(b"a pickle")
    with (my_models / "my_models.py").open("a") as file:
        file.write("names = ['cat']\n")
    assert execute(["predict", model, "--data", "val.json", "-o", "out"]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed.replace("\n", " ")
    assert printed.count("\n") == 1
    assert not (my_models / "out").exists()
