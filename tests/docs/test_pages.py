"""The pages work by copy and paste: their blocks run in their order, on small models and few images."""

import json
import os
import re
import runpy
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import logn

ROOT = Path(__file__).parents[2]
NAMES = ("car", "person", "bed", "cat", "dog", "bus")
SIZE, TAIL = 64, [2.0, 1.0, 0.0, -2.0, -4.0]
os.environ |= {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}
os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp(prefix="yolo-settings-"))
# A detector and a classifier, as a user's own module has them.
MY_MODELS = f"""
import logn
import torch

def build():
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large as make
    torch.manual_seed(0)
    model = make(weights=None, weights_backbone=None, num_classes={len(NAMES) + 1})
    return logn.detector(model, class_names={NAMES}, anchors_per_level=20)

def classifier():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 8))
"""
TWO_CLASSES = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, 8, 8] x) => (float[N, 2] scores)
    <float[2, 3] w = {1.0, 0.5, 0.2, -0.3, 0.4, 0.9}, float[2] b = {0.1, -0.2}>
    { p = GlobalAveragePool(x) f = Flatten(p) l = Gemm<transB = 1>(f, w, b) scores = Sigmoid(l) }"""


# A classifier of colours, whose columns are not in the order of the folders.
PHOTOS = {"blue": (0, 0, 255), "red": (255, 0, 0), "green": (0, 255, 0), "black": (0, 0, 0)}
FOUR_COLOURS = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, 8, 8] x) => (float[N, 4] y)
    <float[4, 3] w = {0, 0, 1, 1, 0, 0, 0, 1, 0, -1, -1, -1}, float[4] b = {2.0, 1.0, 0.0, -2.0}>
    { p = GlobalAveragePool(x) f = Flatten(p) y = Gemm<transB = 1>(f, w, b) }"""


def draw_photos(folder, random):
    """A folder per class and split, with noise on the colours."""
    from PIL import Image

    for split, counts in (("train", (40, 20, 10, 5)), ("val", (8,) * 4)):
        for (name, colour), count in zip(PHOTOS.items(), counts, strict=True):
            (folder / split / name).mkdir(parents=True)
            for number, noise in enumerate(random.integers(-60, 60, (count, 8, 8, 3))):
                pixels = (np.array(colour) + noise).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_logn(capsys):
    """Run lines of `logn …` in this process, which imports torch once for all of them; gives what they print."""
    from logn.cli.main import execute

    def run(block):
        for line in block.replace("\\\n", " ").splitlines():
            program, *words = shlex.split(line.removeprefix("$ "), comments=True) or ["pip"]
            if program not in ("pip", "make"):
                assert program == "logn"
                assert execute(words) == 0, (words, capsys.readouterr().err)
        return capsys.readouterr().out

    return run


def write_yolo(folder, rows):
    """Images and labels of one split as Ultralytics has them; `rows` has (pixels or path, lines) for each image."""
    from PIL import Image

    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True)
    for number, (pixels, lines) in enumerate(rows):
        target = folder / "images" / f"{number}.png"
        shutil.copy(pixels, target) if isinstance(pixels, Path) else Image.fromarray(pixels).save(target)
        (folder / "labels" / f"{number}.txt").write_text("".join(lines))


@pytest.fixture(scope="session")
def made_yolo(tmp_path_factory):
    """`best.pt` with a long tail in its class layers, `data.yaml`, and the labels and some detections as COCO files."""
    torch = pytest.importorskip("torch")
    tasks = pytest.importorskip("ultralytics.nn.tasks", reason="the extra `frameworks` is not installed")
    folder, random = tmp_path_factory.mktemp("yolo"), np.random.default_rng(0)
    for split in ("train", "val"):
        pixels = random.integers(0, 256, (len(NAMES), SIZE, SIZE, 3), dtype=np.uint8)
        write_yolo(folder / split, [(image, f"{label} 0.5 0.5 0.4 0.4\n") for label, image in enumerate(pixels)])
    (folder / "data.yaml").write_text(f"path: .\ntrain: train/images\nval: val/images\nnames: {list(NAMES)}\n")
    numbers = range(1, len(NAMES) + 1)
    images = [{"id": n, "file_name": f"val/images/{n - 1}.png", "width": SIZE, "height": SIZE} for n in numbers]
    boxes = [{"image_id": n, "category_id": n, "bbox": [20, 20, 25, 25]} for n in numbers]
    truth = [{**box, "id": box["image_id"], "area": 625, "iscrowd": 0} for box in boxes]
    categories = [{"id": number, "name": name} for number, name in enumerate(NAMES, 1)]
    content = {"images": images, "annotations": truth, "categories": categories}
    (folder / "val.json").write_text(json.dumps(content))
    (folder / "results.json").write_text(json.dumps([{**box, "score": 0.1 * box["image_id"]} for box in boxes]))
    model = tasks.DetectionModel("yolo11n.yaml", nc=len(NAMES), verbose=False).eval()
    model.names = dict(enumerate(NAMES))
    with torch.no_grad():
        for branch in model.model[-1].cv3:
            branch[-1].weight.normal_().mul_(torch.linspace(0.3, 0.1, len(NAMES))[:, None, None, None])
            branch[-1].bias.copy_(torch.linspace(-1.0, -8.0, len(NAMES)))
    torch.save({"epoch": -1, "ema": model.half(), "model": None, "train_args": {"imgsz": SIZE}}, folder / "best.pt")
    (folder / "my_models.py").write_text(MY_MODELS)
    return folder


