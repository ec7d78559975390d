"""The README works by copy and paste: on a detector, on an ONNX file, on dumped logits."""

from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "README.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the README is not beside the tests")


@pytest.fixture
def paste(blocks, shell):
    """Run the block of commands whose first line starts like this, without the prompts."""

    def run(start, folder):
        (found,) = [block for block in blocks("console") if block.startswith(f"$ {start}")]
        return shell(found.replace("$ ", ""), folder)

    return run


@pytest.fixture
def detector():
    torch = pytest.importorskip("torch")
    detection = pytest.importorskip("torchvision").models.detection
    torch.manual_seed(0)
    return detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=5)


@pytest.fixture
def loader(detector):
    """What torchvision's references yield: tuples of images and of targets."""
    import torch

    return [((torch.rand(3, 64, 64),), ({"labels": torch.ones(1)},)) for _ in range(2)]


def test_the_one_call_corrects_a_detector(blocks, run_python, detector, loader):
    torch = pytest.importorskip("torch")
    bias = detector.roi_heads.box_predictor.cls_score.bias
    with torch.no_grad():
        bias.copy_(torch.tensor([2.0, 1.0, 0.0, -2.0, -4.0]))  # a long tail
    before = bias.detach().clone()
    call, _ = blocks("python")
    run_python(call, {"model": detector, "loader": loader})
    assert not detector.roi_heads.box_predictor.cls_score.bias.equal(before)


def test_the_lines_of_python_correct_a_detector(blocks, run_python, detector, loader):
    import torch

    weight = detector.roi_heads.box_predictor.cls_score.weight.detach().clone()
    _, lines = blocks("python")
    names = run_python(lines, {"yours": detector, "loader": loader}, shorter={"model = ...": "model = yours"})
    folded = weight * torch.tensor(names["affine"].scale, dtype=torch.float32)[:, None]
    torch.testing.assert_close(detector.roi_heads.box_predictor.cls_score.weight.detach(), folded, rtol=1e-5, atol=1e-7)


def test_dumped_logits_are_corrected(tmp_path, paste):
    random = np.random.default_rng(0)
    (tmp_path / "train_logits").mkdir()
    for name in ("train_logits/a.npy", "train_logits/b.npy", "test_logits.npy"):
        foreground = random.normal(np.linspace(-6, -2, 20), 1.0, (2000, 20))
        np.save(tmp_path / name, np.hstack([random.normal(5, 1, (2000, 1)), foreground]).astype(np.float32))
    lines = (f"class{index},{2 ** (index // 2)}" for index in range(20))
    (tmp_path / "class_counts.csv").write_text("\n".join(["name,image_count", *lines]))
    assert "strongly follow the training counts" in paste("logn collect 'train_logits", tmp_path)
    means = [np.load(tmp_path / name)[:, 1:].mean(0) for name in ("test_logits.npy", "corrected.npy")]
    assert np.ptp(means[1]) < 0.6 * np.ptp(means[0])  # half of the prior


def test_an_onnx_file_is_corrected(tmp_path, paste):
    torch = pytest.importorskip("torch")
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("onnxruntime")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 6), torch.nn.Softmax(-1))
    (tmp_path / "train").mkdir()
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 255, (12, 8, 8, 3))):
        image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "train" / f"{number}.png")
    torch.onnx.export(model, (torch.rand(1, 3, 8, 8),), str(tmp_path / "model.onnx"), dynamo=False)
    assert "Proven on" in paste("logn collect model.onnx", tmp_path)
    assert (tmp_path / "corrected.onnx").exists()


def test_dumped_logits_of_a_classifier_are_compared(tmp_path, paste):
    random = np.random.default_rng(0)
    labels, counts = random.integers(0, 4, 80), np.array([200, 60, 15, 4])
    for name, rows in (("test.npy", labels), ("train.npy", random.choice(4, 80, p=counts / counts.sum()))):
        np.save(tmp_path / name, 2 * np.eye(4)[rows] + random.standard_normal((80, 4)) + np.log(counts))
    np.save(tmp_path / "labels.npy", labels)
    (tmp_path / "counts.csv").write_text("name,image_count\n" + "".join(f"c{n},{n}\n" for n in counts))
    assert "recommended" in paste("logn compare test.npy", tmp_path)


@pytest.mark.usefixtures("one_thread")
def test_the_first_commands_correct_a_yolo_and_measure_it(tmp_path, blocks, run_logn, monkeypatch):
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    monkeypatch.setenv("YOLO_AUTOINSTALL", "false")
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "settings"))
    ultralytics = pytest.importorskip("ultralytics", reason="the extra `frameworks` is not installed")
    import torch
    from PIL import Image

    names = ["cup", "fork", "bed", "cat", "dog", "bus"]
    random = np.random.default_rng(0)
    for split in ("train", "val"):
        (tmp_path / split / "images").mkdir(parents=True)
        (tmp_path / split / "labels").mkdir()
        for number in range(6):
            pixels = random.integers(0, 256, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / split / "images" / f"{number}.png")
            (tmp_path / split / "labels" / f"{number}.txt").write_text(f"{number} 0.5 0.5 0.4 0.4\n")
    splits = "".join(f"{split}: {split}/images\n" for split in ("train", "val"))
    (tmp_path / "data.yaml").write_text(f"path: .\n{splits}names: {names}\n")
    torch.manual_seed(0)
    yolo = ultralytics.YOLO("yolov8n.yaml")
    yolo.model = type(yolo.model)("yolov8n.yaml", nc=len(names), verbose=False)
    yolo.model.names, yolo.model.args = dict(enumerate(names)), {"imgsz": 64}
    with torch.no_grad():  # a long tail in the class layers
        for block in yolo.model.model[-1].cv3:
            block[-1].weight.normal_().mul_(torch.linspace(0.3, 0.1, len(names))[:, None, None, None])
            block[-1].bias.copy_(torch.linspace(-1.0, -8.0, len(names)))
    yolo.ckpt = {"train_args": {"imgsz": 64}}
    yolo.save(tmp_path / "best.pt")
    monkeypatch.chdir(tmp_path)
    first, *more = [block for block in blocks("console") if block.startswith(("$ logn correct", "$ logn predict best"))]
    said = run_logn(first)
    assert "what LogN recommends, half of the prior" in " ".join(said.split())
    assert {"corrected.pt", "corrected.statistics.safetensors"} <= {path.name for path in tmp_path.iterdir()}
    run_logn(more[0], shorter={"-o comparison": "-o comparison --bootstrap 0"})
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")
