"""`logn correct` on Hugging Face folders and Ultralytics files: the output loads and gives the map of the logits."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from logn.calibrators.affine import ClassAffine
from logn.cli.main import execute
from logn.errors import InputError
from logn.evaluate.models.correct import correct
from logn.logits.layer import find_modules
from logn.logits.locate import locate_logits
from logn.statistics.moments import ClassMoments


@pytest.fixture
def images(tmp_path):
    """A folder of noise."""
    folder = tmp_path / "train"
    folder.mkdir()
    generator = np.random.default_rng(1)
    for index in range(6):
        pixels = generator.integers(0, 256, (64, 96, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    return folder


def make_tail(model, seed=3):
    """Class weights as a long tail leaves them: the mean of the logits and their spread fall from class to class."""
    layer = locate_logits(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in find_modules(model, layer):
            columns = len(module.weight)
            falling = torch.linspace(1.5, 0.5, columns).reshape(-1, *[1] * (module.weight.dim() - 1))
            fan_in = module.weight[0].numel()
            module.weight.copy_(torch.randn(module.weight.shape, generator=generator) / fan_in**0.5 * falling)
            module.bias.copy_(torch.linspace(-1.0, -8.0, columns))
    return model


def maps_of(output, stages=1, *, in_folder):
    names = [""] if stages == 1 else [f"-{stage + 1}" for stage in range(stages)]
    if in_folder:
        return [ClassAffine.load(output / f"logn-affine{name}.safetensors") for name in names]
    return [ClassAffine.load(output.with_name(f"{output.stem}.affine{name}.safetensors")) for name in names]


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
sys.exit(execute(sys.argv[1:]))
"""


