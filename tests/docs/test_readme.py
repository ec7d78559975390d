"""The README works by copy and paste: on a detector, on a YOLO with labels, on files of logits."""

from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "README.md"
NAMES = ("car", "person", "bed", "cat", "dog", "bus")
pytestmark = [
    pytest.mark.skipif(not PAGE.exists(), reason="the README is not beside the tests"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture
def commands(blocks):
    """The commands of LogN in the block that has these words."""

    def of(words):
        (block,) = [block for block in blocks("console") if words in block]
        return "".join(line for line in block.splitlines(keepends=True) if line.startswith("$ logn"))

    return of


@pytest.mark.parametrize("block", [0, 1], ids=["calibrate", "record and fold"])
def test_python_corrects_a_detector(blocks, run_python, block):
    import logn

    torch = pytest.importorskip("torch")
    detection = pytest.importorskip("torchvision").models.detection
    torch.manual_seed(0)
    model = detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=5)
    bias = model.roi_heads.box_predictor.cls_score.bias
    with torch.no_grad():
        bias.copy_(torch.tensor([2.0, 1.0, 0.0, -2.0, -4.0]))  # a long tail
    before = bias.detach().clone()
    loader = [((torch.rand(3, 64, 64),), ({"labels": torch.ones(1)},)) for _ in range(2)]
    run_python(blocks("python")[block], {"logn": logn, "torch": torch, "model": model, "loader": loader})
    assert not model.roi_heads.box_predictor.cls_score.bias.equal(before)


def test_files_of_logits_are_corrected(tmp_path, monkeypatch, commands, run_logn):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    Path("train_logits").mkdir()
    for name in ("train_logits/a.npy", "train_logits/b.npy", "test_logits.npy"):
        foreground = random.normal(np.linspace(-6, -2, 20), 1.0, (2000, 20))
        np.save(name, np.hstack([random.normal(5, 1, (2000, 1)), foreground]).astype(np.float32))
    assert "Long-tailed" in run_logn(commands("logn collect"))
    before, after = (np.load(name)[:, 1:].mean(0) for name in ("test_logits.npy", "corrected.npy"))
    assert np.ptp(after) < 0.6 * np.ptp(before)  # half of the prior


def test_a_yolo_is_corrected_and_measured(tmp_path, monkeypatch, commands, run_logn):
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    monkeypatch.setenv("YOLO_AUTOINSTALL", "false")
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "settings"))
    ultralytics = pytest.importorskip("ultralytics", reason="the extra `frameworks` is not installed")
    import torch
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for split in ("train", "val"):
        for folder in ("images", "labels"):
            (tmp_path / split / folder).mkdir(parents=True)
        for number in range(len(NAMES)):
            pixels = random.integers(0, 256, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / split / "images" / f"{number}.png")
            (tmp_path / split / "labels" / f"{number}.txt").write_text(f"{number} 0.5 0.5 0.4 0.4\n")
    Path("data.yaml").write_text(f"path: .\ntrain: train/images\nval: val/images\nnames: {list(NAMES)}\n")
    torch.manual_seed(0)
    yolo = ultralytics.YOLO("yolov8n.yaml")
    yolo.model = type(yolo.model)("yolov8n.yaml", nc=len(NAMES), verbose=False)
    yolo.model.names, yolo.model.args = dict(enumerate(NAMES)), {"imgsz": 64}
    with torch.no_grad():  # a long tail in the class layers
        for block in yolo.model.model[-1].cv3:
            block[-1].weight.normal_().mul_(torch.linspace(0.3, 0.1, len(NAMES))[:, None, None, None])
            block[-1].bias.copy_(torch.linspace(-1.0, -8.0, len(NAMES)))
    yolo.ckpt = {"train_args": {"imgsz": 64}}
    yolo.save("best.pt")
    assert "Long-tailed" in run_logn(commands("pip install"))
    run_logn(commands("logn predict"), shorter={"-o comparison": "-o comparison --bootstrap 0"})
    assert "<html" in Path("report.html").read_text(encoding="utf-8")
    # The .pt file stands in for an exported ONNX file; the command is the same.
    shorter = {"-o corrected.pt": "-o with-thresholds.pt", "best.onnx": "best.pt --trust", "shipped.onnx": "shipped.pt"}
    run_logn(commands("logn fold"), shorter=shorter)
    assert Path("with-thresholds.pt").is_file()
    assert Path("shipped.pt").is_file()
