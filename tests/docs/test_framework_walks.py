"""The pages of torchvision and Ultralytics: what they say about measuring, from the model to the report."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
pytestmark = [
    pytest.mark.skipif(not PAGES.exists(), reason="the documentation is not beside the tests"),
    pytest.mark.usefixtures("one_thread"),
]


def commands(page):
    """The block of the page that begins with `logn predict`."""
    text = (PAGES / page).read_text(encoding="utf-8")
    (block,) = (block for block in re.findall(r"^```bash\n(.*?)^```", text, flags=re.M | re.S) if "predict" in block)
    return block


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
    assert [row["method"] for row in found["methods"]] == ["none", "logn:balanced", "logn"]
    assert list(folder.glob("comparison/*.html"))
    return found["settings"]["decode"]


@pytest.fixture
def my_models(labelled, workplace, monkeypatch):
    names = json.dumps(labelled)
    (workplace / "my_models.py").write_text(
        "from torchvision.models.detection import ssdlite320_mobilenet_v3_large\n"
        "import logn, torch\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        f"    settings = dict(weights=None, weights_backbone=None, num_classes={len(labelled) + 1})\n"
        "    model = ssdlite320_mobilenet_v3_large(**settings)\n"
        f"    return logn.detector(model, class_names={names}, anchors_per_level=20)\n"
    )
    monkeypatch.syspath_prepend(str(workplace))
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    return workplace


def test_torchvision_from_the_model_to_the_report(my_models, run_logn):
    run_logn(commands("torchvision.md"))
    decode = assert_measured(my_models)
    assert (decode["nms_iou"], decode["score_threshold"], decode["max_detections"]) == (0.55, 1e-4, 300)


def test_ultralytics_from_the_model_to_the_report(labelled, workplace, run_logn, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path_factory.mktemp("settings")))
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    monkeypatch.setenv("YOLO_AUTOINSTALL", "false")
    ultralytics = pytest.importorskip("ultralytics", reason="the extra `frameworks` is not installed")
    yolo = ultralytics.YOLO("yolov8n.yaml")
    yolo.model = type(yolo.model)("yolov8n.yaml", nc=len(labelled), verbose=False)
    yolo.model.names = dict(enumerate(labelled))
    yolo.save(workplace / "best.pt")
    run_logn(commands("ultralytics.md"), shorter={"best.pt": "best.pt --image-size 64"})
    decode = assert_measured(workplace)
    assert (decode["nms"], decode["nms_iou"], decode["multi_label"]) == ("class-wise", 0.7, True)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("best.pt", "`--trust` with `best.pt`, which is a pickle"),
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