def correct_without_network(*arguments):
    """Run `logn correct` in a process of its own, where any use of the network ends it."""
    hidden = ("YOLO_OFFLINE", "YOLO_AUTOINSTALL", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-c", OFFLINE, "correct", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert "NETWORK" not in done.stderr
    return done


class TestHuggingFace:
    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")

    @pytest.fixture
    def folder(self, models_of, spread, tmp_path):
        import transformers

        def save(name):
            torch.manual_seed(0)
            model = make_tail(models_of("test_transformers_models.py")["make"](name, spread))
            model.config.id2label = {0: "cup", 1: "fork", 2: "bed", 3: "cat", 4: "dog"}
            model.save_pretrained(tmp_path / "model")
            transformers.RTDetrImageProcessor(size={"height": 64, "width": 64}).save_pretrained(tmp_path / "model")
            return tmp_path / "model"

        return save

    @staticmethod
    def logits(folder):
        from logn.deploy.transformers_folder import read_transformers

        pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            return read_transformers(folder)[0](pixel_values=pixels)["logits"]

    @pytest.mark.parametrize("name", ["rt_detr_v2", "deformable_detr_two_stage"])
    def test_the_corrected_folder_gives_the_map_of_the_logits(self, name, folder, images, tmp_path):
        source, out = folder(name), tmp_path / "corrected"
        done = correct(source, images, out)
        assert (done.method, done.num_classes, done.images) == ("recommended", 5, 6)
        assert done.moments[0].metadata.class_names == ("cup", "fork", "bed", "cat", "dog")
        assert done.files == (out,)
        assert {"logn-statistics.safetensors", "logn-affine.safetensors"} <= {file.name for file in out.iterdir()}
        (affine,) = maps_of(out, in_folder=True)
        assert ClassMoments.load(out / "logn-statistics.safetensors").count.max() == done.moments[0].count.max()
        close(self.logits(out), self.logits(source), affine)
        assert {file.name for file in tmp_path.iterdir()} == {"model", "corrected", "train"}
        with pytest.raises(InputError, match="holds a correction already; use the model as it is"):
            correct(out, images, tmp_path / "twice")

    def test_a_softmax_with_a_background(self, folder, images, tmp_path):
        source, out = folder("detr"), tmp_path / "corrected"
        done = correct(source, images, out, method="recommended")
        assert (done.moments[0].metadata.background, done.moments[0].metadata.activation) == (-1, "softmax")
        close(self.logits(out), self.logits(source), maps_of(out, in_folder=True)[0])

    def test_without_an_output_nothing_is_written(self, folder, images, tmp_path, capsys):
        source = folder("rt_detr_v2")
        before = sorted(path for path in tmp_path.rglob("*"))
        assert execute(["correct", str(source), "--images", str(images), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["method"], told["output"], told["files"]) == ("recommended", None, [])
        assert told["proof"]["largest_difference"] <= told["proof"]["tolerance"]
        assert told["framework"] == "transformers, RTDetrV2ForObjectDetection"
        assert sorted(path for path in tmp_path.rglob("*")) == before

    def test_an_image_classifier(self, images, tmp_path):
        import transformers

        torch.manual_seed(0)
        config = transformers.ResNetConfig(
            embedding_size=8,
            hidden_sizes=[8, 16],
            depths=[1, 1],
            num_labels=6,
            problem_type="single_label_classification",
        )
        model = make_tail(transformers.ResNetForImageClassification(config).eval())
        model.save_pretrained(tmp_path / "model")
        processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
        processor.save_pretrained(tmp_path / "model")
        done = correct(tmp_path / "model", images, tmp_path / "out", method="recommended")
        assert (done.num_classes, done.moments[0].metadata.activation) == (6, "softmax")
        assert done.change.is_classification
        again = transformers.ResNetForImageClassification.from_pretrained(tmp_path / "out").eval()
        pixels = torch.rand(2, 3, 32, 32)
        with torch.inference_mode():
            close(again(pixels).logits, model(pixels).logits, maps_of(tmp_path / "out", in_folder=True)[0])

    def test_no_network_is_used(self, folder, images, tmp_path):
        done = correct_without_network(folder("detr"), "--images", images, "-o", tmp_path / "out")
        assert done.returncode == 0, done.stderr


class TestUltralytics:
    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("ultralytics", reason="the extra `frameworks` is not installed")

    @pytest.fixture
    def file(self, tmp_path):
        from ultralytics.nn import tasks

        def save(name, kind=None):
            torch.manual_seed(0)
            model = make_tail((kind or tasks.DetectionModel)(f"{name}.yaml", nc=5, verbose=False).eval())
            model.names = dict(enumerate(["cup", "fork", "bed", "cat", "dog"]))
            # As its trainer writes them: in half precision.
            torch.save(
                {"epoch": -1, "ema": model.half(), "model": None, "train_args": {"imgsz": 64}}, tmp_path / "best.pt"
            )
            return tmp_path / "best.pt"

        return save

    @staticmethod
    def heads(file):
        """What the heads give by Ultralytics' own reader."""
        from ultralytics import YOLO

        pixels = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            raw = YOLO(file).model.eval()(pixels)[1]
        raw = raw if isinstance(raw, dict) else raw[-1]
        heads = [raw["one2many"], raw["one2one"]] if "one2one" in raw else [raw]
        return [head["scores"].permute(0, 2, 1).reshape(-1, 5) for head in heads]

    @pytest.mark.parametrize(("name", "stages"), [("yolov8n", 1), ("yolo26n", 2)])
    def test_the_corrected_file_gives_the_map_of_the_logits(self, name, stages, file, images, tmp_path):
        source, out = file(name), tmp_path / "corrected.pt"
        done = correct(source, images, out, trust=True, method="p2p:strength=0.5")
        assert (done.num_classes, done.images, len(done.maps)) == (5, 6, stages)
        assert done.traits.preprocessing == "letterboxed to 64"
        assert done.moments[0].metadata.class_names == ("cup", "fork", "bed", "cat", "dog")
        for after, before, affine in zip(
            self.heads(out), self.heads(source), maps_of(out, stages, in_folder=False), strict=True
        ):
            close(after, before, affine)
        from ultralytics import YOLO

        assert YOLO(out).names == YOLO(source).names
        (found,) = YOLO(out).predict(np.zeros((64, 96, 3), np.uint8), imgsz=64, conf=1e-9, verbose=False)
        assert len(found.boxes) > 0
        # Half precision stays half, but for the class layer.
        assert out.stat().st_size < 1.1 * source.stat().st_size

    def test_no_network_is_used(self, file, images, tmp_path):
        done = correct_without_network(file("yolov8n"), "--trust", "--images", images, "-o", tmp_path / "out.pt")
        assert done.returncode == 0, done.stderr

    def test_a_pickle_needs_trust(self, file, images, tmp_path, capsys):
        source = file("yolov8n")
        arguments = ["correct", str(source), "--images", str(images), "-o", str(tmp_path / "out.pt")]
        assert execute(arguments) == 2
        told = capsys.readouterr().err
        assert told.startswith("Error: Expected `trust=True` (`--trust`) for `")
        assert "which is a pickle" in told
        assert told.count("\n") == 1
        assert not (tmp_path / "out.pt").exists()
