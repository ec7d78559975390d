"""Folding into real exports: the corrected file gives what the PyTorch model gives with the map on its logits."""

import contextlib
import io
import os
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from logn.calibrators.class_affine import ClassAffine
from logn.deploy.attach import attach
from logn.deploy.fold import fold
from logn.deploy.onnx_fold import fold_onnx
from logn.errors import InputError
from logn.logits.layer import LogitLayer
from logn.logits.locate import locate_logits
from logn.statistics.record import record
from logn.statistics.record_onnx import record_onnx

CLASSES = 6


def map_of(classes, background=None):
    generator = np.random.default_rng(classes)
    return ClassAffine.over_foreground(
        generator.uniform(0.5, 2.0, classes - (background is not None)),
        generator.normal(0, 2, classes - (background is not None)),
        background,
        method="example",
    )


class Body(nn.Module):
    """Features of an image, and a place for a map: what the folded file has to agree with."""

    affine = None

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)

    def corrected(self, logits, axis=-1):
        return logits if self.affine is None else self.affine(logits, axis=axis)


class Classifier(Body):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images):
        return self.corrected(self.head(self.stem(images).relu().mean((2, 3))))


class Transformer(Body):
    """A DETR-style head: tokens in, a softmax with a background behind, boxes beside it."""

    def __init__(self):
        super().__init__()
        self.query, self.head, self.boxes = nn.Linear(8, 16), nn.Linear(16, CLASSES), nn.Linear(16, 4)

    def forward(self, images):
        tokens = self.query(self.stem(images).flatten(2).transpose(1, 2)).relu()
        return self.corrected(self.head(tokens)).softmax(-1), self.boxes(tokens).sigmoid()


class Dense(Body):
    """Three anchors per place."""

    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(8, 3 * CLASSES, 3, padding=1, bias=False)

    def forward(self, images):
        maps = self.head(self.stem(images).relu())
        count, _, height, width = maps.shape
        anchors = maps.view(count, 3, CLASSES, height, width).permute(0, 3, 4, 1, 2).reshape(count, -1, CLASSES)
        return self.corrected(anchors).sigmoid()


class Cosine(Body):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, 8))

    def forward(self, images):
        features = functional.normalize(self.stem(images).relu().mean((2, 3)))
        return self.corrected(20 * functional.linear(features, functional.normalize(self.weight))).softmax(-1)


class EndToEnd(Body):
    """The tail of an end-to-end YOLO: two levels, a sigmoid, then the best of all (place, class) pairs."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(8, 8, 3, 2, 1)
        self.boxes = nn.ModuleList(nn.Conv2d(8, 4, 1) for _ in range(2))
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, CLASSES, 1), nn.SiLU(), nn.Conv2d(CLASSES, CLASSES, 1)) for _ in range(2)
        )

    def forward(self, images):
        levels = [self.stem(images).relu()]
        levels.append(self.down(levels[0]).relu())
        boxes = torch.cat([layer(level).flatten(2) for layer, level in zip(self.boxes, levels, strict=True)], 2)
        logits = torch.cat([layer(level).flatten(2) for layer, level in zip(self.heads, levels, strict=True)], 2)
        joined = torch.cat([boxes, self.corrected(logits, axis=1).sigmoid()], 1).permute(0, 2, 1)
        boxes, scores = joined.split([4, CLASSES], 2)
        places = scores.amax(2).topk(10)[1].unsqueeze(2)
        boxes, scores = boxes.gather(1, places.repeat(1, 1, 4)), scores.gather(1, places.repeat(1, 1, CLASSES))
        best, flat = scores.flatten(1).topk(10)
        chosen = boxes.gather(1, (flat // CLASSES).unsqueeze(2).repeat(1, 1, 4))
        return torch.cat([chosen, best.unsqueeze(2), (flat % CLASSES).unsqueeze(2).float()], 2)


class ManyHeads(Body):
    """Several heads of different width, since the newer exporter takes long to start."""

    def __init__(self):
        super().__init__()
        self.linear, self.query, self.tokens = nn.Linear(8, 5), nn.Linear(8, 16), nn.Linear(16, 7)
        self.dense = nn.Conv2d(8, 27, 3)
        self.cosine = nn.Parameter(torch.randn(8, 8))

    def forward(self, images):
        maps = self.stem(images).relu()
        pooled = maps.mean((2, 3))
        tokens = self.query(maps.flatten(2).transpose(1, 2)).relu()
        dense = self.dense(maps)
        dense = dense.view(dense.shape[0], 3, 9, -1).permute(0, 3, 1, 2).flatten(1, 2)
        cosine = 20 * functional.linear(functional.normalize(pooled), functional.normalize(self.cosine))
        logits = {5: self.linear(pooled), 7: self.tokens(tokens), 9: dense, 8: cosine}
        if self.affine is not None:
            logits[self.affine.num_classes] = self.affine(logits[self.affine.num_classes])
        return logits[5], logits[7].softmax(-1), logits[9].sigmoid(), logits[8].softmax(-1)


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """Export a module once in a session, also when several processes run the tests; gives the path."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if os.environ.get("PYTEST_XDIST_WORKER") else root) / "onnx_exports"
    folder.mkdir(exist_ok=True)

    def export(name, model, arguments, *, dynamo=False):
        path = folder / name / "model.onnx"
        if not path.exists():
            scratch = tmp_path_factory.mktemp(name)
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
                warnings.simplefilter("ignore")
                options = {"dynamo": True} if dynamo else {"dynamo": False, "opset_version": 17}
                target = str(scratch / "model.onnx")
                torch.onnx.export(model, arguments, target, verbose=False, input_names=["images"], **options)
            with contextlib.suppress(OSError):  # another process was quicker
                os.rename(scratch, path.parent)
        return path

    return export


