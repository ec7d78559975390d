"""One threshold on a folded model decides as thresholds per class do on the plain one: the same bits on all rows."""

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import logn
from logn.calibrators.affine import ClassAffine
from logn.logits.layer import find_modules
from logn.logits.locate import locate_logits

CLASSES = 5
AT = 0.25


def logits_of(model, layer, images):
    """Rows of logits that the class layers give."""
    seen = []
    hooks = [
        module.register_forward_hook(lambda *call, place=place: seen.append(layer.rows(call[2], place)))
        for place, module in enumerate(find_modules(model, layer))
    ]
    with torch.inference_mode():
        model(images)
    for hook in hooks:
        hook.remove()
    return torch.cat([rows.reshape(-1, rows.shape[-1]) for rows in seen]).numpy()


def points_of(logits, correction=None):
    """Points chosen on these rows, of which those with high logits are right: a threshold of its own for each class."""
    rng = np.random.default_rng(0)
    labels = (logits + rng.normal(0, logits.std(), logits.shape) > logits.mean(axis=0) + logits.std()).astype(int)
    return logn.operating_points(logits, labels, "recall=0.5", correction, num_bootstrap=0)


def kept(logits, thresholds, correction=None):
    """What thresholds keep, computed as frameworks do: the sigmoid in float32."""
    mapped = torch.from_numpy(logits if correction is None else correction(logits))
    return mapped.sigmoid().numpy().astype(np.float64) >= thresholds


def retinanet(spread):
    torchvision = pytest.importorskip("torchvision")
    options = {"weights": None, "weights_backbone": None, "num_classes": CLASSES, "min_size": 64, "max_size": 96}
    model = torchvision.models.detection.retinanet_resnet50_fpn(**options).eval()
    return model, [torch.rand(3, 64, 80, generator=torch.Generator().manual_seed(1))]


def yolo(spread):
    tasks = pytest.importorskip("ultralytics.nn.tasks", reason="the extra `frameworks` is not installed")
    model = tasks.DetectionModel("yolo11n.yaml", nc=CLASSES, verbose=False).eval()
    return model, torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(1))


def detr(spread):
    hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")
    backbone = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, layer_type="basic", out_features=["stage4"]
    )
    config = hf.ConditionalDetrConfig(
        backbone_config=backbone,
        backbone=None,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_queries=50,
        num_labels=CLASSES,
    )
    return hf.ConditionalDetrForObjectDetection(config).eval(), torch.rand(
        4, 3, 64, 64, generator=torch.Generator().manual_seed(1)
    )


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("make", [retinanet, yolo, detr])
def test_a_folded_model_decides_as_the_thresholds_do(make, corrected, spread):
    torch.manual_seed(0)
    model, images = make(spread)
    layer = locate_logits(model)
    spread(model, layer)
    plain = logits_of(model, layer, images)
    correction = ClassAffine(np.linspace(0.7, 1.4, plain.shape[1]), np.linspace(-1, 1, plain.shape[1]))
    correction = correction if corrected else None
    points = points_of(plain, correction)
    assert len(set(points.thresholds)) == plain.shape[1]
    wanted = kept(plain, points.thresholds, correction)
    assert 0 < wanted.mean() < 1
    handle = logn.attach(model, layer, points.affine(at=AT))
    attached = logits_of(model, layer, images)
    np.testing.assert_array_equal(kept(attached, AT), wanted)
    handle.remove()
    logn.fold(model, layer, points.affine(at=AT))
    np.testing.assert_array_equal(kept(logits_of(model, layer, images), AT), wanted)


def test_a_folded_onnx_file_decides_as_the_thresholds_do(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(2)
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 16] x) => (float[N, 5] y) '
        "{ h = Gemm(x, w, b) y = Sigmoid(h) }"
    )
    model = onnx.parser.parse_model(text)
    weights = {"w": rng.normal(size=(16, CLASSES)), "b": rng.normal(size=CLASSES)}
    model.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()
    )
    onnx.save_model(model, str(tmp_path / "model.onnx"))
    inputs = rng.normal(size=(400, 16)).astype(np.float32)

    def scores(path):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return session.run(None, {"x": inputs})[0].astype(np.float64)

    plain = scores(tmp_path / "model.onnx")
    logits = (np.log(plain) - np.log1p(-plain)).astype(np.float64)
    points = points_of(logits)
    logn.fold_onnx(tmp_path / "model.onnx", points.affine(at=AT), tmp_path / "folded.onnx", inputs={"x": inputs})
    np.testing.assert_array_equal(scores(tmp_path / "folded.onnx") >= AT, plain >= points.thresholds)
