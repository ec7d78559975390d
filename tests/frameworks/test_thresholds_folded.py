"""One threshold on a folded model decides as thresholds per class do on the plain one, on all rows."""

import warnings

import numpy as np
import pytest
import torch

import logn
from logn.logits.layer import find_modules
from logn.logits.locate import locate_logits
from logn.thresholds import fold_thresholds

CLASSES = 5
NAMES = ("car", "person", "bus", "cat", "dog")
AT = 0.25
PIXELS = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(1))


def ultralytics(name):
    def make():
        tasks = pytest.importorskip("ultralytics.nn.tasks", reason="the extra `frameworks` is not installed")
        kind = tasks.RTDETRDetectionModel if "rtdetr" in name else tasks.DetectionModel
        return kind(f"{name}.yaml", nc=CLASSES, verbose=False).eval(), PIXELS

    return make


def retinanet():
    torchvision = pytest.importorskip("torchvision")
    options = {"weights": None, "weights_backbone": None, "num_classes": CLASSES, "min_size": 64, "max_size": 96}
    return torchvision.models.detection.retinanet_resnet50_fpn(**options).eval(), list(PIXELS)


def conditional_detr():
    hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")
    backbone = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, layer_type="basic", out_features=["stage4"]
    )
    small = {f"{part}_{what}": 16 for part in ("encoder", "decoder") for what in ("ffn_dim",)}
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
        num_queries=50,
        id2label=dict(enumerate(NAMES)),
        label2id={name: place for place, name in enumerate(NAMES)},
        **small,
    )
    return hf.ConditionalDetrForObjectDetection(config).eval(), PIXELS


SIGMOIDS = {
    "YOLOv5u": ultralytics("yolov5n"),
    "YOLOv8": ultralytics("yolov8n"),
    "YOLO11": ultralytics("yolo11n"),
    "RT-DETR": ultralytics("rtdetr-resnet50"),
    "RetinaNet": retinanet,
    "Conditional DETR": conditional_detr,
}


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


def kept(logits, thresholds):
    """What thresholds keep, computed as frameworks do: the sigmoid in float32."""
    return torch.from_numpy(np.asarray(logits)).sigmoid().numpy().astype(np.float64) >= thresholds


def between_scores(logits):
    """A threshold per class, in the middle of the widest gap where a sigmoid in float32 still tells scores apart."""
    thresholds = []
    for column in np.sort(logits.astype(np.float64), axis=0).T:
        gaps, middle = np.diff(column), (column[1:] + column[:-1]) / 2
        gaps[np.abs(middle) > 10] = 0
        thresholds.append(middle[gaps.argmax()])
        assert gaps.max() > 1e-3
    return 1 / (1 + np.exp(-np.array(thresholds)))


@pytest.mark.parametrize("make", SIGMOIDS.values(), ids=SIGMOIDS)
def test_a_folded_model_decides_as_the_thresholds_do(make, spread):
    torch.manual_seed(0)
    model, images = make()
    layer = locate_logits(model)
    spread(model, layer)
    plain = logits_of(model, layer, images)
    assert plain.shape[1] == CLASSES
    thresholds = between_scores(plain)
    points = logn.OperatingPoints.from_thresholds(dict(zip(NAMES, thresholds, strict=True)), at=AT)
    wanted = kept(plain, thresholds)
    assert 0 < wanted.mean() < 1
    handle = logn.attach(model, layer, points.affine())
    np.testing.assert_array_equal(kept(logits_of(model, layer, images), AT), wanted)
    handle.remove()
    logn.fold(model, layer, points.affine())
    np.testing.assert_array_equal(kept(logits_of(model, layer, images), AT), wanted)


def exported(model, path, name="images"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (PIXELS,), str(path), input_names=[name], dynamo=False, opset_version=17)


def onnx_outputs(path):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: PIXELS.numpy()})


def test_an_exported_file_decides_as_the_thresholds_do(tmp_path, spread):
    model, _ = SIGMOIDS["YOLO11"]()
    layer = locate_logits(model)
    spread(model, layer)
    exported(model, tmp_path / "model.onnx")
    plain = onnx_outputs(tmp_path / "model.onnx")[0][:, 4:]  # box, then a row per class
    rows = np.moveaxis(plain, 1, -1).reshape(-1, CLASSES).astype(np.float64)
    thresholds = between_scores(np.log(rows) - np.log1p(-rows))
    given = dict(zip(NAMES, thresholds.tolist(), strict=True))
    done = fold_thresholds(tmp_path / "model.onnx", given, tmp_path / "out.onnx", class_names=NAMES)
    assert done.rows > 0
    after = onnx_outputs(tmp_path / "out.onnx")[0][:, 4:]
    np.testing.assert_array_equal(after >= AT, plain >= thresholds[:, None])
    with pytest.raises(logn.InputError, match="to have no map folded into it, but it has one"):
        fold_thresholds(tmp_path / "out.onnx", given, tmp_path / "again.onnx", class_names=NAMES)


class WithObjectness(torch.nn.Module):
    """A head as YOLOX's: box, objectness and class scores in one output; its user multiplies the last two."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 8, 8)
        self.boxes, self.objectness, self.classes = (torch.nn.Conv2d(8, count, 1) for count in (4, 1, CLASSES))

    def forward(self, images):
        features = self.stem(images).relu()
        scores = [self.boxes(features), self.objectness(features).sigmoid(), self.classes(features).sigmoid()]
        return torch.cat(scores, dim=1).flatten(2).transpose(1, 2)


def test_with_an_objectness_the_scores_are_scaled_exactly(tmp_path):
    torch.manual_seed(0)
    model = WithObjectness().eval()
    with torch.no_grad():
        for layer in (model.objectness, model.classes):
            layer.weight.normal_(0, 2)
    exported(model, tmp_path / "model.onnx")
    before = onnx_outputs(tmp_path / "model.onnx")[0]
    scores = before[..., 4:5] * before[..., 5:]
    thresholds = np.quantile(scores.reshape(-1, CLASSES), 0.7, axis=0) + 1e-4
    given = dict(zip(NAMES, thresholds.tolist(), strict=True))
    done = fold_thresholds(tmp_path / "model.onnx", given, tmp_path / "out.onnx", class_names=NAMES)
    assert "objectness" in done.notes[0]
    after = onnx_outputs(tmp_path / "out.onnx")[0]
    np.testing.assert_array_equal(after[..., :5], before[..., :5])
    np.testing.assert_array_equal(after[..., 4:5] * after[..., 5:] >= AT, scores >= thresholds)
