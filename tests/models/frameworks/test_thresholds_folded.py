"""One threshold on a folded model decides as thresholds per class do on the plain one, on all rows."""

import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import logn
from logn.models.layer import find_modules
from logn.models.locate import locate_logits
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
    pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")
    small = runpy.run_path(str(Path(__file__).with_name("test_transformers.py")))
    model = small["build"]("ConditionalDetr", **small["detr"]("stage4", num_queries=50)).eval()
    model.config.id2label = dict(enumerate(NAMES))
    for path, parameter in model.named_parameters():
        if "query" in path and path.endswith("embeddings.weight"):  # else all queries give the same logits
            torch.nn.init.normal_(parameter, std=3)
    return model, PIXELS


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


def exported(model, path, images=PIXELS):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (images,), str(path), input_names=["images"], dynamo=False, opset_version=17)


def onnx_outputs(path, images=PIXELS):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: images.numpy()})


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
    with pytest.raises(logn.InputError, match="folded"):
        fold_thresholds(tmp_path / "out.onnx", given, tmp_path / "again.onnx", class_names=NAMES)


class WithObjectness(torch.nn.Module):
    """A head as YOLOX's: box, objectness and class scores in one output; its user multiplies the last two."""

    def __init__(self):
        super().__init__()
        self.stems = torch.nn.ModuleList(torch.nn.Conv2d(3, 8, stride, stride) for stride in (8, 16, 32))
        self.boxes, self.objectness, self.classes = (torch.nn.Conv2d(8, count, 1) for count in (4, 1, CLASSES))
        for layer in (self.objectness, self.classes):
            torch.nn.init.normal_(layer.weight, 0, 2)

    def forward(self, images):
        levels = []
        for stem in self.stems:
            features = stem(images / 255).relu()
            scores = [self.boxes(features), self.objectness(features).sigmoid(), self.classes(features).sigmoid()]
            levels.append(torch.cat(scores, dim=1).flatten(2))
        return torch.cat(levels, dim=2).transpose(1, 2)


class TestWithAnObjectness:
    """No shift is exact there: the class scores are scaled at the output."""

    @pytest.fixture
    def file(self, tmp_path):
        torch.manual_seed(0)
        exported(WithObjectness().eval(), tmp_path / "model.onnx", images=255 * PIXELS)
        return tmp_path / "model.onnx"

    def scores(self, path):
        output = onnx_outputs(path, 255 * PIXELS)[0].astype(np.float64)
        return output, output[..., 4:5] * output[..., 5:]

    def test_given_thresholds_are_exact(self, file, tmp_path):
        before, scores = self.scores(file)
        thresholds = np.quantile(scores.reshape(-1, CLASSES), 0.7, axis=0) + 1e-4
        given = dict(zip(NAMES, thresholds.tolist(), strict=True))
        done = fold_thresholds(file, given, tmp_path / "out.onnx", class_names=NAMES)
        assert "Since the model has an objectness, its class scores are scaled" in done.folded.describe()
        after, scaled = self.scores(tmp_path / "out.onnx")
        np.testing.assert_array_equal(after[..., :5], before[..., :5])
        np.testing.assert_array_equal(scaled >= AT, scores >= thresholds)
        with pytest.raises(logn.InputError, match="folded"):
            fold_thresholds(tmp_path / "out.onnx", given, tmp_path / "again.onnx", class_names=NAMES)

    @pytest.mark.parametrize("thresholds", ["f1", {"car": 0.6, "bus": 0.1, "default": 0.3}])
    def test_the_correction_goes_into_the_logits_and_the_thresholds_behind_them(
        self, file, tmp_path, thresholds, yolo_folder
    ):
        how = {"like": "yolox", "class_names": NAMES}
        data = labelled_by(logn.detector(file, **how), tmp_path, yolo_folder)
        options = {"labels": f"{data}:val", "method": "p2p:strength=0.5", **how}
        out = tmp_path / "out.onnx"
        done = logn.correct(file, tmp_path / "images" / "val", out, thresholds=thresholds, at=AT, **options)
        chosen = done.thresholds
        assert done.proof.holds
        before, _ = self.scores(file)
        logits = np.log(before[..., 5:]) - np.log1p(-before[..., 5:])
        corrected = before[..., 4:5] / (1 + np.exp(-chosen.points.correction(logits)))
        after, scaled = self.scores(out)
        np.testing.assert_allclose(after[..., :5], before[..., :5])
        clear = np.abs(corrected / chosen.points.thresholds - 1) > 1e-4
        assert clear.mean() > 0.99
        wanted = corrected >= chosen.points.thresholds
        assert 0 < wanted.mean() < 1
        np.testing.assert_array_equal((scaled >= AT)[clear], wanted[clear])