@pytest.fixture(scope="session")
def made_street(tmp_path_factory):
    """What `examples/drawn_yolo.py` draws and trains, with the labels and Ultralytics' own detections as COCO files."""
    ultralytics = pytest.importorskip("ultralytics", reason="the extra `frameworks` is not installed")
    folder, example = tmp_path_factory.mktemp("street"), runpy.run_path(str(ROOT / "examples" / "drawn_yolo.py"))
    example["make"](folder, images=64, steps=40)
    size, paths = example["SIZE"], sorted((folder / "images" / "val").iterdir())
    images = [{"id": n, "width": size, "height": size} for n in range(len(paths))]
    truth, results = [], []
    for number, result in enumerate(ultralytics.YOLO(folder / "best.pt").predict(paths, conf=0.01, imgsz=size)):
        rows = np.loadtxt(folder / "labels" / "val" / f"{paths[number].stem}.txt", ndmin=2)
        corners = np.hstack([rows[:, 1:3] - rows[:, 3:] / 2, rows[:, 3:]]) * size
        for label, box in zip(rows[:, 0].astype(int).tolist(), corners.tolist(), strict=True):
            row = {"image_id": number, "category_id": label + 1, "bbox": box}
            truth.append({**row, "id": len(truth) + 1, "area": box[2] * box[3], "iscrowd": 0})
        found = np.hstack([result.boxes.xyxy[:, :2], result.boxes.xywh[:, 2:]])
        columns = (part.tolist() for part in (result.boxes.cls, result.boxes.conf, found))
        for label, score, box in zip(*columns, strict=True):
            results.append({"image_id": number, "category_id": int(label) + 1, "bbox": box, "score": score})
    categories = [{"id": number, "name": name} for number, name in enumerate(example["NAMES"], 1)]
    content = {"images": images, "annotations": truth, "categories": categories}
    (folder / "val.json").write_text(json.dumps(content))
    (folder / "results.json").write_text(json.dumps(results))
    return folder


def class_names(folder):
    categories = json.loads((folder / "val.json").read_text())["categories"]
    return [category["name"] for category in sorted(categories, key=lambda category: category["id"])]


@pytest.fixture(scope="session")
def made_glyphs(tmp_path_factory):
    """The detector that comes with LogN as an ONNX file, its scenes with labels, and the logits of a classifier."""
    for package in ("onnxruntime", "PIL", "jinja2"):
        pytest.importorskip(package)
    import onnx.helper
    import onnx.parser

    from logn.demo.problem import draw_problem

    folder, random = draw_problem(tmp_path_factory.mktemp("glyphs"), train=12, test=6), np.random.default_rng(0)
    (folder / "test.json").rename(folder / "val.json")
    shutil.copytree(folder / "images" / "train", folder / "train")
    for name in ("best.onnx", "model.onnx"):
        shutil.copy(str(files("logn.demo") / "glyphs.onnx"), folder / name)
    scenes = sorted((folder / "images" / "test").iterdir())
    write_yolo(folder / "yolo", [(path, "0 0.5 0.5 0.2 0.2\n") for path in scenes])
    (folder / "yolo" / "data.yaml").write_text(f"train: images\nval: images\nnames: {class_names(folder)}\n")
    labels, counts = random.integers(0, 4, 80), np.array([200, 60, 15, 4])
    for name, drawn in (("test.npy", labels), ("train.npy", random.choice(4, 80, p=counts / counts.sum()))):
        np.save(folder / name, 2 * np.eye(4)[drawn] + random.standard_normal((80, 4)) + np.log(counts))
    np.save(folder / "labels.npy", labels)
    (folder / "classes.csv").write_text("image_count\n" + "".join(f"{count}\n" for count in counts))
    draw_photos(folder / "photos", random)
    classifier = onnx.parser.parse_model(FOUR_COLOURS)
    onnx.helper.set_model_props(classifier, {"names": str(list(PHOTOS))})
    onnx.save_model(classifier, str(folder / "classifier.onnx"))
    two = onnx.parser.parse_model(TWO_CLASSES)
    onnx.helper.set_model_props(two, {"names": "{0: 'car', 1: 'person'}"})
    onnx.save_model(two, str(folder / "two.onnx"))
    return folder


