"""Folding into exports of Ultralytics, transformers and timm models, where these are installed."""

import numpy as np
import pytest
import torch
from torch import nn

from logn.models.layer import LogitLayer
from logn.models.onnx.fold import fold_onnx
from logn.models.torch.attach import attach

CLASSES = 6


def test_ultralytics_end_to_end(exported, map_of, outputs_of, settle, tmp_path):
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
    assert report.activation == "sigmoid"
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
    ("name", "make", "background"),
    [
        ("detr", detr, -1),
        ("rtdetrv2", lambda package: dense_detr(package, "RTDetrV2"), None),
        ("dfine", lambda package: dense_detr(package, "DFine", decoder_n_points=[2, 2, 2]), None),
    ],
)
def test_transformers_detectors(exported, map_of, outputs_of, tmp_path, name, make, background):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    activation = nn.Identity() if name == "detr" else nn.Sigmoid()  # an output without activation, and scores
    model = Scores(make(transformers), activation).eval()
    images = torch.rand(1, 3, 64, 64)
    source = exported(name, model, (images,))
    affine = map_of(CLASSES, background)
    assert fold_onnx(source, affine, tmp_path / "out.onnx").largest_difference < 1e-4
    # The order of equally good queries is nobody's, so the file before the fold is what this one is held to.
    (before, boxes_before), (after, boxes) = outputs_of(source, images), outputs_of(tmp_path / "out.onnx", images)
    np.testing.assert_array_equal(boxes, boxes_before)
    before = before.astype(np.float64)
    expected = affine(before if name == "detr" else np.log(before / (1 - before)))
    np.testing.assert_allclose(after, expected if name == "detr" else 1 / (1 + np.exp(-expected)), atol=1e-4)


def test_a_distilled_transformer_has_the_mean_of_two_heads(exported, map_of, outputs_of, tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=CLASSES, img_size=32, depth=2).eval()
    images = torch.rand(1, 3, 32, 32)
    affine = map_of(CLASSES)
    fold_onnx(exported("deit", model, (images,)), affine, tmp_path / "out.onnx")
    with torch.inference_mode():
        expected = affine(model(images)).numpy()
    np.testing.assert_allclose(outputs_of(tmp_path / "out.onnx", images)[0], expected, atol=1e-4)