class TestModelFiles:
    thresholds, given = np.array([0.6, 0.3, 0.1, 0.3, 0.3]), {"car": 0.6, "bus": 0.1, "default": 0.3}
    odds = np.log(thresholds / (1 - thresholds))

    @pytest.fixture
    def file(self, spread, ultralytics_file):
        def save(name):
            model, _ = SIGMOIDS[name]()
            spread(model, locate_logits(model))
            return ultralytics_file(model, NAMES)

        return save

    @staticmethod
    def logits(file):
        """What Ultralytics' own reader and the model's class layers give."""
        from ultralytics import RTDETR, YOLO

        model = (RTDETR if "rtdetr" in str(file) else YOLO)(file).model.float().eval()
        return logits_of(model, locate_logits(model), PIXELS)

    @pytest.mark.parametrize("name", ["YOLOv5u", "YOLOv8", "YOLO11", "RT-DETR"])
    def test_an_ultralytics_file_takes_thresholds(self, name, file, tmp_path):
        source, out = file(name), tmp_path / "out.pt"
        done = fold_thresholds(source, self.given, out, at=AT, trust=True)
        assert done.folded.points.class_names == NAMES
        before, after = self.logits(source), self.logits(out)
        shifts = np.log(AT / (1 - AT)) - self.odds
        np.testing.assert_allclose(after, before + shifts, atol=2e-3)  # of weights in half precision
        clear = np.abs(before - self.odds) > 5e-3
        np.testing.assert_array_equal(kept(after, AT)[clear], kept(before, self.thresholds)[clear])
        with pytest.raises(logn.InputError, match="holds a correction"):
            fold_thresholds(out, self.given, tmp_path / "again.pt", trust=True)
        assert not (tmp_path / "again.pt").exists()
        with pytest.raises(logn.InputError, match="is a pickle"):
            fold_thresholds(source, self.given, tmp_path / "again.pt")

    def test_a_folded_ultralytics_file_is_recognised_wherever_it_goes(self, file, tmp_path):
        """Without the files beside it, and after Ultralytics saved it anew; training makes another model of it."""
        from ultralytics import YOLO

        fold_thresholds(file("YOLO11"), self.given, tmp_path / "out.pt", at=AT, trust=True)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (tmp_path / "out.pt").rename(elsewhere / "moved.pt")
        YOLO(elsewhere / "moved.pt").save(elsewhere / "saved.pt")
        for name in ("moved.pt", "saved.pt"):
            with pytest.raises(logn.InputError, match=f"{name}` holds a correction"):
                fold_thresholds(elsewhere / name, self.given, tmp_path / "again.pt", trust=True)

    def test_a_hugging_face_folder_takes_thresholds(self, tmp_path, spread):
        hf = pytest.importorskip("transformers", reason="the extra `frameworks` is not installed")
        model, _ = SIGMOIDS["Conditional DETR"]()
        layer = locate_logits(model)
        spread(model, layer)
        model.save_pretrained(tmp_path / "model")
        size = {"shortest_edge": 64, "longest_edge": 96}
        hf.ConditionalDetrImageProcessor(size=size).save_pretrained(tmp_path / "model")
        fold_thresholds(tmp_path / "model", self.given, tmp_path / "out", at=AT)
        again = hf.ConditionalDetrForObjectDetection.from_pretrained(tmp_path / "out").eval()
        before, after = (logits_of(network, layer, PIXELS) for network in (model, again))
        np.testing.assert_array_equal(kept(after, AT), kept(before, self.thresholds))

    def test_correction_and_thresholds_go_into_one_file(self, file, tmp_path, yolo_folder):
        source, out = file("YOLO11"), tmp_path / "out.pt"
        data = labelled_by(logn.detector(source, trust=True), tmp_path, yolo_folder)
        options = {"labels": f"{data}:val", "method": "p2p:strength=0.5", "trust": True}
        done = logn.correct(source, tmp_path / "images" / "val", out, thresholds="f1", at=AT, **options)
        chosen = done.thresholds
        assert done.output == out
        assert chosen.is_exact
        assert chosen.kept == 1.0
        assert chosen.points.correction is not None
        found = [sum(getattr(point, name) for point in chosen.points.points) for name in ("found", "found_before")]
        assert max(found) > 0
        affine = logn.ClassAffine.load(tmp_path / "out.affine.safetensors")
        assert affine == chosen.affine
        before, after = self.logits(source), self.logits(out)
        np.testing.assert_allclose(after, affine(before), atol=1e-2, rtol=1e-2)

    def test_given_thresholds_apply_to_corrected_scores(self, file, tmp_path):
        source, out = file("YOLO11"), tmp_path / "out.pt"
        images = [lambda: np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)] * 2
        options = {"at": AT, "method": "p2p:strength=0.5", "trust": True}
        logn.correct(source, images, out, thresholds=self.given, **options)
        plain = logn.correct(source, images, tmp_path / "plain.pt", **options).maps[0]
        corrected, after = plain(self.logits(source)), self.logits(out)
        clear = np.abs(corrected - self.odds) > 2e-2
        np.testing.assert_array_equal(kept(after, AT)[clear], kept(corrected, self.thresholds)[clear])