@pytest.fixture
def yolo(made_yolo, folder, monkeypatch):
    """A copy of the files with `best.pt`."""
    shutil.copytree(made_yolo, folder, dirs_exist_ok=True)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "my_models", raising=False)


@pytest.fixture
def street(made_street, folder):
    """A copy of the files with a trained `best.pt`."""
    shutil.copytree(made_street, folder, dirs_exist_ok=True)


@pytest.fixture
def glyphs(made_glyphs, folder):
    """A copy of the files with `best.onnx`."""
    shutil.copytree(made_glyphs, folder, dirs_exist_ok=True)


@pytest.fixture
def few_scenes(monkeypatch):
    """`logn demo` with few scenes."""
    pytest.importorskip("onnxruntime")
    from logn.cli.verbs import demo

    monkeypatch.setattr(demo, "TRAINING_IMAGES", 8)
    monkeypatch.setattr(demo, "TEST_IMAGES", 8)


@pytest.fixture
def shards(folder):
    """Files of logits whose means rise from class to class, behind a background."""
    random = np.random.default_rng(0)
    (folder / "train_logits").mkdir()
    for name in ("train_logits/a.npy", "train_logits/b.npy", "test_logits.npy"):
        foreground = random.normal(np.linspace(-6, -2, 20), 1.0, (2000, 20))
        np.save(name, np.hstack([random.normal(5, 1, (2000, 1)), foreground]).astype(np.float32))


def small_model():
    """A classifier whose biases fall, a loader of its images, and arrays of its logits."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, len(TAIL)), torch.nn.Softmax(1))
    with torch.no_grad():
        model[1].bias.copy_(torch.tensor(TAIL))
    loader = [(torch.rand(50, 3, 2, 2), torch.zeros(50)) for _ in range(3)]
    rows = torch.cat([model[:2](images) for images, _ in loader]).detach().numpy()
    rows = rows + np.random.default_rng(0).normal(0, 3, rows.shape)  # so that every class is the top one somewhere
    return {"logn": logn, "torch": torch, "model": model, "loader": loader, "train_logits": rows, "test_logits": rows}


def my_detector():
    """A detector of nobody's framework, for the scenes of the demonstration."""
    names, random = class_names(Path()), np.random.default_rng(0)
    boxes, logits = np.tile([1.0, 2.0, 30.0, 35.0], (5, 1)), random.standard_normal((5, len(names) + 1))

    def my_model(images):
        size = {"height": images[0].shape[1], "width": images[0].shape[2]}
        return [SimpleNamespace(boxes=boxes, logits=logits, **size) for _ in images]

    return {"my_model": my_model, "names": names}


def street_logits(file):
    """The logits of some images, of all anchors: rows of classes."""
    import torch
    from PIL import Image

    paths = sorted(Path("images/val").iterdir())[:20]
    pixels = torch.from_numpy(np.stack([np.asarray(Image.open(path)) for path in paths])).permute(0, 3, 1, 2) / 255
    with torch.inference_mode():
        scores = sys.modules["ultralytics"].YOLO(file).model.float().eval()(pixels)[0][:, 4:].double()
    return scores.logit().movedim(1, -1).reshape(-1, scores.shape[1]).numpy()