def build(kind):
    torch.manual_seed(0)
    return kind().eval()


def outputs_of(path, images):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: images.numpy()})


def interface(path):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [(value.name, value.type, value.shape) for value in (*session.get_inputs(), *session.get_outputs())]


def check_agreement(model, source, target, affine, images):
    """The file before and after the fold gives what torch gives without and with the map; names and shapes stay."""
    for path, map_or_none in ((source, None), (target, affine)):
        model.affine = map_or_none
        with torch.inference_mode():
            expected = model(images)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for mine, theirs in zip(expected, outputs_of(path, images), strict=True):
            np.testing.assert_allclose(theirs, mine.numpy(), atol=1e-4, rtol=1e-4)
    assert interface(source) == interface(target)


@pytest.mark.parametrize(
    ("kind", "way", "background"),
    [
        (Classifier, "weights", None),
        (Transformer, "weights", -1),
        (Dense, "weights", None),
        (Cosine, "nodes", None),
        (EndToEnd, "weights", None),
    ],
)
def test_torchscript_exports(exported, tmp_path, kind, way, background):
    model, images = build(kind), torch.rand(2, 3, 16, 16)
    source = exported(kind.__name__, model, (images,))
    affine = map_of(CLASSES, background)
    report = fold_onnx(source, affine, tmp_path / "out.onnx")
    assert report.way == way
    assert report.largest_difference < 1e-4
    check_agreement(model, source, tmp_path / "out.onnx", affine, images)


def test_an_end_to_end_tail_by_the_newer_exporter(exported, tmp_path):
    model, images = build(EndToEnd), torch.rand(1, 3, 16, 16)
    source = exported("EndToEndDynamo", model, (images,), dynamo=True)
    affine = map_of(CLASSES)
    assert fold_onnx(source, affine, tmp_path / "out.onnx").way == "weights"
    check_agreement(model, source, tmp_path / "out.onnx", affine, images)


@pytest.mark.parametrize(("head", "classes"), [("linear", 5), ("tokens", 7), ("dense", 9), ("cosine", 8)])
def test_dynamo_exports(exported, tmp_path, head, classes):
    model, images = build(ManyHeads), torch.rand(2, 3, 16, 16)
    source = exported("ManyHeads", model, (images,), dynamo=True)
    affine = map_of(classes)
    report = fold_onnx(source, affine, tmp_path / "out.onnx")
    assert report.way == "weights"  # the cosine head too: this exporter stores the normalised weight
    assert report.largest_difference < 1e-4
    check_agreement(model, source, tmp_path / "out.onnx", affine, images)
    assert (source.parent / "model.onnx.data").exists() == (tmp_path / "out.onnx.data").exists()


def settle(model, run):
    """Set batch norms to what they see: untrained, they let features and scores die out until all are equal."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        run(torch.rand(4, 3, 320, 320))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


class Pyramid(nn.Module):
    """A small backbone for torchvision's detectors."""

    out_channels = 16

    def __init__(self, levels):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(16 if level else 3, 16, 3, 2, 1) for level in range(levels))

    def forward(self, images):
        features = {}
        for level, layer in enumerate(self.layers):
            images = layer(images).relu()
            features[str(level)] = images
        return features


def faster_rcnn():
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead

    return FasterRCNN(
        Pyramid(3),
        rpn_anchor_generator=AnchorGenerator(((32, 64),) * 3, ((0.5, 1.0, 2.0),) * 3),
        box_head=TwoMLPHead(16 * 49, 32),
        box_predictor=FastRCNNPredictor(32, CLASSES),
        min_size=64,
        max_size=64,
        rpn_post_nms_top_n_test=20,
        box_score_thresh=0.0,
        box_detections_per_img=10,
    )


