"""Every command that is printed as a next step runs when it is pasted, in the folder where it was printed."""

import html
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from logn.base.commands import HOW_IT_RUNS, command, values_of
from logn.cli.main import command_line, execute
from logn.predictions.store import Predictions

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::logn.errors.LogNWarning"),
]
NAMES = ("cat", "dog", "cow")
# A printed command is the end of its line.
PRINTED = re.compile(rf"(?:^|[:?] )(logn (?:{'|'.join(command_line().commands)}) .*)$", re.MULTILINE)
ON_THE_PAGE = re.compile(r"<pre[^>]*>(.*?)</pre>", re.DOTALL)
# The page says of names in capitals that they are to be filled in: what a comparison does not know.
TO_FILL_IN = re.compile(r"\b(MODEL|CORRECTED|STATISTICS|COUNTS|LABELS|PREDICTIONS)\b")
MODELS = """
import logn
import torch
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

def classifier():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 3)).eval()

def detector():
    torch.manual_seed(0)
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
    return logn.detector(model, anchors_per_level=20)
"""


CLASSIFIER = """(float[N, 3, 32, 32] x) => (float[N, 3] y)
    { p = AveragePool <kernel_shape = [16, 16], strides = [16, 16]> (x) f = Flatten(p) y = Gemm(f, w, b) }"""