def check(name, names):
    """What comes of the blocks of a page."""
    match name:
        case "README" | "files":
            first = name == "README"
            before, after = (np.load(file) for file in ("test_logits.npy" if first else "shard0.npy", "corrected.npy"))
            background, foreground = (0, slice(1, None)) if first else (-1, slice(-1))
            spread = [np.ptp(logits[:, foreground].mean(0)) for logits in (before, after)]
            assert spread[1] < 0.6 * spread[0]  # half of the prior is gone
            np.testing.assert_array_equal(before[:, background], after[:, background])
        case "home":
            assert np.ptp(names["corrected"].mean(0)) < np.ptp(names["train_logits"].mean(0))
        case "class-mix":
            np.testing.assert_allclose(names["mix"].target, [0.2, 0.2, 0.3, 0.3], atol=0.02)
            shift = logn.ClassAffine.load("affine.safetensors").shift
            np.testing.assert_allclose(names["affine"].shift, shift, atol=0.1)
        case "measure":
            assert logn.Comparison.load("my-comparison") == names["comparison"]
            assert len(logn.Predictions("my-predictions")) == 6
        case "tutorial":
            assert names["kept"].shape == names["detections"].scores.shape
        case "pytorch":
            comparison = logn.Comparison.load("comparison")
            assert [row.name for row in comparison.rows] == ["none", "recommended", "logn"]
            decode = comparison.settings.decode
            assert (decode.nms_iou, decode.score_threshold, decode.max_detections) == (0.55, 0, 300)
        case "ultralytics":
            decode = logn.Comparison.load("comparison").settings.decode
            assert (decode.nms, decode.nms_iou, decode.multi_label) == ("class-wise", 0.7, True)
            assert sys.modules["ultralytics"].YOLO("corrected.pt").names == dict(enumerate(NAMES))
        case "thresholds":
            points = logn.OperatingPoints.load("thresholds.json")
            assert list(points.class_names) == class_names(Path())
            assert sum(point.found_before for point in points.points) > 100  # of 388 objects: it is trained
            before, given, shipped = map(street_logits, ("best.pt", "given.pt", "shipped.pt"))
            thresholds = np.array([0.5, 0.2, 0.25, 0.25, 0.25])
            odds = np.log(thresholds) - np.log1p(-thresholds)
            clear = np.abs(before - odds) > 1e-3
            np.testing.assert_array_equal((given >= np.log(1 / 3))[clear], (before >= odds)[clear])
            affine = logn.ClassAffine.load("shipped.affine.safetensors")
            np.testing.assert_allclose(shipped, affine(before), atol=1e-3)


@dataclass(frozen=True)
class Page:
    """What a page presumes, and what comes of it."""

    given: tuple[str, ...] = ()  # the fixtures that fill the folder
    names: Callable[[], dict[str, object]] = dict  # what each block of Python presumes
    shorter: Mapping[str, str] = field(default_factory=dict)  # what would take long here, all of which it must say
    prints: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    has_python: bool = True  # False: its Python stands in an example, which is run elsewhere
    shows_output: bool = False  # True: what it shows as printed is what was printed


