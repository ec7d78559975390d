"""The page on thresholds works by copy and paste, with a YOLO built from its configuration."""

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

import logn

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "thresholds.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")
os.environ.setdefault("YOLO_OFFLINE", "true")
os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp(prefix="yolo-settings-"))
NAMES = ("car", "person", "bus")
SIZE = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`best.pt`, a `data.yaml` whose labels are some of its own detections, and COCO results and labels of them."""
    torch = pytest.importorskip("torch")
    tasks = pytest.importorskip("ultralytics.nn.tasks", reason="the extra `frameworks` is not installed")
    from PIL import Image

    folder, rng = tmp_path_factory.mktemp("thresholds-page"), np.random.default_rng(0)
    torch.manual_seed(0)
    model = tasks.DetectionModel("yolo11n.yaml", nc=len(NAMES), verbose=False).eval()
    model.names = dict(enumerate(NAMES))
    with torch.no_grad():
        for branch in model.model[-1].cv3:
            branch[-1].weight.normal_(0, 0.3)
            branch[-1].bias.copy_(torch.tensor([-1.0, -3.0, -5.0]))
    torch.save({"epoch": -1, "ema": model.half(), "model": None, "train_args": {"imgsz": SIZE}}, folder / "best.pt")
    detector = logn.detector(folder / "best.pt", trust=True)
    images, annotations, results = [], [], []
    for split in ("train", "val"):
        for part in ("images", "labels"):
            (folder / part / split).mkdir(parents=True)
        for number in range(1, 9):
            pixels = rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / split / f"{number}.png")
            (proposals,) = detector.propose([torch.from_numpy(pixels).permute(2, 0, 1).float() / 255])
            boxes = np.clip(proposals.boxes, 0, SIZE)
            places = np.flatnonzero((boxes[:, 2:] - boxes[:, :2] > 4).all(axis=1))[:: max(1, len(boxes) // 5)]
            labels = proposals.logits.argmax(axis=1)
            lines = dict.fromkeys(
                f"{labels[place]} {boxes[place, [0, 2]].mean() / SIZE} {boxes[place, [1, 3]].mean() / SIZE} "
                f"{(boxes[place, 2] - boxes[place, 0]) / SIZE} {(boxes[place, 3] - boxes[place, 1]) / SIZE}\n"
                for place in places
            )
            (folder / "labels" / split / f"{number}.txt").write_text("".join(lines))
            if split == "val":
                images.append({"id": number, "width": SIZE, "height": SIZE})
                for place in places:
                    left, top, right, bottom = map(float, boxes[place])
                    box = {"image_id": number, "category_id": int(labels[place]) + 1}
                    box["bbox"] = [left, top, right - left, bottom - top]
                    annotations.append({**box, "id": len(annotations) + 1, "area": 1.0, "iscrowd": 0})
                    results.append({**box, "score": float(rng.uniform(0.05, 0.9))})
    names = "".join(f"  {place}: {name}\n" for place, name in enumerate(NAMES))
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames:\n{names}")
    categories = [{"id": place, "name": name} for place, name in enumerate(NAMES, start=1)]
    truth = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "val.json").write_text(json.dumps(truth))
    (folder / "results.json").write_text(json.dumps(results))
    return folder


def test_the_commands_can_be_pasted(folder, blocks, shell):
    correct, fold, choose = blocks("sh")
    printed = shell(correct, folder)
    assert "Keep using 0.25: it now acts as your per-class thresholds." in printed
    assert (folder / "shipped.pt").exists()
    assert "Keep using 0.25: it now acts as your per-class thresholds." in shell(fold, folder)
    shell(choose, folder)
    assert logn.OperatingPoints.load(folder / "thresholds.json").class_names == NAMES


def test_the_python_can_be_pasted(folder, blocks, run_python):
    (code,) = blocks("python")
    model = logn.detector(folder / "best.pt", trust=True).model
    run_python(code, {"model": model, "names": list(NAMES)})


def test_the_page_is_short():
    assert len(PAGE.read_text(encoding="utf-8").split()) < 900