def write_labels(folder, name, generator):
    """Four images of 64 x 48 pixels in COCO's form, beside the file."""
    images, boxes = [], []
    for number in range(1, 5):
        file = f"{name}{number}.png"
        Image.fromarray(generator.integers(0, 256, (48, 64, 3), dtype=np.uint8)).save(folder / file)
        images.append({"id": number, "file_name": file, "width": 64, "height": 48})
        box = {"image_id": number, "bbox": [2, 3, 40, 30], "area": 1200, "iscrowd": 0}
        boxes += [{**box, "id": 2 * number + place, "category_id": 1 + (number + place) % 3} for place in range(2)]
    categories = [{"id": place + 1, "name": label} for place, label in enumerate(NAMES)]
    content = {"images": images, "categories": categories, "annotations": boxes}
    (folder / f"{name}.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def made(save_onnx, save_yolox, draw_images, tmp_path_factory):
    """Everything that a first command needs, and the files that examples in printed commands name."""
    folder, generator = tmp_path_factory.mktemp("made"), np.random.default_rng(0)
    write_labels(folder, "train", generator)
    write_labels(folder, "val", generator)
    draw_images(folder / "train", 6, (48, 64))
    (folder / "shards").mkdir()
    rows = generator.normal(0, 1, (300, 3)) - [0, 2, 4]
    labels = generator.integers(0, 3, 300)
    np.save(folder / "shards" / "0.npy", rows)
    np.save(folder / "logits.npy", rows)
    np.save(folder / "four columns.npy", np.hstack([rows, rows[:, :1]]))
    np.save(folder / "deployed.npy", rows + np.array([0.0, 0.5, 0.0]))
    for name in NAMES:
        draw_images(folder / "val" / name, 2, (48, 64))
    (folder / "counts.csv").write_text("name,count\ncat,200\ndog,80\ncow,20\n")
    np.save(folder / "test_logits.npy", rows + 2 * np.eye(3)[labels])
    np.save(folder / "test_labels.npy", labels)
    (folder / "names.txt").write_text("\n".join(NAMES))
    (folder / "counts.json").write_text(json.dumps([200, 80, 20]))
    (folder / "models_to_paste.py").write_text(MODELS)
    save_yolox(folder / "my yolox.onnx")
    save_onnx(folder / "model.onnx", CLASSIFIER, w=generator.normal(0, 1, (12, 3)), b=np.linspace(0, -3, 3))
    return folder


@pytest.fixture
def paste(made, tmp_path, monkeypatch, capsys):
    """Run a command in a copy of the folder, then every command that it prints, and every one that those print."""
    folder = tmp_path / "a folder"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    done = []

    def run(line):
        done.append(line)
        replaced = {}
        for name in values_of(shlex.split(line), "-o"):  # which another command may have written under the same name
            shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink(missing_ok=True)
            beside = [Path(name).with_suffix(f".{what}.safetensors") for what in ("statistics", "affine")]
            replaced |= {path: path.read_bytes() for path in beside if path.exists()}
            for path in beside:
                path.unlink(missing_ok=True)
        capsys.readouterr()
        code = execute(shlex.split(line)[1:])
        for path, content in replaced.items():  # not written anew, as beside a copy
            if not path.exists():
                path.write_bytes(content)
        out, err = capsys.readouterr()
        assert code == 0, f"{line}\n{err}"
        pages = [html.unescape(re.sub(r"<[^>]*>", "", text)) for page in folder.rglob("*.html")
                 for text in ON_THE_PAGE.findall(page.read_text().replace("TRAIN_IMAGES", "train"))]  # fmt: skip
        assert not TO_FILL_IN.search(out + err)
        for printed in PRINTED.findall("\n".join([out, err, *pages])):
            if printed not in done and not TO_FILL_IN.search(printed):
                run(printed)

    def start(line, files=()):
        for name, other in dict(files).items():
            shutil.copy(other, name)
        run(line)
        return [shlex.split(command)[1] for command in done], done

    return start


LIKE = "--like yolox --class-names names.txt"


@pytest.mark.parametrize(
    ("line", "verbs", "files"),
    [
        (
            f"logn correct model.onnx {LIKE} --images train --method logn -o 'the corrected.onnx'",
            {"predict", "collect", "compare", "report", "correct", "thresholds", "inspect", "fit", "apply", "fold"},
            {"model.onnx": "my yolox.onnx"},
        ),
        (
            "logn correct model.onnx --images train --like imagenet -o out.onnx --method logn",
            {"predict", "collect", "compare", "report", "fit", "fold"},
            {},
        ),
        (
            "logn correct models_to_paste:classifier --images train --like imagenet --size 32 --method logn "
            "-o out.safetensors",
            {"predict", "collect", "compare", "report", "fit", "apply"},
            {},
        ),
        (
            "logn correct models_to_paste:detector --data train.json --method logn -o out.safetensors",
            {"predict", "collect", "compare", "report", "thresholds", "correct", "inspect", "fit", "apply"},
            {"logits.npy": "four columns.npy"},
        ),
        ("logn collect 'shards/*.npy' -o 'my stats.safetensors'", {"inspect", "fit", "apply", "fold"}, {}),
        ("logn collect model.onnx --images train --like rtdetr -o stats.safetensors", {"inspect", "fit", "fold"}, {}),
        (
            "logn compare test_logits.npy --labels test_labels.npy --train-logits logits.npy --counts counts.json "
            "--bootstrap 0 -o comparison",
            {"report"},
            {},
        ),
    ],
)
def test_what_is_printed_can_be_pasted(paste, line, verbs, files):
    pasted, commands = paste(line, files)
    assert verbs <= {*pasted[1:]}, commands


def test_merged_statistics_lead_on(paste):
    for word in ("stats", "other"):
        paste(f"logn collect shards/0.npy --activation softmax -o {word}.safetensors")
    pasted, _ = paste("logn merge stats.safetensors other.safetensors -o merged.safetensors")
    assert {"inspect", "fit"} <= {*pasted}


def test_a_detector_without_names_gets_them_from_a_file(paste, run, refused):
    """Three classes, of which the labels have two: the sentence that asks for names is followed by what it asks for."""
    content = json.loads(Path("val.json").read_text())
    content["categories"].pop()
    content["annotations"] = [entry for entry in content["annotations"] if entry["category_id"] < 3]
    Path("two.json").write_text(json.dumps(content))
    words = ("predict", "models_to_paste:detector", "--data", "two.json", "-o", "predictions")
    assert "`class_names`" in refused(*words)
    done = run(*words, "--class-names", "names.txt")
    assert done.code == 0
    assert "2 of the 3 classes of the model are in the labels" in done.err
    assert Predictions("predictions").header.head.class_names == NAMES
    Path("four.txt").write_text("a\nb\nc\nd")
    assert "names 4 classes, but the logits have 3 columns" in refused(*words, "--class-names", "four.txt")


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("--like yolox --size 416x640", "--like yolox --size 416x640"),
        ("--trust --background=first --device cpu", "--background first --device cpu --trust"),
        ("--tensor a --tensor 'b c' --images train -o x", "--tensor a --tensor 'b c'"),
        ("--json --max-images 5", ""),
    ],
)
def test_the_next_command_keeps_how_a_model_runs(typed, kept):
    line = command("logn", "predict", "m.onnx", keep=HOW_IT_RUNS, typed=shlex.split(typed))
    assert line == f"logn predict m.onnx {kept}".rstrip()