def ssdlite():
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    model = ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=CLASSES, score_thresh=0.0, detections_per_img=10
    )
    settle(model, lambda images: model.head(list(model.backbone(images).values())))
    return model


def retinanet():
    from torchvision.models.detection import RetinaNet
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.retinanet import RetinaNetHead

    model = RetinaNet(
        Pyramid(5),
        CLASSES,
        min_size=64,
        max_size=64,
        anchor_generator=AnchorGenerator(tuple((size,) for size in (16, 32, 64, 128, 256)), ((0.5, 1.0, 2.0),) * 5),
        head=RetinaNetHead(16, 3, CLASSES),
        score_thresh=0.0,
        detections_per_img=10,
    )
    for module in model.head.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return model


@pytest.mark.parametrize(("make", "background", "layers"), [(faster_rcnn, 0, 1), (ssdlite, 0, 6), (retinanet, None, 1)])
def test_torchvision_detectors(exported, tmp_path, make, background, layers):
    from PIL import Image

    model = build(make)
    pixels = np.random.default_rng(3).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    image = torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float() / 255
    source = exported(make.__name__, model, ([image],))
    affine = map_of(CLASSES, background)
    report = fold_onnx(source, affine, tmp_path / "out.onnx")
    assert (report.way, len(report.layers)) == ("weights", layers)
    assert report.largest_difference < 1e-4
    assert interface(source) == interface(tmp_path / "out.onnx")

    layer = locate_logits(model)
    with attach(model, layer, affine), torch.inference_mode():
        (expected,) = model([image])
    boxes, labels, scores = ordered(outputs_of(tmp_path / "out.onnx", image))
    np.testing.assert_allclose(scores, expected["scores"].numpy(), atol=1e-4)
    np.testing.assert_array_equal(labels, expected["labels"].numpy())
    np.testing.assert_allclose(boxes, expected["boxes"].numpy(), atol=1e-2)

    (tmp_path / "images").mkdir()
    Image.fromarray(pixels).save(tmp_path / "images" / "0.png")
    collected = record_onnx(source, tmp_path / "images", num_classes=CLASSES, background=background)
    with record(model, layer) as moments, torch.inference_mode():
        model([image])
    np.testing.assert_array_equal(collected.count, moments.count)
    np.testing.assert_allclose(collected.mean, moments.mean, atol=1e-4)
    np.testing.assert_allclose(collected.variance, moments.variance, rtol=1e-3, atol=1e-6)


def ordered(outputs):
    """Boxes, labels and scores, whatever order the exporter gave them."""
    boxes = next(array for array in outputs if array.ndim == 2)
    labels = next(array for array in outputs if array.dtype == np.int64)
    scores = next(array for array in outputs if array.ndim == 1 and array.dtype == np.float32)
    return boxes, labels, scores


def test_mask_rcnn_takes_the_boxes_logits_not_the_masks(exported, tmp_path):
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

    torch.manual_seed(0)
    boxes = faster_rcnn()
    model = MaskRCNN(
        boxes.backbone,
        rpn_anchor_generator=boxes.rpn.anchor_generator,
        box_head=boxes.roi_heads.box_head,
        box_predictor=boxes.roi_heads.box_predictor,
        mask_head=MaskRCNNHeads(16, (8,), 1),
        mask_predictor=MaskRCNNPredictor(8, 8, CLASSES),
        min_size=64,
        max_size=64,
        rpn_post_nms_top_n_test=10,
        box_score_thresh=0.0,
        box_detections_per_img=5,
    ).eval()
    source = exported("MaskRCNN", model, ([torch.rand(3, 64, 64)],))
    report = fold_onnx(source, map_of(CLASSES, background=0), tmp_path / "out.onnx")
    assert (report.activation, report.layers) == ("softmax", ("roi_heads.box_predictor.cls_score.weight",))
    with pytest.raises(InputError, match="several fit"):  # without a background nothing tells them apart
        fold_onnx(source, map_of(CLASSES), tmp_path / "other.onnx")


