"""Every entry point gives one answer on the same statistics: what `logn.recommend` says."""

import json

import numpy as np
import onnx.parser
import pytest
import torch
from PIL import Image

import logn
from logn.callbacks import LogNHook
from logn.cli.main import execute
from logn.measure.fitted_methods import DEFAULT_METHODS, fit_for_store
from logn.models.preprocessing import Preprocessing
from logn.statistics.head import Head

CLASSES = 6
LEVELS = np.array([0.0, -1.0, -2.0, -3.5, -4.0, -6.0])
# Head, place of the background, activation, how far apart the classes start.
HEADS = [
    ("softmax detector", 0, "softmax", 1.0),
    ("softmax detector", -1, "softmax", 1.0),
    ("classifier", None, "softmax", 1.0),
    ("sigmoid head", None, "sigmoid", 1.0),
    ("classifier", None, "softmax", 0.0),
    ("sigmoid head", None, "sigmoid", 0.0),
]


class ClassLayer(torch.nn.Module):
    """A class layer on random features, as wide as the head needs."""

    def __init__(self, background, spread):
        super().__init__()
        columns = CLASSES + (background is not None)
        self.fc = torch.nn.Linear(8, columns)
        bias = spread * LEVELS
        if background is not None:
            bias = np.insert(bias, 0 if background == 0 else CLASSES, 3.0)
        with torch.no_grad():
            self.fc.weight.copy_(torch.linalg.qr(torch.randn(8, columns))[0].T)
            self.fc.bias.copy_(torch.tensor(bias))

    def forward(self, features):
        return self.fc(features)


@pytest.fixture(params=HEADS, ids=lambda head: f"{head[0]} {head[1]} {head[3]:g}")
def case(request):
    head, background, activation, spread = request.param
    torch.manual_seed(0)
    model = ClassLayer(background, spread).eval()
    batches = [torch.randn(200, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    layer = logn.LogitLayer("fc", background=background, activation=activation)
    with logn.record(model, layer) as moments, torch.inference_mode():
        for batch in batches:
            model(batch)
    return head, model, batches, layer, moments


def test_all_entry_points_fit_the_same_map(case, tmp_path, capsys):
    head, model, batches, layer, moments = case
    recommendation = logn.recommend(moments)
    assert recommendation.kind == head
    expected = recommendation.fit(moments)
    unchanged = logn.ClassAffine.identity(moments.num_columns, Head(background=layer.background))
    assert (recommendation.method == "none") == (expected == unchanged)

    assert logn.methods.fit("recommended", moments=moments) == expected
    calibration = logn.calibrate(model, batches, layer=layer)
    affine, handle = calibration.affine, calibration.handle
    handle.remove()
    assert affine == expected
    normalizer = logn.LogitNormalizer(background=layer.background, activation=layer.activation)
    for batch in batches:
        normalizer.partial_fit(model(batch).detach().numpy())
    assert normalizer.affine_ == expected
    columns = moments.num_columns
    head = Head(columns, background=layer.background, activation=layer.activation)
    assert fit_for_store("recommended", head, moments=moments) == expected
    assert DEFAULT_METHODS[0] == "recommended"

    stats, out = tmp_path / "stats.safetensors", tmp_path / "affine.safetensors"
    moments.save(stats)
    assert execute(["fit", str(stats), "-o", str(out)]) == 0
    assert logn.ClassAffine.load(out) == expected
    capsys.readouterr()
    assert execute(["inspect", str(stats), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recommendation"]["method"] == recommendation.method


def test_the_hook_of_mmdetection_takes_what_is_recommended():
    assert LogNHook().method == "recommended"


GRAPH = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, 4, 4] x) => (float[N, 6] y)
<float[3, 6] w = {WEIGHTS}, float[6] b = {BIAS}>
{ p = GlobalAveragePool(x) f = Flatten(p) z = Gemm(f, w, b) y = Softmax(z) }"""


def test_correct_takes_what_is_recommended(tmp_path):
    weights = ", ".join(map(str, np.random.default_rng(0).normal(size=18).round(3)))
    model = onnx.parser.parse_model(GRAPH.replace("WEIGHTS", weights).replace("BIAS", ", ".join(map(str, LEVELS))))
    onnx.save_model(model, str(tmp_path / "model.onnx"))
    folder = tmp_path / "images"
    folder.mkdir()
    for number, pixels in enumerate(np.random.default_rng(1).integers(0, 256, (40, 4, 4, 3), np.uint8)):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    done = logn.correct(tmp_path / "model.onnx", folder, tmp_path / "out.onnx", like=Preprocessing())
    assert done.method == "recommended"
    assert done.maps[0] == logn.recommend(done.moments[0]).fit(done.moments[0])