KEEP = "Keep using 0.25: it now acts as your per-class thresholds."
QUICK = {"-o comparison": "-o comparison --bootstrap 20"}
SHIP = "$ logn correct best.pt --trust --data data.yaml --thresholds f1 -o shipped.pt\n"
PAGES = {
    "README.md": Page(
        ("yolo", "shards"),
        small_model,
        # The .pt file stands in for an exported ONNX file; the command is the same.
        {**QUICK, "yaml -o corrected.pt": "yaml -o 2.pt", "best.onnx": "best.pt --trust", "shipped.onnx": "shipped.pt"},
        ("Long-tailed", KEEP),
        ("corrected.pt", "2.pt", "shipped.pt", "report.html"),
    ),
    "docs/README.md": Page(
        ("glyphs",),
        small_model,
        {SHIP: "", "best.onnx --thr": "two.onnx --thr"},  # the page on Ultralytics has the same line
        ("Long-tailed: of 100 classes", KEEP),
        ("corrected.onnx", "corrected.statistics.safetensors", "affine.safetensors", "shipped.onnx"),
    ),
    "docs/worth-it.md": Page(("glyphs",), prints=("Long-tailed",)),
    "docs/faq.md": Page(("glyphs",), shorter={"first-half": "train", "second-half": "train"}, prints=("Long-tailed",)),
    "docs/tutorial.md": Page(
        ("few_scenes",),
        shorter={"--bootstrap 200": "--bootstrap 20"},
        prints=("Long-tailed: of 100 classes", "recommended", " objects"),
        writes=("corrected.onnx", "report.html"),
    ),
    "docs/how-to/class-mix.md": Page(shows_output=True),
    "docs/how-to/files.md": Page(shows_output=True),
    "docs/how-to/measure.md": Page(
        ("glyphs",),
        my_detector,
        {**QUICK, "num_bootstrap=200": "num_bootstrap=20"},
        writes=("comparison/report.html", "classifier/report.html"),
        shows_output=True,
    ),
    "docs/how-to/pytorch.md": Page(
        ("yolo",),
        shorter={**QUICK, "train/": "train --method logn"},
        writes=("corrected.safetensors", "comparison/report.html"),
        has_python=False,
    ),
    "docs/how-to/thresholds.md": Page(
        ("street",),
        lambda: {"model": logn.detector("best.pt", trust=True).network, "names": class_names(Path())},
        prints=(KEEP, "as it was with 0.25 -> corrected with 0.25 for all classes -> with these thresholds"),
        writes=("shipped.pt", "given.pt"),
    ),
    "docs/how-to/ultralytics.md": Page(
        ("yolo",),
        shorter=QUICK,
        prints=(KEEP,),
        writes=("corrected.pt", "shipped.pt", "comparison/report.html"),
        has_python=False,
    ),
}
# Run with their frameworks, by tests/models/frameworks, or as the example that they show; `onnx.md` below.
ELSEWHERE = {
    f"docs/how-to/{name}.md" for name in ("huggingface", "many-machines", "mmdetection", "onnx", "scikit-learn")
}


def blocks_of(page, languages="console|sh|python|text"):
    """The language and the text of each block, in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```({languages})\n(.*?)^```", text, flags=re.M | re.S)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_run_in_their_order(name, request, run_logn, capsys):
    page, names, printed = PAGES[name], {}, ""
    for fixture in page.given:
        request.getfixturevalue(fixture)
    blocks = blocks_of(name)
    assert [long for long in page.shorter if not any(long in block for _, block in blocks)] == []
    for language, block in blocks:
        for long, short in page.shorter.items():
            block = block.replace(long, short)
        if language == "python" and page.has_python:
            names |= page.names()
            exec(compile(block, name, "exec"), names)  # noqa: S102 - our own page
            if "loader" in block:
                assert names["model"][1].bias.tolist() != TAIL
            printed += capsys.readouterr().out
        elif language in ("console", "sh"):
            printed += run_logn(block)
        elif language == "text" and page.shows_output:
            assert " ".join(block.split()) in " ".join(printed.split())
    for words in page.prints:
        assert words in " ".join(printed.split())
    for file in page.writes:
        assert Path(file).stat().st_size, file
    check("home" if name == "docs/README.md" else Path(name).stem, names)


def test_every_page_with_blocks_is_run():
    pages = ["README.md", *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
    assert {page for page in pages if blocks_of(page, "console|sh|python")} == PAGES.keys() | ELSEWHERE
    assert ("console", SHIP) in blocks_of("docs/how-to/ultralytics.md")


def test_the_command_of_pytorch_takes_a_classifier(yolo, run_logn):
    from safetensors.numpy import load_file

    (_, block), _ = blocks_of("docs/how-to/pytorch.md", "console")
    run_logn(block.replace(":build", ":classifier").replace("train/", "train --like imagenet --method logn"))
    assert set(load_file("corrected.safetensors")) == {"2.weight", "2.bias"}


def test_onnx_commands_give_what_the_example_gives(monkeypatch, run_logn):
    pytest.importorskip("onnxruntime")
    example = runpy.run_path(str(ROOT / "examples" / "onnx_classifier.py"))
    folder, accuracy = example["folder"], example["accuracy"]
    before, after = (dict(re.findall(r"(\w+) (\S+)", example[name])) for name in ("before", "after"))
    assert all(float(after[group]) > float(before[group]) for group in ("rare", "all"))
    monkeypatch.chdir(folder)
    for name in ("corrected.onnx", "stats.safetensors"):
        (folder / name).unlink()
    ((_, mine),) = blocks_of("docs/how-to/onnx.md", "json")
    (folder / "mine.json").write_text(mine)
    for _, block in blocks_of("docs/how-to/onnx.md", "console"):
        run_logn(block)
    assert accuracy(folder / "corrected.onnx") == accuracy(folder / "folded.onnx") == example["after"]
