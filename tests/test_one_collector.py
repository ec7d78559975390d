"""The same model and images have the same statistics, to the last bit, whichever entry point gathers them."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import logn
from logn.cli.main import execute
from logn.data.images import read_rgb
from logn.models.images import as_tensor
from logn.models.onnx.model import record_onnx

pytest.importorskip("torchvision")
pytestmark = pytest.mark.usefixtures("one_thread")

MODELS = """
import torch
from torchvision.models.detection import FasterRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

def _backbone():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=16, padding=1), torch.nn.ReLU())
    layers.out_channels = 8
    return layers

def _spread(layer):
    torch.nn.init.normal_(layer.weight, std=0.5)
    torch.nn.init.uniform_(layer.bias, -4.0, 0.0)

SIZES = {"min_size": 64, "max_size": 96}
ANCHORS = AnchorGenerator(((16, 32, 48),), ((0.5, 1.0, 2.0),))

def retinanet():
    model = RetinaNet(_backbone(), 4, anchor_generator=ANCHORS, topk_candidates=10, **SIZES)
    _spread(model.head.classification_head.cls_logits)
    return model

def faster_rcnn():
    heads = {"box_roi_pool": MultiScaleRoIAlign(["0"], 3, 2), "rpn_post_nms_top_n_test": 20}
    model = FasterRCNN(_backbone(), 4, rpn_anchor_generator=ANCHORS, **heads, **SIZES)
    _spread(model.roi_heads.box_predictor.cls_score)
    return model
"""
POPULATIONS = {"retinanet": "all anchors", "faster_rcnn": "test proposals"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "images").mkdir()
    images = []
    for number in range(11):
        height, name = 64 + 4 * number, f"images/{number:02}.png"
        pixels = np.random.default_rng(number).integers(0, 256, (height, 80, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
        images.append({"id": number + 1, "file_name": name, "height": height, "width": 80})
    (tmp_path / "tiny_detectors.py").write_text(MODELS)
    categories = [{"id": number + 1, "name": name} for number, name in enumerate("abc")]
    (tmp_path / "train.json").write_text(json.dumps({"images": images, "annotations": [], "categories": categories}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def equal(one, other):
    for name in ("count", "mean", "variance", "mean_probability", "sample"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name in ("background", "activation", "layer", "population", "source", "unused"):
        assert getattr(one.head, name) == getattr(other.head, name)


def collected(folder, *words):
    assert execute(["collect", *words, "--overwrite", "-o", str(folder / "statistics.safetensors")]) == 0
    return logn.ClassMoments.load(folder / "statistics.safetensors")


def calibrated(name, paths):
    """What `logn.calibrate` gathers of the same images, eight at a time."""
    import tiny_detectors

    images = [as_tensor(read_rgb(path)) for path in paths]
    batches = [images[start : start + 8] for start in range(0, len(images), 8)]
    return logn.calibrate(getattr(tiny_detectors, name)(), batches, method="logn").moments


@pytest.mark.parametrize("name", list(POPULATIONS))
@pytest.mark.parametrize("few", [None, 5])
@pytest.mark.parametrize("source", [("--images", "images"), ("--data", "train.json")], ids=["folder", "labels"])
def test_detectors(folder, name, few, source):
    model = f"tiny_detectors:{name}"
    corrected = logn.correct(model, folder / "images", method="logn", max_images=few).moments[0]
    assert corrected.head.population == POPULATIONS[name]
    assert corrected.count.max() >= 100
    paths = sorted((folder / "images").iterdir())
    if few is not None:
        paths = [paths[index * 11 // few] for index in range(few)]
    equal(calibrated(name, paths), corrected)
    more = [] if few is None else ["--max-images", str(few)]
    equal(collected(folder, model, *source, *more), corrected)


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "any size"])
def test_an_onnx_file(folder, dynamic):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, stride=4), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 5)
    )
    network = torch.nn.Sequential(network, torch.nn.Softmax(-1)).eval()
    axes = {"image": {2: "height", 3: "width"}} if dynamic else None
    torch.onnx.export(
        network, torch.rand(1, 3, 64, 64), "model.onnx", input_names=["image"], dynamic_axes=axes, dynamo=False
    )
    corrected = logn.correct("model.onnx", folder / "images", method="logn", like="imagenet").moments[0]
    words = ("--images", "images", "--like", "imagenet")
    equal(collected(folder, "model.onnx", *words), corrected)
    equal(collected(folder, "model.onnx", "--data", "train.json", *words[2:]), corrected)
    if not dynamic:
        equal(record_onnx("model.onnx", folder / "images", like="imagenet"), corrected)


def test_a_corrected_model_is_collected_but_not_corrected_again(folder):
    """Its statistics show what the correction did."""
    (folder / "twice.py").write_text(
        "import logn, numpy as np, tiny_detectors\n\n"
        "def build():\n"
        "    model = tiny_detectors.retinanet()\n"
        "    logn.fold(model, logn.locate_logits(model), logn.ClassAffine(np.full(4, 2.0), np.zeros(4)))\n"
        "    return model\n"
    )
    plain = collected(folder, "tiny_detectors:retinanet", "--images", "images")
    twice = collected(folder, "twice:build", "--images", "images")
    np.testing.assert_allclose(twice.mean, 2.0 * plain.mean, rtol=1e-5)
    with pytest.raises(logn.InputError, match="has a map folded into it already"):
        logn.correct("twice:build", folder / "images")


PROPOSALS_ONLY = """
import numpy as np
import logn

class Source:
    background, activation, num_classes, class_names = -1, "softmax", 2, ("ant", "bee")
    population, logit_layer, fingerprint = "test proposals", logn.LogitLayer("head"), "made"

    def propose(self, images):
        rows = [np.asarray(image).reshape(3, -1).T[:4] for image in images]
        return [logn.Proposals(np.zeros((4, 4)), logits, height=6, width=8) for logits in rows]

def build():
    return Source()
"""


def test_a_source_without_a_network_has_what_it_proposes(folder):
    (folder / "own_source.py").write_text(PROPOSALS_ONLY)
    moments = collected(folder, "own_source:build", "--images", "images")
    assert moments.count.tolist() == [44.0] * 3
    assert moments.head.names == ("ant", "bee", "background")
    with pytest.raises(logn.InputError, match="`own_source:build` gives Source, which has no torch model to correct"):
        logn.correct("own_source:build", folder / "images")