def test_ultralytics_end_to_end(exported, tmp_path):
    tasks = pytest.importorskip("ultralytics.nn.tasks")
    torch.manual_seed(0)
    model = tasks.DetectionModel("yolo26n.yaml", nc=CLASSES, verbose=False).requires_grad_(False)
    settle(model.train(), model)
    model.eval()
    head = model.model[-1]
    head.end2end, head.export, head.format = True, True, "onnx"
    images = torch.rand(1, 3, 64, 64)
    model(images)
    source = exported("yolo26", model, (images,))
    affine = map_of(CLASSES)
    report = fold_onnx(source, affine, tmp_path / "out.onnx")
    assert len(report.layers) == 3
    assert all("one2one_cv3" in name for name in report.layers)
    assert report.largest_difference < 1e-4
    paths = tuple(f"model.{len(model.model) - 1}.one2one_cv3.{level}.2" for level in range(3))
    layer = LogitLayer(paths, activation="sigmoid", class_axis=1)
    with attach(model, layer, affine), torch.inference_mode():
        expected = model(images)
    (actual,) = outputs_of(tmp_path / "out.onnx", images)
    expected = expected[0] if isinstance(expected, tuple | list) else expected
    np.testing.assert_allclose(actual, expected.numpy(), atol=1e-2, rtol=1e-3)


SMALL = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_queries": 9,
}


def backbone(transformers, stages):
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    return transformers.ResNetConfig(**sizes, out_features=[f"stage{stage}" for stage in stages])


def detr(transformers):
    config = transformers.DetrConfig(
        backbone_config=backbone(transformers, [4]),
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        num_labels=CLASSES - 1,
        **SMALL,
    )
    return transformers.DetrForObjectDetection(config)


def dense_detr(transformers, kind, **options):
    settings = {name: value for name, value in SMALL.items() if name != "encoder_layers"}
    config = getattr(transformers, f"{kind}Config")(
        backbone_config=backbone(transformers, [2, 3, 4]),
        num_labels=CLASSES,
        encoder_hidden_dim=32,
        encoder_in_channels=[8, 16, 16],
        decoder_in_channels=[32, 32, 32],
        encoder_layers=1,
        hidden_expansion=0.5,
        **options,
        **settings,
    )
    return getattr(transformers, f"{kind}ForObjectDetection")(config)


class Scores(nn.Module):
    def __init__(self, model, activation):
        super().__init__()
        self.model, self.activation = model, activation

    def forward(self, images):
        result = self.model(pixel_values=images)
        return self.activation(result.logits), result.pred_boxes


@pytest.mark.parametrize(
    ("name", "make", "way", "background"),
    [
        ("detr", detr, "weights", -1),
        ("rtdetrv2", lambda package: dense_detr(package, "RTDetrV2"), "weights", None),
        ("dfine", lambda package: dense_detr(package, "DFine", decoder_n_points=[2, 2, 2]), "nodes", None),
    ],
)
def test_transformers_detectors(exported, tmp_path, name, make, way, background):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    activation = nn.Identity() if name == "detr" else nn.Sigmoid()  # an output without activation, and scores
    model = Scores(make(transformers), activation).eval()
    images = torch.rand(1, 3, 64, 64)
    source = exported(name, model, (images,))
    affine = map_of(CLASSES, background)
    report = fold_onnx(source, affine, tmp_path / "out.onnx")
    assert report.way == way
    assert report.largest_difference < 1e-4
    # The order of equally good queries is nobody's, so the file before the fold is what this one is held to.
    (before, boxes_before), (after, boxes) = outputs_of(source, images), outputs_of(tmp_path / "out.onnx", images)
    np.testing.assert_array_equal(boxes, boxes_before)
    before = before.astype(np.float64)
    expected = affine(before if name == "detr" else np.log(before / (1 - before)))
    np.testing.assert_allclose(after, expected if name == "detr" else 1 / (1 + np.exp(-expected)), atol=1e-4)


def test_a_distilled_transformer_has_the_mean_of_two_heads(exported, tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=CLASSES, img_size=32, depth=2).eval()
    images = torch.rand(1, 3, 32, 32)
    affine = map_of(CLASSES)
    report = fold_onnx(exported("deit", model, (images,)), affine, tmp_path / "out.onnx")
    assert report.way == "nodes"
    with torch.inference_mode():
        expected = affine(model(images)).numpy()
    np.testing.assert_allclose(outputs_of(tmp_path / "out.onnx", images)[0], expected, atol=1e-4)


def test_a_model_that_was_folded_before_the_export_is_refused(exported, tmp_path):
    model, images = build(Classifier), torch.rand(2, 3, 16, 16)
    fold(model, LogitLayer("head"), map_of(CLASSES))
    source = exported("FoldedClassifier", model, (images,))
    with pytest.raises(InputError, match="was folded before the export"):
        fold_onnx(source, map_of(CLASSES), tmp_path / "out.onnx")
    assert fold_onnx(source, map_of(CLASSES), tmp_path / "out.onnx", again=True).way == "weights"
    assert onnx.load(str(tmp_path / "out.onnx")).metadata_props