def labelled_by(detector, folder, yolo_folder):
    """A data.yaml of random pictures, whose labels are some of the model's own detections: thresholds have a task."""
    rng = np.random.default_rng(0)

    def labels_of(number, image):
        (proposals,) = detector.propose([torch.from_numpy(image).permute(2, 0, 1).float() / 255])
        labels = proposals.logits[:, -CLASSES:].argmax(axis=1)  # a background stands first
        boxes = proposals.boxes if proposals.boxes.ndim == 2 else proposals.boxes[np.arange(len(labels)), labels]
        boxes = np.clip(boxes, 0, [96, 64, 96, 64])
        inside = np.flatnonzero((boxes[:, 2:] - boxes[:, :2] > 4).all(axis=1))
        chosen = rng.choice(inside, min(6, len(inside)), replace=False)
        return labels[chosen], boxes[chosen]

    return yolo_folder(folder, NAMES, rng.integers(0, 256, (12, 64, 96, 3), dtype=np.uint8), labels_of)


def test_a_softmax_keeps_what_is_said_or_is_refused(tmp_path, spread, yolo_folder):
    """A Faster R-CNN: thresholds are chosen on its predictions, and the share of detections that stay is measured."""
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    options = {"weights": None, "weights_backbone": None, "num_classes": 6, "min_size": 64, "max_size": 96}
    model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(**options).eval()
    spread(model, locate_logits(model))
    detector = logn.detector(model, class_names=NAMES)
    data = labelled_by(detector, tmp_path, yolo_folder)
    logn.predict(detector, f"{data}:val", tmp_path / "store")
    points = logn.operating_points(tmp_path / "store", f"{data}:val", num_bootstrap=20, allow_missing_classes=True)
    assert points.activation == "softmax"
    folded = points.fold(points.common, tmp_path / "store", at_least=0.0)
    assert not folded.is_exact
    assert 0 < folded.kept <= 1
    if folded.kept < 1:
        with pytest.raises(logn.InputError, match="softmax"):
            points.affine(points.common, tmp_path / "store", at_least=folded.kept + 1e-6)
    with pytest.raises(logn.InputError, match="softmax"):
        points.affine()


def test_no_shift_follows_a_centerness(tmp_path):
    """FCOS: what multiplies the scores is seen in a run, so given thresholds are not folded as shifts."""
    pytest.importorskip("torchvision")
    (tmp_path / "fcos.py").write_text(
        "from torchvision.models.detection import fcos_resnet50_fpn\n"
        "def build():\n"
        "    options = {'weights': None, 'weights_backbone': None, 'min_size': 64, 'max_size': 96}\n"
        f"    return fcos_resnet50_fpn(num_classes={CLASSES}, **options)\n"
    )
    images = [lambda: np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)] * 2
    model, thresholds = f"{tmp_path / 'fcos.py'}:build", logn.OperatingPoints.from_thresholds(dict.fromkeys(NAMES, 0.5))
    with pytest.raises(logn.InputError, match="objectness"):
        logn.correct(model, images, thresholds=thresholds, method="none")
