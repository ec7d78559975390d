"""`logn correct` on Hugging Face folders and Ultralytics files: the output loads and gives the map of the logits."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.made.toys import toy_classifier

from logn.cli.main import execute
from logn.correction.correct import correct
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.layer import find_modules
from logn.models.locate import locate_logits
from logn.statistics.moments import ClassMoments

NAMES = ("cup", "fork", "bed", "cat", "dog")


def make_tail(model):
    """Class weights as a long tail leaves them: the mean of the logits and their spread fall from class to class."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for module in find_modules(model, locate_logits(model)):
            columns = len(module.weight)
            falling = torch.linspace(1.5, 0.5, columns).reshape(-1, *[1] * (module.weight.dim() - 1))
            fan_in = module.weight[0].numel()
            module.weight.copy_(torch.randn(module.weight.shape, generator=generator) / fan_in**0.5 * falling)
            module.bias.copy_(torch.linspace(-1.0, -8.0, columns))
    return model


def close(after, before, affine):
    expected = affine(np.asarray(before, np.float64))
    np.testing.assert_allclose(np.asarray(after), expected, atol=1e-4 * np.abs(expected).max(), rtol=0)


OFFLINE = """
import socket, sys

def refuse(*arguments, **options):
    print("NETWORK", arguments, file=sys.stderr)
    raise SystemExit(70)

socket.getaddrinfo = socket.gethostbyname = socket.create_connection = socket.socket.connect = refuse
from logn.cli.main import execute
folder, file, images, target = sys.argv[1:]
sys.exit(
    execute(["correct", folder, "--images", images, "-o", target])
    or execute(["correct", file, "--trust", "--images", images, "-o", target + ".pt"])
)
"""


@pytest.fixture
def folder(models_of, spread, tmp_path):
    """Write a Hugging Face folder."""
    hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")

    def save(name):
        model = make_tail(models_of("test_transformers.py")["make"](name, spread))
        model.config.id2label = dict(enumerate(NAMES))
        model.save_pretrained(tmp_path / "model")
        hf.RTDetrImageProcessor(size={"height": 64, "width": 64}).save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


@pytest.fixture
def file(ultralytics_file):
    """Write an Ultralytics file."""
    tasks = pytest.importorskip("ultralytics.nn.tasks", reason="the extra `frameworks` is not installed")

    def save(name):
        torch.manual_seed(0)
        model = make_tail(tasks.DetectionModel(f"{name}.yaml", nc=5, verbose=False).eval())
        return ultralytics_file(model, NAMES)

    return save


def test_no_network_is_used(folder, file, noise, tmp_path):
    """In a process of its own, which any use of the network ends."""
    hidden = ("YOLO_OFFLINE", "YOLO_AUTOINSTALL", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    paths = map(str, (folder("detr"), file("yolov8n"), noise, tmp_path / "out"))
    command = [sys.executable, "-c", OFFLINE, *paths]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert "NETWORK" not in done.stderr
    assert done.returncode == 0, done.stderr


class TestHuggingFace:
    @staticmethod
    def logits(folder):
        from logn.models.frameworks.transformers import read_transformers

        pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            return read_transformers(folder)[0](pixel_values=pixels)["logits"]

    @pytest.mark.parametrize("name", ["rt_detr_v2", "deformable_detr_two_stage", "detr"])
    def test_the_corrected_folder_gives_the_map_of_the_logits(self, name, folder, noise, tmp_path):
        source, out = folder(name), tmp_path / "corrected"
        done = correct(source, noise, out)
        assert (done.method, done.num_classes, done.images, done.files) == ("recommended", 5, 6, (out,))
        metadata = done.moments[0].head
        background = (-1, "softmax") if name == "detr" else (None, "sigmoid")
        assert (metadata.background, metadata.activation) == background
        assert metadata.names == (*NAMES, *(["background"] if name == "detr" else []))
        statistics = ClassMoments.load(out / "logn-statistics.safetensors")
        assert statistics.count.max() == done.moments[0].count.max()
        close(self.logits(out), self.logits(source), ClassAffine.load(out / "logn-affine.safetensors"))
        assert {file.name for file in tmp_path.iterdir()} == {"model", "corrected", "train"}
        with pytest.raises(InputError, match="holds a correction"):
            correct(out, noise, tmp_path / "twice")

    def test_without_an_output_nothing_is_written(self, folder, noise, tmp_path, capsys):
        source = folder("rt_detr_v2")
        before = sorted(tmp_path.rglob("*"))
        assert execute(["correct", str(source), "--images", str(noise), "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["method"], result["output"], result["files"]) == ("recommended", None, [])
        assert result["proof"]["largest_difference"] <= result["proof"]["tolerance"]
        assert result["framework"] == "transformers, RTDetrV2ForObjectDetection"
        assert sorted(tmp_path.rglob("*")) == before

    def test_an_image_classifier(self, noise, tmp_path):
        hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")
        torch.manual_seed(0)
        sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 6}
        config = hf.ResNetConfig(**sizes, problem_type="single_label_classification")
        model = make_tail(hf.ResNetForImageClassification(config).eval())
        model.save_pretrained(tmp_path / "model")
        hf.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "model")
        # Too few images to tell: the folder is copied.
        plain = correct(tmp_path / "model", noise, tmp_path / "copy")
        assert (plain.method, plain.output, plain.files) == (None, tmp_path / "copy", (tmp_path / "copy",))
        files = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("model", "copy")]
        assert files[0] == files[1]
        done = correct(tmp_path / "copy", noise, tmp_path / "out", method="recommended:force=true")
        assert (done.num_classes, done.moments[0].head.activation) == (6, "softmax")
        assert done.change.is_classification
        again = hf.ResNetForImageClassification.from_pretrained(tmp_path / "out").eval()
        pixels = torch.rand(2, 3, 32, 32)
        with torch.inference_mode():
            close(again(pixels).logits, model(pixels).logits, done.maps[0])


