"""Mask AP by `logn compare --masks`: typed as a user types it, held to the `lvis` package, and what is refused."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import logn
from logn.cli.main import execute
from logn.data.masks import edge_loops, encode_mask
from logn.errors import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

MODELS = """
import torch
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator

def backbone():
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 8, 8), torch.nn.ReLU())
    layers.out_channels = 16
    return layers

def made(kind, seed=0):
    torch.manual_seed(seed)
    sizes = {"min_size": 64, "max_size": 64, "rpn_post_nms_top_n_test": 40, "num_classes": 5}
    return kind(backbone(), rpn_anchor_generator=AnchorGenerator(((16, 32),), ((0.5, 1.0, 2.0),)), **sizes).eval()

def masks():
    return made(MaskRCNN)

def others():
    return made(MaskRCNN, 1)

def boxes():
    return made(FasterRCNN)
"""
GROUPS = "rccf"


def polygon(rng, x, y, side):
    corners = np.array([[x, y], [x + side, y], [x + side, y + side], [x, y + side]]) + rng.uniform(-2, 2, (4, 2))
    return [round(float(value), 2) for value in corners.clip(0, 63).ravel()]


def federated_labels(root, images=12):
    """Federated labels with polygons: each image has some classes verified, one not exhaustively."""
    rng = np.random.default_rng(0)
    (root / "val").mkdir()
    entries, objects = [], []
    for number in range(1, images + 1):
        name = f"{number:012d}.png"
        Image.fromarray(rng.integers(0, 256, (64, 80, 3), np.uint8)).save(root / "val" / name)
        negative, partial = [int(rng.integers(1, 5))], [int(rng.integers(1, 5))]
        size = {"width": 80, "height": 64, "file_name": name, "coco_url": f"http://x/{name}"}
        entries.append({"id": number, **size, "neg_category_ids": negative, "not_exhaustive_category_ids": partial})
        for _ in range(4):
            x, y, side = rng.uniform(0, 30), rng.uniform(0, 30), rng.uniform(14, 34)
            outline = polygon(rng, x, y, side)
            thing = {"id": len(objects) + 1, "image_id": number, "category_id": int(rng.integers(1, 5))}
            objects.append({**thing, "bbox": [x, y, side, side], "area": side**2, "segmentation": [outline]})
    categories = [
        {"id": label + 1, "name": f"thing {label}", "frequency": group, "image_count": 5, "instance_count": 9}
        for label, group in enumerate(GROUPS)
    ]
    labels = {"images": entries, "categories": categories, "annotations": objects, "info": {}, "licenses": []}
    (root / "val.json").write_text(json.dumps(labels))


def typed(root, *words):
    """Run `logn`, or Python with `-c`, in a process of its own."""
    words = words if words[0] == "-c" else ("-m", "logn", *words)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    return subprocess.run(
        [sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("masks")
    (root / "models.py").write_text(MODELS)
    federated_labels(root)
    names = root / "names.txt"
    names.write_text("".join(f"thing {label}\n" for label in range(4)))
    where = ("--images", "val", "--class-names", "names.txt")
    for words in (
        ("predict", "models.py:masks", "--data", "val.json", *where, "-o", "predictions"),
        ("collect", "models.py:masks", *where, "-o", "stats.safetensors"),
    ):
        done = typed(root, *words)
        assert done.returncode == 0, done.stderr
    return root


COMPARE = ("compare", "predictions", "-d", "val.json", "-s", "stats.safetensors", "--bootstrap", "20")


@pytest.fixture(scope="module")
def compared(folder):
    masks = ("--masks", "models.py:masks", "--images", "val", "--mask-results", "results")
    done = typed(folder, *COMPARE, *masks, "-o", "comparison")
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(out=done.stdout, comparison=logn.Comparison.load(folder / "comparison"))


def test_table_file_and_page_have_mask_metrics(folder, compared):
    assert "mask AP" in compared.out
    rows = compared.comparison.rows
    assert [row.name for row in rows] == ["none", "recommended", "logn"]
    for row in rows:
        assert {"AP-mask", "APr-mask", "APc-mask", "APf-mask"} <= set(row.values)
        assert row["AP-mask"] > 0
        assert row["AP-mask"] != row["AP"]
    assert rows[2]["AP-mask"] != rows[0]["AP-mask"]
    assert "mask AP" in compared.comparison.protocols["mask"].describe()
    done = typed(folder, "report", "comparison", "-o", "report.html", "--images", "val")
    assert done.returncode == 0, done.stderr
    page = (folder / "report.html").read_text()
    assert "AP-mask" in page
    assert '<path d="M' in page
    assert any(mark.outline for image in rows[1].details.gallery for mark in image.after)


@pytest.mark.parametrize("method", ["none", "recommended", "logn"])
def test_the_lvis_package_gives_the_same_on_the_results_file(folder, compared, method, monkeypatch):
    monkeypatch.setattr(np, "float", float, raising=False)
    lvis = pytest.importorskip("lvis")
    truth = lvis.LVIS(str(folder / "val.json"))
    evaluation = lvis.LVISEval(truth, lvis.LVISResults(truth, str(folder / "results" / f"{method}.json")), "segm")
    evaluation.run()
    expected = evaluation.get_results()
    for name in ("AP", "AP50", "AP75", "APs", "APm", "APr", "APc", "APf"):
        assert compared.comparison[method][f"{name}-mask"] == pytest.approx(expected[name], abs=1e-9)


def test_masks_are_those_of_the_model_itself(folder, monkeypatch):
    """Every detection of torchvision's own forward pass has the same mask here."""
    monkeypatch.syspath_prepend(str(folder))
    model = __import__("models").masks()
    model.roi_heads.score_thresh = 0.0
    image = np.asarray(Image.open(folder / "val" / "000000000001.png"))
    with torch.inference_mode():
        (own,) = model([torch.from_numpy(image.transpose(2, 0, 1) / 255).float()])
    detector = logn.detector(model)
    boxes, labels = own["boxes"].numpy(), own["labels"].numpy() - 1
    made = detector.masks(detector.prepare(image), boxes, labels, np.zeros(len(boxes), np.int32))
    for mask, expected in zip(made, own["masks"][:, 0].numpy() > 0.5, strict=True):
        assert (mask != expected).mean() < 1e-3
    assert len(boxes) > 10


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--masks", "models.py:boxes"), "has no mask head"),
        (("--masks", "models.py:others"), "with other weights than those that `predictions` was predicted with"),
        (
            ("--masks", "models.py:masks", "-d", "boxes.json"),
            "has no `segmentation`. Mask AP needs one for every object",
        ),
        (("--mask-results", "elsewhere"), "`--mask-results` is for the model of `--masks`"),
        (("--trust",), "`--trust` is for the model of `--masks`"),
    ],
)
def test_refusals(folder, words, reason, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    labels = json.loads((folder / "val.json").read_text())
    for thing in labels["annotations"]:
        del thing["segmentation"]
    (folder / "boxes.json").write_text(json.dumps(labels))
    images = ("--images", "val") if "--masks" in words else ()
    assert execute([*COMPARE, *images, *words]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("Error: ")
    assert printed.count("\n") == 1
    assert reason in printed


def test_one_way_to_ask_for_masks(folder):
    with pytest.raises(InputError, match="`images` is only for masks"):
        logn.compare(folder / "predictions", folder / "val.json", [], images="val")
    labels = json.loads((folder / "val.json").read_text())
    with pytest.raises(InputError, match="not a file: pass the images"):
        logn.compare(folder / "predictions", labels, [], masks=object())


def yolo_seg(root):
    """A YOLO-seg with random weights whose scores differ."""
    os.environ.setdefault("YOLO_OFFLINE", "true")
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")
    ultralytics = pytest.importorskip("ultralytics", reason="the extra `frameworks` is not installed")
    torch.manual_seed(0)
    config = root / "yolov8n-seg.yaml"
    config.write_text(json.dumps({**ultralytics.YOLO(config.name).model.yaml, "nc": 4}))
    yolo = ultralytics.YOLO(str(config), task="segment")
    yolo.model.names = {label: f"thing {label}" for label in range(4)}
    with torch.no_grad():
        for block in yolo.model.model[-1].cv3:
            block[-1].weight.normal_(0, 0.5)
    yolo.save(root / "seg.pt")
    return yolo


def label_lines(detector, image, classes):
    """Some of the model's own masks as labels: one per class, of anchors that are far from each other."""
    prepared = detector.prepare(image)
    (proposals,) = detector.propose([prepared])
    rows = np.linspace(0, len(proposals.boxes) - 1, classes).astype(int)
    boxes = proposals.boxes[rows].clip(0, [64, 48, 64, 48])
    for label, mask in enumerate(detector.masks(prepared, boxes, np.arange(classes), rows)):
        if loops := edge_loops(mask):
            outline = max(loops, key=len)
            yield " ".join(map(str, [label, *(np.array(outline) / [64, 48]).ravel().round(5).tolist()]))


@pytest.fixture(scope="module")
def yolo_folder(tmp_path_factory):
    """A checkpoint, and a data set with outlines in the form of Ultralytics."""
    root = tmp_path_factory.mktemp("yolo")
    yolo = yolo_seg(root)
    detector = logn.detector(yolo, size=64)
    rng = np.random.default_rng(0)
    for part in ("images", "labels"):
        (root / part / "val").mkdir(parents=True)
    for number in range(6):
        image = rng.integers(0, 256, (48, 64, 3), np.uint8)
        Image.fromarray(image).save(root / "images" / "val" / f"{number}.png")
        (root / "labels" / "val" / f"{number}.txt").write_text("\n".join(label_lines(detector, image, 4)))
    names = [f"thing {label}" for label in range(4)]
    data = {"path": str(root), "train": "images/val", "val": "images/val", "names": names}
    (root / "data.yaml").write_text(json.dumps(data))
    return SimpleNamespace(root=root, yolo=yolo)


def test_yolo_seg_from_a_checkpoint_and_from_onnx(yolo_folder):
    root = yolo_folder.root
    pytest.importorskip("onnxruntime")
    export = "import ultralytics; ultralytics.YOLO('seg.pt').export(format='onnx', imgsz=64, simplify=False)"
    done = typed(root, "-c", export)  # in a process of its own, where the warnings of its tracer are no errors
    assert (root / "seg.onnx").is_file(), done.stderr
    found = {}
    for model, trust in (("seg.pt", ["--trust"]), ("seg.onnx", [])):
        data, store, output = ("--data", "data.yaml"), f"{model}-predictions", f"{model}-comparison"
        done = typed(root, "predict", model, *data, *trust, "--size", "64", "-o", store)
        assert done.returncode == 0, done.stderr
        masks = ("--masks", model, *trust)
        done = typed(root, "compare", store, *data, *masks, "-o", output, "--mask-results", f"{model}-masks")
        assert done.returncode == 0, done.stderr
        found[model] = logn.Comparison.load(root / output).baseline
        assert found[model]["AP-mask"] > 0
    assert found["seg.onnx"]["AP-mask"] == pytest.approx(found["seg.pt"]["AP-mask"], abs=0.02)
    assert len(json.loads((root / "seg.pt-masks" / "none.json").read_text())) > 20
    other = logn.detector(root / "seg.pt", trust=True, size=(128, 128))
    with pytest.raises(InputError, match="gives other boxes than the predictions hold"):
        logn.compare(root / "seg.pt-predictions", root / "data.yaml", [], masks=other)


def test_yolo_masks_are_close_to_those_of_ultralytics(yolo_folder):
    from ultralytics.utils import ops

    detector = logn.detector(yolo_folder.yolo, size=64)
    image = np.asarray(Image.open(yolo_folder.root / "images" / "val" / "0.png"))
    prepared = detector.prepare(image)
    (proposals,) = detector.propose([prepared])
    rows = np.flatnonzero(((proposals.boxes[:, 2:] - proposals.boxes[:, :2]) > 12).all(axis=1))[:40]
    boxes = proposals.boxes[rows].clip(0, [64, 48, 64, 48])
    made = list(detector.masks(prepared, boxes, np.zeros(len(rows), int), rows))
    with torch.inference_mode():
        (output, prototypes), _ = detector.network(torch.from_numpy(prepared.pixels).permute(2, 0, 1)[None] / 255)
    coefficients = output[0, 8:].T[rows]
    given = prototypes[0], coefficients, torch.from_numpy(boxes), image.shape[:2]
    expected = ops.process_mask_native(*given).numpy() > 0
    assert len(rows) > 10
    same = [(a & b).sum() / max((a | b).sum(), 1) for a, b in zip(made, expected, strict=True) if b.sum() > 20]
    assert len(same) > 5
    assert np.mean(same) > 0.95
    assert encode_mask(made[0])["size"] == [48, 64]