def test_a_torch_model_with_nothing_to_correct_keeps_its_weights(noise, tmp_path):
    model = toy_classifier()
    done = correct(model, noise, tmp_path / "out.safetensors", like="imagenet")  # too few images to tell
    assert (done.method, done.files) == (None, (tmp_path / "out.safetensors",))
    written = load_file(tmp_path / "out.safetensors")
    assert {name: tensor.tolist() for name, tensor in written.items()} == {
        name: tensor.tolist() for name, tensor in model.state_dict().items()
    }


class TestUltralytics:
    def test_a_file_with_nothing_to_correct_is_copied(self, ultralytics_file, noise, tmp_path):
        tasks = pytest.importorskip("ultralytics.nn.tasks", reason="the extra `frameworks` is not installed")
        torch.manual_seed(0)
        source = ultralytics_file(tasks.DetectionModel("yolov8n.yaml", nc=5, verbose=False).eval(), NAMES)
        done = correct(source, noise, tmp_path / "copy.pt", trust=True)
        assert (done.method, done.files) == (None, (tmp_path / "copy.pt",))
        assert (tmp_path / "copy.pt").read_bytes() == source.read_bytes()

    @pytest.mark.parametrize(("name", "stages"), [("yolov8n", 1), ("yolo26n", 2)])
    def test_the_corrected_file_gives_the_map_of_the_logits(self, name, stages, file, noise, tmp_path, models_of):
        from ultralytics import YOLO

        source, out = file(name), tmp_path / "corrected.pt"
        done = correct(source, noise, out, trust=True, method="p2p:strength=0.5")
        assert (done.num_classes, done.images, len(done.maps)) == (5, 6, stages)
        assert done.traits.preprocessing == "letterboxed to 64"
        assert done.moments[0].head.names == NAMES
        own_logits = models_of("test_ultralytics.py")["own_logits"]
        before, after = (own_logits(YOLO(path).model.eval()) for path in (source, out))
        for stage, rows in enumerate(zip(after, before, strict=True), 1):
            number = "" if stages == 1 else f"-{stage}"
            close(*rows, ClassAffine.load(tmp_path / f"corrected.affine{number}.safetensors"))
        assert len(after) == stages
        assert YOLO(out).names == YOLO(source).names
        (found,) = YOLO(out).predict(np.zeros((64, 96, 3), np.uint8), imgsz=64, conf=1e-9, verbose=False)
        assert len(found.boxes) > 0
        # Half precision stays half, but for the class layer.
        assert out.stat().st_size < 1.1 * source.stat().st_size

    def test_a_pickle_needs_trust(self, file, noise, tmp_path, capsys):
        arguments = ["correct", str(file("yolov8n")), "--images", str(noise), "-o", str(tmp_path / "out.pt")]
        assert execute(arguments) == 2
        printed = capsys.readouterr().err
        assert "best.pt` is a pickle" in printed
        assert printed.count("\n") == 1
        assert not (tmp_path / "out.pt").exists()
